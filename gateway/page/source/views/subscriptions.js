// Subscriptions of clients and applications: their class, their price, their query.
import { getJson } from "../gateway.js";
import { html } from "../html.js";
import { Failure, Head, usePolled } from "../parts.js";
import { go } from "../route.js";
import { clockTime, cut } from "../terms.js";

const POLL_MS = 5000;

function price(ms) {
    return ms === null || ms === undefined ? "" : `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
}

function Row({ one }) {
    const open = () => go("query", { hash: `#${new URLSearchParams({ query: one.text })}` });
    return html`<tr>
        <td><span class=${`tag ${one.class === "re-evaluated" ? "warn" : ""}`}>${one.class}</span>${one.reason ? html`<br /><small>${cut(one.reason, 200)}</small>` : null}</td>
        <td class="number">${price(one.evaluation_ms)}</td>
        <td class="number">${one.subscribers}</td>
        <td><bdi>${cut(one.client ?? "", 80)}</bdi>${one.since ? html`<br /><small>since ${clockTime(new Date(one.since))}</small>` : null}</td>
        <td class="query"><details><summary><code>${cut(one.text.replace(/\s+/g, " ").replace(/^(prefix \S+ <[^>]*> ?)+/i, ""), 160)}</code></summary>
            <pre class="clip">${cut(one.text)}</pre><button onClick=${open}>Open in Query</button></details></td>
    </tr>`;
}

export function Subscriptions() {
    const { value, error } = usePolled(() => getJson("subscriptions"), POLL_MS);
    return html`<${Head} title="Subscriptions" view="subscriptions" />
        <${Failure} error=${error} />
        ${value === null ? null : value.total === 0
            ? html`<p class="empty">Nobody is subscribed.</p>`
            : html`<p class="note">${value.total.toLocaleString("en")} in total${value.total > value.subscriptions.length ? `; the oldest ${value.subscriptions.length.toLocaleString("en")} are shown` : ""}. “re-evaluated” queries run again at each change that may affect them; all others follow the change itself.</p>
            <div class="scroll" role="region" aria-label="Subscriptions" tabindex="0"><table class="subscriptions">
                <thead><tr><th scope="col">Class</th><th scope="col">Evaluation</th><th scope="col">Shared by</th><th scope="col">Client</th><th scope="col">Query</th></tr></thead>
                <tbody>${value.subscriptions.map((one) => html`<${Row} key=${one.spuid} one=${one} />`)}</tbody>
            </table></div>`}`;
}
