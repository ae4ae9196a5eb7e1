// What Now shows, kept from subscriptions: readings, actuators, devices, by feature of interest.
import { subscribe } from "../live.js";
import { settingPath } from "../setting.js";
import { PREFIXES, isBoolean, isNumber, labelWithin, localName, natural, shortIri, text, unitSign } from "../terms.js";
import { t } from "../texts.js";

const POINTS_MAX = 60;
const CHANGED_MS = 100;

// What people set by hand: it is shown for adopted devices before it has ever been set or reported.
const EVERYDAY = new Set(["light", "switch", "brightness", "color", "position", "lock", "targetTemperature"].map((name) => `${PREFIXES.gateway}${name}`));

const PROLOGUE = `PREFIX sosa: <http://www.w3.org/ns/sosa/>
PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#>
PREFIX qudt: <http://qudt.org/schema/qudt/>
PREFIX lighting: <http://lamplighter.example/ns/lighting#>
PREFIX gateway: <http://lamplighter.example/ns/gateway#>
`;

// Each query is one that the gateway follows from the changed quads alone; they are joined here.
const QUERIES = {
    values: `SELECT ?about ?value ?time ?problem WHERE { ?about sosa:hasSimpleResult ?value
        OPTIONAL { ?about sosa:resultTime ?time } OPTIONAL { ?about gateway:timeProblem ?problem } }`,
    absent: "SELECT ?about ?nil ?time WHERE { ?about gateway:nilReason ?nil OPTIONAL { ?about sosa:resultTime ?time } }",
    sources: "SELECT ?stream ?since WHERE { ?stream gateway:receivedFrom ?source . ?source gateway:since ?since }",
    events: `SELECT ?stream ?about ?value ?time WHERE { GRAPH ?graph { ?stream gateway:liveObservation ?about .
        ?about sosa:hasSimpleResult ?value OPTIONAL { ?about sosa:resultTime ?time } } }`,
    sensors: "SELECT ?about ?sensor WHERE { ?about sosa:madeBySensor ?sensor }",
    features: "SELECT ?about ?feature WHERE { ?about sosa:hasFeatureOfInterest ?feature }",
    properties: "SELECT ?about ?property WHERE { ?about sosa:observedProperty ?property }",
    streams: `SELECT ?stream ?about ?unit ?code WHERE { ?stream gateway:liveObservation ?about
        OPTIONAL { ?stream qudt:hasUnit ?unit } OPTIONAL { ?stream gateway:unknownUnit ?code } }`,
    units: `SELECT ?stream ?unit ?code WHERE { ?stream a gateway:Stream
        OPTIONAL { ?stream qudt:hasUnit ?unit } OPTIONAL { ?stream gateway:unknownUnit ?code } }`,
    desired: `SELECT ?actuator ?state WHERE { { ?actuator gateway:desiredState ?state }
        UNION { ?actuator lighting:hasStatus ?state } }`,
    reported: "SELECT ?actuator ?state ?time WHERE { ?actuator gateway:reportedState ?state OPTIONAL { ?actuator gateway:reportedTime ?time } }",
    actuations: `SELECT ?about ?actuator ?refused WHERE { ?about sosa:madeByActuator ?actuator
        OPTIONAL { ?about gateway:refused ?refused } }`,
    controls: "SELECT ?actuator ?property WHERE { ?actuator gateway:controls ?property }",
    hosts: "SELECT ?platform ?part WHERE { { ?platform sosa:hosts ?part } UNION { ?platform lighting:hasLamp ?part } }",
    online: `SELECT ?platform ?online ?seen ?unreachable WHERE { ?platform gateway:online ?online
        OPTIONAL { ?platform gateway:lastSeen ?seen } OPTIONAL { ?platform gateway:unreachable ?unreachable } }`,
    adopted: "SELECT ?device WHERE { ?device gateway:adoption 'adopted' }",
    areas: "SELECT ?device ?area WHERE { ?device gateway:inArea ?where . ?where rdfs:label ?area }",
    labels: "SELECT ?thing ?label WHERE { ?thing rdfs:label ?label }",
};

