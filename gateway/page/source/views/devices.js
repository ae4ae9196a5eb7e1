// Devices that were found: proposed and adopted ones, decisions about them, and mapping rules on trial.
import { useState } from "preact/hooks";

import { Asking } from "../asking.js";
import { getJson, postJson } from "../gateway.js";
import { html } from "../html.js";
import { Failure, Head, Iri, Written, usePolled } from "../parts.js";
import { devicePath, Setting } from "../setting.js";
import { cut, lasting, localName } from "../terms.js";
import { moment, rich, t } from "../texts.js";

const POLL_MS = 5000;
const UNREAD_MS = 60000; // each question has the adapter listen to all topics for a while
const ORDER = ["proposed", "adopted", "retired", "ignored"];
const STATES = { proposed: "warn", adopted: "ok" };

function path(device) {
    return devicePath(device.id);
}

// The area is a part of the adoption; another name comes after it.
async function adopt(device, { name, area }) {
    const answer = await postJson(path(device), area && area !== device.area ? { action: "adopt", area } : { action: "adopt" });
    if (name && name !== device.name) await postJson(path(device), { action: "rename", name });
    return answer;
}

const ADOPTED_AT_ONCE = 100;

// The question before all proposed devices are adopted.
function adoptionOfAll(devices, said) {
    const ids = devices.map((one) => one.id), count = ids.length;
    return {
        title: t("devices.adoptAllTitle", { count }), action: t("devices.adopt"),
        text: html`${t("devices.adoptAllText")} <bdi>${cut(devices.map((one) => one.name).join(", "), 600)}</bdi>`,
        done: async () => {
            const adopted = [], refused = [];
            for (let begin = 0; begin < count; begin += ADOPTED_AT_ONCE) {
                const answer = await postJson("devices", { action: "adopt", devices: ids.slice(begin, begin + ADOPTED_AT_ONCE) });
                adopted.push(...answer.adopted);
                refused.push(...answer.refused);
            }
            said(t("devices.adoptAllDone", { count: adopted.length }), [...adopted.flatMap((one) => one.warnings), ...refused.map((one) => `${one.id}: ${one.reason}`)]);
        },
    };
}

// What is asked before each decision. said(text, warnings): what came of it.
function questions(device, said) {
    const name = html`<bdi>${cut(device.name, 80)}</bdi>`;
    const fields = [{ name: "name", label: t("devices.name"), value: device.name }, { name: "area", label: t("devices.area"), value: device.area }];
    const sent = async (body, text) => {
        await postJson(path(device), body);
        said(text);
    };
    return {
        adopt: {
            title: rich("devices.adoptTitle", { name }), text: t("devices.adoptText"), action: t("devices.adopt"), fields,
            done: async (values) => said(rich("devices.adoptDone", { name }), (await adopt(device, values)).warnings),
        },
        ignore: {
            title: rich("devices.ignoreTitle", { name }), text: t("devices.ignoreText"), action: t("devices.ignore"),
            done: () => sent({ action: "ignore" }, rich("devices.ignoreDone", { name })),
        },
        rename: {
            title: rich("devices.renameTitle", { name }), text: t("devices.renameText"), action: t("devices.rename"), fields,
            done: (values) => sent({ action: "rename", ...values }, rich("devices.renameDone", { name })),
        },
        remove: {
            title: rich("devices.removeTitle", { name }), action: t("devices.remove"), danger: true,
            text: t("devices.removeText"),
            done: () => sent({ action: "remove" }, rich("devices.removeDone", { name })),
        },
    };
}

// An actuator with its states, and what sets them.
function Setter({ device, one, reload }) {
    return html`<li class="part"><span class="name"><bdi>${cut(one.label, 80)}</bdi></span>
        <span class="value">${one.desired === undefined ? html`<span class="note">${t("devices.noDesired")}</span>` : html`<bdi>${cut(one.desired, 80)}</bdi>`}
            ${one.reported !== undefined ? html` <small>${rich("devices.reported", { state: html`<bdi>${cut(one.reported, 80)}</bdi>` })}</small>` : null}</span>
        <${Setting} path=${path(device)} one=${one} done=${reload} /></li>`;
}

