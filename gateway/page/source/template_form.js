// The form of a template: a field for each option, what they would do, and an application of them.
import { useState } from "preact/hooks";

import { postJson } from "./gateway.js";
import { html } from "./html.js";
import { Failure } from "./parts.js";
import { Suggestions, useNames } from "./picking.js";
import { cut } from "./terms.js";
import { has, moment, t } from "./texts.js";

const TRY = "P1D";
const TIMES = ["sunrise", "sunset", "07:00", "22:00", "sunset-PT30M"];
const NAMED = ["actuator", "sensor", "room"];
const LAST_MAX = 20;

// What an application may be called. Browsers ignore a pattern whose hyphen has no backslash.
export const NAME = "[A-Za-z0-9_~\\-][A-Za-z0-9._~\\-]{0,99}";

// A text of an option in this language; the gateway's own where the catalogue has none.
function worded(template, option, part, own) {
    const key = [`option.${template}.${option}.${part}`, `option.${option}.${part}`].find(has);
    return key ? t(key, { value: "{value}" }) : own;
}

function choiceText({ value, label }) {
    return has(`choice.${value}`) ? t(`choice.${value}`) : label;
}

export function summaryOf({ name, summary }) {
    return has(`templates.${name}`) ? t(`templates.${name}`) : summary;
}

function listOf(value) {
    return value === undefined || value === null || value === "" ? [] : Array.isArray(value) ? value : [value];
}

function Input({ option, value, label, change }) {
    const { type, name, default: preset, required } = option, shared = { "aria-label": label, value: value ?? "", autocomplete: "off", spellcheck: false };
    const typed = (event) => change(event.currentTarget.value);
    const placeholder = preset === null || preset === undefined ? "" : String(preset);
    if (type === "choice") {
        return html`<select aria-label=${label} value=${value ?? ""} onChange=${typed}>${required ? null : html`<option value="">${has(`choice.${placeholder}`) ? t(`choice.${placeholder}`) : placeholder}</option>`}
            ${option.choices.map((one) => html`<option value=${one.value}>${choiceText(one)}</option>`)}</select>`;
    }
    if (type === "number") return html`<input ...${shared} type="number" step="any" placeholder=${placeholder} onInput=${typed} />`;
    const list = NAMED.includes(type) ? `of-${name}` : type === "time" ? "times" : null;
    return html`<input ...${shared} list=${list} placeholder=${placeholder} onInput=${typed} />`;
}

// One value, check boxes, or a line for each of several values with an empty one below.
function Values({ option, label, value, change }) {
    if (!option.repeatable) return html`<${Input} option=${option} value=${value} label=${label} change=${change} />`;
    const values = listOf(value);
    if (option.type === "choice") {
        return html`<span class="checks">${option.choices.map((one) => html`<label class="check"><input type="checkbox" checked=${values.includes(one.value)}
            onChange=${(event) => change(event.currentTarget.checked ? [...values, one.value] : values.filter((other) => other !== one.value))} /> ${choiceText(one)}</label>`)}</span>`;
    }
    const put = (index, text) => change([...values.slice(0, index), ...(text === "" && index < values.length ? [] : [text]), ...values.slice(index + 1)]);
    return [...values, ""].map((one, index) => html`<${Input} key=${index} option=${option} value=${one} label=${index ? `${label} ${index + 1}` : label} change=${(text) => put(index, text)} />`);
}

function Option({ template, option, value, change, faults, names }) {
    const label = worded(template, option.name, "label", option.label), help = worded(template, option.name, "help", option.help);
    const fitting = names.filter((one) => one.kind === option.type && (!option.properties?.length || option.properties.includes(one.property)));
    return html`<div class="option">
        <span class="label">${label}${option.required ? html` <small>${t("template.required")}</small>` : null}</span>
        <${Values} option=${option} label=${label} value=${value} change=${change} />
        ${help && help !== label ? html`<span class="note">${help}</span>` : null}
        ${NAMED.includes(option.type) ? html`<${Suggestions} id=${`of-${option.name}`} names=${fitting} />` : null}
        ${faults.map((fault) => html`<p class="failure" role="alert"><bdi>${cut(fault.problem, 400)}</bdi></p>
            ${fault.candidates?.length ? html`<span class="choices">${fault.candidates.map((one) => html`<button type="button" onClick=${() => change(option.repeatable ? [one.id] : one.id)}><bdi>${cut(one.name, 80)}</bdi>${one.room ? html` <small><bdi>${cut(one.room, 40)}</bdi></small>` : null}</button>`)}</span>` : null}`)}
    </div>`;
}

