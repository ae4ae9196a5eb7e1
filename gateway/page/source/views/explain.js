// Why an actuator was switched: the chain from the reading or the client to the acknowledgement.
import { useEffect, useState } from "preact/hooks";

import { getJson, query } from "../gateway.js";
import { html } from "../html.js";
import { Failure, Head, Link, Written, usePolled } from "../parts.js";
import { followed, go } from "../route.js";
import { PREFIXES, cut, localName, ntriples, text } from "../terms.js";
import { clockTime, moment, number, preciseTime, t } from "../texts.js";

const LAST = 50, POLL_MS = 5000;

// Lines in a box of 24 by 24 for each kind of link.
const ICONS = {
    reading: "M12 15a4 4 0 1 0 0-8 4 4 0 0 0 0 8M12 15v6M4.5 4.5a10 10 0 0 0 0 13M19.5 4.5a10 10 0 0 1 0 13",
    query: "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13M15.5 15.5 21 21",
    update: "M4 20h4L20 8l-4-4L4 16zM13 7l4 4",
    delay: "M12 21a8 8 0 1 0 0-16 8 8 0 0 0 0 16M12 9v4l2.5 2M9.5 2.5h5",
    notification: "M6 16V11a6 6 0 0 1 12 0v5l2 2H4zM10 21h4",
    rule: "M6 3h9l4 4v14H6zM9 11h7M9 15h7",
    request: "M3 12h16M13 6l6 6-6 6",
    acknowledgement: "m4 13 5 5L20 6",
    report: "M21 12H5M11 6l-6 6 6 6",
    refusal: "M5 5l14 14M19 5 5 19",
    waiting: "M6 3h12M6 21h12M7 3c0 6 10 6 10 18M17 3c0 6-10 6-10 18",
};

function chosenByAddress() {
    const members = new URLSearchParams(location.hash.slice(1));
    return { actuation: members.get("actuation") ?? "", at: members.get("at") ?? "" };
}

// The address of the explanation of an actuator's newest outcome, or of the newest one up to a time.
function addressOf({ actuation, at }) {
    return `#${new URLSearchParams(at ? { actuation, at } : { actuation })}`;
}

function later(seconds) {
    if (seconds < 1) return `+${number(Math.round(10_000 * seconds) / 10)} ms`;
    return seconds < 120 ? `+${number(Math.round(10 * seconds) / 10)} s` : `+${Math.round(seconds / 60)} min`;
}

function Step({ one }) {
    const end = { acknowledgement: "ok", refusal: "bad", waiting: "warn" }[one.link] ?? "";
    const toLog = (event) => {
        if (!followed(event)) return;
        event.preventDefault();
        go("log", { hash: `#${new URLSearchParams({ at: one.record })}` });
    };
    return html`<li class=${`link ${end}`}>
        <span class="after">${one.after_s === undefined ? "" : html`<span class="hidden">${t("explain.after")}</span>${later(one.after_s)}`}</span>
        <svg viewBox="0 0 24 24" aria-hidden="true"><path d=${ICONS[one.link] ?? ICONS.update} /></svg>
        <div class="said">
            <p><strong>${Object.hasOwn(ICONS, one.link) ? t(`explain.${one.link}`) : one.link}</strong> ${one.time ? html`<time datetime=${one.time} title=${moment(one.time)}>${preciseTime(one.time)}</time>` : html`<span class="note">${t("explain.noTime")}</span>`}
                ${one.record ? html` <a href=${`log#at=${one.record}`} onClick=${toLog}>${t("explain.record", { record: one.record })}</a>` : null}</p>
            <p><bdi>${cut(one.said, 500)}</bdi></p>
        </div>
    </li>`;
}

function useChain({ actuation, at }) {
    const [chain, setChain] = useState({ value: null, error: null });
    useEffect(() => {
        let over = false;
        setChain({ value: null, error: null });
        if (!actuation) return undefined;
        const search = new URLSearchParams(at ? { actuation, at } : { actuation });
        getJson(`explain?${search}`).then(
            (value) => over || setChain({ value, error: null }),
            (error) => over || setChain({ value: null, error }),
        );
        return () => {
            over = true;
        };
    }, [actuation, at]);
    return chain;
}

