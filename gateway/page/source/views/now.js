// What is the case now: problems first, then each room or post with its readings and actuators.
import { Component } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { Sparkline } from "../chart.js";
import { Asking } from "../asking.js";
import { arranged, inOrder, keepArranged, moved } from "../arranged.js";
import { getJson, session } from "../gateway.js";
import { html } from "../html.js";
import { canBeNamed, rename } from "../naming.js";
import { Failure, Head, Iri, Link, Name, usePolled, useTick } from "../parts.js";
import { isColour, isOneOfTwo, isSlider, RemoteSetting, Setting, switchOver, usePart } from "../setting.js";
import { PREFIXES, age, cut, isBoolean, lasting, isNumber, localName, numberText, text } from "../terms.js";
import { moment, rich, t } from "../texts.js";
import { HealthComponent } from "./health.js";
import { Site } from "./site.js";

const HEALTH_MS = 5000;
const ROWS_MAX = 12; // readings of a card that are shown without being asked for
const OFFLINE_MAX = 50;
const COLOUR = `${PREFIXES.gateway}color`;

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
        <span class="name"><${InView} view="history" hash=${`#${new URLSearchParams({ iri: stream.stream })}`} title=${cut(stream.property)} label=${stream.name} more=${t("now.history")} />${alike ? html` <small><bdi>${cut(localName(stream.sensor), 60)}</bdi></small>` : null}</span>
        ${doubt(stream) ? html`<span class="tag warn">${doubt(stream)}</span>` : line ? html`<${Sparkline} points=${stream.points} steps=${isBoolean(stream.value)} />` : null}
        ${stream.nil ? html`<span class="value text">${rich("now.noValue", { reason: html`<bdi>${cut(stream.nil, 60)}</bdi>` })}</span>` : html`<${Value} value=${stream.value} unit=${stream.unit} />`}
        <${Age} time=${stream.time} problem=${stream.problem} now=${now} />
    </li>`;
}

function stateText(term) {
    if (isBoolean(term)) return t(term.value === "true" ? "now.on" : "now.off");
    return isNumber(term) ? numberText(term.value) : cut(text(term), 60);
}

// A name that leads to another view. more: what is there, for screen readers.
function InView({ view, hash, title, label, more }) {
    return html`<${Link} view=${view} hash=${hash} title=${title} label=${more && `${cut(label, 80)}${more}`}><bdi><${Name} text=${cut(label, 80)} /></bdi><//>`;
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
    const row = useRef(null), part = usePart(row, one, !kind && (!shown || isNumber(shown) || one.property === COLOUR));
    const control = part && (isSlider(part) || isColour(part));
    return html`<li class="row actuator" ref=${row}>
        <span class="name">${one.desired && session.operator
            ? html`<${InView} view="explain" hash=${`#${new URLSearchParams({ actuation: one.iri })}`} title=${cut(one.iri)} label=${one.label} more=${t("now.why")} />`
            : html`<${InView} view="history" hash=${`#${new URLSearchParams({ iri: one.iri })}`} title=${cut(one.iri)} label=${one.label} more=${t("now.history")} />`}</span>
        <span class="states">${one.refused ? html`<span class="tag bad" title=${cut(one.refused)}>${t("now.refused")}</span>`
            : one.offline ? html`<span class="tag warn">${t("now.offline")}</span>`
            : one.differs ? html`<span class="tag warn">${rich(one.unconfirmed ? "now.reportsUnconfirmed" : one.reported ? "now.reports" : "now.confirms", { state: html`<bdi>${stateText(state)}</bdi>` })}</span>`
            : one.unconfirmed ? html`<span class="tag warn">${t("now.unconfirmed")}</span>`
            : one.reported ? html`<span class="note">${t("now.reported")}</span>`
            : one.acknowledged ? html`<span class="note">${t("now.confirmed")}</span>`
            : html`<span class="note">${t("now.notConfirmed")}</span>`}</span>
        <${State} one=${control ? { ...one, path: "" } : one} shown=${shown} on=${on} kind=${kind} open=${open} setOpen=${setOpen} failed=${failed} />
        <${Age} time=${one.time} problem=${one.desired ? " " : t("now.noWish")} now=${now} />
    </li>
    ${control ? html`<li class="setting"><${Setting} path=${one.path} one=${{ ...part, label: one.label, desired: shown?.value, reported: undefined }} done=${() => {}} /></li>`
        : open ? html`<li class="setting"><${RemoteSetting} actuator=${one} done=${() => setOpen(false)} /></li>` : null}
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

    render({ card, now, wanted, arrange }) {
        return html`<${Card} card=${card} now=${now} wanted=${wanted} arrange=${arrange} />`;
    }
}

// What arranges a card: its place, its name, whether it is shown.
function Arranging({ card, arrange }) {
    const title = cut(card.title, 80);
    return html`<div class="actions arranging">
        <button onClick=${() => arrange.move(card, -1)} aria-label=${t("now.earlierOf", { name: title })}><span aria-hidden="true">↑</span></button>
        <button onClick=${() => arrange.move(card, 1)} aria-label=${t("now.laterOf", { name: title })}><span aria-hidden="true">↓</span></button>
        ${canBeNamed(card.iri) ? html`<button onClick=${() => arrange.rename(card)} aria-label=${t("devices.renameOf", { name: title })}>${t("devices.renameButton")}</button>` : null}
        <button onClick=${() => arrange.hide(card, true)} aria-label=${t("now.hideOf", { name: title })}>${t("now.hide")}</button>
    </div>`;
}

// A card of many readings has those that are in doubt first, and the others when they are asked for.
function Card({ card, now, wanted, arrange }) {
    const [asked, setAsked] = useState(false), all = asked || wanted;
    const names = card.streams.map((stream) => stream.name);
    const first = all || card.streams.length <= ROWS_MAX ? card.streams
        : [...card.streams].sort((a, b) => b.offline - a.offline).slice(0, ROWS_MAX);
    return html`<section class=${card.trouble ? "card trouble" : "card"} aria-label=${cut(card.title, 120)}>
        <h2>${card.iri ? html`<${Iri} iri=${card.iri} label=${cut(card.title, 120)} />` : html`<bdi>${cut(card.title, 120)}</bdi>`}${card.area ? html` <small><bdi>${cut(card.area, 60)}</bdi></small>` : null}</h2>
        ${arrange ? html`<${Arranging} card=${card} arrange=${arrange} />` : null}
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
            ${offline.slice(0, OFFLINE_MAX).map((one) => html`<${Offline} key=${one.iri} one=${one} now=${now} />`)}
            ${offline.length > OFFLINE_MAX ? html`<li><small>${t("now.andMore", { count: offline.length - OFFLINE_MAX })}</small></li>` : null}
        </ul></div>` : null}
    </details></section>`;
}

