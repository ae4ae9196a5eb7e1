// Applications: rules that act by themselves. They are made of templates, changed and removed here.
import { useEffect, useState } from "preact/hooks";

import { Asking } from "../asking.js";
import { getJson, request, session } from "../gateway.js";
import { html } from "../html.js";
import { Failure, Head, Prose, usePolled } from "../parts.js";
import { useAddress } from "../picking.js";
import { NAME, TemplateForm, summaryOf } from "../template_form.js";
import { cut } from "../terms.js";
import { moment, rich, t } from "../texts.js";

const POLL_MS = 5000;
const STATES = { running: "ok", degraded: "warn", waiting: "warn", failed: "bad", refused: "bad" };
const JSAP_CHARS_MAX = 256 * 1024;

function pathOf(name) {
    return `applications/${encodeURIComponent(name)}`;
}

async function put(name, text, check) {
    const answer = await request(`${pathOf(name)}${check ? "?check=true" : ""}`, { method: "PUT", body: text, type: "application/json" });
    return answer.json();
}

function Faults({ error }) {
    const faults = error?.told?.faults;
    if (!faults?.length) return html`<${Failure} error=${error} />`;
    return html`<ul class="failure" role="alert">${faults.slice(0, 50).map(({ place, line, problem }) => html`<li><code><bdi>${cut(place ?? "", 200)}</bdi></code>${line ? ` ${t("applications.line", { count: line })}` : ""}: <bdi>${cut(problem, 400)}</bdi></li>`)}</ul>`;
}

// A document as text, that is checked and put. application: of one that is changed.
function Document({ application, done }) {
    const [name, setName] = useState(application?.name ?? ""), [text, setText] = useState(application ? JSON.stringify(application.profile, null, 2) : "");
    const [answer, setAnswer] = useState(null), [error, setError] = useState(null);
    const send = async (check) => {
        setError(null);
        try {
            const told = await put(name, text, check);
            setAnswer(told);
            if (!check) done(told);
        } catch (failure) {
            setAnswer(null);
            setError(failure);
        }
    };
    return html`<form class="template" onSubmit=${(event) => {
            event.preventDefault();
            send(false);
        }}>
        ${application ? null : html`<div class="option"><span class="label">${t("template.name")}</span><input aria-label=${t("template.name")} value=${name} required pattern=${NAME} onInput=${(event) => setName(event.currentTarget.value)} /></div>`}
        <textarea class="document" aria-label=${t("applications.document")} rows="14" maxlength=${JSAP_CHARS_MAX} spellcheck="false" required value=${text} onInput=${(event) => setText(event.currentTarget.value)}></textarea>
        <${Faults} error=${error} />
        ${answer ? html`<p role="status" class="note">${t("applications.checked")}</p>${answer.warnings.map((one) => html`<p class="failure"><bdi>${cut(one, 400)}</bdi></p>`)}` : null}
        <div class="actions"><button class="main">${t(application ? "template.change" : "template.put")}</button>
            <button type="button" disabled=${!name} onClick=${() => send(true)}>${t("applications.check")}</button></div>
    </form>`;
}

// An application with its values, as a form again.
function Details({ name, templates, done }) {
    const [value, setValue] = useState(null), [error, setError] = useState(null);
    useEffect(() => {
        let over = false;
        getJson(pathOf(name)).then((told) => over || setValue(told), (failure) => over || setError(failure));
        return () => { over = true; };
    }, [name]);
    if (value === null) return error ? html`<${Failure} error=${error} />` : html`<p class="note" role="status">${t("parts.loading")}</p>`;
    const template = templates.find((one) => one.name === value.template);
    if (value.origin === "file") return html`<p class="note">${rich("applications.ofFile", { file: html`<code>apps/${value.name}.jsap</code>` })}</p><pre class="clip" tabindex="0">${cut(JSON.stringify(value.profile, null, 2), 20_000)}</pre>`;
    return template && value.values
        ? html`<${TemplateForm} template=${template} application=${value} done=${done} />`
        : html`<${Document} application=${value} done=${done} />`;
}

