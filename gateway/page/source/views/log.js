// Commits as they happen, and those around a moment of the past, whose dataset can be queried.
import { useEffect, useState } from "preact/hooks";

import { allowed, getJson, request, watchSession } from "../gateway.js";
import { html } from "../html.js";
import { Failure, Field, Head, Written } from "../parts.js";
import { go } from "../route.js";
import { cut } from "../terms.js";
import { clockTime, moment, number, rich, t } from "../texts.js";

const SHOWN = 200, FIRST = 100, WAIT_S = 25, PAUSE_MS = 500, RETRY_MS = 3000, AROUND = 15, DRAG_MS = 150, QUADS = 1000;
const RECORD = /^(?:\d{1,9}\/)?\d{1,12}$/;

function chosenByAddress() {
    const record = new URLSearchParams(location.hash.slice(1)).get("at") ?? "";
    return RECORD.test(record) ? record : "";
}

function parts(record) {
    const [epoch, sequence] = record.split("/").map(Number);
    return { epoch, sequence };
}

// Follows the log while the page is visible. told({ records, newest, missing }, whole): what came, oldest first; whole: whether
// it replaces what is known. Returns what ends it.
function follow(told, failed) {
    let abort = null, newest = null, over = false, timer = 0;
    const next = async () => {
        clearTimeout(timer);
        if (over || abort || document.hidden || !allowed()) return;
        const mine = new AbortController();
        abort = mine;
        let wait = PAUSE_MS;
        try {
            const search = newest ? `after=${newest}&wait=${WAIT_S}` : `last=${FIRST}`;
            const page = await (await request(`log?${search}`, { signal: mine.signal })).json();
            if (over) return;
            if (page.next) newest = null; // too much came: begin again with the newest
            else {
                told(page, newest === null);
                newest = page.records.length ? page.records[page.records.length - 1].record : newest ?? page.newest;
            }
        } catch (error) {
            if (over || error.name === "AbortError") return;
            newest = null;
            wait = RETRY_MS;
            if (allowed()) failed(error);
        } finally {
            if (abort === mine) abort = null;
        }
        timer = setTimeout(next, wait);
    };
    const turned = () => {
        if (document.hidden) {
            abort?.abort();
            abort = null;
        } else next();
    };
    document.addEventListener("visibilitychange", turned);
    const unwatch = watchSession(next);
    next();
    return () => {
        over = true;
        clearTimeout(timer);
        abort?.abort();
        unwatch();
        document.removeEventListener("visibilitychange", turned);
    };
}

const GATES = { http: "HTTP", ws: "WebSocket", mqtt: "MQTT", coap: "CoAP", timer: t("log.timer"), missed: t("log.missed"), application: t("log.application") };

function Cause({ record }) {
    const { cause, client } = record;
    if (!cause) return client ? html`<bdi>${cut(client, 80)}</bdi>` : null;
    const name = cause.kind === "application" ? cause.id.split("/")[0] : cause.id;
    return html`${GATES[cause.kind] ?? cause.kind} <bdi>${cut(name, 80)}</bdi>${client ? html` · ${rich("log.client", { name: html`<bdi>${cut(client, 80)}</bdi>` })}` : null}`;
}

function Quads({ quads, added }) {
    return quads.map(([s, p, o, g]) => html`<tr class=${added ? "added" : "removed"}>
        <td><span aria-hidden="true">${added ? "+" : "−"}</span><span class="hidden">${t(added ? "log.added" : "log.removed")}</span></td>
        <td><${Written} term=${s} /> <${Written} term=${p} /> <${Written} term=${o} />${g ? html` <small>${rich("log.in", { graph: html`<${Written} term=${g} />` })}</small>` : null}</td>
    </tr>`);
}

const DETAILS = ["timer", "gap", "subscribe", "unsubscribe", "cancel", "graphs"];