// A device that is away; it leads to what is known of it.
function Offline({ one: { iri, label, seen, reason }, now }) {
    const below = `${session.base}device/`, shown = label ? cut(label, 120) : undefined;
    return html`<li>
        ${session.operator && iri.startsWith(below) ? html`<${InView} view="devices" hash=${`#${new URLSearchParams({ device: iri.slice(below.length) })}`} title=${cut(iri)} label=${shown ?? localName(iri)} />` : html`<${Iri} iri=${iri} label=${shown} />`}
        ${seen ? html` <small>${lasting(now - Date.parse(seen))}</small>` : null}${reason ? html` <small><bdi>${cut(reason, 200)}</bdi></small>` : null}
    </li>`;
}

function Empty() {
    const link = (view, text) => html`<${Link} view=${view}>${text}<//>`;
    return html`<div class="empty"><p>${t("now.empty")}</p>
        <p>${rich("now.emptyHow", {
            settings: html`<code>lamplighter.toml</code>`, mapping: html`<code>mapping/</code>`,
            devices: link("devices", t("now.devices")), query: link("query", t("now.queried")),
        })}</p></div>`;
}

function matches(card, wanted) {
    const words = [card.title, card.iri, card.area, ...card.streams.flatMap((one) => [one.name, one.property]), ...card.actuators.map((one) => one.label)];
    return words.some((word) => word.toLowerCase().includes(wanted));
}

