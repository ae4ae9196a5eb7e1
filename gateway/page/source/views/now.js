// What is the case now: problems first, then each room or post with its readings and actuators.
import { Component } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { Sparkline } from "../chart.js";
import { getJson, top } from "../gateway.js";
import { html } from "../html.js";
import { Failure, Head, Iri, Name, usePolled, useTick } from "../parts.js";
import { followed, go } from "../route.js";
import { isOneOfTwo, RemoteSetting, switchOver } from "../setting.js";
import { age, cut, isBoolean, lasting, isNumber, localName, numberText, text } from "../terms.js";
import { moment, rich, t } from "../texts.js";
import { HealthComponent } from "./health.js";
import { Site } from "./site.js";

const HEALTH_MS = 5000;
const ROWS_MAX = 12; // readings of a card that are shown without being asked for
const OFFLINE_MAX = 50;

function Value({ value, unit }) {
    if (isBoolean(value)) {
        const on = value.value === "true";
        return html`<span class=${`value dot ${on ? "on" : ""}`}>${t(on ? "now.yes" : "now.no")}</span>`;
    }
    if (isNumber(value)) return html`<span class="value number">${numberText(value.value)}${unit ? html`<small> <bdi>${cut(unit, 30)}</bdi></small>` : null}</span>`;
    return html`<span class="value text"><bdi>${cut(text(value), 200)}</bdi></span>`;
}

function Age({ time, problem, now }) {
    if (!time) return html`<span class="age" title=${problem || t("now.noTime")}><span aria-hidden="true">–</span><span class="hidden">${problem || t("now.noTime")}</span></span>`;
    const at = Date.parse(time.value);
    return html`<time class="age" datetime=${time.value} title=${moment(at)}>${Number.isFinite(at) ? age(Math.max(0, now - at)) : ""}</time>`;
}

// What makes a value doubtful, in one word.
function doubt(stream) {
    if (stream.offline) return t("now.offline");
    return stream.unconfirmed && !stream.nil ? t("now.unconfirmed") : "";
}

function Stream({ stream, now, alike }) {
    const line = stream.points.length > 1;
    return html`<li class=${doubt(stream) ? "row doubt" : line ? "row" : "row short"}>
        <span class="name"><bdi title=${cut(stream.property)}><${Name} text=${cut(stream.name, 80)} /></bdi>${alike ? html` <small><bdi>${cut(localName(stream.sensor), 60)}</bdi></small>` : null}</span>
        ${doubt(stream) ? html`<span class="tag warn">${doubt(stream)}</span>` : line ? html`<${Sparkline} points=${stream.points} steps=${isBoolean(stream.value)} />` : null}
        ${stream.nil ? html`<span class="value text">${rich("now.noValue", { reason: html`<bdi>${cut(stream.nil, 60)}</bdi>` })}</span>` : html`<${Value} value=${stream.value} unit=${stream.unit} />`}
        <${Age} time=${stream.time} problem=${stream.problem} now=${now} />
    </li>`;
}

function stateText(term) {
    return cut(text(term), 60);
}

// The name of an actuator, which leads to the explanation of its state.
function Why({ iri, label }) {
    const hash = `#${new URLSearchParams({ actuation: iri })}`;
    const click = (event) => {
        if (!followed(event)) return;
        event.preventDefault();
        go("explain", { hash });
    };
    return html`<a href=${`${top}page/explain${hash}`} title=${cut(iri)} onClick=${click}><bdi><${Name} text=${cut(label, 80)} /></bdi><span class="hidden">${t("now.why")}</span></a>`;
}

// The desired state, or the one that is reported, and what sets it: a switch where there are two, else a field on demand.
function State({ one, shown, on, kind, open, setOpen, failed }) {
    const [busy, setBusy] = useState(false);
    const words = shown ? html`<bdi>${stateText(shown)}</bdi>` : t("now.none");
    if (!one.path) return html`<span class=${`value ${kind} ${on ? "on" : ""}`}>${words}</span>`;
    const press = async () => {
        setBusy(true);
        failed(null);
        try {
            await switchOver(one, shown.value);
        } catch (error) {
            failed(error);
        }
        setBusy(false);
    };
    return kind
        ? html`<button class=${`value ${kind} ${on ? "on" : ""}`} role="switch" aria-checked=${/^(on|true|open|unlocked)$/i.test(shown.value)} aria-label=${t("now.switch", { name: one.label })} disabled=${busy} onClick=${press}>${words}</button>`
        : html`<button class="value" aria-expanded=${open} aria-label=${t("now.set", { name: one.label, state: shown ? stateText(shown) : t("now.none") })} onClick=${() => setOpen(!open)}>${words}</button>`;
}

