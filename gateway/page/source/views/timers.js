// Delayed updates that are pending, counting down.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { listing, request } from "../gateway.js";
import { html } from "../html.js";
import { Failure, Head, usePolled, useTick } from "../parts.js";
import { begun, cut, duration } from "../terms.js";
import { clockTime, rich, t } from "../texts.js";

const POLL_MS = 2000;
const FEW = 100, MANY = 1000;
const CHARACTERS = 2000;

// What is left of it as text, and as a share of its whole delay.
function remaining(timer, loaded) {
    if (timer.in_s === null) return { left: null, share: 1 };
    const left = timer.in_s - (performance.now() - loaded) / 1000;
    const due = Date.parse(timer.due), set = Date.parse(timer.set);
    const whole = (due - set) / 1000;
    return { left, share: whole > 0 ? Math.min(1, Math.max(0, left / whole)) : 0 };
}

function Cancelling({ timer, done }) {
    const dialog = useRef(null), over = useRef(false);
    const [error, setError] = useState(null);
    // `close` gives the focus back; its event comes later, when another dialog may be open. Escape begins with `cancel`.
    const finish = (cancelled) => {
        if (over.current) return;
        over.current = true;
        dialog.current.close();
        done(cancelled);
    };
    useEffect(() => dialog.current.showModal(), []);
    const cancel = async () => {
        try {
            await request(`delayed/${encodeURIComponent(timer.id)}`, { method: "DELETE" });
            finish(true);
        } catch (failure) {
            setError(failure);
        }
    };
    return html`<dialog ref=${dialog} aria-labelledby="cancel-title" onCancel=${() => finish(false)} onClose=${() => finish(false)}>
        <h2 id="cancel-title">${t("timers.cancelTitle")}</h2>
        <p>${t("timers.cancelText")}</p>
        <pre class="clip">${begun(timer.update, timer.update_characters)}</pre>
        <${Failure} error=${error} />
        <div class="actions">
            <button class="danger" onClick=${cancel}>${t("timers.cancelIt")}</button>
            <button autofocus onClick=${() => finish(false)}>${t("timers.keep")}</button>
        </div>
    </dialog>`;
}

function Timer({ timer, loaded, choose }) {
    const { left, share } = remaining(timer, loaded);
    const state = timer.state === "pending" && left !== null ? (left <= 0 ? t("timers.isDue") : duration(left + 0.999)) : t(timer.state === "late" ? "timers.late" : "timers.waiting");
    return html`<li class="item">
        <div class="line">
            <strong class="left">${state}</strong>
            <span class="note">${rich("timers.due", { time: html`<time datetime=${timer.due}>${clockTime(timer.due)}</time>` })}${timer.cause ? html` · ${rich("timers.setBy", { cause: html`<bdi>${cut(causeText(timer.cause), 80)}</bdi>` })}` : null}${timer.client ? html` · ${rich("timers.client", { name: html`<bdi>${cut(timer.client, 80)}</bdi>` })}` : null}</span>
            <button onClick=${() => choose(timer)} aria-label=${t("timers.cancelAt", { time: clockTime(timer.due) })}>${t("timers.cancel")}</button>
        </div>
        <progress max="1" value=${share} aria-hidden="true"></progress>
        <details><summary>${t("timers.update")}</summary><pre class="clip">${begun(timer.update, timer.update_characters)}</pre></details>
    </li>`;
}

function causeText(cause) {
    return typeof cause === "string" ? cause : [cause.kind, cause.id].filter(Boolean).join(" ");
}

export function Timers() {
    useTick(1000);
    const [limit, setLimit] = useState(FEW);
    const load = useMemo(() => listing(`delayed?${new URLSearchParams({ limit, characters: CHARACTERS })}`), [limit]);
    const { value, error, reload } = usePolled(load, POLL_MS);
    const more = () => {
        setLimit(MANY);
        reload();
    };
    const [chosen, setChosen] = useState(null);
    const [said, setSaid] = useState("");
    const done = (cancelled) => {
        setChosen(null);
        if (!cancelled) return;
        setSaid(t("timers.cancelled"));
        reload();
    };
    return html`<${Head} title=${t("view.timers")} view="timers" />
        <${Failure} error=${error} />
        <p class="hidden" role="status">${said}</p>
        ${value === null ? null : value.total === 0
            ? html`<p class="empty">${t("timers.empty")}</p>`
            : html`<p class="note">${t("timers.pending", { count: value.total })}${value.total > value.delayed.length ? t("timers.next", { count: value.delayed.length }) : ""}</p>
                <ul class="list">${value.delayed.map((timer) => html`<${Timer} key=${timer.id} timer=${timer} loaded=${value.at} choose=${setChosen} />`)}</ul>
                ${value.total > value.delayed.length && limit === FEW ? html`<p><button onClick=${more}>${t("timers.upTo", { count: MANY })}</button></p>` : null}`}
        ${chosen ? html`<${Cancelling} timer=${chosen} done=${done} />` : null}`;
}
