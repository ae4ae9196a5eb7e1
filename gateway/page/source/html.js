// Templates: preact with htm. All text becomes text nodes; no view sets HTML.
import { h } from "preact";
import htm from "htm";

export const html = htm.bind(h);
