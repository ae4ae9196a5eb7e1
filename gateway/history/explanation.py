"""Why an actuator was switched: the chain from its acknowledged state back to the reading or client, of the change log.

::

    reading ─▶ query ─▶ update ─▶ notification ─▶ rule ─▶ request ─▶ acknowledgement
                 └─▶ delay ─▶ update                 ▲
                                          report ────┘ (of a device that had another state)

Each arrow is in the log: an actuation names the record that it followed (`gateway:followed`), and the cause of a record
names the record that it reacts to. Where an older log has no such name, the newest record with the state is taken, and
the link says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice

import msgspec

from lamplighter.adapters.devices.desired import ACTUATION_SUFFIX, BY_HAND_ORIGIN
from lamplighter.adapters.specs import KINDS
from lamplighter.engine.change_log import Record
from lamplighter.engine.errors import ChangeLogError, ConfigurationError, NotKeptError
from lamplighter.engine.terms import Quad, Term, iri, lexical, literal
from lamplighter.gateway.clock import foreign_moment, iso, moment
from lamplighter.gateway.history.records import History
from lamplighter.gateway.log.snapshots import Place, label, place_of
from lamplighter.gateway.state.applications import Application, aggregator_queries
from lamplighter.ontology import vocabulary as v

BY_TIME = "found by time"
NOT_RECORDED = "not recorded"
_PLACE = re.compile(r"[0-9]{1,9}/[0-9]{1,12}")
_PREFIXED = re.compile(r"([A-Za-z]*):(?!//)(.+)")
_LINKS_MAX = 1_000
_QUADS_MAX = 3
UNCONFIRMED = "unconfirmed: the broker had stored it"
_RETAINED = literal("retained")
_SUGGESTED_MAX = 10
# The state wanted of an actuator has either name (`adapters/devices/desired.py`); the second is that of the papers'
# street.
_STATES = frozenset(f"<{name}>" for name in (v.DESIRED_STATE, v.HAS_STATUS))
_OUTCOMES = frozenset(f"<{name}>" for name in (v.SENT_TIME, v.RESULT_TIME, v.REFUSED))


class ChainLink(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One link of a chain.

    link: reading, update, query, delay, notification, report, rule, request, acknowledgement, refusal, waiting: a
    newer state that is not acknowledged, or unconfirmed: what the device reported last, before a source came back.
    time: in UTC, None if it is unknown; trusted: whether the clock was synchronised then. record: its
    place, such as 1/17. doubt: why the link may be wrong, or what is missing.
    by: kind and name of what caused a reading, an update or a delay; client: the registered client. state, before: of
    the actuator. quads: the first ones that an update asserted, or the results of a reading; more: how many others.
    application, aggregator, member: of a query; text: of a query, rule, request, answer or refusal, or when a delay
    ends.
    """

    link: str
    time: str | None = None
    trusted: bool = True
    record: str | None = None
    doubt: str = ""
    by: tuple[str, str] | None = None
    client: str | None = None
    state: Term | None = None
    before: Term | None = None
    quads: tuple[Quad, ...] = ()
    more: int = 0
    application: str = ""
    aggregator: str = ""
    member: str = ""
    text: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """actuator: its IRI; state: the acknowledged or refused one, None if it is unknown; cause: of the request, such as
    "notification", empty if there was none; links: oldest first."""

    actuator: Term
    state: Term | None
    cause: str
    links: list[ChainLink]


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """An acknowledgement or a refusal. time: of the attempt, for `explain`; refused: the reason, or empty."""

    actuator: Term
    actuation: Term
    record: str
    time: str
    state: Term | None = None
    trusted: bool = True
    refused: str = ""


