// Small parts that views share.
import { useEffect, useState } from "preact/hooks";

import { html } from "./html.js";
import { allowed, top, watchSession } from "./gateway.js";
import { followed, go } from "./route.js";
import { t } from "./texts.js";
import { cut, isBoolean, isNumber, linkOf, localName, ntriples, shortIri, text } from "./terms.js";

// A field that keeps what is typed while its view is drawn again, until the value that is given changes.
export function Field({ value, ...others }) {
    const [typed, setTyped] = useState(value);
    useEffect(() => setTyped(value), [value]);
    return html`<input ...${others} value=${typed} onInput=${(event) => setTyped(event.currentTarget.value)} />`;
}

export function Failure({ error }) {
    return error ? html`<p class="failure" role="alert"><bdi>${cut(error.message)}</bdi></p>` : null;
}

// A name that may end its line behind a sign or before a capital, so that it is not broken between any two letters.
export function Name({ text: name }) {
    return name.split(/(?<=[_\-./:])(?=.)|(?<=\p{Ll})(?=\p{Lu})/u).map((part, index) => (index ? html`<wbr />${part}` : part));
}

// A sentence of the gateway, in which `backticks` mark commands and settings.
export function Prose({ text: sentence }) {
    return cut(sentence).split("`").map((part, index) => (index % 2 ? html`<code>${part}</code>` : html`<bdi>${part}</bdi>`));
}

export function Iri({ iri, label }) {
    const address = linkOf(iri, top);
    const shown = label ?? cut(shortIri(iri));
    return address
        ? html`<a href=${address} rel="noreferrer" title=${cut(iri)}><bdi>${shown}</bdi></a>`
        : html`<bdi title=${cut(iri)}>${shown}</bdi>`;
}

// A link to another view, without loading the page again.
export function Link({ view, search = "", hash = "", title, label, button, children }) {
    const click = (event) => {
        if (!followed(event)) return;
        event.preventDefault();
        go(view, { search, hash });
    };
    return html`<a href=${`${top}page/${view}${search}${hash}`} title=${title} aria-label=${label} class=${button ? "open" : null} onClick=${click}>${children}</a>`;
}

export function Term({ term }) {
    if (!term) return html`<span class="unbound">${t("terms.unbound")}</span>`;
    if (term.type === "uri") return html`<${Iri} iri=${term.value} />`;
    if (term.type !== "literal") return html`<code><bdi>${cut(text(term))}</bdi></code>`;
    const kind = term["xml:lang"] ? `@${term["xml:lang"]}`
        : term.datatype && !isNumber(term) && !isBoolean(term) ? localName(term.datatype) : "";
    return html`<bdi class="literal">${cut(term.value)}</bdi>${kind ? html` <small><bdi>${cut(kind, 80)}</bdi></small>` : null}`;
}

// A term in N-Triples syntax.
export function Written({ term }) {
    const known = ntriples(term);
    return known ? html`<${Term} term=${known} />` : html`<code><bdi>${cut(term)}</bdi></code>`;
}

// Links to the rows of a view for programs.
export function Downloads({ view, search = "" }) {
    const suffix = search ? `?${search}` : "";
    return html`<span class="downloads">
        <a href=${`${top}page/${view}.json${suffix}`}>JSON</a> <a href=${`${top}page/${view}.csv${suffix}`}>CSV</a>
    </span>`;
}

export function Head({ title, view, search, children }) {
    return html`<header class="head">
        <h1 tabindex="-1">${title}</h1>
        ${children}
        ${view ? html`<${Downloads} view=${view} search=${search} />` : null}
    </header>`;
}

// Counts up each so many milliseconds, while the page is visible.
export function useTick(ms) {
    const [count, setCount] = useState(0);
    useEffect(() => {
        const timer = setInterval(() => document.hidden || setCount((n) => n + 1), ms);
        return () => clearInterval(timer);
    }, [ms]);
    return count;
}

// What `load` returns, again each so many milliseconds while the page is visible; error: of the last attempt.
export function usePolled(load, ms) {
    const [state, setState] = useState({ value: null, error: null });
    const [again, setAgain] = useState(0);
    useEffect(() => {
        let over = false, timer = 0, running = false;
        const next = async () => {
            clearTimeout(timer);
            if (running || over) return;
            running = true;
            if (!document.hidden && allowed()) {
                try {
                    const value = await load();
                    if (!over) setState({ value, error: null });
                } catch (error) {
                    if (!over && allowed()) setState((before) => ({ ...before, error }));
                }
            }
            running = false;
            if (!over) timer = setTimeout(next, ms);
        };
        next();
        document.addEventListener("visibilitychange", next);
        const unwatch = watchSession(next);
        return () => {
            over = true;
            clearTimeout(timer);
            unwatch();
            document.removeEventListener("visibilitychange", next);
        };
    }, [again, ms]);
    return { ...state, reload: () => setAgain((n) => n + 1) };
}
