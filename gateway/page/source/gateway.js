// Requests to the gateway, over the same public protocols that any client uses.

import { t } from "./texts.js";

// The page is at <top>page/<view>, also below /secure/ or behind a proxy.
const here = new URL(document.URL);
export const top = new URL(here.pathname.replace(/page\/[^/]*$/, ""), here).href;

export const session = { secure: false, client: null, operator: true, subscribe: "", query: "/query", update: "/update", base: "" };

export class GatewayError extends Error {
    // told: the whole answer of the gateway, where it is one.
    constructor(status, code, description, told = null) {
        super(description);
        this.status = status;
        this.code = code;
        this.told = told;
    }
}

const watchers = new Set();

// Calls back when the session has ended or begun. Returns what stops that.
export function watchSession(watcher) {
    watchers.add(watcher);
    return () => watchers.delete(watcher);
}

// Whether requests for data can succeed: in secure mode somebody has to be logged in.
export function allowed() {
    return !session.secure || session.client !== null;
}

export function sessionEnded() {
    if (!session.secure || session.client === null) return;
    session.client = null;
    for (const watcher of watchers) watcher();
}

function address(path) {
    return new URL(path.replace(/^\//, ""), top).href;
}

export async function request(path, { method = "GET", body, type, accept, signal, known } = {}) {
    const headers = {};
    if (known) headers["If-None-Match"] = known;
    if (type) headers["Content-Type"] = type;
    if (accept) headers.Accept = accept;
    if (method !== "GET") headers["X-Lamplighter-Page"] = "1";
    let answer;
    try {
        answer = await fetch(address(path), { method, body, headers, credentials: "same-origin", cache: "no-store", signal });
    } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new GatewayError(0, "unreachable", t("gateway.unreachable"));
    }
    if (answer.ok || (known && answer.status === 304)) return answer;
    throw await refusal(answer);
}

async function refusal(answer) {
    const text = await answer.text();
    let code = String(answer.status), description = text.slice(0, 2000) || answer.statusText, told = null;
    try {
        told = JSON.parse(text);
        code = told.error ?? code;
        description = told.error_description ?? description;
    } catch { /* no error of the gateway's own, such as that of a proxy */ }
    if (answer.status === 401) sessionEnded();
    return new GatewayError(answer.status, code, description, told);
}

// The answer of `GET path`. also: statuses whose answer is one too.
export async function getJson(path, also = []) {
    try {
        return await (await request(path, { accept: "application/json" })).json();
    } catch (error) {
        if (!also.includes(error.status)) throw error;
        const answer = await fetch(address(path), { credentials: "same-origin", cache: "no-store" });
        return await answer.json();
    }
}

const WHOLE_MS = 60_000;

// Loads a list again and again: `at` is when it came. While it stays the same, it is sent once a minute, because `at`
// stands still while the machine sleeps.
export function listing(path) {
    let known = null, value = null, since = 0;
    return async () => {
        if (Math.abs(Date.now() - since) > WHOLE_MS) known = null;
        const answer = await request(path, { accept: "application/json", known });
        if (answer.status === 304) return value;
        known = answer.headers.get("ETag");
        since = Date.now();
        value = { ...await answer.json(), at: performance.now() };
        return value;
    };
}

// A query in POST. at: the record of the dataset, "" for the present one. Returns { result, at }: the parsed result of
// SELECT and ASK, or the text of CONSTRUCT and DESCRIBE; the record that was used with its time, null for the present.
export async function query(sparql, { at = "", signal } = {}) {
    const answer = await request(session.query + (at ? `?${new URLSearchParams({ at })}` : ""), {
        method: "POST", body: sparql, type: "application/sparql-query", signal,
        accept: "application/sparql-results+json, text/turtle",
    });
    const turtle = answer.headers.get("Content-Type").startsWith("text/turtle");
    return { result: await (turtle ? answer.text() : answer.json()), at: answer.headers.get("Lamplighter-At") };
}

// POST of a JSON value; the JSON of the answer.
export async function postJson(path, value, signal) {
    return (await request(path, { method: "POST", body: JSON.stringify(value), type: "application/json", signal })).json();
}

export async function loadSession() {
    const told = await getJson("page/session.json");
    Object.assign(session, told);
    for (const watcher of watchers) watcher();
}

export async function login(client, secret) {
    await postJson("page/login", { client, secret });
    await loadSession();
}

export async function logout() {
    await request("page/logout", { method: "POST" });
}