// Rows by one of their variables. The newest of the rows of one subject stays when an older one leaves behind it.
export class Index {
    constructor(key) {
        this.key = key;
        this.rows = new Map(); // value of the key -> Map(row as text -> row)
    }

    clear() {
        this.rows.clear();
    }

    apply(added, removed) {
        for (const row of removed) {
            const known = this.rows.get(row[this.key]?.value);
            known?.delete(JSON.stringify(row));
            if (known?.size === 0) this.rows.delete(row[this.key].value);
        }
        for (const row of added) {
            const name = row[this.key]?.value;
            if (name === undefined) continue;
            if (!this.rows.has(name)) this.rows.set(name, new Map());
            this.rows.get(name).set(JSON.stringify(row), row);
        }
    }

    // The newest row of a subject.
    get(name) {
        const known = this.rows.get(name);
        if (!known) return undefined;
        let last;
        for (const row of known.values()) last = row;
        return last;
    }

    all(name) {
        return Array.from(this.rows.get(name)?.values() ?? []);
    }

    keys() {
        return this.rows.keys();
    }

    get size() {
        return this.rows.size;
    }
}

const KEYS = {
    values: "about", absent: "about", sources: "stream", events: "stream", sensors: "about", features: "about", properties: "about", streams: "about",
    units: "stream", desired: "actuator", reported: "actuator", actuations: "about", controls: "actuator", hosts: "part",
    online: "platform", adopted: "device", areas: "device", labels: "thing",
};

export function sameState(one, other) {
    if (one.value === other.value) return true;
    if (isNumber(one) && isNumber(other)) return Number(one.value) === Number(other.value);
    const truth = { true: true, 1: true, false: false, 0: false };
    return (isBoolean(one) || isBoolean(other)) && one.value in truth && truth[one.value] === truth[other.value];
}

function newer(one, other) {
    return one && other ? (one.value >= other.value ? one : other) : one ?? other;
}

// A row whose triple terms are texts, except where a value or a state is shown: all else is taken for a name.
function plain(row) {
    for (const [name, term] of Object.entries(row)) {
        if (term.type === "triple" && name !== "value" && name !== "state") row[name] = { type: "literal", value: text(term) };
    }
    return row;
}

export class Site {
    // changed(): something else is to be shown; called at most each CHANGED_MS. failed(name, error): a subscription ended.
    constructor(changed, failed) {
        this.changed = changed;
        this.failed = failed;
        this.indexes = Object.fromEntries(Object.entries(KEYS).map(([name, key]) => [name, new Index(key)]));
        this.points = new Map(); // IRI of a reading or stream -> [[seconds, number]]
        this.waiting = new Set(Object.keys(QUERIES));
        this.ends = [];
        this.timer = 0;
    }

    start() {
        for (const [name, sparql] of Object.entries(QUERIES)) {
            const index = this.indexes[name];
            this.ends.push(subscribe(PROLOGUE + sparql, (sequence, added, removed) => {
                if (sequence === 0) index.clear();
                const come = added.results.bindings.map(plain);
                index.apply(come, (removed?.results.bindings ?? []).map(plain));
                if (name === "values" || name === "events") for (const row of come) this.draw(row[KEYS[name]].value, row);
                this.waiting.delete(name);
                this.timer ||= setTimeout(() => this.show(), CHANGED_MS);
            }, (error) => {
                this.waiting.delete(name);
                this.failed(name, error);
            }));
        }
    }

    stop() {
        clearTimeout(this.timer);
        for (const end of this.ends) end();
    }

    show() {
        this.timer = 0;
        this.changed();
    }

    get loaded() {
        return this.waiting.size === 0;
    }

    draw(name, { value, time }) {
        const number = isNumber(value) ? Number(value.value) : isBoolean(value) ? Number(value.value === "true") : null;
        if (number === null) return;
        const at = time ? Date.parse(time.value) : Date.now();
        let points = this.points.get(name);
        if (!points) this.points.set(name, points = []);
        if (points.length && points[points.length - 1][0] >= at) return;
        points.push([at, number]);
        if (points.length > POINTS_MAX) points.shift();
    }

    label(iri) {
        return text(this.indexes.labels.get(iri)?.label) || "";
    }

