// How the gateway does: what is wrong first, then its figures.
import { getJson, session } from "../gateway.js";
import { html } from "../html.js";
import { Failure, Head, Link, Prose, usePolled } from "../parts.js";
import { bytes, cut, duration, lasting } from "../terms.js";
import { number, t } from "../texts.js";

const POLL_MS = 3000;

async function load() {
    const health = await getJson("health", [503]);
    const figures = session.operator ? await getJson("figures") : null;
    return { health, figures };
}

export const STATES = {
    ok: ["ok", t("health.ok")],
    degraded: ["warn", t("health.degraded")],
    refusing: ["bad", t("health.refusing")],
    damaged: ["bad", t("health.damaged")],
    failed: ["bad", t("health.failed")],
};

function stateName(state) {
    return Object.hasOwn(STATES, state) ? t(`health.state.${state}`) : state;
}

function stateClass(state) {
    return STATES[state]?.[0] ?? "warn";
}

// The views that do what a command of the command line does.
const DOES = { apps: "applications", backup: "system", devices: "devices", explain: "explain", log: "log", mapping: "devices", subscriptions: "subscriptions", timers: "timers" };

// Where a button leads that helps: to the explanation that the cure names, to the device or application itself, or to the
// view for a command of the cure.
function placeOf({ name, cure }) {
    const [, command, about] = /\blamplighter (\w+)(?: (\S+))?/.exec(cure ?? "") ?? [];
    const [, view, rest] = /^(device|application)\/(.+)$/.exec(name) ?? [];
    if (command === "explain" && about) return { view: "explain", hash: `#${new URLSearchParams({ actuation: about })}` };
    if (view) return { view: `${view}s`, hash: `#${new URLSearchParams({ [view]: rest })}` };
    return command && Object.hasOwn(DOES, command) ? { view: DOES[command], hash: "" } : null;
}

export function HealthComponent({ one }) {
    const since = one.since ? Date.parse(one.since) : NaN, place = session.operator ? placeOf(one) : null;
    return html`<li class=${`component ${stateClass(one.state)}`}>
        <div><strong><bdi>${cut(one.name, 120)}</bdi></strong> <span class=${`tag ${stateClass(one.state)}`}>${stateName(one.state)}</span>
            ${Number.isFinite(since) && one.state !== "ok" ? html` <small>${lasting(Date.now() - since)}</small>` : null}</div>
        ${one.reason ? html`<p><${Prose} text=${one.reason} /></p>` : null}
        ${one.cure ? html`<p class="cure"><${Prose} text=${one.cure} /></p>` : null}
        ${place ? html`<p class="cure"><${Link} view=${place.view} hash=${place.hash} button=${true}>${t("health.open", { view: t(`view.${place.view}`) })}<//></p>` : null}
    </li>`;
}

function Problems({ health }) {
    const components = health.components ?? [];
    if (components.length) {
        const wrong = components.filter((one) => one.state !== "ok"), well = components.filter((one) => one.state === "ok");
        return html`${wrong.length ? html`<ul class="components">${wrong.map((one) => html`<${HealthComponent} key=${one.name} one=${one} />`)}</ul>` : null}
            ${well.length ? html`<h2 class="hidden">${t("health.inOrder")}</h2><ul class="well">${well.map((one) => html`<li class="tag ok" key=${one.name}><span aria-hidden="true">✓ </span><bdi>${cut(one.name, 120)}</bdi><span class="hidden"> ${t("health.state.ok")}</span></li>`)}</ul>` : null}`;
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
    return t("health.times", { average: Math.round(10 * times.average) / 10, max: Math.round(10 * times.max) / 10 });
}

function whole(count) {
    return count === undefined || count === null ? null : number(count);
}

function sum(counts) {
    return Object.values(counts ?? {}).reduce((total, number) => total + number, 0);
}

function Brokers({ brokers }) {
    if (!brokers?.length) return null;
    return html`<${Figures} title=${t("health.brokers")} rows=${brokers.map((one) => [
        html`<bdi>${cut(one.name || one.address, 80)}</bdi>`,
        html`<bdi>${cut(one.state === "connected" ? t("health.connected", { address: one.address }) : one.text, 300)}</bdi>`,
        one.state !== "connected",
    ])} />`;
}

function Overview({ health, figures }) {
    const engine = figures?.engine ?? {};
    return html`<div class="groups">
        <${Figures} title=${t("health.gateway")} rows=${[
            [t("health.version"), engine.version],
            [t("health.name"), health.gateway],
            [t("health.up"), engine.up_time_s === undefined ? null : duration(engine.up_time_s)],
            [t("health.clock"), health.clock_trusted === undefined ? null : t(health.clock_trusted ? "health.synchronised" : "health.notSynchronised"), health.clock_trusted === false],
            [t("health.security"), t(session.secure ? "health.tls" : "health.noSecurity")],
            [t("health.loop"), health.loop_held_ms_max === undefined ? null : `${number(Math.round(health.loop_held_ms_max))} ms`],
        ]} />
        <${Figures} title=${t("health.data")} rows=${[
            [t("health.quads"), whole(health.quads)],
            [t("health.newest"), whole(health.sequence)],
            [t("health.onDisk"), health.log ? bytes(health.log.bytes) : null],
            [t("health.sync"), milliseconds(figures?.log?.sync_ms)],
            [t("health.pending"), whole(health.delayed)],
        ]} />
        <${Figures} title=${t("health.clients")} rows=${[
            [t("health.subscriptions"), whole(health.subscriptions)],
            [t("health.ofApplications"), whole(health.application_subscriptions)],
            [t("health.sent"), whole(figures?.websocket?.notifications)],
            [t("health.slow"), whole(figures?.websocket?.disconnected), figures?.websocket?.disconnected > 0],
            [t("health.errors"), figures ? whole(sum(figures.http?.errors)) : null],
            [t("health.queue"), whole(health.queue)],
        ]} />
        <${Figures} title=${t("health.speed")} rows=${[
            [t("health.updates"), milliseconds(figures?.updates?.processing_ms)],
            [t("health.queries"), milliseconds(figures?.queries?.store_ms)],
            [t("health.notifications"), milliseconds(figures?.spu_manager?.processing_ms)],
            [t("health.requests"), milliseconds(figures?.http?.handling_ms)],
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
    return html`<${Head} title=${t("view.health")} view="health" />
        <${Failure} error=${error} />
        ${value === null ? null : html`
            <p class=${`verdict ${stateClass(state)}`} role="status"><strong>${stateName(state)}</strong> ${STATES[state]?.[1] ?? ""}</p>
            <${Problems} health=${value.health} />
            <${Overview} health=${value.health} figures=${value.figures} />
            <details class="all"><summary>${t("health.all")}</summary><div class="scroll" role="region" aria-label=${t("health.all")} tabindex="0"><table>
                <thead><tr><th scope="col">${t("health.figure")}</th><th scope="col">${t("health.value")}</th></tr></thead>
                <tbody>${flat({ ...value.health, ...value.figures }).map(([name, shown]) => html`<tr><td><bdi>${cut(name, 120)}</bdi></td><td><bdi>${cut(String(shown), 500)}</bdi></td></tr>`)}</tbody>
            </table></div></details>`}`;
}
