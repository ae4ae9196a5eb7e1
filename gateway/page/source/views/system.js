// The backup: downloaded, and restored after two questions. The check of the settings.
import { useRef, useState } from "preact/hooks";

import { Asking } from "../asking.js";
import { request, session, top } from "../gateway.js";
import { html } from "../html.js";
import { Failure, Head } from "../parts.js";
import { bytes, cut } from "../terms.js";
import { t } from "../texts.js";

function Restoring() {
    const [file, setFile] = useState(null), [step, setStep] = useState(0), [answer, setAnswer] = useState(null);
    const field = useRef(null);
    const chosen = (event) => {
        setFile(event.currentTarget.files[0] ?? null);
        setAnswer(null);
    };
    const restore = async () => {
        const told = await request("restore", { method: "POST", body: file });
        setAnswer(await told.json());
    };
    const finished = (sent) => {
        setStep(0);
        if (!sent) return;
        field.current.value = "";
        setFile(null);
    };
    const word = t("system.word");
    return html`<section class="item"><h2>${t("system.restore")}</h2>
        <p>${t("system.restoreText")}</p>
        <label class="option"><span class="label">${t("system.file")}</span> <input ref=${field} type="file" onChange=${chosen} /></label>
        <div class="actions"><button class="danger" disabled=${!file} onClick=${() => setStep(1)}>${t("system.restoreButton")}</button></div>
        ${answer ? html`<p role="status">${t("system.restored", { removed: answer.removed, added: answer.added })}</p>` : null}
        ${step === 1 ? html`<${Asking} key="first" title=${t("system.restoreTitle")} danger=${true} action=${t("system.go")}
            text=${t("system.restoreFirst", { file: cut(file.name, 100), size: bytes(file.size) })} done=${async () => {}} close=${(sent) => setStep(sent ? 2 : 0)} />` : null}
        ${step === 2 ? html`<${Asking} key="second" title=${t("system.restoreTitle")} danger=${true} action=${t("system.replace")} text=${t("system.restoreSecond", { word })}
            fields=${[{ name: "word", label: t("system.wordLabel"), value: "", pattern: word }]} done=${restore} close=${finished} />` : null}
    </section>`;
}

function Checking() {
    const [found, setFound] = useState(null), [error, setError] = useState(null), [waiting, setWaiting] = useState(false);
    const check = async () => {
        setWaiting(true);
        setFound(null);
        setError(null);
        try {
            setFound(await (await request("settings/check")).json());
        } catch (failure) {
            setError(failure);
        }
        setWaiting(false);
    };
    const lines = found ? [...found.faults, ...found.notes] : [];
    return html`<section class="item"><h2>${t("system.settings")}</h2><p>${t("system.settingsText")}</p>
        <div class="actions"><button disabled=${waiting} onClick=${check}>${t(waiting ? "system.checking" : "system.check")}</button></div>
        <${Failure} error=${error} />
        ${found ? html`<p role="status">${t(found.valid ? "system.valid" : "system.invalid")}</p>` : null}
        ${lines.length ? html`<ul class="findings">${lines.map((line) => html`<li><bdi>${line}</bdi></li>`)}</ul>` : null}
    </section>`;
}

export function System() {
    const name = `lamplighter-${new Date().toISOString().slice(0, 10)}.backup`;
    return html`<${Head} title=${t("view.system")} />
        ${session.operator ? html`<div class="list">
            <section class="item"><h2>${t("system.backup")}</h2><p>${t("system.backupText")}</p>
                <div class="actions"><a class="button" href=${`${top}backup`} download=${name}>${t("system.download")}</a></div></section>
            <${Restoring} /><${Checking} /></div>` : html`<p class="empty">${t("parts.operator")}</p>`}`;
}