class Explainer:
    """query_text: the text of a query by application and aggregator, empty if it is not known."""

    def __init__(self, history: History, query_text: Callable[[str, str], str]) -> None:
        self._history = history
        self._query_text = query_text
        self._first = history.first()

    def explain(self, name: str, until: datetime | None = None) -> Explanation:
        """The newest outcome, an acknowledgement or a refusal, up to a time. name: the IRI of an actuator or actuation.
        Raises ChangeLogError if the log has none, or is damaged."""
        actuator = iri(name.removesuffix(ACTUATION_SUFFIX))
        actuation = iri(lexical(actuator) + ACTUATION_SUFFIX)
        outcome = self._outcome(actuation, until)
        if outcome is None:
            desired = self._newest_desired(actuator, until)
            if desired is None:
                raise self._unknown(actuator, until)
            state = _desired_state(desired, actuator)
            return Explanation(actuator, state, "", self._not_acknowledged(desired, actuator))
        found = _asserted_values(outcome, actuation)
        acknowledged = any(name in _added_values(outcome, actuation) for name in (v.SENT_TIME, v.RESULT_TIME))
        state = found.get(v.HAS_SIMPLE_RESULT) if acknowledged else None
        links, followed = self._desired_links(outcome, actuator, state, found)
        if state is None:
            state = links[-1].state
        after = followed or (outcome.epoch, 0)
        cause = _text(found, v.CAUSE) if acknowledged else ""
        if cause == "client":
            links.append(self._report(outcome, actuator, state, after))
        links += _sending(outcome, found, state) if acknowledged else [_refusal(outcome, found)]
        newer = self._newest_desired(actuator, until, after)
        # A wish since then that the device has not answered: without it, the chain would end in a state that nobody
        # wants any more.
        if newer is not None and _desired_state(newer, actuator) != state:
            links += self._not_acknowledged(newer, actuator)[-1:]
        links += self._doubtful_report(actuator, until)
        return Explanation(actuator, state, cause, links)

    def _not_acknowledged(self, record: Record, actuator: Term) -> list[ChainLink]:
        """The links to a newer desired state. One that the device was given by hand waits for no acknowledgement."""
        links = self._up_to(record, actuator)
        if record.cause is not None and record.cause.id.startswith(BY_HAND_ORIGIN):
            return links
        return [*links, _waiting(record, _desired_state(record, actuator))]

    def newest(self, count: int) -> list[Outcome]:
        """The last outcomes of all actuators, newest first. Raises ChangeLogError."""
        found: list[Outcome] = []

        def notes(record: Record) -> bool:
            found.extend(islice(outcomes_of(record), count - len(found)))
            # True ends the search: it goes back from the newest record, and the log may be long.
            return len(found) >= count

        self._history.latest(f"{ACTUATION_SUFFIX}>", notes)
        return found

    # --- the outcome ---

    def _outcome(self, actuation: Term, until: datetime | None) -> Record | None:
        def is_outcome(record: Record) -> bool:
            found = any(quad.s == actuation and quad.p in _OUTCOMES for quad in record.a)
            return found and (until is None or _sent_instant(record, actuation) <= until)

        return self._history.latest(actuation, is_outcome)

    def _unknown(self, actuator: Term, until: datetime | None) -> ChangeLogError:
        others: set[Term] = set()

        def notes(record: Record) -> bool:
            others.update(
                quad.s for quad in record.a if quad.p in _OUTCOMES and quad.s.endswith(f"{ACTUATION_SUFFIX}>")
            )
            # Enough for a hint. The first ones met are those that acted last, which is what somebody who mistyped a
            # name means.
            return len(others) >= _SUGGESTED_MAX

        self._history.latest(f"{ACTUATION_SUFFIX}>", notes)
        when = "" if until is None else f" up to {iso(until)}"
        names = sorted(lexical(one).removesuffix(ACTUATION_SUFFIX) for one in others)[:_SUGGESTED_MAX]
        hint = f"the log has actuations of {', '.join(names)}" if names else "the log has no actuation"
        if self._first is not None and not self._history.complete():
            hint += f"; records before {label(self._first)} were dropped by retention"
        return NotKeptError(f"no actuation of {actuator}{when}", path=self._history.log, hint=hint)

    # --- the state ---

    def _desired_links(
        self, outcome: Record, actuator: Term, state: Term | None, found: Mapping[str, Term]
    ) -> tuple[list[ChainLink], Place | None]:
        """The links up to the notification of the desired state, and the place of the record that set it."""
        doubt, before = BY_TIME, _sent_time(found) or moment(outcome.ts)
        # What led to the outcome was recorded before it.
        to: Place = outcome.epoch, outcome.seq - 1
        followed: Record | None = None
        named = _text(found, v.FOLLOWED)
        # The name comes from the dataset, where any client with the right may write: other texts than a place are
        # ignored.
        if _PLACE.fullmatch(named) and state is not None:
            to, doubt = self._history.place(named), ""
            exactly = self._record(to)
            if isinstance(exactly, str):
                return [ChainLink(link="notification", record=named, state=state, doubt=exactly)], None
            followed = exactly

        def sets(record: Record) -> bool:
            desired = _desired_state(record, actuator)
            wanted = desired is not None and state in (None, desired)
            # With a place, the order of the log is enough. Without one, a state that was set after the sending is not
            # what was sent.
            return wanted and (not doubt or moment(record.ts) <= before)

        # A query of the operator's own may compute states that no record sets.
        record = self._history.latest(actuator, sets, to=to) or followed
        if record is None:
            dropped = not self._history.complete()
            missing = "its record was dropped by retention" if dropped else "no record sets this state"
            return [ChainLink(link="notification", state=state, doubt=missing)], None
        notified = ChainLink(
            link="notification",
            time=record.ts,
            trusted=record.trusted,
            record=label(place_of(record)),
            state=_desired_state(record, actuator) or state,
            doubt=doubt,
        )
        return [*self._up_to(record, actuator), notified], place_of(record)

    def _newest_desired(self, actuator: Term, until: datetime | None, after: Place | None = None) -> Record | None:
        """The newest record that set the desired state."""

        def sets(record: Record) -> bool:
            return _desired_state(record, actuator) is not None and (until is None or moment(record.ts) <= until)

        return self._history.latest(actuator, sets, after)

    def _up_to(self, record: Record, actuator: Term) -> list[ChainLink]:
        """The links up to a record that set the desired state, with its own."""
        state, before = _desired_state(record, actuator), _former_state(record, actuator)
        return [
            *reversed(list(self._origins(record))),
            msgspec.structs.replace(own_link(record), state=state, before=before),
        ]

    def _origins(self, record: Record) -> Iterator[ChainLink]:
        """The links that led to a record, newest first."""
        # Rules that react to each other, or a timer that sets itself again, make a chain as long as the log.
        for _ in range(_LINKS_MAX):
            cause = record.cause
            if cause is None or cause.seq is None or cause.kind not in ("application", "timer"):
                return
            found = self._reacted_to(record, cause.id, cause.seq)
            if cause.kind == "application":
                application, _, rest = cause.id.partition("/")
                aggregator, _, member = rest.rpartition("/")
                text = self._query_text(application, aggregator)
                time, trusted = (None, True) if isinstance(found, str) else (found.ts, found.trusted)
                yield ChainLink(
                    link="query",
                    time=time,
                    trusted=trusted,
                    application=application,
                    aggregator=aggregator,
                    member=member,
                    text=text,
                )
            if isinstance(found, str):
                yield ChainLink(link="delay" if cause.kind == "timer" else "update", doubt=found)
                return
            yield own_link(found)
            record = found

    def _reacted_to(self, record: Record, name: str, sequence: int) -> Record | str:
        """The record that a timer or an application reacts to, or why it is not there."""
        assert record.cause is not None
        # A delayed update may have been set before a recovery began the epoch.
        epoch = record.epoch if sequence < record.seq else record.epoch - 1
        found = self._record((epoch, sequence))
        # The place may belong to another record: that of a timer from before the epoch is not known exactly. Its id is
        # its own.
        if record.cause.kind == "timer" and (isinstance(found, str) or found.timer is None or found.timer.id != name):
            set_by = self._history.latest(
                name, lambda one: one.timer is not None and one.timer.id == name, to=place_of(record)
            )
            return found if set_by is None and isinstance(found, str) else set_by or "its record is not in the log"
        return found

    def _report(self, outcome: Record, actuator: Term, state: Term | None, after: Place) -> ChainLink:
        def reports(record: Record) -> bool:
            # A report of the wanted state is no reason to send it again.
            return _added_values(record, actuator).get(v.REPORTED_STATE) not in (None, state)

        found = self._history.latest(actuator, reports, after, place_of(outcome))
        if found is None:
            return ChainLink(
                link="report", doubt="the device had another state, or came back; the log has no report of it"
            )
        return msgspec.structs.replace(
            own_link(found), link="report", state=_added_values(found, actuator)[v.REPORTED_STATE]
        )

    def _doubtful_report(self, actuator: Term, until: datetime | None) -> list[ChainLink]:
        """What the device reported last, if one of its sources has come back since."""

        def in_time(record: Record) -> bool:
            return until is None or moment(record.ts) <= until

        def reports(record: Record) -> bool:
            return in_time(record) and v.REPORTED_STATE in _asserted_values(record, actuator)

        found = self._history.latest(actuator, reports)
        if found is None:
            return []
        quads = (*found.k, *found.a)
        time = _text(_asserted_values(found, actuator), v.REPORTED_TIME)
        for source in [quad.o for quad in quads if quad.s == actuator and quad.p == f"<{v.RECEIVED_FROM}>"]:

            def returns(record: Record, source: Term = source) -> bool:
                return in_time(record) and v.SINCE in _added_values(record, source)

            back = self._history.latest(source, returns)
            since = "" if back is None else _text(_added_values(back, source), v.SINCE)
            if since and time.rstrip("Z") < since.rstrip("Z"):
                link = msgspec.structs.replace(
                    own_link(found),
                    link="unconfirmed",
                    state=_asserted_values(found, actuator)[v.REPORTED_STATE],
                    doubt=f"unconfirmed: not heard since {lexical(source)} came back at {since}",
                )
                return [link]
        return []

    # --- records ---

    def _record(self, place: Place) -> Record | str:
        """A record, or why it is not there."""
        if self._first is not None and place < self._first:
            return f"record {label(place)} was dropped by retention; the oldest that is kept is {label(self._first)}"
        found = next(self._history.records((place[0], place[1] - 1), place), None)
        return f"record {label(place)} is not in the log" if found is None else found