// What an application would have done over the last day.
function Tried({ tried }) {
    if (tried.problem) return html`<p class="failure"><bdi>${cut(tried.problem, 1000)}</bdi></p>`;
    return html`<section class="component ok"><p><strong>${t("template.tried", { since: moment(tried.since.time) })}</strong></p>
        <p>${t("template.reactions", { count: tried.reactions })}; ${t("template.delayed", { count: tried.delayed })}; ${t("template.without", { count: tried.without_effect })}</p>
        ${tried.last?.length ? html`<ol class="logbook">${tried.last.slice(-LAST_MAX).map((one) => html`<li class="entry"><time datetime=${one.time}>${moment(one.time)}</time><span><bdi>${cut((one.text ?? []).join("; ") || one.update, 400)}</bdi>${one.failure ? html` <span class="tag bad"><bdi>${cut(one.failure, 200)}</bdi></span>` : null}</span></li>`)}</ol>` : null}
    </section>`;
}

function Preview({ answer }) {
    const resolved = Object.values(answer.resolved ?? {}).flat();
    return html`<div role="status">
        ${resolved.length ? html`<p class="well">${resolved.map((one) => html`<span class="tag ok"><bdi>${cut(one.name, 80)}</bdi>${one.room ? html` · <bdi>${cut(one.room, 40)}</bdi>` : null}</span>`)}</p>` : null}
        ${answer.follows ? html`<p>${t("template.follows")} <bdi>${cut(answer.follows, 400)}</bdi></p>` : null}
        ${(answer.warnings ?? []).map((text) => html`<p class="failure"><bdi>${cut(text, 400)}</bdi></p>`)}
        ${(answer.notes ?? []).map((text) => html`<p class="note"><bdi>${cut(text, 400)}</bdi></p>`)}
        ${answer.tried ? html`<${Tried} tried=${answer.tried} />` : null}
        <details><summary>${t("template.profile")}</summary><pre class="clip" tabindex="0">${cut(JSON.stringify(answer.profile, null, 2), 20_000)}</pre></details>
    </div>`;
}

// What is left out has its default. Numbers are numbers.
function given(template, values) {
    const found = {};
    for (const option of template.options) {
        const typed = listOf(values[option.name]).filter((one) => one !== "").map((one) => (option.type === "number" ? Number(one) : one));
        if (typed.length) found[option.name] = option.repeatable ? typed : typed[0];
    }
    return found;
}

// template: of `GET /templates`; application: { name, values } of one that is changed, absent for a new one; done(answer).
export function TemplateForm({ template, application, done }) {
    const [values, setValues] = useState(application?.values ?? {}), [name, setName] = useState(application?.name ?? template.name);
    const [answer, setAnswer] = useState(null), [error, setError] = useState(null), [waiting, setWaiting] = useState(false);
    const names = useNames(), faults = error?.told?.faults ?? [];
    const send = async (more) => {
        setWaiting(true);
        setError(null);
        try {
            const told = await postJson(`templates/${encodeURIComponent(template.name)}`, { name, values: given(template, values), ...more });
            setAnswer(told);
            if (told.put) done(told);
        } catch (failure) {
            setAnswer(null);
            setError(failure);
        }
        setWaiting(false);
    };
    const option = (one) => html`<${Option} key=${one.name} template=${template.name} option=${one} value=${values[one.name]} names=${names}
        faults=${faults.filter((fault) => fault.option === one.name)} change=${(value) => setValues((before) => ({ ...before, [one.name]: value }))} />`;
    const of = (...groups) => template.options.filter(({ group }) => groups.includes(group)).map(option);
    const bright = of("brightness"), byHand = of("hand");
    const placed = faults.length > 0 && faults.every((fault) => template.options.some((one) => one.name === fault.option));
    return html`<form class="template" onSubmit=${(event) => {
            event.preventDefault();
            send({ put: true, ...(application ? { replace: true } : {}) });
        }}>
        <div class="option"><span class="label">${t("template.name")}</span>
            <input aria-label=${t("template.name")} value=${name} required readonly=${Boolean(application)} pattern=${NAME} onInput=${(event) => setName(event.currentTarget.value)} /></div>
        ${of("what", "time")}
        ${bright.length ? html`<details><summary>${t("template.brightness")}</summary>${bright}</details>` : null}
        ${byHand.length ? html`<details><summary>${t("template.byHand")}</summary>${byHand}</details>` : null}
        <datalist id="times">${TIMES.map((one) => html`<option value=${one} />`)}</datalist>
        <${Failure} error=${placed ? null : error} />
        <div class="actions">
            <button class="main" disabled=${waiting}>${t(application ? "template.change" : "template.put")}</button>
            <button type="button" disabled=${waiting} onClick=${() => send({ put: false, try: TRY })}>${t("template.try")}</button>
            <button type="button" disabled=${waiting} onClick=${() => send({ put: false })}>${t("template.preview")}</button>
        </div>
        ${answer ? html`<${Preview} answer=${answer} />` : null}
    </form>`;
}