    // The platform that carries a part, directly or not, that says whether it is online.
    availability(part) {
        const seen = new Set();
        let waiting = [part];
        while (waiting.length) {
            const next = [];
            for (const one of waiting) {
                if (seen.has(one)) continue;
                seen.add(one);
                const found = this.indexes.online.get(one);
                if (found) return found;
                next.push(...this.indexes.hosts.all(one).map((row) => row.platform.value));
            }
            waiting = next;
        }
        return undefined;
    }

    area(part) {
        const device = [part, ...this.indexes.hosts.all(part).map((row) => row.platform.value)]
            .find((one) => this.indexes.areas.get(one));
        return device ? this.indexes.areas.get(device).area.value : "";
    }

    // Whether a stream or an actuator was last heard before one of its sources came back.
    unconfirmed(iri, time) {
        const since = Math.max(...this.indexes.sources.all(iri).map((one) => Date.parse(one.since.value)));
        return since > 0 && !(Date.parse(time?.value) >= since);
    }

    // The streams: { about, stream, feature, property, sensor, value, time, problem, unit, points, offline, nil, unconfirmed }.
    // nil: why there is no value; unconfirmed: nothing was heard of it since its broker, device and adapter came back.
    streams() {
        const { values, absent, events, sensors, features, properties, streams, units } = this.indexes;
        const found = [];
        const add = (about, row, described, unit) => {
            const sensor = sensors.get(described)?.sensor.value ?? "";
            const availability = sensor ? this.availability(sensor) : undefined;
            const stream = streams.get(about)?.stream.value ?? about;
            found.push({
                about, stream, sensor,
                feature: features.get(described)?.feature.value ?? "",
                property: properties.get(described)?.property.value ?? "",
                value: row?.value, time: row?.time, problem: row?.problem?.value ?? "",
                unit: unit ? unitSign(unit.unit?.value, unit.code?.value) : "",
                points: this.points.get(about) ?? [],
                offline: availability?.online.value === "false",
                nil: row?.nil?.value ?? "",
                unconfirmed: this.unconfirmed(stream, row?.time),
            });
        };
        for (const about of sensors.keys()) {
            const row = values.get(about) ?? absent.get(about);
            if (row) add(about, row, about, streams.get(about));
        }
        for (const stream of events.keys()) add(stream, newest(events.all(stream)), stream, units.get(stream));
        return found;
    }

    // The actuators: { iri, path, label, property, desired, reported, acknowledged, refused, differs, offline, unconfirmed, places }.
    // path: where its states are set, "" where the page cannot; unconfirmed: as of a stream.
    actuators() {
        const { adopted, desired, reported, actuations, values, hosts, controls } = this.indexes;
        const acts = new Map();
        for (const about of actuations.keys()) {
            const row = actuations.get(about);
            acts.set(row.actuator.value, { row, result: values.get(about) });
        }
        const usable = Array.from(controls.keys()).filter((iri) => EVERYDAY.has(controls.get(iri).property.value)
            && hosts.all(iri).some((row) => adopted.get(row.platform.value)));
        const all = new Set([...desired.keys(), ...reported.keys(), ...acts.keys(), ...usable]);
        return Array.from(all, (iri) => {
            const want = desired.get(iri)?.state, report = reported.get(iri), say = report?.state, act = acts.get(iri);
            const acknowledged = act?.result?.value;
            const availability = this.availability(iri), places = hosts.all(iri).map((row) => row.platform.value);
            return {
                iri, places, path: settingPath(iri, places.filter((one) => adopted.get(one))), desired: want, reported: say, acknowledged, time: newer(act?.result?.time, report?.time),
                property: controls.get(iri)?.property.value ?? "",
                label: this.label(iri) || (controls.get(iri) ? localName(controls.get(iri).property.value) : localName(iri)),
                refused: act?.row.refused?.value ?? "",
                differs: Boolean(want && (say ? !sameState(want, say) : acknowledged && !sameState(want, acknowledged))),
                offline: availability?.online.value === "false",
                unconfirmed: Boolean(say) && this.unconfirmed(iri, report.time),
            };
        });
    }

