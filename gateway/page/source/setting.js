// Sets the desired states of actuators: of adopted devices, and of rules.
import { useEffect, useState } from "preact/hooks";

import { colourOf, writtenColour } from "./colour.js";
import { getJson, postJson, session } from "./gateway.js";
import { html } from "./html.js";
import { Failure } from "./parts.js";
import { t } from "./texts.js";
import { cut, numberText } from "./terms.js";

const FEW = 4;
const OTHERS = { on: "off", off: "on", true: "false", false: "true", open: "closed", closed: "open", locked: "unlocked", unlocked: "locked" };

// The path of a device or of a rule's actuator. A name of the dataset stays below `devices/`, whatever it is.
export function devicePath(name) {
    const parts = name.split("/");
    return parts.some((part) => part === "." || part === "..") ? "" : `devices/${parts.map(encodeURIComponent).join("/")}`;
}

// Where the states of an actuator are set; "" if the page cannot. places: the adopted devices that carry it.
export function settingPath(iri, places) {
    if (!session.operator || !session.base) return "";
    const device = places.find((one) => one.startsWith(`${session.base}device/`));
    if (device) return devicePath(device.slice(session.base.length + "device/".length));
    return iri.startsWith(`${session.base}actuator/`) ? devicePath(iri.slice(session.base.length)) : "";
}

// What is known of an actuator. Only a device tells which states there are.
async function partOf({ path, iri, label }) {
    if (path.startsWith("devices/actuator/")) return { label };
    const found = (await getJson(path)).actuators.find((one) => one.iri === iri);
    if (!found) throw new Error(t("setting.gone"));
    return found;
}

function setState(path, one, state) {
    return postJson(path, one.key === undefined ? { action: "set", state } : { action: "set", actuator: one.key, state });
}

// Follows the hand, and sets the number once it is let go.
function Slider({ one, shown, set }) {
    const [moved, setMoved] = useState(null);
    const { minimum, maximum } = one, value = moved ?? Number(shown ?? minimum);
    useEffect(() => setMoved(null), [shown]);
    return html`<span class="slider">
        <input type="range" aria-label=${t("setting.name", { name: one.label })} min=${minimum} max=${maximum} step=${maximum - minimum > 5 ? 1 : "any"} value=${value}
            onInput=${(event) => setMoved(Number(event.currentTarget.value))} onChange=${async (event) => await set(event.currentTarget.value) || setMoved(null)} />
        <output>${numberText(value)}</output></span>`;
}

function Colour({ one, shown, set }) {
    return html`<input type="color" aria-label=${t("setting.name", { name: one.label })} value=${colourOf(shown, one.key)}
        onChange=${(event) => set(writtenColour(event.currentTarget.value, shown, one.key))} />`;
}

// Whether an actuator, of which the device has told { kind, states, minimum, maximum }, has a control of its own.
export function isSlider(one) {
    return !one.states?.length && one.minimum !== undefined && one.maximum > one.minimum;
}

export function isColour(one) {
    return one.kind === "gateway:color";
}

// A button for each of a few states, a slider, a colour, else a field. one: { key, label, states, minimum, maximum, desired }, of which all
// but the label may be absent. done(): it was set.
export function Setting({ path, one, done }) {
    const [error, setError] = useState(null);
    const set = async (state) => { // whether the gateway took it
        setError(null);
        try {
            await setState(path, one, state);
            done();
            return true;
        } catch (failure) {
            setError(failure);
            return false;
        }
    };
    const submit = (event) => {
        event.preventDefault();
        const { value } = event.currentTarget.elements.state;
        if (value !== "") set(value);
    };
    const numeric = one.minimum !== undefined || one.maximum !== undefined;
    const named = (state) => t("setting.to", { name: one.label, state: String(state) });
    const states = one.states ?? [], shown = one.desired ?? one.reported;
    if (isSlider(one) || isColour(one)) {
        return html`<${isSlider(one) ? Slider : Colour} one=${one} shown=${shown} set=${set} /><${Failure} error=${error} />`;
    }
    return html`${states.length && states.length <= FEW
        ? html`<span class="choices">${states.map((state) => html`<button aria-label=${named(state)} aria-pressed=${String(state) === one.desired} onClick=${() => set(state)}><bdi>${String(state)}</bdi></button>`)}</span>`
        : html`<form class="choices" onSubmit=${submit}>${states.length
            ? html`<select name="state" aria-label=${t("setting.state", { name: one.label })}>${states.map((state) => html`<option>${String(state)}</option>`)}</select>`
            : html`<input name="state" aria-label=${t("setting.state", { name: one.label })} type=${numeric ? "number" : "text"} step="any" min=${one.minimum} max=${one.maximum} placeholder=${numeric ? `${one.minimum ?? ""}–${one.maximum ?? ""}` : t("setting.field")} />`}
            <button aria-label=${t("setting.name", { name: one.label })}>${t("setting.set")}</button></form>`}
        <${Failure} error=${error} />`;
}

// The same for an actuator of which only the place is known: { path, iri, label }.
export function RemoteSetting({ actuator, done }) {
    const [part, setPart] = useState(null), [error, setError] = useState(null);
    useEffect(() => {
        let over = false;
        partOf(actuator).then((found) => over || setPart(found), (failure) => over || setError(failure));
        return () => { over = true; };
    }, [actuator.path, actuator.iri]);
    if (error) return html`<${Failure} error=${error} />`;
    return part ? html`<${Setting} path=${actuator.path} one=${part} done=${done} />` : html`<span class="note" role="status">${t("parts.loading")}</span>`;
}

const OBSERVED_MAX = 500; // devices whose actuators are known
const told = new Map(); // path of a device -> what it tells of its actuators, once it has told
let asked = Promise.resolve(); // one device after the other, so that the first view comes first

function askedOnce(path) {
    if (!told.has(path)) {
        if (told.size >= OBSERVED_MAX) told.clear();
        const answer = asked.then(() => getJson(path));
        asked = answer.catch(() => {});
        answer.catch(() => told.delete(path));
        told.set(path, answer);
    }
    return told.get(path);
}

// What the device tells of an actuator, once its element is in sight; null until then, and where it tells nothing.
export function usePart(element, { path, iri }, wanted) {
    const [part, setPart] = useState(null);
    useEffect(() => {
        if (!wanted || !path || path.startsWith("devices/actuator/")) return undefined;
        let over = false;
        const seen = new IntersectionObserver((entries) => {
            if (!entries.some((one) => one.isIntersecting)) return;
            seen.disconnect();
            askedOnce(path).then(({ actuators }) => over || setPart(actuators.find((one) => one.iri === iri) ?? null), () => {});
        });
        seen.observe(element.current);
        return () => {
            over = true;
            seen.disconnect();
        };
    }, [path, iri, wanted]);
    return part;
}

// Whether a state is one of two.
export function isOneOfTwo(state) {
    return typeof state === "string" && Object.hasOwn(OTHERS, state.toLowerCase()); // that of a triple term is none
}

// Gives an actuator its other state. state: the present one, as text. Raises GatewayError, Error.
export async function switchOver(actuator, state) {
    const part = await partOf(actuator);
    const other = part.states?.length === 2 ? part.states.find((one) => String(one).toLowerCase() !== state.toLowerCase()) : OTHERS[state.toLowerCase()];
    await setState(actuator.path, part, other);
}