function Actuator({ one, now }) {
    const [open, setOpen] = useState(false), [error, failed] = useState(null);
    const state = one.reported ?? one.acknowledged;
    const shown = one.desired ?? state;
    const kind = shown && isOneOfTwo(shown.value) ? "switch" : "";
    // It is drawn as on only if it is, as far as the gateway knows.
    const on = !one.refused && /^(on|true|open|unlocked)$/i.test((state ?? shown)?.value ?? "");
    return html`<li class="row actuator">
        <span class="name">${one.desired ? html`<${Why} iri=${one.iri} label=${one.label} />` : html`<bdi title=${cut(one.iri)}><${Name} text=${cut(one.label, 80)} /></bdi>`}</span>
        <span class="states">${one.refused ? html`<span class="tag bad" title=${cut(one.refused)}>${t("now.refused")}</span>`
            : one.offline ? html`<span class="tag warn">${t("now.offline")}</span>`
            : one.differs ? html`<span class="tag warn">${rich(one.unconfirmed ? "now.reportsUnconfirmed" : one.reported ? "now.reports" : "now.confirms", { state: html`<bdi>${stateText(state)}</bdi>` })}</span>`
            : one.unconfirmed ? html`<span class="tag warn">${t("now.unconfirmed")}</span>`
            : one.reported ? html`<span class="note">${t("now.reported")}</span>`
            : one.acknowledged ? html`<span class="note">${t("now.confirmed")}</span>`
            : html`<span class="note">${t("now.notConfirmed")}</span>`}</span>
        <${State} one=${one} shown=${shown} on=${on} kind=${kind} open=${open} setOpen=${setOpen} failed=${failed} />
        <${Age} time=${one.time} problem=${one.desired ? " " : t("now.noWish")} now=${now} />
    </li>
    ${open ? html`<li class="setting"><${RemoteSetting} actuator=${one} done=${() => setOpen(false)} /></li>` : null}
    ${error ? html`<li><${Failure} error=${error} /></li>` : null}
    ${one.refused ? html`<li class="why"><bdi>${cut(one.refused, 300)}</bdi></li>` : null}`;
}

// All that a card shows, as text: a card is drawn again only when that changes, as a site may have a thousand.
function shownOf(card, now) {
    const when = (time) => (time ? age(Math.max(0, now - Date.parse(time.value))) : "");
    const parts = [card.title, card.area];
    for (const one of card.streams) parts.push(one.about, one.name, one.value?.value, one.unit, one.problem, one.nil, doubt(one), when(one.time), one.points.length, one.points.at(-1)?.[0]);
    for (const one of card.actuators) {
        parts.push(one.iri, one.path, one.label, one.desired?.value, one.reported?.value, one.acknowledged?.value, one.refused, one.offline, one.unconfirmed, when(one.time));
    }
    return parts.join("\n");
}

class Feature extends Component {
    shouldComponentUpdate({ shown }) {
        return shown !== this.props.shown;
    }

    render({ card, now, wanted }) {
        return html`<${Card} card=${card} now=${now} wanted=${wanted} />`;
    }
}

// A card of many readings has those that are in doubt first, and the others when they are asked for.
function Card({ card, now, wanted }) {
    const [asked, setAsked] = useState(false), all = asked || wanted;
    const names = card.streams.map((stream) => stream.name);
    const first = all || card.streams.length <= ROWS_MAX ? card.streams
        : [...card.streams].sort((a, b) => b.offline - a.offline).slice(0, ROWS_MAX);
    return html`<section class=${card.trouble ? "card trouble" : "card"} aria-label=${cut(card.title, 120)}>
        <h2>${card.iri ? html`<${Iri} iri=${card.iri} label=${cut(card.title, 120)} />` : html`<bdi>${cut(card.title, 120)}</bdi>`}${card.area ? html` <small><bdi>${cut(card.area, 60)}</bdi></small>` : null}</h2>
        <ul>
            ${first.map((stream) => html`<${Stream} key=${stream.about} stream=${stream} now=${now}
                alike=${names.indexOf(stream.name) !== names.lastIndexOf(stream.name)} />`)}
            ${card.streams.length > ROWS_MAX ? html`<li><button class="more" aria-expanded=${all} onClick=${() => setAsked(!asked)}>${all ? t("now.first", { count: ROWS_MAX }) : t("now.all", { count: card.streams.length })}</button></li>` : null}
            ${card.actuators.map((one) => html`<${Actuator} key=${one.iri} one=${one} now=${now} />`)}
        </ul>
    </section>`;
}