    // An actuator and the only reading of what it controls, of the same device, are one row.
    join(card) {
        const { hosts } = this.indexes, wanted = new Set(card.actuators.map(({ property }) => property).filter(Boolean));
        const found = new Map(), joined = new Set(); // found: platform and property -> readings
        for (const stream of card.streams) {
            if (!wanted.has(stream.property)) continue;
            for (const { platform } of hosts.all(stream.sensor)) {
                const key = `${platform.value} ${stream.property}`;
                if (!found.has(key)) found.set(key, new Set());
                found.get(key).add(stream);
            }
        }
        for (const actuator of card.actuators) {
            const some = actuator.places.map((one) => found.get(`${one} ${actuator.property}`) ?? []).filter(({ size }) => size);
            if (!some.length || some[0].size > 1) continue;
            const alike = new Set(some.flatMap((each) => Array.from(each))), [stream] = alike;
            if (alike.size !== 1 || joined.has(stream) || !stream.value || stream.nil) continue;
            joined.add(stream);
            actuator.time ??= stream.time;
            actuator.unconfirmed ||= !actuator.reported && stream.unconfirmed;
            actuator.reported ??= stream.value;
            actuator.differs = Boolean(actuator.desired && !sameState(actuator.desired, actuator.reported));
        }
        if (joined.size) card.streams = card.streams.filter((stream) => !joined.has(stream));
    }

    // The features with what belongs to them; those with problems first.
    features() {
        const cards = new Map();
        const card = (iri) => {
            if (!cards.has(iri)) {
                const title = this.label(iri) || (iri ? shortIri(iri) : t("now.other"));
                cards.set(iri, { iri, title, area: this.area(iri), streams: [], actuators: [] });
            }
            return cards.get(iri);
        };
        const carried = new Map(); // platform -> feature that its sensors observe
        for (const stream of this.streams()) {
            card(stream.feature).streams.push(stream);
            for (const row of this.indexes.hosts.all(stream.sensor)) carried.set(row.platform.value, stream.feature);
        }
        for (const actuator of this.actuators()) {
            const { places } = actuator;
            const shared = places.find((one) => cards.has(one)) ?? carried.get(places.find((one) => carried.has(one)));
            card(shared ?? places[0] ?? "").actuators.push(actuator);
        }
        for (const one of cards.values()) {
            if (one.actuators.length) this.join(one);
            for (const stream of one.streams) {
                const label = this.label(stream.stream) || this.label(stream.sensor) || this.label(stream.property);
                stream.name = labelWithin(label, one.title) || localName(stream.property) || t("now.value");
            }
            for (const actuator of one.actuators) actuator.label = labelWithin(actuator.label, one.title);
            one.streams.sort((a, b) => natural(a.name, b.name) || natural(a.sensor, b.sensor));
            one.actuators.sort((a, b) => natural(a.label, b.label));
            one.trouble = one.streams.some((stream) => stream.offline)
                || one.actuators.some((actuator) => actuator.refused || actuator.differs || actuator.offline);
        }
        return Array.from(cards.values()).sort((a, b) => b.trouble - a.trouble || natural(a.area, b.area) || natural(a.title, b.title));
    }

    // The adopted device that all of a card belongs to, "" for none.
    deviceOf({ iri, streams, actuators }) {
        const { adopted, hosts } = this.indexes;
        if (adopted.get(iri)) return iri;
        const found = new Set([...streams.map(({ sensor }) => hosts.all(sensor).map((row) => row.platform.value)), ...actuators.map(({ places }) => places)]
            .map((places) => places.find((one) => adopted.get(one)) ?? ""));
        return found.size === 1 ? found.values().next().value : "";
    }

    // The platforms that are away: [{ iri, label, seen, reason }].
    offline() {
        return Array.from(this.indexes.online.keys(), (iri) => this.indexes.online.get(iri))
            .filter((row) => row.online.value === "false")
            .map((row) => ({
                iri: row.platform.value, label: this.label(row.platform.value), seen: row.seen?.value, reason: row.unreachable?.value ?? "",
            }))
            .sort((a, b) => natural(a.label || a.iri, b.label || b.iri));
    }
}

// Model "event": several readings of a stream are in the dataset.
function newest(rows) {
    return rows.reduce((best, row) => ((row.time?.value ?? "") >= (best.time?.value ?? "") ? row : best));
}
