// What a reading or an actuator was over a day, a week or a month.
import { useState } from "preact/hooks";

import { getJson, request, session } from "../gateway.js";
import { html } from "../html.js";
import { Failure, Field, Head, Link, usePolled } from "../parts.js";
import { Suggestions, useAddress, useNames } from "../picking.js";
import { cut, duration, localName, numberText, unitSign } from "../terms.js";
import { moment, number, t } from "../texts.js";
import { Timeline } from "../timeline.js";

const POLL_MS = 60_000;
const RANGES = ["24h", "7d", "30d"];
const ROWS_MAX = 200;
const GAPS = ["unconfirmed", "no value", "lost", "removed", "pending"];

function unitOf(unit) {
    return unit ? (/^[a-z][\w+.-]*:/i.test(unit) ? unitSign(unit) : unit) : "";
}

function span({ from, to }) {
    return (Date.parse(to) - Date.parse(from)) / 1000;
}

// The figures of numbers: [name, text] pairs.
function figuresOf({ points, unit }) {
    if (!points.length) return [];
    const said = (value) => `${numberText(value)} ${unitOf(unit)}`.trim();
    const count = points.reduce((sum, [, , , , each]) => sum + each, 0);
    return [
        [t("history.last"), said(points[points.length - 1][1])],
        [t("history.low"), said(Math.min(...points.map(([, , low]) => low)))],
        [t("history.mean"), said(Math.round(100 * points.reduce((sum, [, mean, , , each]) => sum + mean * each, 0) / count) / 100)],
        [t("history.high"), said(Math.max(...points.map(([, , , high]) => high)))],
        [t("history.readings"), number(count)],
    ];
}

// How long each state was, the longest first.
function lengthsOf(states) {
    const found = new Map();
    for (const one of states) found.set(one.value, (found.get(one.value) ?? 0) + span(one));
    return Array.from(found).sort(([, one], [, other]) => other - one).slice(0, 8).map(([value, all]) => [html`<bdi>${cut(value, 60)}</bdi>`, duration(all)]);
}

function Figures({ rows }) {
    return rows.length ? html`<dl class="summary">${rows.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>` : null;
}

function Rows({ isNumber, rows }) {
    const names = isNumber ? ["history.time", "history.mean", "history.low", "history.high", "history.readings"] : ["history.from", "history.to", "history.state"];
    const cells = isNumber ? ([time, ...numbers]) => [moment(time), ...numbers.map(numberText)] : (one) => [moment(one.from), moment(one.to), html`<bdi>${cut(one.value, 200)}</bdi>`];
    if (!rows.length) return null;
    return html`<details class="all"><summary>${t("history.table")}</summary>
        <div class="scroll short" role="region" aria-label=${t("history.table")} tabindex="0"><table>
            <thead><tr>${names.map((key) => html`<th scope="col">${t(key)}</th>`)}</tr></thead>
            <tbody>${rows.slice(-ROWS_MAX).reverse().map((row) => html`<tr>${cells(row).map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody>
        </table></div>${rows.length > ROWS_MAX ? html`<p class="note">${t("log.notShown", { count: rows.length - ROWS_MAX })}</p>` : null}</details>`;
}

function Gaps({ gaps }) {
    if (!gaps.length) return null;
    return html`<ul class="gaps note">${gaps.slice(-10).reverse().map(({ from, to, reason, text }) => html`<li>
        ${t("history.gap", { from: moment(from), to: moment(to) })}: ${GAPS.includes(reason) ? t(`history.gap.${reason.replace(" ", "-")}`) : reason}${text ? html` (<bdi>${cut(text, 60)}</bdi>)` : null}</li>`)}
        ${gaps.length > 10 ? html`<li>${t("now.andMore", { count: gaps.length - 10 })}</li>` : null}</ul>`;
}

// The name of the device with that of its part, where the part does not say it already.
function titleOf({ label, name, iri }) {
    if (!label || !name || label.startsWith(name)) return label || name || localName(iri);
    return `${name} ${label}`;
}

function Chosen({ search, range, choose }) {
    const { value, error } = usePolled(() => getJson(`history?${search}`), POLL_MS);
    const [failure, setFailure] = useState(null);
    if (value === null) return error ? html`<${Failure} error=${error} />` : html`<p class="note" role="status">${t("parts.loading")}</p>`;
    const title = titleOf(value), isNumber = value.kind === "number";
    const states = value.states.length ? value.states : value.reported ?? [], empty = !value.points.length && !states.length;
    return html`<${Failure} error=${error ?? failure} />
        <h2><bdi>${cut(title, 120)}</bdi>${value.area ? html` <small><bdi>${cut(value.area, 60)}</bdi></small>` : null}</h2>
        <div class="actions" role="group" aria-label=${t("history.range")}>
            ${RANGES.map((one) => html`<button aria-pressed=${one === range} onClick=${() => choose({ range: one })}>${t(`history.${one}`)}</button>`)}
            <span class="downloads"><a href=${`../history?${search}`}>JSON</a>${isNumber || !empty ? html` <${Csv} search=${search} title=${title} failed=${setFailure} />` : null}</span>
        </div>
        ${empty ? html`<p class="empty">${t("history.nothing")}</p>` : html`<${Timeline} answer=${value} label=${t("history.chart", { name: title })} />`}
        <${Figures} rows=${isNumber ? figuresOf(value) : lengthsOf(states)} />
        <${Gaps} gaps=${value.gaps} />
        ${value.complete_since && value.complete_since > value.since ? html`<p class="note">${t("history.begins", { time: moment(value.complete_since) })}</p>` : null}
        <${Rows} isNumber=${isNumber} rows=${isNumber ? value.points : states} />
        ${session.operator ? html`<p class="actions"><${Link} view="logbook" hash=${`#${new URLSearchParams({ device: value.iri })}`}>${t("history.logbook")}<//></p>` : null}`;
}

// CSV is the same address with another format, so a script fetches it.
function Csv({ search, title, failed }) {
    const save = async (event) => {
        event.preventDefault();
        let answer;
        try {
            answer = await request(`history?${search}`, { accept: "text/csv" });
        } catch (error) {
            failed(error);
            return;
        }
        failed(null);
        const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(await answer.blob()), download: `${title}.csv` });
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    };
    return html`<a href="#csv" onClick=${save}>CSV</a>`;
}

export function History() {
    const [asked, change] = useAddress(["iri", "name", "range"]);
    const names = useNames("kind=sensor&kind=actuator");
    const range = RANGES.includes(asked.range) ? asked.range : RANGES[0];
    const search = String(new URLSearchParams({ ...(asked.iri ? { iri: asked.iri } : { name: asked.name }), since: range }));
    const submit = (event) => {
        event.preventDefault();
        change({ iri: "", name: event.currentTarget.elements.name.value.trim() });
    };
    return html`<${Head} title=${t("view.history")} />
        <form class="picker" onSubmit=${submit}>
            <label><span>${t("history.name")}</span> <${Field} name="name" list="names" value=${asked.name} required autocomplete="off" spellcheck="false" /></label>
            <button>${t("history.show")}</button><${Suggestions} id="names" names=${names} />
        </form>
        ${asked.iri || asked.name ? html`<${Chosen} key=${search} search=${search} range=${range} choose=${change} />` : html`<p class="empty">${t("history.choose")}</p>`}`;
}