# --- names --------------------------------------------------------------------------------------------------


def query_texts(applications: Iterable[Application]) -> dict[tuple[str, str], str]:
    """The text of each query of applications, by application and aggregator."""
    return {(one.name, name): text for one in applications for name, text in aggregator_queries(one)}


def full_iri(name: str, base_iri: str) -> str:
    """The IRI of a name: a whole IRI, with or without angle brackets, one with a known prefix, or a path under the base
    IRI, with or without a colon before it. Raises ConfigurationError."""
    bare = name[1:-1] if name.startswith("<") and name.endswith(">") else name
    prefixed = _PREFIXED.fullmatch(bare)
    if prefixed is not None and prefixed[1] in {"", *v.PREFIXES}:
        bare = (v.PREFIXES[prefixed[1]] if prefixed[1] else base_iri) + prefixed[2]
    elif ":" not in bare:
        bare = base_iri + bare
    try:
        iri(bare)
    except ValueError as error:
        raise ConfigurationError(f"{name!r} is not an IRI: {error}; write one such as actuator/kitchen") from error
    return bare


# --- quads --------------------------------------------------------------------------------------------------


def _added_values(record: Record, subject: Term) -> dict[str, Term]:
    """Property -> value of a subject, as far as the record changed it."""
    return {quad.p[1:-1]: quad.o for quad in record.a if quad.s == subject}


