"""Which readings of a stream are written: repeated values, dead band, throttle.

- on_repeat "refresh": an equal value is written with its new time; "ignore": it is dropped; "event": it is written so
  that the old value leaves first, and subscriptions see it enter again (a button that is pressed twice);
- dead_band: a number that differs by less from the last written one is dropped;
- throttle_s: within this time after a written reading, later ones are held back. The newest is written afterwards, so
  that no stream stays at an old value. A held reading is lost if the process ends.

A retained message is an old state: it is never held, and never an event.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation

from lamplighter.adapters.literals import NUMBERS
from lamplighter.adapters.model.readings import Keep, Reading
from lamplighter.engine.terms import Term, lexical


class _Last:
    """The reading of a stream that was written last; held: a newer one that waits; interrupted: reports may have been
    missed until then, and none came later; None: no."""

    __slots__ = ("at", "held", "interrupted", "sensor", "value")

    def __init__(self, reading: Reading) -> None:
        self.sensor = reading.stream.sensor
        self.value = reading.value
        self.at = reading.received
        self.held: Reading | None = None
        self.interrupted: datetime | None = None


class Repeats:
    """State: the last reading of each stream that drops some, for at most `streams_max` streams. held: of streams that
    have one that waits, so that `due` has to be asked."""

    def __init__(self, streams_max: int) -> None:
        self._streams_max = streams_max
        self._last: OrderedDict[Term, _Last] = OrderedDict()
        self.held: dict[Term, _Last] = {}

    def written(self, reading: Reading) -> Reading | None:
        """The reading to write now, or None if it is dropped or held."""
        keep = reading.stream.keep
        if keep is None:
            return reading
        last = self._last.get(reading.stream.iri)
        if last is None:
            return self._first(reading, keep)
        self._last.move_to_end(reading.stream.iri)
        same = _equal(last.value, reading.value)
        if reading.retained:
            if not same:
                self._note(last, reading)
            return reading
        unchanged = keep.on_repeat == "ignore" if same else _within(keep.dead_band, last.value, reading.value)
        # A value that ends lasts from its last report.
        if unchanged and last.interrupted is None and reading.stream.lifetime is None:
            self._release(last, reading.stream.iri)  # what was held is not the newest any more
            return None
        if timedelta(0) <= reading.received - last.at < timedelta(seconds=keep.throttle_s):
            last.held = reading
            self.held[reading.stream.iri] = last
            return None
        return self._written(last, reading, again=same and keep.on_repeat == "event")

    def due(self, now: datetime) -> list[Reading]:
        """The held readings whose time has come. now: by the clock of `received`."""
        found = []
        for last in list(self.held.values()):
            reading = last.held
            assert reading is not None and reading.stream.keep is not None
            keep = reading.stream.keep
            if not timedelta(0) <= now - last.at < timedelta(seconds=keep.throttle_s):
                again = keep.on_repeat == "event" and _equal(last.value, reading.value)
                found.append(self._written(last, reading._replace(received=now), again=again))
        return found

    def interrupt(self, at: datetime, sensors: Container[Term] | None = None) -> None:
        """Reports of these sensors may have been missed: the next one of each stream that is received later is written
        with its time, also if it repeats the value. at: by the clock of `received`; sensors: None: all."""
        for last in self._last.values():
            if sensors is None or last.sensor in sensors:
                last.interrupted = at

    def _first(self, reading: Reading, keep: Keep) -> Reading:
        """The first reading of a process; what the store has is unknown, so an event makes room for itself."""
        if len(self._last) >= self._streams_max:
            stream, last = self._last.popitem(last=False)
            self._release(last, stream)
        self._last[reading.stream.iri] = _Last(reading)
        return reading._replace(again=keep.on_repeat == "event" and not reading.retained)

    def _written(self, last: _Last, reading: Reading, *, again: bool) -> Reading:
        self._note(last, reading)
        return reading._replace(again=again)

    def _note(self, last: _Last, reading: Reading) -> None:
        last.value, last.at = reading.value, reading.received
        if last.interrupted is not None and not reading.retained and reading.received >= last.interrupted:
            last.interrupted = None
        self._release(last, reading.stream.iri)

    def _release(self, last: _Last, stream: Term) -> None:
        last.held = None
        self.held.pop(stream, None)


def _equal(one: Term, other: Term) -> bool:
    """Whether two values are equal; numbers are compared as numbers."""
    if one == other:
        return True
    first, second = _number(one), _number(other)
    return first is not None and first == second


def _within(dead_band: Decimal | None, one: Term, other: Term) -> bool:
    if dead_band is None:
        return False
    first, second = _number(one), _number(other)
    return first is not None and second is not None and abs(first - second) < dead_band


def _number(term: Term) -> Decimal | None:
    if not term.endswith(NUMBERS):
        return None
    try:
        return Decimal(lexical(term))
    except InvalidOperation:
        return None
