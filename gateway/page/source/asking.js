// Questions before a decision.
import { useEffect, useRef, useState } from "preact/hooks";

import { html } from "./html.js";
import { Failure, Field } from "./parts.js";
import { t } from "./texts.js";

// A question before a decision. fields: texts to enter, { name, label, value, pattern }; done(values): sends it; close(whether it was sent).
export function Asking({ title, text, action, danger, fields = [], done, close }) {
    const dialog = useRef(null), over = useRef(false);
    const [error, setError] = useState(null), [waiting, setWaiting] = useState(false);
    const finish = (sent) => {
        if (over.current) return;
        over.current = true;
        dialog.current.close();
        close(sent);
    };
    useEffect(() => dialog.current.showModal(), []);
    const submit = async (event) => {
        event.preventDefault();
        const form = event.currentTarget;
        setWaiting(true);
        setError(null);
        try {
            await done(Object.fromEntries(fields.map(({ name }) => [name, form.elements[name].value.trim()])));
            finish(true);
        } catch (failure) {
            setError(failure);
            setWaiting(false);
        }
    };
    return html`<dialog ref=${dialog} class="asking" aria-labelledby="asking-title" onCancel=${() => finish(false)} onClose=${() => finish(false)}><form onSubmit=${submit}>
        <h2 id="asking-title">${title}</h2>
        ${text ? html`<p>${text}</p>` : null}
        ${fields.map(({ name, label, value, pattern }) => html`<label>${label} <${Field} name=${name} value=${value} required=${Boolean(pattern)} pattern=${pattern} autocomplete="off" spellcheck="false" /></label>`)}
        <${Failure} error=${error} />
        <div class="actions">
            <button class=${danger ? "danger" : "main"} disabled=${waiting}>${action}</button>
            <button type="button" autofocus=${danger} onClick=${() => finish(false)}>${t("devices.leave")}</button>
        </div>
    </form></dialog>`;
}
