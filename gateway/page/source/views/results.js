// Results of SELECT: columns, rows as bags, and what can be drawn of them.
import { isNumber, isTime, text } from "../terms.js";

const SERIES_MAX = 8;

// Rows with multiplicity, in the order in which they came.
export class Rows {
    constructor() {
        this.columns = [];
        this.counts = new Map(); // key -> [binding, count]
    }

    replace({ head, results }) {
        this.columns = head.vars;
        this.counts.clear();
        this.add(results.bindings);
    }

    add(bindings) {
        for (const binding of bindings) {
            const key = this.key(binding), known = this.counts.get(key);
            if (known) known[1]++;
            else this.counts.set(key, [binding, 1]);
        }
    }

    remove(bindings) {
        for (const binding of bindings) {
            const key = this.key(binding), known = this.counts.get(key);
            if (known && --known[1] === 0) this.counts.delete(key);
        }
    }

    // A result may order the members of a binding in any way.
    key(binding) {
        return JSON.stringify(this.columns.map((name) => binding[name] ?? null));
    }

    list() {
        const found = [];
        for (const [binding, count] of this.counts.values()) for (let i = 0; i < count; i++) found.push(binding);
        return found;
    }
}

// What to draw: { time, series: [{ label, points: [[seconds, number]] }] }, or null where no column has times or numbers.
export function drawing(columns, bindings) {
    const all = (name, test) => {
        const terms = bindings.map((binding) => binding[name]).filter(Boolean);
        return terms.length > 0 && terms.every(test);
    };
    const time = columns.find((name) => all(name, isTime));
    const numbers = columns.filter((name) => all(name, isNumber));
    if (!time || !numbers.length) return null;
    const rest = columns.filter((name) => name !== time && !numbers.includes(name));
    const keyOf = (binding) => rest.map((name) => text(binding[name])).join(" ");
    const keys = new Set(bindings.map(keyOf));
    const grouped = rest.length > 0 && keys.size <= SERIES_MAX;
    const series = new Map();
    for (const binding of bindings) {
        const at = Date.parse(binding[time]?.value) / 1000;
        if (!Number.isFinite(at)) continue;
        for (const name of numbers) {
            if (!binding[name]) continue;
            const label = [grouped ? keyOf(binding) : "", numbers.length > 1 || !grouped ? name : ""].filter(Boolean).join(" ");
            if (!series.has(label)) series.set(label, []);
            series.get(label).push([at, Number(binding[name].value)]);
        }
    }
    if (!series.size) return null;
    return {
        time,
        series: Array.from(series.entries()).slice(0, SERIES_MAX).map(([label, points]) => ({
            label, points: points.sort((one, other) => one[0] - other[0]),
        })),
    };
}
