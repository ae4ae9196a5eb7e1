// Subscriptions over one WebSocket, which is opened again whenever it is lost. A new connection gets each result as a
// whole, so nothing is missed.
import { GatewayError, allowed, session, sessionEnded, watchSession } from "./gateway.js";

const FIRST_WAIT_MS = 250, LONGEST_WAIT_MS = 8000;

let socket = null;
let waitMs = FIRST_WAIT_MS;
let timer = 0;
let numbers = 0;
let state = "closed";
const subscriptions = new Map(); // alias -> Subscription
const named = new Map(); // spuid -> Subscription
const watchers = new Set();

// "closed" without subscriptions, "connecting", "open", "lost"
export function connectionState() {
    return state;
}

export function watchConnection(watcher) {
    watchers.add(watcher);
    return () => watchers.delete(watcher);
}

function become(next) {
    if (next === state) return;
    state = next;
    for (const watcher of watchers) watcher(state);
}

function send(message) {
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

function connect() {
    clearTimeout(timer);
    if (socket || !subscriptions.size || !session.subscribe || !allowed()) return;
    become(state === "lost" ? "lost" : "connecting");
    const mine = new WebSocket(session.subscribe);
    socket = mine;
    mine.onopen = () => {
        for (const one of subscriptions.values()) one.begin();
    };
    mine.onmessage = (event) => {
        waitMs = FIRST_WAIT_MS;
        become("open");
        take(JSON.parse(event.data));
    };
    mine.onclose = () => {
        if (socket !== mine) return;
        socket = null;
        named.clear();
        if (!subscriptions.size) return become("closed");
        become("lost");
        timer = setTimeout(connect, waitMs * (0.5 + Math.random() / 2));
        waitMs = Math.min(2 * waitMs, LONGEST_WAIT_MS);
    };
}

function disconnect() {
    clearTimeout(timer);
    const old = socket;
    socket = null;
    named.clear();
    old?.close();
    become("closed");
}

function take(message) {
    if (message.notification) {
        const { spuid, alias, sequence, addedResults, removedResults } = message.notification;
        let one = named.get(spuid);
        if (sequence === 0 && alias !== undefined) {
            one = subscriptions.get(alias);
            if (!one) return send({ unsubscribe: { spuid } }); // it was ended meanwhile
            one.spuid = spuid;
            named.set(spuid, one);
        }
        one?.notified(sequence, addedResults, removedResults, message.notification.class);
    } else if (message.error) {
        const error = new GatewayError(message.status_code, message.error, message.error_description);
        if (error.status === 401) return sessionEnded();
        const one = subscriptions.get(message.alias) ?? named.get(message.spuid);
        if (one) {
            one.end();
            one.failed(error);
        }
    }
}

class Subscription {
    constructor(sparql, notified, failed) {
        this.sparql = sparql;
        this.notified = notified;
        this.failed = failed;
        this.alias = `page-${++numbers}`;
        this.spuid = null;
        subscriptions.set(this.alias, this);
        if (socket) this.begin();
        else connect();
    }

    begin() {
        send({ subscribe: { sparql: this.sparql, alias: this.alias, class: true } });
    }

    end() {
        if (!subscriptions.delete(this.alias)) return;
        if (this.spuid && named.delete(this.spuid)) send({ unsubscribe: { spuid: this.spuid } });
        if (!subscriptions.size) disconnect();
    }
}

// notified(sequence, added, removed, class): results as SPARQL JSON; sequence 0 has the whole result, also after a lost
// connection. failed(error): the subscription has ended. Returns what ends it.
export function subscribe(sparql, notified, failed) {
    const one = new Subscription(sparql, notified, failed);
    return () => one.end();
}

watchSession(() => {
    if (allowed()) connect();
    else disconnect();
});
addEventListener("online", connect);
addEventListener("pagehide", disconnect);
addEventListener("pageshow", (event) => event.persisted && connect());
