// The street as a picture: posts whose lamps light as people pass, and timers that count down. What a program such as the
// demo offers to do has a button.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { listing, request, session } from "../gateway.js";
import { html } from "../html.js";
import { subscribe } from "../live.js";
import { Failure, Head, usePolled, useTick } from "../parts.js";
import { cut, localName, natural } from "../terms.js";
import { rich, t } from "../texts.js";
import { Index } from "./site.js";

const POSTS_MAX = 50;
const POLL_MS = 1000, TICK_MS = 250, CHANGED_MS = 50;
const CHARACTERS = 4000;
const ALL_ROUND = 2 * Math.PI * 13;

const DEMO = "PREFIX demo: <http://lamplighter.example/ns/demo#>\n";
const PROLOGUE = `${DEMO}PREFIX sosa: <http://www.w3.org/ns/sosa/>
PREFIX lighting: <http://lamplighter.example/ns/lighting#>
PREFIX gateway: <http://lamplighter.example/ns/gateway#>
`;
// Name -> the variable that its rows are found by, and the query.
const QUERIES = {
    posts: ["post", "SELECT ?post ?lamp WHERE { ?post lighting:hasLamp ?lamp }"],
    desired: ["lamp", "SELECT ?lamp ?state WHERE { ?lamp lighting:hasStatus ?state }"],
    reported: ["lamp", "SELECT ?lamp ?state WHERE { ?lamp gateway:reportedState ?state }"],
    acknowledged: ["lamp", "SELECT ?lamp ?state WHERE { ?actuation sosa:madeByActuator ?lamp ; sosa:hasSimpleResult ?state }"],
    presence: ["post", `SELECT ?observation ?post ?present WHERE { ?observation sosa:observedProperty lighting:presence ;
        sosa:hasFeatureOfInterest ?post ; sosa:hasSimpleResult ?present }`],
    online: ["post", "SELECT ?post ?online WHERE { ?post gateway:online ?online }"],
    brokers: ["broker", "SELECT ?broker ?connected WHERE { ?broker a gateway:Broker ; gateway:connected ?connected }"],
    offers: ["action", "SELECT ?action ?text WHERE { ?action demo:offers ?text }"],
};

export const OFFERED = "PREFIX lighting: <http://lamplighter.example/ns/lighting#> ASK { ?post lighting:hasLamp ?lamp }";

// What the view shows, kept from subscriptions.
class Street {
    constructor(changed, failed) {
        this.waiting = new Set(Object.keys(QUERIES));
        this.sorted = null;
        this.ends = Object.entries(QUERIES).map(([name, [key, sparql]]) => {
            const index = this[name] = new Index(key);
            return subscribe(PROLOGUE + sparql, (sequence, added, removed) => {
                if (sequence === 0) index.clear();
                index.apply(added.results.bindings, removed?.results.bindings ?? []);
                if (name === "posts") this.sorted = null;
                this.waiting.delete(name);
                changed(name);
            }, (error) => {
                this.waiting.delete(name);
                failed(error);
            });
        });
    }

    stop() {
        for (const end of this.ends) end();
    }

    shown() {
        this.sorted ??= Array.from(this.posts.keys()).sort(natural).slice(0, POSTS_MAX);
        return this.sorted.map((iri) => {
            const lamp = this.posts.get(iri).lamp.value, desired = this.desired.get(lamp);
            // What the lamp reports or has acknowledged; the desired state, if it has told nothing yet.
            const state = this.reported.get(lamp) ?? this.acknowledged.get(lamp) ?? desired;
            return {
                iri, lamp, lit: state?.state.value === "ON", desired: desired?.state.value ?? "OFF",
                present: this.presence.all(iri).some(({ present }) => ["true", "1"].includes(present.value)),
                offline: this.online.all(iri).some(({ online }) => online.value === "false"),
            };
        });
    }

    get cutOff() {
        return Array.from(this.brokers.keys()).some((broker) => this.brokers.get(broker).connected.value === "false");
    }
}

// The timer that decides: of those whose update names the lamp, the one that is due last.
function timerOf(lamp, loaded) {
    const name = `<${lamp}>`;
    let last = null;
    for (const timer of loaded?.delayed ?? []) {
        if (timer.in_s !== null && timer.update.includes(name) && (!last || timer.in_s > last.in_s)) last = timer;
    }
    if (!last) return null;
    const whole = (Date.parse(last.due) - Date.parse(last.set)) / 1000;
    const left = Math.max(0, last.in_s - (performance.now() - loaded.at) / 1000);
    if (left === 0) return null; // it runs, and the next answer leaves it out
    return { left: Math.ceil(left), share: whole > 0 ? Math.min(1, left / whole) : 0 };
}

function wordsOf(post, timer) {
    const broken = post.desired === "BROKEN";
    return [
        t(broken ? "street.broken" : post.lit ? "street.on" : "street.off"),
        !broken && post.lit !== (post.desired === "ON") ? t(post.desired === "ON" ? "street.toBeOn" : "street.toBeOff") : "",
        post.present ? t("street.presence") : "",
        timer ? t("street.timer", { count: timer.left }) : "",
        post.offline ? t("now.offline") : "",
    ].filter(Boolean).join(", ");
}

