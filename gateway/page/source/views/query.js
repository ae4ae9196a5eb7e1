// Queries and subscriptions: an editor, the result as a table and a chart, and its changes as they happen.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { Chart } from "../chart.js";
import { query } from "../gateway.js";
import { html } from "../html.js";
import { subscribe } from "../live.js";
import { Failure, Head, Term } from "../parts.js";
import { cut } from "../terms.js";
import { clockTime, moment, rich, t } from "../texts.js";
import { Rows, drawing } from "./results.js";
import { EXAMPLES, parts, withPrefixes } from "./sparql.js";

const SHOWN = 200, CHANGES_MAX = 200, POINTS_MAX = 2000, RENDER_MS = 100;

// A member of the address: `query`, or `at`, the record whose dataset is queried.
function told(name) {
    return new URLSearchParams(location.hash.slice(1)).get(name);
}

function remember(sparql, at, ran) {
    history.replaceState({ ran }, "", `#${new URLSearchParams(at ? { query: sparql, at } : { query: sparql })}`);
}

// A text field over its own marked copy: the browser's editing, undo and keyboard stay as they are.
function Editor({ value, onInput, onRun }) {
    const keys = (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
            event.preventDefault();
            onRun();
        }
    };
    return html`<div class="editor">
        <pre aria-hidden="true">${parts(value).map(([kind, part]) => kind ? html`<span class=${`t-${kind}`}>${part}</span>` : part)}${"\n"}</pre>
        <textarea aria-label=${t("query.editor")} spellcheck="false" autocapitalize="off" autocomplete="off" autocorrect="off"
            value=${value} onInput=${(event) => onInput(event.currentTarget.value)} onKeyDown=${keys}></textarea>
    </div>`;
}

function Cells({ columns, binding }) {
    return columns.map((name) => html`<td><${Term} term=${binding[name]} /></td>`);
}

function Table({ columns, bindings, caption }) {
    const [shown, setShown] = useState(SHOWN);
    return html`<div class="scroll" role="region" aria-label=${caption} tabindex="0"><table>
        <caption class="hidden">${caption}</caption>
        <thead><tr>${columns.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
        <tbody>${bindings.slice(0, shown).map((binding) => html`<tr><${Cells} columns=${columns} binding=${binding} /></tr>`)}</tbody>
    </table></div>
    ${bindings.length > shown
        ? html`<button onClick=${() => setShown(shown + 5 * SHOWN)}>${t("query.more", { count: bindings.length })}</button>`
        : null}`;
}

function Answer({ answer }) {
    const bindings = answer.rows;
    const drawn = useMemo(() => bindings && drawing(answer.columns, bindings), [answer]);
    if (answer.boolean !== undefined) return html`<p class="result" role="status">${t(answer.boolean ? "now.yes" : "now.no")}</p>`;
    if (answer.turtle !== undefined) {
        return html`<div class="scroll" role="region" aria-label=${t("query.turtle")} tabindex="0"><pre class="turtle">${answer.turtle}</pre></div>`;
    }
    return html`<p role="status" class="note">${t("query.rows", { count: bindings.length, ms: answer.ms })}</p>
        ${drawn ? html`<${Chart} series=${drawn.series} label=${t("query.chart", { name: drawn.time })} />` : null}
        <${Table} columns=${answer.columns} bindings=${bindings} caption=${t("query.result")} />`;
}