function name(actuator) {
    const term = ntriples(actuator);
    return term ? localName(term.value) : actuator;
}

// The newest outcomes, with the labels of their actuators.
async function load() {
    const { outcomes } = await getJson(`explain?last=${LAST}`);
    const named = Array.from(new Set(outcomes.map((one) => one.actuator))).filter((actuator) => ntriples(actuator)?.type === "uri");
    const labels = new Map();
    if (named.length) {
        const { result } = await query(`SELECT ?it ?label { VALUES ?it { ${named.join(" ")} } ?it <${PREFIXES.rdfs}label> ?label }`);
        for (const { it, label } of result.results.bindings) labels.set(`<${it.value}>`, label.value);
    }
    return { outcomes, labels };
}

function Outcome({ one, label, current, choose }) {
    const asked = { actuation: one.actuation, at: one.time };
    const click = (event) => {
        if (!followed(event)) return;
        event.preventDefault();
        choose(asked);
    };
    const state = one.state === undefined ? null : ntriples(one.state);
    return html`<li><a href=${addressOf(asked)} aria-current=${current ? "true" : null} onClick=${click}>
        <strong><bdi title=${cut(one.actuator)}>${cut(label, 80)}</bdi></strong>
        <span class=${`tag ${one.refused ? "bad" : "ok"}`}>${one.refused ? t("explain.refused") : html`<bdi>${cut(state ? text(state) : one.state ?? "", 40)}</bdi>`}</span>
        <time datetime=${one.time} title=${moment(one.time)}>${clockTime(one.time)}</time>
    </a></li>`;
}

export function Explain() {
    const [chosen, setChosen] = useState(chosenByAddress);
    const { value, error } = usePolled(load, POLL_MS);
    useEffect(() => {
        const moved = () => setChosen(chosenByAddress());
        addEventListener("hashchange", moved);
        return () => removeEventListener("hashchange", moved);
    }, []);
    const choose = (asked) => {
        history.replaceState(null, "", addressOf(asked));
        setChosen(asked);
    };
    const outcomes = value?.outcomes ?? [];
    const newest = outcomes[0];
    const shown = chosen.actuation || !newest ? chosen : { actuation: newest.actuation, at: newest.time };
    const chain = useChain(shown);
    const search = shown.actuation ? addressOf(shown).slice(1) : "";
    const state = chain.value?.state;
    const nameOf = (actuator) => value?.labels.get(actuator) ?? name(actuator);
    return html`<${Head} title=${t("view.explain")} view="explain" search=${search} />
        <${Failure} error=${error} />
        ${value !== null && !outcomes.length && !chosen.actuation ? html`<p class="empty">${t("explain.empty")}</p>` : html`
        <div class="explained">
            <section aria-labelledby="chain-title">
                ${chain.value ? html`<h2 id="chain-title"><bdi title=${cut(chain.value.actuator)}>${cut(nameOf(chain.value.actuator), 80)}</bdi>${state ? html`: <${Written} term=${state} />` : null}</h2>
                    <p class="actions"><${Link} view="history" hash=${`#${new URLSearchParams({ iri: ntriples(chain.value.actuator)?.value ?? "" })}`}>${t("view.history")}<//></p>
                    <ol class="chain">${chain.value.links.map((one) => html`<${Step} one=${one} />`)}</ol>`
                : chain.error ? null : html`<p class="note" role="status">${t("parts.loading")}</p>`}
                <${Failure} error=${chain.error?.message === error?.message ? null : chain.error} />
            </section>
            ${outcomes.length ? html`<section aria-labelledby="outcomes-title"><h2 id="outcomes-title">${t("explain.newest")}</h2>
                <ul class="outcomes">${outcomes.map((one) => html`<${Outcome} key=${`${one.record} ${one.actuation}`} one=${one} label=${nameOf(one.actuator)} current=${one.actuation === shown.actuation && one.time === shown.at} choose=${choose} />`)}</ul></section>` : null}
        </div>`}`;
}
