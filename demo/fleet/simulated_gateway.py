"""One simulated gateway: posts with sensors and lamps under smart lighting -> the records that a gateway would log.

Events (readings, reactions, timers, acknowledgements, reboots) are played in order of time against a set of quads; the
records are its changes. `Truth` records the events themselves, not the records. The same seed gives the same gateway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from lamplighter.demo.fleet.simulated_machine import DAY, HOUR, SECOND, FleetPlan, SimulatedMachine, timestamp
from lamplighter.demo.fleet.truth import LampTruth, StreamTruth
from lamplighter.engine.change_log import Cause, GraphChanges, Record, Timer
from lamplighter.engine.terms import XSD, Quad, Term, iri, lexical, literal
from lamplighter.ontology import vocabulary as v

BASE = "http://lamplighter.local/"
OFF_DELAY_US = 30 * SECOND
LIVE_EVENTS = 10
"""Readings of a stream that stay in the dataset in model `event`."""
_APPLICATION = "smart-lighting"
_iri = lru_cache(maxsize=4096)(iri)
_OFF_UPDATE = "DELETE { ?lamp lighting:hasStatus ?before } INSERT { ?lamp lighting:hasStatus 'OFF' } WHERE { ... }"


@dataclass
class _Stream:
    """A sensor with the parts of its readings. newest: (observation, graph, quads) of the live readings."""

    post: str
    kind: str
    iri: Term
    observation: Term
    sensor: Term
    property: Term
    truth: StreamTruth
    dead_us: int
    silent: tuple[int, int]
    newest: list[tuple[Quad, ...]] = field(default_factory=list)
    count: int = 0


class SimulatedGateway(SimulatedMachine):
    """The street of a gateway. Iterate over `records()` once; then `truth` is complete."""

    def __init__(self, number: int, seed: int, plan: FleetPlan) -> None:
        super().__init__(number, seed, plan)
        self._warmth = self._random.gauss(0, 1.5)
        self._streams: list[_Stream] = []
        self._status: dict[str, str] = {}
        self._presence: dict[str, tuple[str, str]] = {}  # post -> value and time of its live reading
        self._answered: dict[str, tuple[str, int] | None] = {}  # lamp -> its last acknowledgement, and when
        self._wanted_since: dict[str, int] = {}
        self._actuations: dict[str, tuple[Quad, ...]] = {}
        for post in range(1, plan.posts + 1):
            self._add_post(f"{post}")

    def records(self) -> Iterator[Record]:
        """The change log from its first record."""
        yield from self._install()
        for stream in self._streams:
            self._schedule(stream)
        yield from self._events()
        self._note_state()
        self._close_lamps()

    def _add_post(self, post: str) -> None:
        for kind in ("presence", "temperature"):
            tail = f"sensor/{post}/{kind};lighting:{kind};post/{post}"
            dead = int(self._random.uniform(0.2, 0.9) * self._end) if self._random.random() < 0.02 else 1 << 62
            begin = int(self._random.uniform(0.1, 0.8) * self._end)
            silent = (begin, begin + int(self._random.uniform(1, 4) * HOUR)) if self._random.random() < 0.05 else (0, 0)
            truth = StreamTruth(
                sensor=f"{BASE}sensor/{post}/{kind}",
                property=f"{v.LIGHTING}{kind}",
                feature=f"{BASE}post/{post}",
                unit=f"{v.UNIT}DEG_C" if kind == "temperature" else None,
                dead_since=timestamp(dead) if dead < self._end else None,
                silent=[timestamp(silent[0]), timestamp(silent[1])] if silent[1] else None,
            )
            self.truth.streams[f"{BASE}stream/{tail}"] = truth
            self._streams.append(
                _Stream(
                    post,
                    kind,
                    _iri(f"{BASE}stream/{tail}"),
                    _iri(f"{BASE}observation/{tail}"),
                    _iri(truth.sensor),
                    _iri(truth.property),
                    truth,
                    dead,
                    silent,
                )
            )

    def _install(self) -> Iterator[Record]:
        """The commit that describes the lamps and their places; then the descriptions of streams."""
        latitude, longitude = self._random.uniform(43.5, 45.5), self._random.uniform(9.5, 12.3)
        quads = []
        for number in range(1, self._plan.posts + 1):
            post, lamp = _iri(f"{BASE}post/{number}"), self._lamp(f"{number}")
            resource = f"coap://192.168.7.{number % 250 + 1}/lamp/{number}"
            quads += [
                Quad(post, _iri(v.RDF_TYPE), _iri(f"{v.LIGHTING}Post")),
                Quad(post, _iri(v.HAS_LAMP), lamp),
                Quad(post, _iri(f"{v.LIGHTING}hasLatitude"), _decimal(latitude + number * 2e-4, 6)),
                Quad(post, _iri(f"{v.LIGHTING}hasLongitude"), _decimal(longitude, 6)),
                Quad(lamp, _iri(v.RDF_TYPE), _iri(f"{v.LIGHTING}Lamp")),
                Quad(lamp, _iri(v.COAP_RESOURCE), literal(resource)),
                Quad(lamp, _iri(v.HAS_STATUS), literal("OFF")),
            ]
            self._status[f"{number}"] = "OFF"
            self._answered[f"{number}"] = None
            self.truth.lamps[lexical(lamp)] = LampTruth()
        self._now = SECOND
        yield self._commit(Cause("http", "127.0.0.1:40000"), (), quads, request="install")
        yield from self._describe()

    def _describe(self) -> Iterator[Record]:
        """The stream descriptions that the MQTT adapter sends when it starts."""
        for stream in self._streams:
            post, unit = _iri(stream.truth.feature), stream.truth.unit
            whose = stream.observation if self.model == "latest" else stream.iri
            quads = [
                Quad(post, _iri(v.RDF_TYPE), _iri(v.PLATFORM)),
                Quad(post, _iri(v.HOSTS), stream.sensor),
                Quad(stream.sensor, _iri(v.RDF_TYPE), _iri(v.SENSOR)),
                Quad(stream.sensor, _iri(v.OBSERVES), stream.property),
                Quad(stream.property, _iri(v.RDF_TYPE), _iri(v.OBSERVABLE_PROPERTY)),
                Quad(post, _iri(v.RDF_TYPE), _iri(v.FEATURE_OF_INTEREST)),
                Quad(stream.iri, _iri(v.RDF_TYPE), _iri(v.STREAM)),
                Quad(stream.iri, _iri(v.MQTT_TOPIC), literal(f"street/{stream.post}/{stream.kind}")),
                Quad(whose, _iri(v.MADE_BY_SENSOR), stream.sensor),
                Quad(whose, _iri(v.OBSERVED_PROPERTY), stream.property),
                Quad(whose, _iri(v.HAS_FEATURE_OF_INTEREST), post),
                Quad(stream.iri, _iri(v.RDFS_LABEL), literal(f"{stream.kind} at post {stream.post}")),
            ]
            if self.model == "latest":
                quads.append(Quad(stream.iri, _iri(v.LIVE_OBSERVATION), stream.observation))
                quads.append(Quad(stream.observation, _iri(v.RDF_TYPE), _iri(v.OBSERVATION)))
            if unit is not None:
                quads += [
                    Quad(_iri(unit), _iri(v.RDF_TYPE), _iri(v.UNIT_CLASS)),
                    Quad(stream.iri, _iri(v.HAS_UNIT), _iri(unit)),
                ]
            self._now += 900
            yield self._commit(Cause("mqtt", f"street/{stream.post}/{stream.kind}"), (), quads)

    def _schedule(self, stream: _Stream) -> None:
        if stream.kind == "temperature":
            self._at(
                int(self._random.uniform(1, self._plan.interval_s + 1) * SECOND) + SECOND, self._temperature(stream)
            )
        else:
            self._at(self._next_visit(), self._visit(stream))
            self._at(int(self._random.uniform(2, self._plan.heartbeat_s + 2) * SECOND), self._heartbeat(stream))

    def _temperature(self, stream: _Stream) -> Callable[[], Iterator[Record]]:
        step = int(self._plan.interval_s * SECOND)

        def act() -> Iterator[Record]:
            self._at(self._now + step + self._random.randrange(-SECOND // 10, SECOND // 10), act)
            hour = self._now % DAY / HOUR
            degrees = 16 + self._warmth + 7 * math.sin((hour - 9) / 12 * math.pi) + self._random.gauss(0, 0.4)
            odd = self._random.random() < 0.0005
            if odd:
                degrees += 30
            if self._speaks(stream):
                if odd:
                    # The record of this reading, which comes next.
                    self.truth.anomalies.append([lexical(stream.iri), self._epoch, self._seq + 1, round(degrees, 1)])
                yield from self._reading(stream, _decimal(degrees, 1))

        return act

    def _next_visit(self) -> int:
        """Visits are rare at night."""
        hour = self._now % DAY / HOUR
        rate = self._plan.visits_per_day * (0.3 if hour < 6 else 1.2) / DAY
        return self._now + 2 * SECOND + int(self._random.expovariate(rate))

    def _visit(self, stream: _Stream) -> Callable[[], Iterator[Record]]:
        def leave() -> Iterator[Record]:
            self._at(self._next_visit(), come)
            yield from self._seen(stream, "false")

        def come() -> Iterator[Record]:
            self._at(self._now + int(self._random.uniform(5, 120) * SECOND), leave)
            yield from self._seen(stream, "true")

        return come

    def _heartbeat(self, stream: _Stream) -> Callable[[], Iterator[Record]]:
        def act() -> Iterator[Record]:
            self._at(self._now + int(self._plan.heartbeat_s * SECOND), act)
            known = self._presence.get(stream.post)
            if known is not None:
                yield from self._seen(stream, known[0])

        return act

    def _seen(self, stream: _Stream, value: str) -> Iterator[Record]:
        """A reading of presence, and the reaction of smart lighting."""
        if not self._speaks(stream):
            return
        reading_us = self._now
        yield from self._reading(stream, literal(value, datatype=f"{XSD}boolean"))
        read_seq, post = self._seq, stream.post
        self._presence[post] = (value, timestamp(reading_us))
        self._now += 300
        if value == "true":
            yield from self._switch(
                post, "ON", Cause("application", f"{_APPLICATION}/switch-on/added", read_seq), reading_us
            )
            return
        name = f"{self._random.getrandbits(128):032x}"
        cause = Cause("application", f"{_APPLICATION}/switch-off/added", read_seq)
        yield self._record("timer", cause=cause, timer=Timer(name, _OFF_UPDATE, OFF_DELAY_US))
        self.truth.timers += 1
        set_seq, known = self._seq, self._presence[post]

        def fire() -> Iterator[Record]:
            cause = Cause("timer", name, set_seq)
            if self._presence[post] == known:
                yield from self._switch(post, "OFF", cause, None)
            else:
                yield self._commit(cause, (), ())  # new presence: the timer fires without a change

        self._at(self._now + OFF_DELAY_US, fire)

    def _switch(self, post: str, status: str, cause: Cause, seen_us: int | None) -> Iterator[Record]:
        lamp, before = self._lamp(post), self._status[post]
        quad = Quad(lamp, _iri(v.HAS_STATUS), literal(before))
        yield self._commit(cause, [quad], [Quad(lamp, _iri(v.HAS_STATUS), literal(status))])
        self._status[post] = status
        self.truth.lamps[lexical(lamp)].commands += 1
        if before != status:
            if seen_us is not None:
                self._wanted_since[post] = seen_us
            self._at(self._now + int(self._random.uniform(20, 300) * 1000), lambda: self._acknowledge(post, status))

    def _acknowledge(self, post: str, status: str) -> Iterator[Record]:
        lamp = self._lamp(post)
        actuation = _iri(lexical(lamp) + "/actuation")
        old = self._actuations.get(post, ())[2:]  # its result and time
        new = (
            Quad(actuation, _iri(v.RDF_TYPE), _iri(v.ACTUATION)),
            Quad(actuation, _iri(v.MADE_BY_ACTUATOR), lamp),
            Quad(actuation, _iri(v.HAS_SIMPLE_RESULT), literal(status)),
            Quad(actuation, _iri(v.RESULT_TIME), self._wall_term()),
        )
        self._now += 500
        yield self._commit(Cause("coap", f"192.168.7.{int(post) % 250 + 1}"), old, new)
        self._actuations[post] = new
        truth = self.truth.lamps[lexical(lamp)]
        truth.acknowledged += 1
        last = self._answered[post]
        if last is not None and last[0] == "ON":
            truth.on_us += self._now - last[1]
        self._answered[post] = (status, self._now)
        if status == "ON" and post in self._wanted_since:
            self.truth.reactions_us.append(self._now - self._wanted_since.pop(post))

    def _speaks(self, stream: _Stream) -> bool:
        if self._now >= stream.dead_us or stream.silent[0] <= self._now < stream.silent[1]:
            return False
        return not self._down_until > self._now

    def _reading(self, stream: _Stream, value: Term) -> Iterator[Record]:
        time = self._wall_term()
        stream.truth.note(lexical(time)[:13], lexical(value), stream.kind == "temperature")
        self._now += self._random.randrange(800, 4000)
        cause = Cause("mqtt", f"street/{stream.post}/{stream.kind}")
        stream.count += 1
        if self.model == "latest":
            observation = stream.observation
            old = stream.newest[0] if stream.newest else ()
            new = (Quad(observation, _iri(v.HAS_SIMPLE_RESULT), value), Quad(observation, _iri(v.RESULT_TIME), time))
            stream.newest = [new]
            yield self._commit(cause, old, new)
        else:
            tail = f"{lexical(time)}/{stream.count}"
            observation, graph = _iri(f"{lexical(stream.observation)}/{tail}"), _iri(f"{lexical(stream.iri)}/{tail}")
            new_ = (
                Quad(observation, _iri(v.RDF_TYPE), _iri(v.OBSERVATION), graph),
                Quad(observation, _iri(v.MADE_BY_SENSOR), stream.sensor, graph),
                Quad(observation, _iri(v.OBSERVED_PROPERTY), stream.property, graph),
                Quad(observation, _iri(v.HAS_FEATURE_OF_INTEREST), _iri(stream.truth.feature), graph),
                Quad(observation, _iri(v.HAS_SIMPLE_RESULT), value, graph),
                Quad(observation, _iri(v.RESULT_TIME), time, graph),
                Quad(stream.iri, _iri(v.LIVE_OBSERVATION), observation, graph),
            )
            stream.newest.append(new_)
            gone = stream.newest.pop(0) if len(stream.newest) > LIVE_EVENTS else ()
            graphs = GraphChanges(created=(graph,), dropped=(gone[0].g,) if gone and gone[0].g else ())
            yield self._commit(cause, gone, new_, graphs=graphs)

    @staticmethod
    def _lamp(post: str) -> Term:
        return _iri(f"{BASE}lamp/{post}")

    def _close_lamps(self) -> None:
        for post, last in self._answered.items():
            if last is not None and last[0] == "ON":
                self.truth.lamps[lexical(self._lamp(post))].on_us += self._now - last[1]


def _decimal(value: float, digits: int) -> Term:
    """An xsd:decimal in the store's canonical form: 20.50 is 20.5, and 20.0 is 20."""
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return literal("0" if text == "-0" else text, datatype=f"{XSD}decimal")
