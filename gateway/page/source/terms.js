// RDF terms (SPARQL JSON), numbers and times as text for people.
import { session } from "./gateway.js";
import { locale, number as shownNumber, t } from "./texts.js";

export const PREFIXES = {
    rdf: "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    rdfs: "http://www.w3.org/2000/01/rdf-schema#",
    xsd: "http://www.w3.org/2001/XMLSchema#",
    sosa: "http://www.w3.org/ns/sosa/",
    qudt: "http://qudt.org/schema/qudt/",
    unit: "http://qudt.org/vocab/unit/",
    lighting: "http://lamplighter.example/ns/lighting#",
    gateway: "http://lamplighter.example/ns/gateway#",
};
const NAMESPACES = Object.entries(PREFIXES);
const XSD = PREFIXES.xsd;
const NUMERIC = new Set(["integer", "decimal", "double", "float"].map((name) => XSD + name));
const LONGEST = 2000;

// Signs of units whose name nobody reads at a glance.
const UNITS = {
    DEG_C: "°C", DEG_F: "°F", K: "K", PERCENT: "%", PERCENT_RH: "%", LUX: "lx", W: "W", KiloW: "kW", "W-HR": "Wh",
    "KiloW-HR": "kWh", V: "V", MilliV: "mV", A: "A", MilliA: "mA", PA: "Pa", HectoPA: "hPa", KiloPA: "kPa", BAR: "bar",
    MilliBAR: "mbar", PPM: "ppm", PPB: "ppb", "M-PER-SEC": "m/s", "KiloM-PER-HR": "km/h", M: "m", CentiM: "cm",
    MilliM: "mm", SEC: "s", MilliSEC: "ms", MIN: "min", HR: "h", HZ: "Hz", L: "l", M3: "m³", DEG: "°", DB: "dB",
    DeciB: "dB", DeciB_M: "dBm", "MicroGM-PER-M3": "µg/m³", KiloGM: "kg", GM: "g", VAR: "var", "V-A": "VA", UNITLESS: "",
};

export function shortIri(iri) {
    for (const [prefix, namespace] of NAMESPACES) {
        if (iri.startsWith(namespace) && iri.length > namespace.length) return `${prefix}:${iri.slice(namespace.length)}`;
    }
    if (session.base && iri.startsWith(session.base) && iri.length > session.base.length) {
        return iri.slice(session.base.length);
    }
    return iri;
}

// The last part of an IRI: what people call the thing. One that is a number has the part before it: lamp/1, but co2.
export function localName(iri) {
    const short = shortIri(iri);
    const found = /[^/#:]+[/#:]\d+$/.exec(short) ?? /[^/#:]+$/.exec(short);
    return found ? found[0] : short;
}

// A label within what is called `title`: "Hall lamp power" is power in the card "Hall lamp".
export function labelWithin(label, title) {
    return label.startsWith(`${title} `) ? label.slice(title.length + 1) : label;
}

export function unitSign(unit, code) {
    if (code) return code;
    if (!unit) return "";
    const name = localName(unit);
    return Object.hasOwn(UNITS, name) ? UNITS[name] : name;
}

export function cut(text, longest = LONGEST) {
    return text.length <= longest ? text : t("terms.characters", { text: text.slice(0, longest), count: text.length });
}

// A text whose beginning the gateway sent; characters: of the whole, undefined where it is whole.
export function begun(text, characters) {
    return characters === undefined ? cut(text) : t("terms.characters", { text, count: characters });
}

export function isNumber(term) {
    return term?.type === "literal" && NUMERIC.has(term.datatype) && Number.isFinite(Number(term.value));
}

export function isTime(term) {
    return term?.type === "literal" && (term.datatype === XSD + "dateTime" || term.datatype === XSD + "date");
}

export function isBoolean(term) {
    return term?.type === "literal" && term.datatype === XSD + "boolean";
}

// A term as text, without a datatype; triple terms in the syntax of RDF 1.2.
export function text(term) {
    if (!term) return "";
    if (term.type === "uri") return shortIri(term.value);
    if (term.type === "bnode") return `_:${term.value}`;
    if (term.type === "triple") {
        const { subject, predicate, object } = term.value;
        return `<<( ${text(subject)} ${text(predicate)} ${text(object)} )>>`;
    }
    return term.value;
}

const ESCAPES = { t: "\t", b: "\b", n: "\n", r: "\r", f: "\f" };

function unescaped(quoted) {
    return quoted.replace(/\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))/gs, (whole, short, long, one) => {
        const code = parseInt(short ?? long, 16);
        return one === undefined ? (code <= 0x10ffff ? String.fromCodePoint(code) : whole) : ESCAPES[one] ?? one;
    });
}

// A term in N-Triples syntax as SPARQL JSON; null for one that is no IRI, blank node or literal.
export function ntriples(term) {
    const iri = /^<([^<>\s]*)>$/.exec(term);
    if (iri) return { type: "uri", value: unescaped(iri[1]) };
    if (term.startsWith("_:")) return { type: "bnode", value: term.slice(2) };
    const literal = /^"([^]*)"(?:\^\^<([^<>\s]*)>|@([A-Za-z0-9-]+))?$/.exec(term);
    if (!literal) return null;
    const [, value, datatype, lang] = literal;
    const found = { type: "literal", value: unescaped(value) };
    if (datatype) found.datatype = datatype;
    if (lang) found["xml:lang"] = lang;
    return found;
}

export function numberText(value) {
    const number = Number(value);
    if (!Number.isFinite(number)) return String(value);
    const size = Math.abs(number);
    if (size !== 0 && (size >= 1e7 || size < 1e-3)) return number.toPrecision(4); // the same in all languages
    return shownNumber(number);
}

export function duration(seconds) {
    const s = Math.max(0, Math.floor(seconds));
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60 ? `${s % 60} s` : ""}`.trim();
    if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
    return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// How long ago, as few words as possible.
export function age(milliseconds) {
    const s = Math.floor(milliseconds / 1000);
    if (s < 2) return t("terms.now");
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min`;
    if (s < 86400) return `${Math.floor(s / 3600)} h`;
    return `${Math.floor(s / 86400)} d`;
}

// The same in a sentence.
export function lasting(milliseconds) {
    return milliseconds < 2000 ? t("terms.justNow") : t("terms.for", { age: age(milliseconds) });
}

export function bytes(count) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let index = 0, value = count;
    while (value >= 1024 && index < units.length - 1) {
        value /= 1024;
        index++;
    }
    return `${shownNumber(index ? Math.round(10 * value) / 10 : value)} ${units[index]}`;
}

// Where a link to an IRI leads: only http and https, and IRIs of the gateway to this host.
export function linkOf(iri, top) {
    if (iri.length > LONGEST) return null;
    let url;
    try {
        url = new URL(iri);
    } catch {
        return null;
    }
    if (url.protocol !== "http:" && url.protocol !== "https:") return null;
    if (session.base && iri.startsWith(session.base)) {
        const path = new URL(session.base).pathname;
        const rest = url.pathname.slice(path.length) + url.search;
        if (rest.startsWith("/")) return null;
        return new URL(`.${path}${rest}`, top).href;
    }
    return url.href;
}

export const natural = new Intl.Collator(locale, { numeric: true, sensitivity: "base" }).compare;