function Delta({ record }) {
    const [whole, setWhole] = useState(null);
    const [error, setError] = useState(null);
    const shown = whole ?? record;
    const { d = [], a = [] } = shown, { d: removed = 0, a: added = 0, k: kept = 0 } = record.counts ?? {};
    const more = removed + added - d.length - a.length;
    const all = async () => {
        try {
            const page = await getJson(`log?from=${record.record}&to=${record.record}&quads=${QUADS}`);
            setWhole(page.records[0] ?? { ...record, d: [], a: [] });
        } catch (failure) {
            setError(failure);
        }
    };
    const rest = Object.fromEntries(DETAILS.filter((name) => record[name] !== undefined).map((name) => [name, record[name]]));
    return html`<div class="delta">
        ${d.length + a.length ? html`<div class="scroll short" role="region" aria-label=${t("log.delta", { record: record.record })} tabindex="0"><table class="changes">
            <caption class="hidden">${t("log.deltaCaption", { record: record.record })}</caption>
            <thead><tr><th scope="col">${t("log.change")}</th><th scope="col">${t("log.quad")}</th></tr></thead>
            <tbody><${Quads} quads=${d} /><${Quads} quads=${a} added /></tbody>
        </table></div>` : record.type === "commit" && !more ? html`<p class="note">${kept ? t("log.kept", { count: kept }) : t("log.nothing")}</p>` : null}
        ${Object.keys(rest).length ? html`<pre class="clip">${cut(JSON.stringify(rest, null, 2), 4000)}</pre>` : null}
        ${more > 0 ? (whole ? html`<p class="note">${t("log.notShown", { count: more })}</p>`
            : html`<p><button onClick=${all}>${t("log.showMore", { count: more })}</button></p>`) : null}
        <${Failure} error=${error} />
    </div>`;
}

function sign(count, mark) {
    const added = mark === "+";
    return count ? html`<span class=${added ? "plus" : "minus"}>${mark}${number(count)}<span class="hidden"> ${t(added ? "log.added" : "log.removed")}</span></span>` : null;
}

function Record({ record, chosen, ask }) {
    const [open, setOpen] = useState(chosen);
    const at = new Date(record.ts), { d = 0, a = 0 } = record.counts ?? {};
    return html`<li class=${chosen ? "item chosen" : "item"} aria-current=${chosen ? "true" : null}>
        <details open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}>
            <summary><span class="commit">
                <time datetime=${record.ts} title=${moment(at)}>${clockTime(at)}</time>
                <span class="counts">${record.type === "commit" ? (d || a ? html`${sign(a, "+")} ${sign(d, "−")}` : html`<span class="note">${t("log.noChange")}</span>`)
                    : html`<span class="tag">${record.type}</span>`}</span>
                <span class="cause"><${Cause} record=${record} />${record.trusted ? null : html` <span class="tag warn">${t("log.clock")}</span>`}</span>
                <span class="note">${record.record}</span>
            </span></summary>
            ${open ? html`<${Delta} record=${record} />
                <button onClick=${() => ask(record.record)} aria-label=${t("log.askRecord", { record: record.record })}>${t("log.ask")}</button>` : null}
        </details>
    </li>`;
}

function ask(record) {
    go("query", { hash: `#${new URLSearchParams({ at: record })}` });
}

// Records around a chosen one; the answer of the newest choice counts.
function useAround(chosen) {
    const [around, setAround] = useState({ of: "", page: null, error: null });
    useEffect(() => {
        if (!chosen) return undefined;
        const abort = new AbortController();
        const timer = setTimeout(async () => {
            const slash = chosen.indexOf("/"), epoch = chosen.slice(0, slash + 1), sequence = Number(chosen.slice(slash + 1));
            const search = `from=${epoch}${Math.max(1, sequence - AROUND)}&to=${epoch}${sequence + AROUND}`;
            try {
                const page = await (await request(`log?${search}`, { signal: abort.signal })).json();
                setAround({ of: chosen, page, error: null });
            } catch (error) {
                if (error.name !== "AbortError") setAround({ of: chosen, page: null, error });
            }
        }, DRAG_MS);
        return () => {
            clearTimeout(timer);
            abort.abort();
        };
    }, [chosen]);
    return around;
}