function Post({ post, timer }) {
    const title = cut(localName(post.iri), 40), number = /\d+$/.exec(title)?.[0] ?? title;
    const kind = ["post", post.lit ? "lit" : "", post.present ? "present" : "", post.offline ? "away" : ""].filter(Boolean).join(" ");
    return html`<li class=${kind} data-post=${number}>
        <svg viewBox="0 0 100 176" aria-hidden="true">
            <rect class="pavement" x="-1" y="146" width="102" height="8" /><rect class="road" x="-1" y="154" width="102" height="23" />
            <path class="line" d="M14 166h28M64 166h28" />
            <polygon class="light" points="57,44 75,44 100,150 32,150" fill="url(#street-light)" />
            <path class="pole" d="M34 148V50q0-12 12-12h18M29 148h10" />
            <circle class="glow" cx="66" cy="41" r="17" fill="url(#street-glow)" />
            <path class="head" d="M56 43q0-7 10-7t10 7z" />
            <path class="bulb" d="M58 43a8 6 0 0 0 16 0z" />
            ${post.desired === "BROKEN" ? html`<path class="cross" d="m58 33 16 16M74 33 58 49" />` : null}
            <circle class="sensor" cx="34" cy="96" r="4" />
            <g class="walker"><circle cx="66" cy="110" r="6.5" /><path d="M66 118v15M66 121l-8 9M66 121l8 8M66 133l-7 14M66 133l7 14" /></g>
            ${timer ? html`<g class="countdown"><circle cx="66" cy="17" r="13" class="track" />
                <circle cx="66" cy="17" r="13" class="left" transform="rotate(-90 66 17)" stroke-dasharray=${`${timer.share * ALL_ROUND} ${ALL_ROUND}`} />
                <text x="66" y="22" text-anchor="middle" class=${timer.left > 99 ? "long" : ""}>${timer.left}</text></g>` : null}
        </svg>
        <span class="number" aria-hidden="true"><bdi>${number}</bdi>${post.offline ? ` ${t("now.offline")}` : ""}</span>
        <span class="hidden">${title}: ${wordsOf(post, timer)}</span>
    </li>`;
}

function sentence(text) {
    return text.slice(0, 1).toUpperCase() + text.slice(1);
}

function Offers({ street }) {
    const [error, setError] = useState(null);
    const offers = Array.from(street.offers.keys()).sort(natural).map((action) => street.offers.get(action))
        .filter(({ action }) => action.type === "uri");
    const ask = async (action) => {
        setError(null);
        try {
            await request(session.update, { method: "POST", body: `${DEMO}INSERT DATA { [] demo:asks <${action}> }`, type: "application/sparql-update" });
        } catch (failure) {
            setError(failure);
        }
    };
    if (!offers.length) return null;
    return html`<div class="actions offers">${offers.map(({ action, text }) => html`<button key=${action.value} onClick=${() => ask(action.value)}><bdi>${sentence(cut(text.value, 80))}</bdi></button>`)}</div>
        <${Failure} error=${error} />`;
}

export function StreetView() {
    const [, changed] = useState(0);
    const [error, setError] = useState(null);
    const street = useRef(null);
    const { value: timers, error: noTimers, reload } = usePolled(useMemo(() => listing(`delayed?characters=${CHARACTERS}`), []), POLL_MS);
    useTick(TICK_MS);
    useEffect(() => {
        let timer = 0, presence = false;
        const mine = new Street((name) => {
            presence ||= name === "presence";
            timer ||= setTimeout(() => {
                if (presence) reload();
                timer = 0;
                presence = false;
                changed((n) => n + 1);
            }, CHANGED_MS);
        }, setError);
        street.current = mine;
        return () => {
            clearTimeout(timer);
            mine.stop();
        };
    }, []);
    const known = street.current, posts = known?.shown() ?? [], total = known?.posts.size ?? 0;
    return html`<${Head} title=${t("view.street")} view="street" />
        <${Failure} error=${error ?? noTimers} />
        ${known?.cutOff ? html`<p class="verdict bad" role="status"><strong>${t("street.broker")}</strong>${t("street.cutOff")}</p>` : null}
        ${posts.length ? html`
            <svg class="hidden" aria-hidden="true"><defs>
                <linearGradient id="street-light" x2="0" y2="1"><stop offset="0" stop-color="#ffd977" stop-opacity=".85" /><stop offset="1" stop-color="#ffd977" stop-opacity=".12" /></linearGradient>
                <radialGradient id="street-glow"><stop offset="0" stop-color="#fff3c4" /><stop offset="1" stop-color="#ffd977" stop-opacity="0" /></radialGradient>
            </defs></svg>
            <ul class="street" aria-label=${t("street.posts")}>${posts.map((post) => html`<${Post} key=${post.iri} post=${post} timer=${timerOf(post.lamp, timers)} />`)}</ul>
            <p class="note">${t("street.lit", { lit: posts.filter(({ lit }) => lit).length, count: posts.length })}${total > posts.length ? t("street.more", { count: total - posts.length }) : ""}.
                ${t("street.legend")}</p>
            <${Offers} street=${known} />`
            : known && !known.waiting.size ? html`<p class="empty">${rich("street.empty", { property: html`<code>lighting:hasLamp</code>` })}</p>`
            : html`<p class="note" role="status">${t("parts.loading")}</p>`}`;
}
