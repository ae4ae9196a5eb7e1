// How the gateway does: what is wrong first, then its figures.
import { getJson, session } from "../gateway.js";
import { html } from "../html.js";
import { Failure, Head, Prose, usePolled } from "../parts.js";
import { bytes, cut, duration, lasting } from "../terms.js";

const POLL_MS = 3000;

async function load() {
    const health = await getJson("health", [503]);
    const figures = session.operator ? await getJson("figures") : null;
    return { health, figures };
}

export const STATES = {
    ok: ["ok", "Everything works."],
    degraded: ["warn", "Something does not work. What remains is exact and durable."],
    refusing: ["bad", "Updates are refused."],
    damaged: ["bad", "Data was lost or damaged."],
    failed: ["bad", "failed"],
};

function stateClass(state) {
    return STATES[state]?.[0] ?? "warn";
}

export function HealthComponent({ one }) {
    const since = one.since ? Date.parse(one.since) : NaN;
    return html`<li class=${`component ${stateClass(one.state)}`}>
        <div><strong><bdi>${cut(one.name, 120)}</bdi></strong> <span class=${`tag ${stateClass(one.state)}`}>${one.state}</span>
            ${Number.isFinite(since) && one.state !== "ok" ? html` <small>${lasting(Date.now() - since)}</small>` : null}</div>
        ${one.reason ? html`<p><${Prose} text=${one.reason} /></p>` : null}
        ${one.cure ? html`<p class="cure"><${Prose} text=${one.cure} /></p>` : null}
    </li>`;
}

function Problems({ health }) {
    const components = health.components ?? [];
    if (components.length) {
        const wrong = components.filter((one) => one.state !== "ok"), well = components.filter((one) => one.state === "ok");
        return html`${wrong.length ? html`<ul class="components">${wrong.map((one) => html`<${HealthComponent} key=${one.name} one=${one} />`)}</ul>` : null}
            ${well.length ? html`<h2 class="hidden">In order</h2><ul class="well">${well.map((one) => html`<li class="tag ok" key=${one.name}><span aria-hidden="true">✓ </span><bdi>${cut(one.name, 120)}</bdi><span class="hidden"> ok</span></li>`)}</ul>` : null}`;
    }
    if (!health.problems?.length) return null;
    return html`<ul class="components">${health.problems.map((text) => html`<li class=${`component ${stateClass(health.status)}`}><p><bdi>${cut(text)}</bdi></p></li>`)}</ul>`;
}

function Figures({ title, rows }) {
    const shown = rows.filter(([, value]) => value !== undefined && value !== null && value !== "");
    if (!shown.length) return null;
    return html`<section class="figures"><h2>${title}</h2><dl>${shown.map(([name, value, bad]) => html`<div class=${bad ? "bad" : ""}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl></section>`;
}

function milliseconds(times) {
    if (!times?.count) return null;
    return `${times.average.toFixed(1)} ms on average, ${times.max.toFixed(1)} at most`;
}

function whole(number) {
    return number === undefined || number === null ? null : number.toLocaleString("en");
}

function sum(counts) {
    return Object.values(counts ?? {}).reduce((total, number) => total + number, 0);
}

function Brokers({ brokers }) {
    if (!brokers?.length) return null;
    return html`<${Figures} title="MQTT brokers" rows=${brokers.map((one) => [
        html`<bdi>${cut(one.name || one.address, 80)}</bdi>`,
        html`<bdi>${cut(one.state === "connected" ? `connected to ${one.address}` : one.text, 300)}</bdi>`,
        one.state !== "connected",
    ])} />`;
}

function Overview({ health, figures }) {
    const engine = figures?.engine ?? {};
    return html`<div class="groups">
        <${Figures} title="Gateway" rows=${[
            ["Version", engine.version],
            ["Name", health.gateway],
            ["Up for", engine.up_time_s === undefined ? null : duration(engine.up_time_s)],
            ["Clock", health.clock_trusted === undefined ? null : health.clock_trusted ? "synchronised" : "not synchronised", health.clock_trusted === false],
            ["Security", session.secure ? "TLS and tokens" : "none: this machine only"],
            ["Loop held at most", health.loop_held_ms_max === undefined ? null : `${health.loop_held_ms_max.toFixed(0)} ms`],
        ]} />
        <${Figures} title="Data" rows=${[
            ["Quads", whole(health.quads)],
            ["Newest record", whole(health.sequence)],
            ["Change log on disk", health.log ? bytes(health.log.bytes) : null],
            ["Sync to disk", milliseconds(figures?.log?.sync_ms)],
            ["Timers pending", whole(health.delayed)],
        ]} />
        <${Figures} title="Clients" rows=${[
            ["Subscriptions", whole(health.subscriptions)],
            ["of applications", whole(health.application_subscriptions)],
            ["Notifications sent", whole(figures?.websocket?.notifications)],
            ["Disconnected as too slow", whole(figures?.websocket?.disconnected), figures?.websocket?.disconnected > 0],
            ["HTTP errors", figures ? whole(sum(figures.http?.errors)) : null],
            ["Requests waiting", whole(health.queue)],
        ]} />
        <${Figures} title="Speed" rows=${[
            ["Updates", milliseconds(figures?.updates?.processing_ms)],
            ["Queries", milliseconds(figures?.queries?.store_ms)],
            ["Notifications", milliseconds(figures?.spu_manager?.processing_ms)],
            ["HTTP requests", milliseconds(figures?.http?.handling_ms)],
        ]} />
        <${Brokers} brokers=${health.brokers} />
    </div>`;
}

function flat(value, name = "") {
    if (value === null || typeof value !== "object") return [[name, value]];
    return Object.entries(value).flatMap(([key, inner]) => flat(inner, name ? `${name}.${key}` : key));
}

export function Health() {
    const { value, error } = usePolled(load, POLL_MS);
    const state = value?.health.status;
    return html`<${Head} title="Health" view="health" />
        <${Failure} error=${error} />
        ${value === null ? null : html`
            <p class=${`verdict ${stateClass(state)}`} role="status"><strong>${state}</strong> ${STATES[state]?.[1] ?? ""}</p>
            <${Problems} health=${value.health} />
            <${Overview} health=${value.health} figures=${value.figures} />
            <details class="all"><summary>All figures</summary><div class="scroll" role="region" aria-label="All figures" tabindex="0"><table>
                <thead><tr><th scope="col">Name</th><th scope="col">Value</th></tr></thead>
                <tbody>${flat({ ...value.health, ...value.figures }).map(([name, shown]) => html`<tr><td><bdi>${cut(name, 120)}</bdi></td><td><bdi>${cut(String(shown), 500)}</bdi></td></tr>`)}</tbody>
            </table></div></details>`}`;
}
