// What happened, in words, the newest first; each line leads to its explanation.
import { useEffect, useState } from "preact/hooks";

import { getJson, session } from "../gateway.js";
import { html } from "../html.js";
import { Failure, Field, Head, Link, usePolled } from "../parts.js";
import { Suggestions, useAddress, useNames } from "../picking.js";
import { cut } from "../terms.js";
import { clockTime, day, moment, t } from "../texts.js";

const POLL_MS = 10_000, PAGE = 50, ENTRIES_MAX = 1000, PAGES_MAX = 20;
const KINDS = ["switch", "outcome", "state", "delay", "device", "log", "update"];
const FILTERS = ["device", "room", "application", "person", "kind", "since", "until"];
const KIND_OF = { device: ["device", "sensor", "actuator"], room: ["room"], application: ["application"] };
const ICONS = {
    switch: "M13 3 5 14h6l-1 7 9-12h-6z", outcome: "m4 13 5 5L20 6", state: "M12 15a4 4 0 1 0 0-8 4 4 0 0 0 0 8M12 15v6",
    delay: "M12 21a8 8 0 1 0 0-16 8 8 0 0 0 0 16M12 9v4l2.5 2M9.5 2.5h5", device: "M7 3h10v18H7zM10.5 17.5h3", log: "M12 4v10M12 18v.01",
    update: "M4 20h4L20 8l-4-4L4 16zM13 7l4 4",
};

// A time of a field, which is local, as a time of the gateway; a duration stays.
function timeOf(text) {
    const at = /^\d{4}-/.test(text) ? new Date(text) : null;
    return at && !Number.isNaN(at.getTime()) ? at.toISOString() : text;
}

function searchOf(asked) {
    const given = Object.entries(asked).filter(([, value]) => value).map(([name, value]) => [name, name === "since" || name === "until" ? timeOf(value) : value]);
    return String(new URLSearchParams({ ...Object.fromEntries(given), last: PAGE }));
}