function Sensor({ one }) {
    return html`<li class="part"><span class="name"><bdi>${cut(one.label, 80)}</bdi></span>
        <span class="value">${one.value === undefined ? html`<span class="note">${t("devices.noReading")}</span>` : html`<bdi>${cut(one.value, 120)}</bdi>`}${one.unit ? html` <small><bdi>${cut(localName(one.unit), 30)}</bdi></small>` : null}</span>
        <span class="note"><bdi>${cut(one.place, 160)}</bdi></span></li>`;
}

const TRIPLE = /^(<[^<>\s]*>|_:\S+) (<[^<>\s]*>) ([^]+) \.$/;

function parsed(triple) {
    return (typeof triple === "string" ? TRIPLE.exec(triple)?.slice(1) : triple.slice(0, 3)) ?? [String(triple)];
}

// Where there is no room for a table, the properties of a subject are listed below it. The roles are those that a table loses by that.
function Triples({ triples, label }) {
    const rows = triples.map(parsed);
    return html`<div class="scroll short facts" role="region" aria-label=${label} tabindex="0"><table class="triples" role="table"><caption class="hidden">${label}</caption>
        <thead role="rowgroup"><tr role="row">${["devices.subject", "devices.predicate", "devices.object"].map((key) => html`<th scope="col" role="columnheader">${t(key)}</th>`)}</tr></thead>
        <tbody role="rowgroup">${rows.map((parts, index) => html`<tr role="row" class=${parts[0] === rows[index - 1]?.[0] ? "same" : ""}>
            ${parts.length === 3 ? parts.map((term) => html`<td role="cell"><${Written} term=${term} /></td>`) : html`<td role="cell" colspan="3"><bdi>${cut(parts[0])}</bdi></td>`}</tr>`)}</tbody></table></div>`;
}

// A payload as text, or its bytes where it is none.
function Payload({ message }) {
    if (message.payload !== undefined) return html`<pre class="clip" tabindex="0">${message.payload || t("devices.emptyPayload")}</pre>`;
    const bytes = [...atob(message.payload_base64)].map((one) => one.charCodeAt(0).toString(16).padStart(2, "0"));
    return html`<p class="note">${t("devices.bytes", { count: bytes.length })}</p><pre class="clip" tabindex="0">${bytes.join(" ")}</pre>`;
}

function Message({ message }) {
    const facts = [message.retained ? t("devices.retained") : "", message.content_format === undefined ? "" : t("devices.contentFormat", { number: String(message.content_format) })];
    return html`<section class="message"><h4><bdi>${cut(message.place, 200)}</bdi></h4>
        <p class="note"><time datetime=${message.received}>${moment(message.received)}</time>${facts.filter(Boolean).map((one) => ` · ${one}`)}</p>
        <div class="beside">
            <div><${Payload} message=${message} /></div>
            ${message.cut ? html`<p class="note">${t("devices.tooLong")}</p>` : html`<${Tried} answer=${message} polite=${false} />`}
        </div></section>`;
}

// The last messages of a device, each beside what the rules make of it.
function Messages({ device }) {
    const { value, error } = usePolled(() => getJson(`messages?${new URLSearchParams({ device: device.id })}`), POLL_MS);
    if (value === null) return html`<${Failure} error=${error} />`;
    return html`<h3>${t("devices.messages")}</h3><${Failure} error=${error} />
        ${value.messages.map((one) => html`<${Message} key=${`${one.broker} ${one.place}`} message=${one} />`)}
        ${value.messages.length ? null : html`<p class="note">${t(value.answered ? "devices.noMessage" : "devices.noAdapter")}</p>`}
        ${value.messages.length && value.messages.length < value.places.length ? html`<p class="note">${t("devices.silent", { count: value.places.length - value.messages.length, total: value.places.length })}</p>` : null}`;
}

