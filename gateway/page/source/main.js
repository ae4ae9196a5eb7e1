// The page: chooses the view by the address, and shows it in the shell.
import { render } from "preact";

import { loadSession } from "./gateway.js";
import { html } from "./html.js";
import { Shell } from "./shell.js";
import { language } from "./texts.js";

const FIRST_WAIT_MS = 500, LONGEST_WAIT_MS = 8000;

async function start() {
    document.documentElement.lang = language;
    const place = document.getElementById("page");
    for (let waitMs = FIRST_WAIT_MS; ; waitMs = Math.min(2 * waitMs, LONGEST_WAIT_MS)) {
        try {
            await loadSession();
            break;
        } catch (error) {
            render(html`<p class="failure" role="alert">${error.message}</p>`, place);
            await new Promise((resolve) => setTimeout(resolve, waitMs));
        }
    }
    render(html`<${Shell} />`, place);
}

start();
