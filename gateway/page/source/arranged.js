// How a person has arranged the cards of Now, kept by the browser: their order, and those that are hidden.
const KEPT = "cards";
const CARDS_MAX = 1000;

function names(value) {
    return Array.isArray(value) ? value.filter((one) => typeof one === "string").slice(0, CARDS_MAX) : [];
}

// { order, hidden }: IRIs of features.
export function arranged() {
    try {
        const kept = JSON.parse(localStorage.getItem(KEPT)) ?? {};
        return { order: names(kept.order), hidden: names(kept.hidden) };
    } catch { // nothing is kept, or something else
        return { order: [], hidden: [] };
    }
}

export function keepArranged({ order, hidden }) {
    try {
        localStorage.setItem(KEPT, JSON.stringify({ order: names(order), hidden: names(hidden) }));
    } catch { /* it is as the person wants it until the page is left */ }
}

// The cards in the order that a person gave them; those without one come after, as they were.
export function inOrder(cards, order) {
    const place = new Map(order.map((iri, index) => [iri, index]));
    const of = ({ iri }) => place.get(iri) ?? order.length;
    return [...cards].sort((one, other) => of(one) - of(other));
}

// The order after a card has moved by one place among those that are shown.
export function moved(cards, iri, by) {
    const order = cards.map((card) => card.iri), from = order.indexOf(iri), to = from + by;
    if (from < 0 || to < 0 || to >= order.length) return order;
    [order[from], order[to]] = [order[to], order[from]];
    return order;
}