function Details({ device }) {
    const { value, error, reload } = usePolled(() => getJson(path(device)), POLL_MS);
    if (value === null) return error ? html`<${Failure} error=${error} />` : html`<p class="note" role="status">${t("parts.loading")}</p>`;
    const written = value.state === "adopted" || value.state === "retired";
    return html`<${Failure} error=${error} />
        ${value.warnings.map((warning) => html`<p class="failure"><bdi>${cut(warning, 400)}</bdi></p>`)}
        ${value.actuators.length ? html`<h3>${t("devices.actuators")}</h3><ul class="parts">${value.actuators.map((one) => written
            ? html`<${Setter} key=${one.key} device=${device} one=${one} reload=${reload} />`
            : html`<li class="part"><span class="name"><bdi>${cut(one.label, 80)}</bdi></span><span class="note"><bdi>${cut(one.place, 160)}</bdi></span></li>`)}</ul>` : null}
        ${value.sensors.length ? html`<h3>${t("devices.sensors")}</h3><ul class="parts">${value.sensors.map((one) => html`<${Sensor} key=${one.key} one=${one} />`)}</ul>` : null}
        <div class="beside">
            <section><h3>${t("devices.announcement")}</h3><pre class="clip" tabindex="0">${cut(JSON.stringify(value.announcement, null, 2), 20_000)}</pre></section>
            <section><h3>${t(written ? "devices.triples" : "devices.wouldWrite")}</h3><${Triples} triples=${value.triples} label=${t("devices.triplesOf")} /></section>
        </div>
        ${written ? html`<${Messages} device=${device} />` : null}`;
}

function chosenDevice() {
    return new URLSearchParams(location.hash.slice(1)).get("device");
}

function Device({ device, ask, now }) {
    const [open, setOpen] = useState(() => chosenDevice() === device.id);
    const model = [device.manufacturer, device.model].filter(Boolean).join(" ");
    const seen = Date.parse(device.last_seen ?? "");
    const parts = [device.sensors, device.actuators].map((all) => all.map((one) => one.label).join(", "));
    const toggled = (event) => {
        setOpen(event.currentTarget.open);
        if (event.currentTarget.open) history.replaceState(null, "", `#${new URLSearchParams({ device: device.id })}`);
        else if (chosenDevice() === device.id) history.replaceState(null, "", location.pathname);
    };
    return html`<li class="item device">
        <div class="line">
            <h2><${Iri} iri=${device.iri} label=${cut(device.name, 120)} />${device.area ? html` <small><bdi>${cut(device.area, 60)}</bdi></small>` : null}</h2>
            <span class=${`tag ${STATES[device.state] ?? ""}`}>${ORDER.includes(device.state) ? t(`devices.state.${device.state}`) : device.state}</span>
            ${device.online === undefined ? null : html`<span class=${`tag ${device.online ? "ok" : "warn"}`}>${t(device.online ? "devices.online" : "devices.offline")}${!device.online && Number.isFinite(seen) ? ` ${lasting(now - seen)}` : ""}</span>`}
            <span class="decide">${device.state === "adopted" || device.state === "retired"
                ? html`<button onClick=${() => ask(device, "rename")} aria-label=${t("devices.renameOf", { name: cut(device.name, 80) })}>${t("devices.renameButton")}</button><button onClick=${() => ask(device, "remove")} aria-label=${t("devices.removeOf", { name: cut(device.name, 80) })}>${t("devices.removeButton")}</button>`
                : html`<button class="main" onClick=${() => ask(device, "adopt")} aria-label=${t("devices.adoptOf", { name: cut(device.name, 80) })}>${t("devices.adoptButton")}</button>${device.state === "proposed" ? html`<button onClick=${() => ask(device, "ignore")} aria-label=${t("devices.ignoreOf", { name: cut(device.name, 80) })}>${t("devices.ignoreButton")}</button>` : null}`}</span>
        </div>
        <p class="note">${[model, device.source, device.broker && t("devices.broker", { name: device.broker })].filter(Boolean).map((text, index) => html`${index ? " · " : ""}<bdi>${cut(text, 80)}</bdi>`)}${device.last_seen && device.online !== false ? html` · ${rich("devices.lastContact", { time: html`<time datetime=${device.last_seen}>${moment(seen)}</time>` })}` : null}</p>
        ${device.unreachable ? html`<p class="why"><bdi>${cut(device.unreachable, 300)}</bdi></p>` : null}
        <details open=${open} onToggle=${toggled}><summary>${parts[0] ? rich("devices.sensorsList", { names: html`<bdi>${cut(parts[0], 160)}</bdi>` }) : null}${parts[0] && parts[1] ? " · " : ""}${parts[1] ? rich("devices.actuatorsList", { names: html`<bdi>${cut(parts[1], 160)}</bdi>` }) : null}${parts[0] || parts[1] ? "" : t("devices.details")}</summary>
            ${open ? html`<${Details} device=${device} />` : null}</details>
    </li>`;
}