function Timeline({ newest, chosen, choose }) {
    const { epoch, sequence } = parts(newest);
    const at = chosen ? Number(chosen.split("/").pop()) : sequence;
    const here = !chosen || !chosen.includes("/") || chosen.startsWith(`${epoch}/`);
    const submit = (event) => {
        event.preventDefault();
        const record = event.currentTarget.elements.record.value.trim();
        if (RECORD.test(record)) choose(record);
    };
    return html`<div class="timeline">
        <label for="moment">${t("log.drag")}</label>
        <input id="moment" type="range" min="1" max=${Math.max(sequence, 1)} value=${here ? at : 1} disabled=${sequence < 1}
            aria-valuetext=${chosen ? t("log.record", { record: chosen }) : t("log.now")} onInput=${(event) => choose(`${epoch}/${event.currentTarget.value}`)} />
        <form onSubmit=${submit}>
            <${Field} name="record" aria-label=${t("log.field")} placeholder=${t("log.record", { record: newest })} value=${chosen} inputmode="text"
                pattern="(\d{1,9}/)?\d{1,12}" title=${t("log.fieldTitle")} />
            <button>${t("log.go")}</button>
            ${chosen ? html`<button type="button" onClick=${() => choose("")}>${t("log.back")}</button>` : null}
        </form>
    </div>`;
}

function Missing({ missing }) {
    return (missing ?? []).map((one) => html`<p class="note">${rich(one.to ? "log.missingTo" : "log.missing", { from: one.from, to: one.to, reason: html`<bdi>${cut(one.reason, 300)}</bdi>` })}</p>`);
}

function same(record, chosen) {
    return record === chosen || (!chosen.includes("/") && record.endsWith(`/${chosen}`));
}

export function Log() {
    const [live, setLive] = useState({ records: null, newest: null });
    const [error, setError] = useState(null);
    const [chosen, setChosen] = useState(chosenByAddress);
    const around = useAround(chosen);
    useEffect(() => follow(({ records, newest, missing }, whole) => {
        setError(null);
        setLive((before) => ({
            newest, missing: whole ? missing : before.missing,
            records: [...[...records].reverse(), ...(whole ? [] : before.records)].slice(0, SHOWN),
        }));
    }, setError), []);
    useEffect(() => {
        const moved = () => setChosen(chosenByAddress());
        addEventListener("hashchange", moved);
        return () => removeEventListener("hashchange", moved);
    }, []);
    const choose = (record) => {
        history.replaceState(null, "", record ? `#${new URLSearchParams({ at: record })}` : location.pathname);
        setChosen(record);
    };
    const page = chosen ? around.page : live;
    const records = chosen ? page && [...page.records].reverse() : live.records;
    const found = chosen && records?.find((one) => same(one.record, chosen));
    const search = chosen && around.page?.records.length ? `from=${around.page.records[0].record}&to=${records[0].record}` : "";
    return html`<${Head} title=${t("view.log")} view="log" search=${search} />
        <${Failure} error=${error} />
        ${live.newest ? html`<${Timeline} newest=${live.newest} chosen=${chosen} choose=${choose} />` : null}
        ${chosen ? html`<div class="moment"><p role="status"><strong>${t("log.chosen", { record: chosen })}</strong>${found ? html`, <time datetime=${found.ts}>${moment(found.ts)}</time>`
            : around.of === chosen ? t("log.unknown") : t("log.loading")}. ${t("log.still")}</p>
            <button class="main" onClick=${() => ask(chosen)}>${t("log.ask")}</button></div>
            <${Failure} error=${around.error} />` : null}
        ${records === null ? null : records.length === 0 && !chosen ? html`<p class="empty">${t("log.empty")}</p>`
            : html`<p class="note">${t(chosen ? "log.around" : "log.newest", { count: records.length })}</p>
            <ul class="list commits">${records.map((record) => html`<${Record} key=${`${record.record}${chosen && found === record ? " chosen" : ""}`} record=${record} chosen=${chosen !== "" && found === record} ask=${ask} />`)}</ul>`}
        <${Missing} missing=${page?.missing} />`;
}