function Application({ one, templates, open, choose, remove, done }) {
    const template = templates.find(({ name }) => name === one.template), shown = template && summaryOf(template);
    return html`<li class="item application">
        <div class="line"><h2><bdi>${cut(one.name, 100)}</bdi></h2>
            <span class=${`tag ${STATES[one.state] ?? ""}`}>${Object.hasOwn(STATES, one.state) ? t(`applications.state.${one.state}`) : one.state}</span>
            ${one.origin === "stored" ? html`<span class="decide"><button onClick=${() => remove(one)} aria-label=${t("devices.removeOf", { name: one.name })}>${t("devices.removeButton")}</button></span>` : null}</div>
        ${shown ? html`<p><bdi>${cut(shown, 300)}</bdi></p>` : null}
        <p class="note">${[t("applications.reactions", { count: one.reactions }), one.failed ? t("applications.failed", { count: one.failed }) : "", one.changed ? t("applications.changed", { time: moment(one.changed) }) : ""].filter(Boolean).join(" · ")}</p>
        ${one.problem ? html`<p class="failure"><${Prose} text=${one.problem} />${one.remedy ? html` <${Prose} text=${one.remedy} />` : null}</p>` : null}
        <details open=${open} onToggle=${(event) => event.target === event.currentTarget && choose(event.currentTarget.open ? one.name : "")}>
            <summary>${t(one.origin === "file" ? "applications.show" : "applications.change")}</summary>
            ${open ? html`<${Details} name=${one.name} templates=${templates} done=${done} />` : null}</details>
    </li>`;
}

function New({ templates, done }) {
    const [chosen, setChosen] = useState("");
    const template = templates.find(({ name }) => name === chosen);
    const finished = (answer) => {
        setChosen("");
        done(answer);
    };
    return html`<section class="item new"><h2>${t("applications.new")}</h2>
        <label class="option"><span class="label">${t("applications.template")}</span>
            <select value=${chosen} onChange=${(event) => setChosen(event.currentTarget.value)}><option value="">${t("applications.choose")}</option>
                ${templates.map((one) => html`<option value=${one.name}>${summaryOf(one) ?? one.name}</option>`)}
                <option value="document">${t("applications.own")}</option></select></label>
        ${template ? html`<${TemplateForm} key=${chosen} template=${template} done=${finished} />` : chosen ? html`<${Document} done=${finished} />` : null}
    </section>`;
}

function List() {
    const [{ application }, change] = useAddress(["application"]);
    const { value, error, reload } = usePolled(() => getJson("applications"), POLL_MS);
    const { value: known } = usePolled(() => getJson("templates"), 600_000);
    const [removed, setRemoved] = useState(null), [said, setSaid] = useState({ text: "", warnings: [] });
    const templates = known?.templates ?? [];
    const done = (answer) => {
        const { name = answer.name, problem, warnings = [] } = answer.put ?? answer;
        setSaid({ text: rich("applications.done", { name: html`<bdi>${cut(name, 100)}</bdi>` }), warnings: [...(problem ? [problem] : []), ...warnings] });
        change({ application: "" });
        reload();
    };
    const close = (sent) => {
        const { name } = removed;
        setRemoved(null);
        if (!sent) return;
        setSaid({ text: rich("devices.removeDone", { name: html`<bdi>${cut(name, 100)}</bdi>` }), warnings: [] });
        reload();
    };
    return html`<${Failure} error=${error} />
        <p role="status" class="note">${said.text}</p>
        ${said.warnings.map((one) => html`<p class="failure"><bdi>${cut(one, 400)}</bdi></p>`)}
        ${value === null ? null : value.applications.length ? html`<ul class="list">${value.applications.map((one) => html`<${Application} key=${one.name} one=${one} templates=${templates} open=${application === one.name}
            choose=${(name) => (name || application === one.name) && change({ application: name })} remove=${setRemoved} done=${done} />`)}</ul>` : html`<p class="empty">${t("applications.empty")}</p>`}
        ${value === null ? null : html`<${New} templates=${templates} done=${done} />`}
        ${removed ? html`<${Asking} title=${rich("devices.removeTitle", { name: html`<bdi>${cut(removed.name, 100)}</bdi>` })} text=${t("applications.removeText")} action=${t("devices.remove")} danger=${true}
            done=${() => request(pathOf(removed.name), { method: "DELETE" })} close=${close} />` : null}`;
}

export function Applications() {
    return html`<${Head} title=${t("view.applications")} />
        ${session.operator ? html`<${List} />` : html`<p class="empty">${t("parts.operator")}</p>`}`;
}