const TOPIC = "home/kitchen/temperature";
const RULE = `[[stream]]
topic = "home/{room}/temperature"
property = "lighting:temperature"
payload = "number"
unit = "unit:DEG_C"
`;

function Made({ one }) {
    if (one.fault) return html`<p class="failure"><bdi>${cut(one.fault, 1000)}</bdi></p>`;
    if (one.missing) return html`<p class="note">${t("devices.noState")}</p>`;
    return html`${one.read ? html`<h4><bdi>${cut(one.read, 120)}</bdi></h4>` : null}
        ${one.state !== undefined ? html`<p>${rich("devices.reportedState", { state: html`<${Written} term=${one.state} />` })}</p>` : null}
        ${one.triples?.length ? html`<${Triples} triples=${one.triples} label=${t("devices.triplesOfReading")} />` : null}
        ${one.updates?.length ? html`<details><summary>${t("devices.updates")}</summary><pre class="clip" tabindex="0">${cut(one.updates.join("\n;\n"), 20_000)}</pre></details>` : null}`;
}

function Tried({ answer, polite = true }) {
    return html`<div role=${polite ? "status" : null}>
        ${answer.problem ? html`<p class="failure"><bdi>${cut(answer.problem, 1000)}</bdi></p>` : null}
        ${answer.rules.map((rule) => html`<section class="component ${rule.made.some((one) => one.fault) ? "bad" : "ok"}">
            <p><strong>${rule.rule.startsWith("<") ? html`<${Written} term=${rule.rule} />` : html`<bdi>${cut(rule.rule, 200)}</bdi>`}</strong> <small><bdi>${cut(rule.about, 200)}</bdi></small></p>
            ${rule.made.map((one) => html`<${Made} one=${one} />`)}
            ${rule.made.length ? null : html`<p class="note">${t("devices.madeNothing")}</p>`}
            ${rule.missing?.length ? html`<p class="note">${rich("devices.lacks", { names: html`<bdi>${cut(rule.missing.join(", "), 300)}</bdi>` })}</p>` : null}
            ${rule.more ? html`<p class="note">${t("devices.moreValues", { count: rule.more })}</p>` : null}
        </section>`)}
        ${answer.not_tested.length ? html`<p class="failure">${rich("devices.notTested", { names: html`<bdi>${cut(answer.not_tested.join("; "), 1000)}</bdi>` })}</p>` : null}
    </div>`;
}

function Trial() {
    const [answer, setAnswer] = useState(null);
    const [error, setError] = useState(null);
    const [own, setOwn] = useState(false);
    const [waiting, setWaiting] = useState(false);
    const submit = async (event) => {
        event.preventDefault();
        const { topic, payload, rule } = event.currentTarget.elements;
        setWaiting(true);
        setError(null);
        try {
            const asked = { topic: topic.value.trim(), payload: payload.value };
            setAnswer(await postJson("mapping/try", own ? { ...asked, rule: rule.value } : asked));
        } catch (failure) {
            setAnswer(null);
            setError(failure);
        }
        setWaiting(false);
    };
    return html`<details class="trial item"><summary><h2>${t("devices.try")}</h2></summary>
        <p class="note">${t("devices.tryText")}</p>
        <form onSubmit=${submit}>
            <label>${t("devices.topic")} <input name="topic" required spellcheck="false" autocapitalize="off" placeholder=${TOPIC} /></label>
            <label>${t("devices.payload")} <textarea name="payload" rows="3" spellcheck="false"></textarea></label>
            <label class="check"><input type="checkbox" checked=${own} onChange=${(event) => setOwn(event.currentTarget.checked)} /> ${t("devices.ownRule")}</label>
            ${own ? html`<label>${t("devices.rule")} <textarea name="rule" rows="7" spellcheck="false" defaultValue=${RULE}></textarea></label>` : null}
            <div class="actions"><button class="main" disabled=${waiting}>${t(waiting ? "devices.trying" : "devices.tryIt")}</button></div>
        </form>
        <${Failure} error=${error} />
        ${answer ? html`<${Tried} answer=${answer} />` : null}
    </details>`;
}