def _asserted_values(record: Record, subject: Term) -> dict[str, Term]:
    """Property -> value of a subject, as the record asserted it."""
    return {quad.p[1:-1]: quad.o for quad in (*record.k, *record.a) if quad.s == subject}


def _text(found: Mapping[str, Term], name: str) -> str:
    return lexical(found[name]) if name in found else ""


def outcomes_of(record: Record) -> Iterator[Outcome]:
    for actuation in dict.fromkeys(quad.s for quad in record.a if quad.p in _OUTCOMES):
        if not actuation.endswith(f"{ACTUATION_SUFFIX}>"):
            continue
        found = _asserted_values(record, actuation)
        acknowledged = any(name in _added_values(record, actuation) for name in (v.SENT_TIME, v.RESULT_TIME))
        yield Outcome(
            iri(lexical(actuation).removesuffix(ACTUATION_SUFFIX)),
            actuation,
            label(place_of(record)),
            iso(_sent_instant(record, actuation)),
            found.get(v.HAS_SIMPLE_RESULT) if acknowledged else None,
            record.trusted,
            "" if acknowledged else _text(found, v.REFUSED),
        )


def desired_states(quads: Iterable[Quad]) -> dict[Term, Term]:
    """By actuator."""
    # One record may set two values, by a mistake in an application. The largest, so that the answer is the same each
    # time.
    found: dict[Term, Term] = {}
    for quad in quads:
        if quad.p in _STATES:
            found[quad.s] = max(found.get(quad.s, ""), quad.o)
    return found


