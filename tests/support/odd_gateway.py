"""A gateway with rare content in its change log: value kinds, big commits, changed descriptions, a new epoch."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from lamplighter.engine.change_log import VERSION, Cause, Gap, GraphChanges, Record, Timer
from lamplighter.engine.terms import XSD, Quad, Term, iri, literal
from lamplighter.ontology import vocabulary as v

NAME = "gw-odd"
BASE = "http://odd.example/"
BIG = 40
"""Readings of one commit: more quads than are looked at one by one."""

_START = datetime(2026, 6, 1, 23, 59, 30, tzinfo=UTC)
_OTHER_UNIT = iri(v.UNIT + "DEG_F")
SECOND = 1_000_000
_LATITUDES = {"here": "44.5", "there": "45", "nowhere": "46.25"}


def at(name: str) -> Term:
    """An IRI of this gateway."""
    return iri(BASE + name)


@dataclass
class _Log:
    epoch: int = 1
    seq: int = 0
    us: int = 0
    boot: str = "first"
    quads: set[Quad] = field(default_factory=set)

    def record(self, kind: str, **members: object) -> Record:
        self.seq += 1
        self.us += 7 * SECOND
        ts = (_START + timedelta(microseconds=self.us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return Record(
            VERSION,
            kind,
            NAME,
            self.epoch,
            self.seq,
            ts,
            self.seq % 5 != 0,
            self.boot,
            self.us,
            **members,  # type: ignore[arg-type]
        )

    def commit(self, cause: Cause | None, gone: Iterable[Quad], asserted: Iterable[Quad]) -> Record:
        wanted = list(dict.fromkeys(asserted))
        removed = tuple(quad for quad in gone if quad in self.quads and quad not in wanted)
        added = tuple(quad for quad in wanted if quad not in self.quads)
        kept = tuple(quad for quad in wanted if quad in self.quads)
        graphs = {quad.g for quad in self.quads if quad.g}
        self.quads = self.quads.difference(removed).union(added)
        now = {quad.g for quad in self.quads if quad.g}
        changed = GraphChanges(tuple(sorted(now - graphs)), tuple(sorted(graphs - now)))
        return self.record("commit", cause=cause, d=removed, a=added, k=kept, graphs=changed if now != graphs else None)


def _described(name: str, unit: Term | None, feature: str) -> list[Quad]:
    stream, observation, sensor = at(f"stream/{name}"), at(f"observation/{name}"), at(f"sensor/{name}")
    quads = [
        Quad(stream, iri(v.RDF_TYPE), iri(v.STREAM)),
        Quad(stream, iri(v.LIVE_OBSERVATION), observation),
        Quad(stream, iri(v.RDFS_LABEL), literal(f'"{name}"\n\\ of the café 𝄞')),
        Quad(observation, iri(v.MADE_BY_SENSOR), sensor),
        Quad(observation, iri(v.OBSERVED_PROPERTY), iri(v.TEMPERATURE)),
        Quad(observation, iri(v.HAS_FEATURE_OF_INTEREST), at(feature)),
        Quad(at("platform"), iri(v.HOSTS), sensor),
        Quad(at(feature), iri(f"{v.LIGHTING}hasLatitude"), literal(_LATITUDES[feature], datatype=f"{XSD}decimal")),
        Quad(at(feature), iri(f"{v.LIGHTING}hasLongitude"), literal("east", datatype=f"{XSD}string")),
    ]
    return quads if unit is None else [*quads, Quad(stream, iri(v.HAS_UNIT), unit)]


def _reading(name: str, value: Term, time: str) -> list[Quad]:
    observation = at(f"observation/{name}")
    return [
        Quad(observation, iri(v.HAS_SIMPLE_RESULT), value),
        Quad(observation, iri(v.RESULT_TIME), literal(time, datatype=f"{XSD}dateTime")),
    ]


def _event(number: int, value: Term) -> list[Quad]:
    """A reading in a graph of its own, of a stream that nobody described."""
    observation, graph = at(f"event/{number}"), at(f"graph/{number}")
    return [
        Quad(observation, iri(v.RDF_TYPE), iri(v.OBSERVATION), graph),
        Quad(observation, iri(v.MADE_BY_SENSOR), at(f"sensor/{number % 3}"), graph),
        Quad(observation, iri(v.OBSERVED_PROPERTY), iri(v.PRESENCE), graph),
        Quad(observation, iri(v.HAS_SIMPLE_RESULT), value, graph),
        Quad(observation, iri(v.RESULT_TIME), literal("2026-06-01T22:00:00+02:00", datatype=f"{XSD}dateTime"), graph),
        Quad(at(f"of/{number % 3}"), iri(v.LIVE_OBSERVATION), observation, graph),
    ]


VALUES = (
    literal("20.5", datatype=f"{XSD}decimal"),
    literal("-7", datatype=f"{XSD}integer"),
    literal("15" + "0" * 20, datatype=f"{XSD}double"),
    literal("INF", datatype=f"{XSD}double"),
    literal("NaN", datatype=f"{XSD}double"),
    literal("true", datatype=f"{XSD}boolean"),
    literal("false", datatype=f"{XSD}boolean"),
    literal('a "quoted"\ttext, \\n is no line\nand naïve 𝄞'),
    literal("warm", language="en"),
    literal(""),
    iri("http://odd.example/value/warm"),
    literal("12", datatype="http://odd.example/degrees"),
)


def segments() -> list[list[Record]]:
    """Its change log, cut into segments. The second one says something of streams that the others rely on."""
    log = _Log()
    mqtt, application = Cause("mqtt", "odd/1"), Cause("application", "odd/on/added", 2)
    return [
        [*_first(log, mqtt)],
        [*_late(log, mqtt)],
        [*_values(log, mqtt)],
        [*_big(log, mqtt, application)],
        [*_after_loss(log, mqtt)],
    ]


LATE = 1
"""Which of the segments comes after all others."""


def _first(log: _Log, cause: Cause) -> Iterator[Record]:
    yield log.commit(cause, (), _described("1", None, "here"))
    yield log.commit(cause, (), _reading("1", VALUES[0], "2026-06-01T23:00:00Z"))
    yield log.record("timer", cause=cause, timer=Timer("t1", "INSERT DATA {}", 5))
    yield log.record("cancel", cause=cause, cancel="t1")
    yield log.record("unsubscribe", unsubscribe="sepa://spuid/1")


def _late(log: _Log, cause: Cause) -> Iterator[Record]:
    before, after = _described("1", None, "here"), _described("1", _OTHER_UNIT, "there")
    yield log.commit(cause, [quad for quad in before if quad not in after], after)
    yield log.commit(cause, (), _described("2", iri(v.UNIT + "PERCENT"), "here"))
    # A sensor whose descriptions end, and come back.
    yield log.commit(cause, _described("2", iri(v.UNIT + "PERCENT"), "nowhere"), ())
    yield log.commit(cause, (), _described("2", iri(v.UNIT + "LUX"), "here"))


def _values(log: _Log, cause: Cause) -> Iterator[Record]:
    old = _reading("1", VALUES[0], "2026-06-01T23:00:00Z")
    for number, value in enumerate(VALUES):
        new = _reading("1", value, f"2026-06-01T23:01:{number:02d}.25Z")
        yield log.commit(cause, old, new)
        old = new
    # The same value again, and a time that is none; then the same in all.
    [result, time] = old
    wrong = Quad(time.s, time.p, literal("soon"))
    yield log.commit(cause, [time], [result, wrong])
    yield log.commit(cause, [], [result, wrong])
    yield log.commit(Cause("restore", "backup"), [], _reading("2", VALUES[0], "2026-01-01T00:00:00Z"))
    yield log.commit(None, _described("1", _OTHER_UNIT, "there"), ())
    yield log.commit(cause, [], [result, wrong])


def _big(log: _Log, cause: Cause, application: Cause) -> Iterator[Record]:
    events = [quad for number in range(BIG) for quad in _event(number, VALUES[number % len(VALUES)])]
    lamps = [Quad(at(f"lamp/{number}"), iri(v.HAS_STATUS), literal("ON")) for number in range(BIG)]
    restored = _reading("2", VALUES[0], "2026-01-01T00:00:00Z")
    yield log.commit(cause, restored, [*events, *_reading("2", VALUES[1], "2026-06-01T23:30:00Z"), *lamps])
    yield log.commit(cause, events, [*events[: 6 * 12], *lamps])
    off = Quad(lamps[0].s, lamps[0].p, literal("OFF"))
    yield log.commit(application, [lamps[0]], [off, lamps[1]])
    acknowledged = [
        Quad(at("actuation"), iri(v.RDF_TYPE), iri(v.ACTUATION)),
        Quad(at("actuation"), iri(v.MADE_BY_ACTUATOR), at("lamp/0")),
        Quad(at("actuation"), iri(v.HAS_SIMPLE_RESULT), literal("OFF")),
        Quad(at("actuation"), iri(v.RESULT_TIME), literal("2026-06-01T23:31:00Z", datatype=f"{XSD}dateTime")),
    ]
    yield log.commit(Cause("coap", "10.0.0.1"), (), acknowledged)
    yield log.commit(None, _event(0, VALUES[0]), ())


def _after_loss(log: _Log, cause: Cause) -> Iterator[Record]:
    lost = log.seq + 1
    log.epoch, log.seq, log.boot, log.us = 2, 0, "second", log.us + 3600 * SECOND
    yield log.record("gap", gap=Gap(1, lost, "could not be read"))
    yield log.record("gap", gap=Gap(1, lost, "the disk was full", last=lost + 9))
    yield log.commit(
        cause, _reading("2", VALUES[1], "2026-06-01T23:30:00Z"), _reading("2", VALUES[0], "2026-06-02T01:00:00Z")
    )