// A topic that no rule reads, with its last message and the rule that is proposed for it.
function UnreadTopic({ message }) {
    const { place, broker, payload, count, received, rule } = message;
    return html`<section class="message"><h4><bdi>${cut(place, 200)}</bdi></h4>
        <p class="note">${rich("devices.unreadCount", { count, time: html`<time datetime=${received}>${moment(received)}</time>` })} · ${rich("devices.broker", { name: html`<bdi>${cut(broker, 60)}</bdi>` })}</p>
        <pre class="clip" tabindex="0">${payload === undefined ? t("devices.noText") : cut(payload, 1200)}</pre>
        ${rule ? html`<details><summary>${t("devices.proposedRule")}</summary><pre class="clip" tabindex="0">${cut(rule, 4000)}</pre></details>` : null}
    </section>`;
}

function UnreadTopics() {
    const { value, error } = usePolled(() => getJson("messages/unread"), UNREAD_MS);
    if (value === null) return html`<${Failure} error=${error} />`;
    return html`<${Failure} error=${error} />
        ${value.unread.map((one) => html`<${UnreadTopic} key=${`${one.broker} ${one.place}`} message=${one} />`)}
        ${value.unread.length ? null : html`<p class="note" role="status">${t(value.answered ? "devices.noUnread" : "devices.noAdapter")}</p>`}
        ${value.more ? html`<p class="note">${t("log.notShown", { count: value.more })}</p>` : null}`;
}

// Asked for only when it is opened.
function Unread() {
    const [open, setOpen] = useState(false);
    return html`<details class="unread item" onToggle=${(event) => event.target === event.currentTarget && setOpen(event.currentTarget.open)}><summary><h2>${t("devices.unread")}</h2></summary>
        ${open ? html`<${UnreadTopics} />` : null}
    </details>`;
}

export function Devices() {
    const { value, error, reload } = usePolled(() => getJson("devices"), POLL_MS);
    const [asked, setAsked] = useState(null);
    const [said, setSaid] = useState({ text: "", warnings: [] });
    const tell = (text, warnings = []) => setSaid({ text, warnings });
    const ask = (device, what) => setAsked(questions(device, tell)[what]);
    const close = (sent) => {
        setAsked(null);
        if (sent) reload();
    };
    const devices = [...value?.devices ?? []].sort((one, other) => ORDER.indexOf(one.state) - ORDER.indexOf(other.state));
    const proposed = devices.filter((one) => one.state === "proposed");
    const now = Date.now();
    return html`<${Head} title=${t("view.devices")} view="devices" />
        <${Failure} error=${error} />
        <p role="status" class="note">${said.text}</p>
        ${said.warnings.map((warning) => html`<p class="failure"><bdi>${cut(warning, 400)}</bdi></p>`)}
        ${value === null ? null : html`
            ${value.unreadable.map((fault) => html`<p class="failure"><bdi>${cut(fault, 400)}</bdi></p>`)}
            ${proposed.length > 1 ? html`<div class="actions"><button class="main" onClick=${() => setAsked(adoptionOfAll(proposed, tell))}>${t("devices.adoptAll", { count: proposed.length })}</button></div>` : null}
            ${devices.length ? html`<ul class="list">${devices.map((device) => html`<${Device} key=${device.id} device=${device} ask=${ask} now=${now} />`)}</ul>
                ${value.total > devices.length ? html`<p class="note">${t("log.notShown", { count: value.total - devices.length })}</p>` : null}`
            : html`<p class="empty">${t("devices.empty")}</p>`}
            <${Unread} />
            <${Trial} />`}
        ${asked ? html`<${Asking} ...${asked} close=${close} />` : null}`;
}