function Problems({ health, offline, now }) {
    // Offline devices have a list of their own, with links.
    const listed = (name) => offline.length > 0 && (name === "devices" || offline.some(({ iri }) => iri.endsWith(`/${name}`)
        || iri.endsWith(name.replace("device/", "/"))));
    const wrong = (health?.components ?? []).filter((one) => one.state !== "ok" && !listed(one.name));
    const told = health?.components ? [] : health?.problems ?? [];
    const problems = wrong.length + told.length, [chosen, setChosen] = useState(null);
    if (!problems && !offline.length) return null;
    const counts = [
        problems ? t("now.problems", { count: problems }) : "",
        offline.length ? t("now.away", { count: offline.length }) : "",
    ].filter(Boolean).join(", ");
    // Many would push the readings off a phone.
    const few = problems + Math.min(offline.length, 1) <= 2;
    const toggle = ({ currentTarget: { open } }) => setChosen(open === few ? null : open);
    return html`<section class="problems" aria-label=${t("now.problemsTitle")}><details open=${chosen ?? few} onToggle=${toggle}>
        <summary><strong>${counts}</strong>${wrong.length ? html` <small><bdi>${cut(wrong.map((one) => one.name).join(", "), 120)}</bdi></small>` : null}</summary>
        ${problems ? html`<ul class="components">
            ${wrong.map((one) => html`<${HealthComponent} key=${one.name} one=${one} />`)}
            ${told.map((problem) => html`<li class=${`component ${health.status === "degraded" ? "warn" : "bad"}`}><p><bdi>${cut(problem)}</bdi></p></li>`)}
        </ul>` : null}
        ${offline.length ? html`<div class="component warn"><ul class="offline">
            ${offline.slice(0, OFFLINE_MAX).map(({ iri, label, seen, reason }) => html`<li key=${iri}>
                <${Iri} iri=${iri} label=${label ? cut(label, 120) : undefined} />${seen ? html` <small>${lasting(now - Date.parse(seen))}</small>` : null}${reason ? html` <small><bdi>${cut(reason, 200)}</bdi></small>` : null}
            </li>`)}
            ${offline.length > OFFLINE_MAX ? html`<li><small>${t("now.andMore", { count: offline.length - OFFLINE_MAX })}</small></li>` : null}
        </ul></div>` : null}
    </details></section>`;
}

function Empty() {
    const click = (event) => {
        event.preventDefault();
        go("query");
    };
    return html`<div class="empty"><p>${t("now.empty")}</p>
        <p>${rich("now.emptyHow", {
            settings: html`<code>lamplighter.toml</code>`, mapping: html`<code>mapping/</code>`, devices: html`<code>lamplighter devices</code>`,
            query: html`<a href="query" onClick=${click}>${t("now.queried")}</a>`,
        })}</p></div>`;
}

function matches(card, wanted) {
    const words = [card.title, card.iri, card.area, ...card.streams.flatMap((one) => [one.name, one.property]), ...card.actuators.map((one) => one.label)];
    return words.some((word) => word.toLowerCase().includes(wanted));
}

export function Now() {
    const [, changed] = useState(0);
    const [failures, setFailures] = useState([]);
    const [wanted, setWanted] = useState("");
    const site = useRef(null);
    useTick(1000);
    const { value: health, error } = usePolled(() => getJson("health", [503]), HEALTH_MS);
    useEffect(() => {
        const mine = new Site(() => changed((n) => n + 1), (name, failure) => setFailures((all) => [...all, failure]));
        site.current = mine;
        mine.start();
        return () => mine.stop();
    }, []);
    const now = Date.now(), known = site.current;
    const cards = known ? known.features() : [];
    const shown = wanted ? cards.filter((card) => matches(card, wanted.toLowerCase())) : cards;
    return html`<${Head} title=${t("view.now")} view="now">
            ${cards.length > 8 ? html`<input type="search" placeholder=${t("now.filter")} aria-label=${t("now.filter")} value=${wanted} onInput=${(event) => setWanted(event.currentTarget.value)} />` : null}
        <//>
        <${Failure} error=${error} />
        ${failures.map((failure) => html`<${Failure} error=${failure} />`)}
        <${Problems} health=${health} offline=${known?.offline() ?? []} now=${now} />
        ${cards.length ? html`<div class="cards">${shown.map((card) => html`<${Feature} key=${card.iri} card=${card} now=${now} wanted=${wanted !== ""} shown=${`${wanted !== ""} ${shownOf(card, now)}`} />`)}</div>`
            : known?.loaded ? html`<${Empty} />` : html`<p class="note" role="status">${t("parts.loading")}</p>`}`;
}
