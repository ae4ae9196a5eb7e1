// What is around each view: navigation, connection, login.
import { useEffect, useErrorBoundary, useRef, useState } from "preact/hooks";

import { allowed, login, logout, session, top, watchSession } from "./gateway.js";
import { html } from "./html.js";
import { connectionState, watchConnection } from "./live.js";
import { useOffered } from "./offered.js";
import { Failure } from "./parts.js";
import { followed, go } from "./route.js";
import { LANGUAGES, chooseLanguage, language, rich, t } from "./texts.js";
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

// They are another site, in a policy of their own.
function DocumentsLink() {
    if (!session.documents) return null;
    return html`<a href=${`${top}page/docs/`}>
        <svg viewBox="0 0 24 24" aria-hidden="true"><path d="M6 3.5h9l4 4v13H6zM14.5 3.5v4.5H19M9 12.5h7M9 16.5h7" /></svg><span>${t("shell.documents")}</span>
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
    return html`<nav aria-label=${t("shell.views")}>
        ${first.map((view) => html`<${NavLink} view=${view} current=${current} after=${close} />`)}
        <div class="wide">${rest.map((view) => html`<${NavLink} view=${view} current=${current} />`)}<${DocumentsLink} /></div>
        <details class="narrow" ref=${menu}>
            <summary class=${inMenu ? "current" : ""}>
                <svg viewBox="0 0 24 24" aria-hidden="true"><path d="M5 12h.01M12 12h.01M19 12h.01" stroke-width="3" /></svg>
                <span>${inMenu ? current.title : t("shell.more")}</span>
            </summary>
            <div class="menu">${rest.map((view) => html`<${NavLink} view=${view} current=${current} after=${close} />`)}<${DocumentsLink} /></div>
        </details>
    </nav>`;
}

const CONNECTION = { open: t("shell.open"), connecting: t("shell.connecting"), lost: t("shell.lost") };

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
            <h2 id="login-title">${t("login.title")}</h2>
            <label>${t("login.client")} <input name="client" autocomplete="username" required autofocus spellcheck="false" /></label>
            <label>${t("login.secret")} <input name="secret" type="password" autocomplete="current-password" required /></label>
            <${Failure} error=${error} />
            <button class="main" disabled=${waiting}>${t(waiting ? "login.waiting" : "login.title")}</button>
            <p class="note">${rich("login.hint", { command: html`<code>lamplighter clients add NAME --register --operate --read '*' --write '*' --subscribe '*'</code>` })}</p>
        </form>
    </dialog>`;
}

function View({ view }) {
    const [error, reset] = useErrorBoundary();
    if (error) {
        return html`<p class="failure" role="alert">${t("shell.failed", { reason: error.message })}</p>
            <button onClick=${reset}>${t("shell.again")}</button>`;
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

function LanguageChoice() {
    return html`<label class="language"><span class="hidden">${t("shell.language")}</span>
        <select value=${language} onChange=${(event) => chooseLanguage(event.currentTarget.value)}>
            ${Object.entries(LANGUAGES).map(([name, title]) => html`<option value=${name} lang=${name}>${title}</option>`)}</select></label>`;
}

export function Shell() {
    const { view, visit } = useRoute();
    const main = useRef(null);
    const [shown, setShown] = useState(allowed());
    const [failure, setFailure] = useState(null);
    useSession();
    if (allowed() && !shown) setShown(true);
    useEffect(() => {
        document.title = t("shell.title", { view: view.title });
        if (visit) main.current?.querySelector("h1")?.focus();
    }, [view, visit]);
    return html`
        <a class="skip" href="#main" onClick=${(event) => {
            event.preventDefault();
            main.current.querySelector("h1")?.focus();
        }}>${t("shell.skip")}</a>
        <div class="side">
            <header class="brand"><strong>Lamplighter</strong><${Connection} /></header>
            <${Navigation} current=${view} />
            ${session.secure && session.client !== null
                ? html`<div class="who"><bdi>${session.client || t("shell.local")}</bdi> <button onClick=${() => leave(setFailure)}>${t("shell.logOut")}</button><${Failure} error=${failure} /></div>`
                : null}
            <${LanguageChoice} />
        </div>
        <main id="main" ref=${main}>${shown ? html`<${View} key=${view.name} view=${view} />` : null}</main>
        ${allowed() ? null : html`<${Login} />`}`;
}
