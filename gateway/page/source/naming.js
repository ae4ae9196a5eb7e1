// Gives things names: devices by a decision, all else by the label in the dataset. Both need the permission for it.
import { postJson, request, session } from "./gateway.js";
import { devicePath } from "./setting.js";

const IRI = /^[^\x00-\x20<>"{}|^`\\]+$/;
const LABEL = "<http://www.w3.org/2000/01/rdf-schema#label>";

// device: IRI of the adopted device that a thing is or is carried by, "" for none. Raises GatewayError.
export async function rename(iri, device, name) {
    const below = `${session.base}device/`;
    const path = session.operator && device.startsWith(below) ? devicePath(device.slice(below.length)) : "";
    if (path) return postJson(path, { action: "rename", name });
    const added = name ? `INSERT { <${iri}> ${LABEL} ${JSON.stringify(name)} }` : "";
    const body = `DELETE { <${iri}> ${LABEL} ?label } ${added} WHERE { OPTIONAL { <${iri}> ${LABEL} ?label } }`;
    return request(session.update, { method: "POST", body, type: "application/sparql-update" });
}

export function canBeNamed(iri) {
    return IRI.test(iri);
}