def _desired_state(record: Record, actuator: Term) -> Term | None:
    return desired_states(record.a).get(actuator)


def _former_state(record: Record, actuator: Term) -> Term | None:
    return desired_states(record.d).get(actuator)


def _time(found: Mapping[str, Term], name: str) -> datetime | None:
    return foreign_moment(_text(found, name))


def _sent_time(found: Mapping[str, Term]) -> datetime | None:
    """When the state was sent; of an older record, when it was acknowledged."""
    return _time(found, v.SENT_TIME) or _time(found, v.RESULT_TIME)


def _sent_instant(record: Record, actuation: Term) -> datetime:
    return _sent_time(_added_values(record, actuation)) or moment(record.ts)


# --- links --------------------------------------------------------------------------------------------------


def own_link(record: Record) -> ChainLink:
    """The link that a record itself is."""
    cause = record.cause
    quads = record.a or record.k
    kind, doubt = "update", ""
    if cause is not None and cause.kind == "local-time":  # mostly a period leads to something
        quads = tuple(quad for quad in quads if quad.p == f"<{v.ACTIVE}>") or quads
    if cause is not None and cause.kind in KINDS:
        kind = "reading"
        quads = tuple(quad for quad in (*record.a, *record.k) if quad.p == f"<{v.HAS_SIMPLE_RESULT}>") or quads
        if any(quad.p == f"<{v.TIME_PROBLEM}>" and quad.o == _RETAINED for quad in (*record.a, *record.k)):
            doubt = UNCONFIRMED
    text = ""
    if record.timer is not None:
        # Later than the test for a reading: what counts of a record that sets a timer is that it waits.
        kind, timer = "delay", record.timer
        text = f"at {timer.at}" if timer.delay_us is None else f"in {timer.delay_us / 1e6:g} s"
    return ChainLink(
        link=kind,
        time=record.ts,
        trusted=record.trusted,
        record=label(place_of(record)),
        by=None if cause is None else (cause.kind, cause.id),
        client=record.client,
        quads=quads[:_QUADS_MAX],
        more=max(0, len(quads) - _QUADS_MAX),
        text=text,
        doubt=doubt,
    )


def _sending(outcome: Record, found: Mapping[str, Term], state: Term | None) -> list[ChainLink]:
    """The rule, the request and its acknowledgement. An older record has the time of the acknowledgement only."""
    sent, acknowledged = _time(found, v.SENT_TIME), _time(found, v.RESULT_TIME)
    time = None if sent is None else iso(sent)
    target = _text(found, v.TARGET)
    if not target and outcome.cause is not None and outcome.cause.kind in KINDS:
        target = outcome.cause.id
    old = "" if v.BY_RULE in found else NOT_RECORDED
    by = None if outcome.cause is None else (outcome.cause.kind, outcome.cause.id)
    answered = ChainLink(
        link="acknowledgement",
        time=outcome.ts if acknowledged is None else iso(acknowledged),
        trusted=outcome.trusted,
        record=label(place_of(outcome)),
        text=_text(found, v.ANSWER),
    )
    return [
        ChainLink(link="rule", time=time, trusted=outcome.trusted, text=_text(found, v.BY_RULE), doubt=old),
        ChainLink(
            link="request",
            time=time,
            trusted=outcome.trusted,
            by=by,
            state=state,
            text=target,
            doubt="" if sent is not None else f"time {NOT_RECORDED}",
        ),
        answered,
    ]


def _waiting(record: Record, state: Term | None) -> ChainLink:
    """A desired state without an outcome."""
    return msgspec.structs.replace(own_link(record), link="waiting", state=state)


def _refusal(outcome: Record, found: Mapping[str, Term]) -> ChainLink:
    return msgspec.structs.replace(own_link(outcome), link="refusal", text=_text(found, v.REFUSED))


def differences(links: list[ChainLink]) -> Iterator[float | None]:
    """Seconds from each link to the one before it that has a time; None where there is none."""
    last: datetime | None = None
    for link in links:
        now = None if link.time is None else moment(link.time)
        yield None if now is None or last is None else (now - last).total_seconds()
        last = now or last
