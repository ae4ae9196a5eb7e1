// Names of things, as suggestions for fields.
import { useEffect, useState } from "preact/hooks";

import { getJson, session } from "./gateway.js";
import { html } from "./html.js";
import { cut } from "./terms.js";

const NAMES_MAX = 1000;

// The names that people gave; none for who may not ask for them. search: of `GET /names`.
export function useNames(search = "") {
    const [names, setNames] = useState([]);
    useEffect(() => {
        let over = false;
        if (session.operator) getJson(`names?limit=${NAMES_MAX}${search && `&${search}`}`).then((answer) => over || setNames(answer.names), () => {});
        return () => { over = true; };
    }, [search]);
    return names;
}

export function Suggestions({ id, names }) {
    const texts = Array.from(new Set(names.map(({ name }) => name)));
    return html`<datalist id=${id}>${texts.map((name) => html`<option value=${cut(name, 200)} />`)}</datalist>`;
}

// The members of the address after `#`, and what changes them.
export function useAddress(names) {
    const read = () => {
        const members = new URLSearchParams(location.hash.slice(1));
        return Object.fromEntries(names.map((name) => [name, members.get(name) ?? ""]));
    };
    const [members, setMembers] = useState(read);
    useEffect(() => {
        const moved = () => setMembers(read());
        addEventListener("hashchange", moved);
        addEventListener("popstate", moved);
        return () => {
            removeEventListener("hashchange", moved);
            removeEventListener("popstate", moved);
        };
    }, []);
    const change = (some) => {
        const next = Object.fromEntries(Object.entries({ ...members, ...some }).filter(([, value]) => value));
        history.replaceState(null, "", Object.keys(next).length ? `#${new URLSearchParams(next)}` : location.pathname);
        setMembers(read());
    };
    return [members, change];
}
