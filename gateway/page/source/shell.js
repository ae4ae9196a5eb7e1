// What is around each view: navigation, connection, login.
import { useEffect, useErrorBoundary, useRef, useState } from "preact/hooks";

import { allowed, login, logout, session, top, watchSession } from "./gateway.js";
import { html } from "./html.js";
import { connectionState, watchConnection } from "./live.js";
import { useOffered } from "./offered.js";
import { Failure } from "./parts.js";
import { followed, go } from "./route.js";
import { VIEWS } from "./views.js";

function viewOf(path) {
    const name = /page\/([^/]*)$/.exec(path)?.[1] ?? "";
    return VIEWS.find((view) => view.name === name) ?? VIEWS[0];
}

function useRoute() {
    const [route, setRoute] = useState({ view: viewOf(location.pathname), visit: 0 });
    useEffect(() => {
        const moved = () => setRoute(({ visit }) => ({ view: viewOf(location.pathname), visit: visit + 1 }));
        addEventListener("popstate", moved);
        return () => removeEventListener("popstate", moved);
    }, []);
    return route;
}

function useSession() {
    const [, again] = useState(0);
    useEffect(() => watchSession(() => again((n) => n + 1)), []);
}

function NavLink({ view, current, after }) {
    const click = (event) => {
        if (!followed(event)) return;
        event.preventDefault();
        go(view.name);
        after?.();
    };
    return html`<a href=${`${top}page/${view.name}`} aria-current=${current === view ? "page" : null} onClick=${click}>
        <svg viewBox="0 0 24 24" aria-hidden="true"><path d=${view.icon} /></svg><span>${view.title}</span>
    </a>`;
}

// A bar at the bottom on phones, where only the first views have room; a column elsewhere.
function Navigation({ current }) {
    const menu = useRef(null);
    const views = useOffered(VIEWS, current);
    const first = views.filter((view) => view.first), rest = views.filter((view) => !view.first);
    const close = () => {
        if (menu.current) menu.current.open = false;
    };
    useEffect(() => {
        const outside = (event) => {
            if (menu.current && !menu.current.contains(event.target)) close();
        };
        const escape = (event) => event.key === "Escape" && close();
        addEventListener("click", outside);
        addEventListener("keydown", escape);
        return () => {
            removeEventListener("click", outside);
            removeEventListener("keydown", escape);
        };
    }, []);
    const inMenu = rest.includes(current);
    return html`<nav aria-label="Views">
        ${first.map((view) => html`<${NavLink} view=${view} current=${current} after=${close} />`)}
        <div class="wide">${rest.map((view) => html`<${NavLink} view=${view} current=${current} />`)}</div>
        <details class="narrow" ref=${menu}>
            <summary class=${inMenu ? "current" : ""}>
                <svg viewBox="0 0 24 24" aria-hidden="true"><path d="M5 12h.01M12 12h.01M19 12h.01" stroke-width="3" /></svg>
                <span>${inMenu ? current.title : "More"}</span>
            </summary>
            <div class="menu">${rest.map((view) => html`<${NavLink} view=${view} current=${current} after=${close} />`)}</div>
        </details>
    </nav>`;
}

const CONNECTION = { open: "live", connecting: "connecting", lost: "connection lost, trying again" };

function Connection() {
    const [state, setState] = useState(connectionState());
    useEffect(() => watchConnection(setState), []);
    return html`<p class="connection" role="status" data-state=${state}>${CONNECTION[state] ?? ""}</p>`;
}

function Login() {
    const [error, setError] = useState(null);
    const [waiting, setWaiting] = useState(false);
    const dialog = useRef(null);
    useEffect(() => {
        dialog.current.showModal();
    }, []);
    const submit = async (event) => {
        event.preventDefault();
        const form = event.currentTarget;
        setWaiting(true);
        setError(null);
        try {
            await login(form.elements.client.value, form.elements.secret.value);
        } catch (failure) {
            setError(failure);
            setWaiting(false);
            form.elements.secret.select();
        }
    };
    return html`<dialog ref=${dialog} class="login" aria-labelledby="login-title" onCancel=${(event) => event.preventDefault()}>
        <form onSubmit=${submit}>
            <h2 id="login-title">Log in</h2>
            <label>Client <input name="client" autocomplete="username" required autofocus spellcheck="false" /></label>
            <label>Secret <input name="secret" type="password" autocomplete="current-password" required /></label>
            <${Failure} error=${error} />
            <button class="main" disabled=${waiting}>${waiting ? "Logging in…" : "Log in"}</button>
            <p class="note">On the gateway, <code>lamplighter clients add NAME --register --operate</code> makes a client and
            prints its secret.</p>
        </form>
    </dialog>`;
}

function View({ view }) {
    const [error, reset] = useErrorBoundary();
    if (error) {
        return html`<p class="failure" role="alert">This view failed: ${error.message}</p>
            <button onClick=${reset}>Show it again</button>`;
    }
    return html`<${view.component} />`;
}

// The page is loaded anew, so that nothing of the data stays in it.
async function leave(failed) {
    try {
        await logout();
    } catch (error) {
        failed(error);
        return;
    }
    location.assign(new URL("page/", top));
}

export function Shell() {
    const { view, visit } = useRoute();
    const main = useRef(null);
    const [shown, setShown] = useState(allowed());
    const [failure, setFailure] = useState(null);
    useSession();
    if (allowed() && !shown) setShown(true);
    useEffect(() => {
        document.title = `${view.title} · Lamplighter`;
        if (visit) main.current?.querySelector("h1")?.focus();
    }, [view, visit]);
    return html`
        <a class="skip" href="#main" onClick=${(event) => {
            event.preventDefault();
            main.current.querySelector("h1")?.focus();
        }}>Skip to content</a>
        <div class="side">
            <header class="brand"><strong>Lamplighter</strong><${Connection} /></header>
            <${Navigation} current=${view} />
            ${session.secure && session.client !== null
                ? html`<div class="who"><bdi>${session.client || "local"}</bdi> <button onClick=${() => leave(setFailure)}>Log out</button><${Failure} error=${failure} /></div>`
                : null}
        </div>
        <main id="main" ref=${main}>${shown ? html`<${View} key=${view.name} view=${view} />` : null}</main>
        ${allowed() ? null : html`<${Login} />`}`;
}
