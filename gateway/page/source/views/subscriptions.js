// Subscriptions of clients and applications: their class, their price, their query.
import { useMemo, useState } from "preact/hooks";

import { listing } from "../gateway.js";
import { html } from "../html.js";
import { Failure, Head, usePolled } from "../parts.js";
import { go } from "../route.js";
import { begun, cut, shortIri } from "../terms.js";
import { clockTime, number, rich, t } from "../texts.js";

const POLL_MS = 5000;
const FEW = 100, MANY = 1000;
const CHARACTERS = 4000;

// Mean processor time of a commit that may change the result.
function price({ us }) {
    if (us === null) return "";
    const [value, unit] = us < 1000 ? [us, "µs"] : [us / 1000, "ms"];
    return t("subscriptions.price", { time: `${number(value < 10 ? Math.round(10 * value) / 10 : Math.round(value))} ${unit}` });
}

// The text on one line, with prefixes for the IRIs that have one and without their declarations.
function brief(sparql) {
    const line = sparql.replace(/\s+/g, " ").replace(/^(prefix \S+ ?<[^>]*> ?)+/i, "");
    return cut(line.replace(/<([^<>\s]*)>/g, (whole, iri) => (shortIri(iri) === iri ? whole : shortIri(iri))), 300);
}

function Item({ one }) {
    const open = () => go("query", { hash: `#${new URLSearchParams({ query: one.text })}` });
    return html`<li class="item">
        <div class="line">
            <span class=${`tag ${one.class === "re-evaluated" ? "warn" : "ok"}`}>${one.class}</span>
            <strong><bdi>${cut(one.client ?? "", 80)}</bdi></strong>
            <span class="note">${one.since ? rich("subscriptions.since", { time: html`<time datetime=${one.since}>${clockTime(one.since)}</time>` }) : null}${one.subscribers > 1 ? ` · ${t("subscriptions.shared", { count: one.subscribers })}` : null}</span>
            <span class="price note">${price(one.price)}</span>
        </div>
        ${one.reason ? html`<p class="note"><bdi>${cut(one.reason, 300)}</bdi></p>` : null}
        <details><summary><code>${brief(one.text)}</code></summary>
            <pre class="clip">${begun(one.text, one.text_characters)}</pre>${one.text_characters === undefined ? html`<button onClick=${open}>${t("subscriptions.open")}</button>` : null}</details>
    </li>`;
}

export function Subscriptions() {
    const [limit, setLimit] = useState(FEW);
    const load = useMemo(() => listing(`subscriptions?${new URLSearchParams({ limit, characters: CHARACTERS })}`), [limit]);
    const { value, error, reload } = usePolled(load, POLL_MS);
    const more = () => {
        setLimit(MANY);
        reload();
    };
    return html`<${Head} title=${t("view.subscriptions")} view="subscriptions" />
        <${Failure} error=${error} />
        ${value === null ? null : value.total === 0
            ? html`<p class="empty">${t("subscriptions.empty")}</p>`
            : html`<p class="note">${t("subscriptions.total", { count: value.total })}${value.total > value.subscriptions.length ? t("subscriptions.oldest", { count: value.subscriptions.length }) : ""}. ${t("subscriptions.classes")}</p>
            <ul class="list">${value.subscriptions.map((one) => html`<${Item} key=${one.spuid} one=${one} />`)}</ul>
            ${value.total > value.subscriptions.length && limit === FEW ? html`<p><button onClick=${more}>${t("timers.upTo", { count: MANY })}</button></p>` : null}`}`;
}
