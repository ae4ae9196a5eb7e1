import { top } from "./gateway.js";

// Goes to a view without loading the page again. search: of the address, such as "?id=7"; hash: "#query=...".
export function go(name, { search = "", hash = "", state = null } = {}) {
    history.pushState(state, "", new URL(`page/${name}${search}${hash}`, top));
    dispatchEvent(new PopStateEvent("popstate"));
}

// Whether a click on a link means to go there in this window.
export function followed(event) {
    return event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
}