// The cards that are hidden; each can be shown again.
function Hidden({ cards, arrange }) {
    if (!cards.length) return null;
    return html`<details class="hiddenCards"><summary>${t("now.hiddenCards", { count: cards.length })}</summary><ul>
        ${cards.map((card) => html`<li key=${card.iri}><bdi>${cut(card.title, 120)}</bdi> <button onClick=${() => arrange.hide(card, false)} aria-label=${t("now.showOf", { name: cut(card.title, 80) })}>${t("now.show")}</button></li>`)}
    </ul></details>`;
}

// What a person does to the cards. deviceOf(card): the adopted device that it belongs to, or "".
function useArranging(shown, deviceOf) {
    const [kept, setKept] = useState(arranged), [on, setOn] = useState(false), [renamed, setRenamed] = useState(null);
    const current = useRef(shown);
    current.current = shown;
    const keep = (next) => {
        keepArranged(next);
        setKept(next);
    };
    const arrange = {
        move: ({ iri }, by) => keep({ ...kept, order: moved(inOrder(current.current, kept.order).filter((one) => !kept.hidden.includes(one.iri)), iri, by) }),
        hide: ({ iri }, hidden) => keep({ ...kept, hidden: hidden ? [...kept.hidden, iri] : kept.hidden.filter((one) => one !== iri) }),
        rename: setRenamed,
    };
    const asking = renamed ? html`<${Asking} title=${rich("devices.renameTitle", { name: html`<bdi>${cut(renamed.title, 80)}</bdi>` })} action=${t("devices.rename")}
        fields=${[{ name: "name", label: t("devices.name"), value: renamed.title }]}
        done=${({ name }) => rename(renamed.iri, deviceOf(renamed), name)} close=${() => setRenamed(null)} />` : null;
    return { kept, on, setOn, arrange, asking };
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
    const { kept, on, setOn, arrange, asking } = useArranging(cards, (card) => known.deviceOf(card));
    const placed = inOrder(cards, kept.order), visible = placed.filter((card) => !kept.hidden.includes(card.iri));
    const shown = wanted ? placed.filter((card) => matches(card, wanted.toLowerCase())) : visible;
    const order = on ? `${kept.order.join()} ${kept.hidden.join()}` : "";
    return html`<${Head} title=${t("view.now")} view="now">
            ${cards.length > 8 ? html`<input type="search" placeholder=${t("now.filter")} aria-label=${t("now.filter")} value=${wanted} onInput=${(event) => setWanted(event.currentTarget.value)} />` : null}
            ${cards.length ? html`<button class="quiet" aria-pressed=${on} onClick=${() => setOn(!on)}>${t(on ? "now.arranged" : "now.arrange")}</button>` : null}
        <//>
        <${Failure} error=${error} />
        ${failures.map((failure) => html`<${Failure} error=${failure} />`)}
        <${Problems} health=${health} offline=${known?.offline() ?? []} now=${now} />
        ${cards.length ? html`<div class="cards">${shown.map((card) => html`<${Feature} key=${card.iri} card=${card} now=${now} wanted=${wanted !== ""} arrange=${on ? arrange : null} shown=${`${wanted !== ""} ${on} ${order} ${shownOf(card, now)}`} />`)}</div>
            <${Hidden} cards=${placed.filter((card) => kept.hidden.includes(card.iri))} arrange=${arrange} />${asking}`
            : known?.loaded ? html`<${Empty} />` : html`<p class="note" role="status">${t("parts.loading")}</p>`}`;
}
