// Texts by key in the language of the person, and numbers and times in the formats of the browser's locale.
import { de } from "./messages/de.js";
import { en } from "./messages/en.js";

// Language -> its name in itself.
export const LANGUAGES = { en: "English", de: "Deutsch" };
const CATALOGUES = { en, de };
const CHOICE = "language";

// The locales of the browser, those left out that Intl does not take.
const LOCALES = (navigator.languages ?? [navigator.language]).filter((tag) => {
    try {
        return Intl.getCanonicalLocales(tag).length > 0;
    } catch {
        return false;
    }
});

function chosen() {
    try {
        const kept = localStorage.getItem(CHOICE);
        return Object.hasOwn(CATALOGUES, kept ?? "") ? kept : null;
    } catch { // the browser keeps nothing for this page
        return null;
    }
}

function languageOf(tag) {
    return tag.split("-")[0].toLowerCase();
}

export const language = chosen() ?? LOCALES.map(languageOf).find((one) => Object.hasOwn(CATALOGUES, one)) ?? "en";
export const locale = LOCALES.find((tag) => languageOf(tag) === language) ?? (chosen() ? language : LOCALES[0] ?? language);

// Keeps the choice, and loads the page anew in that language. Raises SecurityError where the browser keeps nothing.
export function chooseLanguage(name) {
    localStorage.setItem(CHOICE, name);
    location.reload();
}

const messages = CATALOGUES[language];
const plurals = new Intl.PluralRules(language);
const numbers = new Intl.NumberFormat(locale, { maximumFractionDigits: 3 });
const moments = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat(locale, { timeStyle: "medium" });
const precise = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });
const days = new Intl.DateTimeFormat(locale, { dateStyle: "full" });

export function number(value) {
    return numbers.format(value);
}

function formatted(format, value) {
    const at = new Date(value);
    return Number.isNaN(at.getTime()) ? "" : format.format(at);
}

// Date and time of a Date, a text of a time, or milliseconds; "" for what is no time.
export function moment(value) {
    return formatted(moments, value);
}

export function clockTime(value) {
    return formatted(clock, value);
}

// With milliseconds.
export function preciseTime(value) {
    return formatted(precise, value);
}

export function day(value) {
    return formatted(days, value);
}

const divided = new Map(); // text of a message -> its parts

// The message as texts and, at odd places, names of values.
function split(key, values) {
    const message = messages[key];
    const text = typeof message === "string" ? message : message[plurals.select(values.count)] ?? message.other;
    if (!divided.has(text)) divided.set(text, text.split(/\{(\w+)\}/));
    return divided.get(text);
}

function shown(value) {
    return typeof value === "number" ? number(value) : value;
}

export function has(key) {
    return Object.hasOwn(messages, key);
}

// The text of a key. values: by the names in its braces; `count` chooses the plural.
export function t(key, values = {}) {
    return split(key, values).map((part, index) => (index % 2 ? shown(values[part]) : part)).join("");
}

// The same with elements among the values, as children of an element.
export function rich(key, values) {
    return split(key, values).map((part, index) => (index % 2 ? shown(values[part]) : part));
}
