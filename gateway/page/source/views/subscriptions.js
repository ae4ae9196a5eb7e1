// Subscriptions of clients and applications: their class, their price, their query.
import { useMemo, useState } from "preact/hooks";

import { listing } from "../gateway.js";
import { html } from "../html.js";
import { Failure, Head, usePolled } from "../parts.js";
import { go } from "../route.js";
import { begun, clockTime, cut, shortIri } from "../terms.js";

const POLL_MS = 5000;
const FEW = 100, MANY = 1000;
const CHARACTERS = 4000;

// Mean processor time of a commit that may change the result.
function price({ us }) {
    if (us === null) return "";
    const [value, unit] = us < 1000 ? [us, "µs"] : [us / 1000, "ms"];
    return `${value.toFixed(value < 10 ? 1 : 0)} ${unit} a commit`;
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
            <span class="note">${one.since ? html`since <time datetime=${one.since}>${clockTime(new Date(one.since))}</time>` : null}${one.subscribers > 1 ? ` · shared by ${one.subscribers}` : null}</span>
            <span class="price note">${price(one.price)}</span>
        </div>
        ${one.reason ? html`<p class="note"><bdi>${cut(one.reason, 300)}</bdi></p>` : null}
        <details><summary><code>${brief(one.text)}</code></summary>
            <pre class="clip">${begun(one.text, one.text_characters)}</pre>${one.text_characters === undefined ? html`<button onClick=${open}>Open in Query</button>` : null}</details>
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
    return html`<${Head} title="Subscriptions" view="subscriptions" />
        <${Failure} error=${error} />
        ${value === null ? null : value.total === 0
            ? html`<p class="empty">Nobody is subscribed. A program that subscribes, an application, or this page itself appears here.</p>`
            : html`<p class="note">${value.total.toLocaleString("en")} in total${value.total > value.subscriptions.length ? `; the oldest ${value.subscriptions.length.toLocaleString("en")} are shown` : ""}. Queries of the class “re-evaluated” run again at each change that may affect them; all others follow the change itself.</p>
            <ul class="list">${value.subscriptions.map((one) => html`<${Item} key=${one.spuid} one=${one} />`)}</ul>
            ${value.total > value.subscriptions.length && limit === FEW ? html`<p><button onClick=${more}>Show up to ${MANY.toLocaleString("en")}</button></p>` : null}`}`;
}