// The rows of a live query: those that came and went, the newest first, and the result as it is now.
function Live({ live }) {
    const drawn = useMemo(() => drawing(live.columns, live.points), [live]);
    if (!live.begun) return html`<p role="status" class="note">${t("query.subscribing")}</p>`;
    return html`<p role="status" class="note">${t("query.live", { count: live.rows.length })}${live.kind ? html` · ${rich("query.class", { name: html`<em>${live.kind}</em>` })}` : null}</p>
        ${drawn ? html`<${Chart} series=${drawn.series} label=${t("query.liveChart", { name: drawn.time })} />` : null}
        <h2>${t("query.changes")}</h2>
        ${live.changes.length === 0 ? html`<p class="note">${t("query.noChanges")}</p>` : html`
        <div class="scroll short" role="region" aria-label=${t("query.changes")} tabindex="0"><table class="changes">
            <caption class="hidden">${t("query.changesCaption")}</caption>
            <thead><tr><th scope="col">${t("log.change")}</th><th scope="col">${t("query.time")}</th>${live.columns.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
            <tbody>${live.changes.map(({ id, added, at, binding }) => html`<tr key=${id} class=${added ? "added" : "removed"}>
                <td><span aria-hidden="true">${added ? "+" : "−"}</span><span class="hidden">${t(added ? "log.added" : "log.removed")}</span></td>
                <td>${clockTime(at)}</td><${Cells} columns=${live.columns} binding=${binding} /></tr>`)}</tbody>
        </table></div>`}
        <h2>${t("query.resultNow")}</h2>
        <${Table} columns=${live.columns} bindings=${live.rows} caption=${t("query.resultNow")} />`;
}

// Follows a query. Returns what ends it. shown(state): at most each RENDER_MS.
function follow(sparql, shown, failed) {
    const rows = new Rows();
    let changes = [], points = [], kind = "", timer = 0, id = 0;
    const show = () => {
        timer = 0;
        shown({ begun: true, columns: rows.columns, rows: rows.list(), changes, points, kind });
    };
    const end = subscribe(sparql, (sequence, added, removed, spuClass) => {
        if (sequence === 0) {
            rows.replace(added);
            kind = spuClass ?? kind;
            points = rows.list();
        } else {
            const at = new Date();
            rows.remove(removed.results.bindings);
            rows.add(added.results.bindings);
            const come = added.results.bindings.map((binding) => ({ id: ++id, added: true, at, binding }));
            const gone = removed.results.bindings.map((binding) => ({ id: ++id, added: false, at, binding }));
            changes = [...come, ...gone, ...changes].slice(0, CHANGES_MAX);
            points = [...points, ...added.results.bindings].slice(-POINTS_MAX);
        }
        timer ||= setTimeout(show, RENDER_MS);
    }, failed);
    return () => {
        clearTimeout(timer);
        end();
    };
}

function Examples({ choose }) {
    const chosen = (event) => {
        const example = EXAMPLES[Number(event.currentTarget.value)];
        event.currentTarget.value = "";
        if (example) choose(withPrefixes(example.sparql));
    };
    return html`<label class="examples"><span class="hidden">${t("query.examples")}</span>
        <select onChange=${chosen}><option value="">${t("query.examplesMenu")}</option>
            ${EXAMPLES.map(({ title }, index) => html`<option value=${index}>${title}</option>`)}</select></label>`;
}

function Moment({ at, used, back }) {
    const [record = /^[\d/]+$/.test(at) ? at : null, time] = used?.split(" ") ?? [];
    return html`<div class="moment"><p role="status"><strong>${record ? t("query.asOfRecord", { record }) : t("query.asOf", { time: cut(at, 60) })}</strong>${time ? html`, <time datetime=${time}>${moment(time)}</time>` : null}.
        ${t("query.past")}</p><button onClick=${back}>${t("log.back")}</button></div>`;
}

export function Query() {
    const [sparql, setSparql] = useState(() => told("query") ?? withPrefixes(EXAMPLES[0].sparql));
    const [at, setAt] = useState(() => told("at") ?? "");
    const [used, setUsed] = useState(null);
    const [answer, setAnswer] = useState(null);
    const [live, setLive] = useState(null);
    const [error, setError] = useState(null);
    const [running, setRunning] = useState(false);
    const ends = useRef(null);

    const clear = () => {
        ends.current?.();
        ends.current = null;
        setAnswer(null);
        setLive(null);
        setError(null);
        setRunning(false);
    };
    const prepared = (ran) => {
        const whole = withPrefixes(sparql);
        clear();
        setSparql(whole);
        remember(whole, at, ran);
        return whole;
    };
    const run = async () => {
        const whole = prepared(true), abort = new AbortController(), begun = performance.now();
        ends.current = () => abort.abort();
        setRunning(true);
        try {
            const { result, at: record } = await query(whole, { at, signal: abort.signal });
            setUsed(record);
            const ms = Math.round(performance.now() - begun);
            if (typeof result === "string") setAnswer({ turtle: result });
            else if (result.boolean !== undefined) setAnswer({ boolean: result.boolean });
            else setAnswer({ columns: result.head.vars, rows: result.results.bindings, ms });
            setRunning(false);
        } catch (failure) {
            if (failure.name === "AbortError") return;
            setError(failure);
            setRunning(false);
        }
    };
    const toggle = () => {
        if (live) return clear();
        const whole = prepared(false);
        setLive({ begun: false, columns: [], rows: [], changes: [], points: [], kind: "" });
        ends.current = follow(whole, setLive, (failure) => {
            setLive(null);
            setError(failure);
        });
    };
    useEffect(() => {
        // A link only fills the editor; what this window has run before is run again, as after a reload.
        if (history.state?.ran && told("query")) run();
        return () => ends.current?.();
    }, []);
    const back = () => {
        clear();
        setAt("");
        setUsed(null);
        remember(sparql, "", false);
    };
    const search = String(new URLSearchParams({ query: sparql }));
    return html`<${Head} title=${t("view.query")}><${Examples} choose=${(text) => {
            clear();
            setSparql(text);
        }} /><//>
        ${at ? html`<${Moment} at=${at} used=${used} back=${back} />` : null}
        <${Editor} value=${sparql} onInput=${setSparql} onRun=${run} />
        <div class="actions">
            <button class="main" onClick=${run} aria-keyshortcuts="Control+Enter">${t("query.run")}</button>
            ${at ? null : html`<button onClick=${toggle} aria-pressed=${Boolean(live)}>${t(live ? "query.stop" : "query.subscribe")}</button>`}
            <span class="note keys">${t("query.keys")}</span>
            ${running ? html`<span role="status">${t("query.running")}</span> <button onClick=${clear}>${t("query.cancel")}</button>` : null}
            ${at ? null : html`<span class="downloads">${t("query.as")} <a href=${`query.json?${search}`}>JSON</a> <a href=${`query.csv?${search}`}>CSV</a></span>`}
        </div>
        <${Failure} error=${error} />
        ${live ? html`<${Live} live=${live} />` : answer ? html`<${Answer} answer=${answer} />` : null}`;
}
