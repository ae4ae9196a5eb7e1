"""What happened, in words, from the change log, newest first.

An entry is made of the same links and texts as an explanation, and names the record and the actuator that `explain`
takes. A page reads a bounded part of the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Literal, get_args

import msgspec

from lamplighter.adapters.devices.desired import BY_HAND_ORIGIN
from lamplighter.adapters.literals import NUMBERS
from lamplighter.adapters.specs import KINDS
from lamplighter.engine.change_log import Record, decode
from lamplighter.engine.errors import ChangeLogError
from lamplighter.engine.terms import Quad, Term, lexical
from lamplighter.gateway.clock import moment
from lamplighter.gateway.history.chain_texts import assertion_text, by_text, origin_text
from lamplighter.gateway.history.explanation import desired_states, outcomes_of, own_link
from lamplighter.gateway.history.names import Names, plain
from lamplighter.gateway.history.records import History
from lamplighter.gateway.log.reader import CheckedLines, Segment, ends
from lamplighter.gateway.log.snapshots import Place, label, place_of
from lamplighter.gateway.texts import cut
from lamplighter.ontology import vocabulary as v

EntryKind = Literal["switch", "outcome", "state", "delay", "device", "log", "update"]
KIND_NAMES: tuple[str, ...] = get_args(EntryKind)
ENTRIES_MAX, ENTRIES_DEFAULT = 200, 50
SCANNED_MAX = 20_000
"""Records that are read for a page."""
LOOKED_UP_MAX = 8
"""Other segments that are read for the origins of what is on a page."""
_STEPS_MAX = 5
_TEXT_CHARACTERS_MAX = 400
_PLAIN = re.compile(r'"[^"\\]*"')
_OF_READINGS = frozenset(f"<{one}>" for one in (v.HAS_SIMPLE_RESULT, v.RESULT_TIME, v.TIME_PROBLEM, v.NIL_REASON))
_RESULT, _LIVE = f"<{v.HAS_SIMPLE_RESULT}>", f"<{v.LIVE_OBSERVATION}>"
_DEVICE_TEXTS = {
    f"<{v.ONLINE}>": {"true": "is online", "false": "is offline"},
    f"<{v.CONNECTED}>": {"true": "is connected", "false": "is disconnected"},
    f"<{v.ADOPTION}>": {},
}


class LogbookRange(msgspec.Struct, frozen=True):
    """Which entries are wanted. before: behind this record; since, until: times as `iso` writes them. about: subjects,
    None for all; kinds: none for all; application, client: "" for all."""

    newest: Place
    since: str
    until: str
    last: int
    before: Place | None = None
    about: frozenset[Term] | None = None
    kinds: frozenset[str] = frozenset()
    application: str = ""
    client: str = ""


class LogbookEntry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """See docs/protocol.md. by: kind and id of the cause of the record."""

    record: str
    time: str
    trusted: bool
    kind: EntryKind
    text: str
    subject: str | None = None
    label: str | None = None
    value: str | None = None
    before: str | None = None
    by: dict[str, str] | None = None
    application: str | None = None
    client: str | None = None
    explain: str | None = None


class Logbook(msgspec.Struct, frozen=True):
    """A page. next: the record behind which the next page is; None: there are no more."""

    entries: list[LogbookEntry]
    next: str | None
    complete_since: str | None


class LabelledNames(Names):
    """Names of people where there are some."""

    def __init__(self, base: str, labels: Mapping[Term, str]) -> None:
        super().__init__(base)
        self._labels = labels

    def term(self, term: Term) -> str:
        if term in self._labels:
            return plain(self._labels[term])
        return plain(lexical(term)) if _PLAIN.fullmatch(term) else super().term(term)


def logbook_of(history: History, wanted: LogbookRange, names: Names) -> Logbook:
    """A page. Raises ChangeLogError if the log cannot be read."""
    lines = _Lines(history)
    writer = _EntryWriter(lines, names)
    entries: list[LogbookEntry] = []
    scanned = 0
    for segment in reversed(lines.segments):
        if segment.begin > wanted.newest or (wanted.before is not None and segment.begin >= wanted.before):
            continue
        for line in reversed(lines.of(segment)):
            record = decode(line)
            place = place_of(record)
            if place > wanted.newest or (wanted.before is not None and place >= wanted.before):
                continue
            scanned += 1
            # Where the clock was set back, later records have earlier times, so the search goes on for a while.
            if wanted.since <= record.ts <= wanted.until:
                some = (entry for entry in writer.entries(record) if _is_wanted(entry, record, wanted))
                entries += islice(some, ENTRIES_MAX)  # a record may have an actuator in each of its quads
            elif record.ts < wanted.since and record.trusted:
                return Logbook(entries, None, lines.complete_since())
            if len(entries) >= wanted.last or scanned >= SCANNED_MAX:
                return Logbook(entries, label(place), lines.complete_since())
    return Logbook(entries, None, lines.complete_since())


def _is_wanted(entry: LogbookEntry, record: Record, wanted: LogbookRange) -> bool:
    if wanted.kinds and entry.kind not in wanted.kinds:
        return False
    if wanted.application and entry.application != wanted.application:
        return False
    if wanted.client and entry.client != wanted.client:
        return False
    if wanted.about is None:
        return True
    subjects = {f"<{entry.subject}>"} if entry.subject else {quad.s for quad in (*record.a, *record.d)}
    return bool(subjects & wanted.about)


class _Lines:
    """The lines of segments, of the newest ones that were asked for."""

    def __init__(self, history: History) -> None:
        self.segments = history.segments()
        self._ends = ends(self.segments)
        self._kept: dict[Place, list[bytes]] = {}
        self._looked_up = 0

    def of(self, segment: Segment) -> list[bytes]:
        if segment.begin not in self._kept:
            while len(self._kept) > 1:
                self._kept.pop(next(iter(self._kept)))
            try:
                lines = list(CheckedLines(segment, self._ends.get(segment.name.epoch)))
            except ChangeLogError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                lines = []  # it was sealed, or removed to free space
            self._kept[segment.begin] = lines
        return self._kept[segment.begin]

    def record(self, place: Place) -> Record | None:
        """A record, if it is in one of the segments at hand, or in one of few others."""
        segment = next((one for one in reversed(self.segments) if one.begin <= place), None)
        if segment is None or segment.name.epoch != place[0]:
            return None
        if segment.begin not in self._kept:
            self._looked_up += 1
            if self._looked_up > LOOKED_UP_MAX:
                return None
        lines = self.of(segment)
        number = place[1] - segment.name.first
        with suppress(ValueError):
            if 0 <= number < len(lines) and place_of(found := decode(lines[number])) == place:
                return found
        return None

    def complete_since(self) -> str | None:
        for segment in self.segments:
            for line in CheckedLines(segment):
                return decode(line).ts
        return None


class _EntryWriter:
    """Makes the entries of records."""

    def __init__(self, lines: _Lines, names: Names) -> None:
        self._lines = lines
        self._names = names

    def entries(self, record: Record) -> Iterator[LogbookEntry]:
        """Those of a record; none for readings that are numbers, and for what a record repeats."""
        if record.gap is not None:
            if record.gap.last is None:
                yield self._entry(record, "log", f"records of the change log are lost: {plain(record.gap.reason)}")
            return
        if record.timer is not None:
            if record.cause is None or record.cause.kind not in KINDS:  # else it ends the value of a reading
                yield self._entry(
                    record, "delay", f"{_begin(self._by(record))} set a delayed update, {self._due_text(record)}"
                )
            return
        if record.cancel is not None:
            yield self._entry(record, "delay", f"{_begin(self._by(record))} cancelled a delayed update")
            return
        found: set[tuple[EntryKind, str]] = set()  # a quad may be in several graphs
        for entry in self._commit(record):
            if (entry.kind, entry.text) not in found:
                found.add((entry.kind, entry.text))
                yield entry
        by_client = record.cause is not None and record.cause.kind in ("http", "ws")
        if by_client and not found and any(quad.p not in _OF_READINGS for quad in (*record.a, *record.d)):
            yield self._entry(record, "update", _begin(origin_text(own_link(record), self._names)))

    def _commit(self, record: Record) -> Iterator[LogbookEntry]:
        yield from self._switches(record)
        for outcome in outcomes_of(record):
            name = self._names.term(outcome.actuator)
            state = None if outcome.state is None else self._names.term(outcome.state)
            text = f"{name} refused: {plain(outcome.refused)}" if outcome.refused else f"{name} confirmed {state}"
            yield self._entry(record, "outcome", text, outcome.actuator, state, explain=outcome.actuator)
        yield from self._states(record)
        for quad in record.a:
            if quad.p in _DEVICE_TEXTS:
                value = lexical(quad.o)
                text = f"{self._names.term(quad.s)} {_DEVICE_TEXTS[quad.p].get(value, f'is {plain(value)}')}"
                yield self._entry(record, "device", text, quad.s, value)

    def _switches(self, record: Record) -> Iterator[LogbookEntry]:
        states = desired_states(record.a)
        if not states:
            return
        former = desired_states(record.d)
        application, reason = self._reason(record)
        for actuator, state in states.items():
            yield self._switch(record, actuator, (former.get(actuator), state), application, reason)

    def _switch(
        self, record: Record, actuator: Term, states: tuple[Term | None, Term], application: str, reason: str
    ) -> LogbookEntry:
        before, state = states
        name, value = self._names.term(actuator), self._names.term(state)
        was = None if before is None else self._names.term(before)
        by = by_text(own_link(record))
        if record.cause is not None and record.cause.id.startswith(BY_HAND_ORIGIN):
            text = f"{name} was switched by hand to {value}"
        elif record.cause is not None and record.cause.kind == "timer" and application:
            text = f"Delayed update of {plain(application)} switched {name} to {value}"
        else:
            text = f"{_begin(by or 'the gateway')} switched {name} to {value}"
        text += f" (was {was})" if was is not None else ""
        text += f": {reason}" if reason else ""
        return self._entry(record, "switch", text, actuator, value, was, actuator, application)

    def _states(self, record: Record) -> Iterator[LogbookEntry]:
        """Readings that are no number and have changed."""
        former = {(quad.s, quad.g): quad.o for quad in record.d if quad.p == _RESULT}
        streams = {(quad.o, quad.g): quad.s for quad in record.a if quad.p == _LIVE}
        outcomes = {outcome.actuation for outcome in outcomes_of(record)}
        for quad in record.a:
            before = former.get((quad.s, quad.g))
            if quad.p != _RESULT or quad.s in outcomes or quad.o.endswith(NUMBERS) or quad.o == before:
                continue
            subject = streams.get((quad.s, quad.g), quad.s)
            value = self._names.term(quad.o)
            was = None if before is None else self._names.term(before)
            text = f"{self._names.term(subject)}: {value}" + (f" (was {was})" if was is not None else "")
            yield self._entry(record, "state", text, subject, value, was)

    def _reason(self, record: Record) -> tuple[str, str]:
        """The application that led to a record, and the reading or client at its beginning, in words."""
        application, origin = "", record
        for _ in range(_STEPS_MAX):
            cause = origin.cause
            if cause is None or cause.seq is None or cause.kind not in ("application", "timer"):
                break
            if cause.kind == "application":
                application = cause.id.partition("/")[0].partition("@")[0]
            # A timer may have been set before a recovery began the epoch; then it is not told.
            found = self._lines.record((origin.epoch, cause.seq))
            if found is None or (cause.kind == "timer" and (found.timer is None or found.timer.id != cause.id)):
                return application, ""
            origin = found
        if origin is record:
            return application, ""
        link = own_link(origin)
        quads: tuple[Quad, ...] = link.quads
        time = moment(origin.ts).astimezone().strftime("%H:%M:%S")
        said = "; ".join(assertion_text(quad, self._names) for quad in quads[:1]) or by_text(link)
        return application, f"{said} at {time}"

    def _by(self, record: Record) -> str:
        return by_text(own_link(record)) or "the gateway"

    def _due_text(self, record: Record) -> str:
        timer = record.timer
        assert timer is not None
        return f"at {timer.at}" if timer.delay_us is None else f"in {timer.delay_us / 1e6:g} s"

    def _entry(
        self,
        record: Record,
        kind: EntryKind,
        text: str,
        subject: Term | None = None,
        value: str | None = None,
        before: str | None = None,
        explain: Term | None = None,
        application: str = "",
    ) -> LogbookEntry:
        cause = record.cause
        if not application and cause is not None and cause.kind == "application":
            application = cause.id.partition("/")[0].partition("@")[0]
        return LogbookEntry(
            record=label(place_of(record)),
            time=record.ts,
            trusted=record.trusted,
            kind=kind,
            text=cut(text, _TEXT_CHARACTERS_MAX),
            subject=None if subject is None else lexical(subject),
            label=None if subject is None else self._names.term(subject),
            value=value,
            before=before,
            by=None if cause is None else {"kind": cause.kind, "id": plain(cause.id)},
            application=application or None,
            client=record.client,
            explain=None if explain is None else lexical(explain),
        )


def _begin(text: str) -> str:
    return text[:1].upper() + text[1:]