function Entry({ entry }) {
    const { record, time, kind, text, explain, trusted, client, application } = entry;
    const [view, hash] = explain ? ["explain", { actuation: explain, at: time }] : ["log", { at: record }];
    return html`<li class=${`entry ${KINDS.includes(kind) ? kind : ""}`}>
        <svg viewBox="0 0 24 24" aria-hidden="true"><path d=${ICONS[kind] ?? ICONS.update} /></svg>
        <time datetime=${time} title=${moment(time)}>${clockTime(time)}</time>
        <${Link} view=${view} hash=${`#${new URLSearchParams(hash)}`}><bdi>${cut(text, 500)}</bdi><//>
        ${trusted === false ? html`<span class="tag warn">${t("log.clock")}</span>` : null}
        ${application ? html`<span class="tag"><bdi>${cut(application, 60)}</bdi></span>` : client ? html`<span class="tag"><bdi>${cut(client, 60)}</bdi></span>` : null}
    </li>`;
}

// Entries under the day on which they happened.
function days(entries) {
    const found = [];
    for (const entry of entries) {
        const title = day(entry.time);
        if (found.at(-1)?.title !== title) found.push({ title, entries: [] });
        found.at(-1).entries.push(entry);
    }
    return found;
}

function sameEntry(one, other) {
    return one.record === other.record && one.text === other.text;
}

// The newest page, again and again, and older ones on demand. A page may be empty and have a next one all the same.
function Entries({ search }) {
    const { value, error } = usePolled(() => getJson(`logbook?${search}`), POLL_MS);
    const [older, setOlder] = useState({ entries: [], next: undefined, error: null });
    const [waiting, setWaiting] = useState(false);
    const newest = value?.entries ?? [], known = older.entries;
    const entries = [...newest, ...known.filter((one) => !newest.some((other) => sameEntry(one, other)))].slice(0, ENTRIES_MAX);
    const next = older.next === undefined ? value?.next : older.next;
    const more = async () => {
        setWaiting(true);
        try {
            const found = [];
            let at = next;
            for (let pages = 0; at && found.length < PAGE && pages < PAGES_MAX; pages++) {
                const page = await getJson(`logbook?${search}&before=${encodeURIComponent(at)}`);
                found.push(...page.entries);
                at = page.next;
            }
            setOlder((before) => ({ entries: [...(before.entries.length ? before.entries : newest), ...found].slice(0, ENTRIES_MAX), next: at ?? null, error: null }));
        } catch (failure) {
            setOlder((before) => ({ ...before, error: failure }));
        }
        setWaiting(false);
    };
    useEffect(() => {
        if (value && !newest.length && value.next && older.next === undefined) more();
    }, [value]);
    if (value === null) return error ? html`<${Failure} error=${error} />` : html`<p class="note" role="status">${t("parts.loading")}</p>`;
    return html`<${Failure} error=${error ?? older.error} />
        ${days(entries).map(({ title, entries: some }) => html`<section key=${title}><h2>${title}</h2><ol class="logbook">
            ${some.map((entry, index) => html`<${Entry} key=${`${entry.record} ${entry.kind} ${entry.subject} ${index}`} entry=${entry} />`)}</ol></section>`)}
        ${entries.length || waiting ? null : html`<p class="empty">${t("logbook.nothing")}</p>`}
        ${next && entries.length < ENTRIES_MAX ? html`<p><button disabled=${waiting} onClick=${more}>${t(waiting ? "parts.loading" : "logbook.older")}</button></p>`
            : value.complete_since ? html`<p class="note">${t("history.begins", { time: moment(value.complete_since) })}</p>` : null}`;
}

function Filters({ asked, change }) {
    const names = useNames();
    const changed = (event) => change({ [event.currentTarget.name]: event.currentTarget.value.trim() });
    const given = FILTERS.filter((name) => asked[name]);
    const [open, setOpen] = useState(given.length > 0);
    return html`<details class="filters" open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}>
        <summary>${t("logbook.filter")}${given.length ? ` (${given.map((name) => (name === "kind" && KINDS.includes(asked.kind) ? t(`logbook.kind.${asked.kind}`) : cut(asked[name], 40))).join(", ")})` : ""}</summary>
        <div class="fields">
            ${["device", "room", "application", "person"].map((name) => html`<label>${t(`logbook.${name}`)} <${Field} name=${name} list=${KIND_OF[name] ? `names-${name}` : null} value=${asked[name]} onChange=${changed} autocomplete="off" spellcheck="false" /></label>`)}
            <label>${t("logbook.kind")} <select name="kind" value=${asked.kind} onChange=${changed}><option value="">${t("logbook.all")}</option>${KINDS.map((kind) => html`<option value=${kind}>${t(`logbook.kind.${kind}`)}</option>`)}</select></label>
            <label>${t("history.from")} <${Field} name="since" type="datetime-local" value=${asked.since} onChange=${changed} /></label>
            <label>${t("history.to")} <${Field} name="until" type="datetime-local" value=${asked.until} onChange=${changed} /></label>
            ${given.length ? html`<button onClick=${() => change(Object.fromEntries(FILTERS.map((name) => [name, ""])))}>${t("logbook.clear")}</button>` : null}
        </div>
        ${Object.entries(KIND_OF).map(([name, kinds]) => html`<${Suggestions} id=${`names-${name}`} names=${names.filter((one) => kinds.includes(one.kind))} />`)}
    </details>`;
}

export function Logbook() {
    const [asked, change] = useAddress(FILTERS), search = searchOf(asked);
    return html`<${Head} title=${t("view.logbook")} />
        ${session.operator ? html`<${Filters} asked=${asked} change=${change} /><${Entries} key=${search} search=${search} />` : html`<p class="empty">${t("parts.operator")}</p>`}`;
}
