"""Keeps what the dataset says of local time: which of its periods are active, and date, weekday and daylight here.

::

    subscription to what is declared and said ─▶ `Declarations` ─┐
    the next instant at which something changes ─────────────────┴─▶ `local_triples` ─▶ update of the `difference`

Who may write to the default graph may declare a period: ``<p> gateway:begins "sunset" ; gateway:ends "07:00"``. What
is said of it follows from the clock and the declaration alone, so a start says what holds then, and whatever else is
said there is corrected. While the clock is not trusted, nothing is said anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from heapq import nsmallest
from itertools import accumulate
from typing import TYPE_CHECKING, Final, cast

from lamplighter.engine.change_log import Cause
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import back_off_s
from lamplighter.engine.terms import XSD, Binding, Term, iri, is_iri, is_literal, lexical, literal
from lamplighter.gateway.clock import iso
from lamplighter.gateway.local_time.periods import Period, next_midnight
from lamplighter.gateway.local_time.times import LocalPlace, TimeOfDay
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.monitoring.health.components import Component, not_ok
from lamplighter.ontology.vocabulary import (
    ACTIVE,
    BEGINS,
    CHANGES_AT,
    DAYLIGHT,
    ENDS,
    LOCAL_DATE,
    LOCAL_WEEKDAY,
    ON_WEEKDAY,
    PERIOD_PROBLEM,
    WEEKDAYS,
)

if TYPE_CHECKING:
    from lamplighter.engine.core import Notification, Subscription
    from lamplighter.engine.protocol import Results

logger = EventLogger(__name__)

KIND: Final = "local-time"
"""Of the cause of its commits; the id is the instant."""
COMPONENT: Final = "local-time"
"""Of the health of the gateway."""
PERIODS_MAX: Final = 1000
"""Periods of which something is said: the first ones by their IRIs."""
_LOOK_S: Final = 10.0  # so that a step of the clock, a reload of [place] and a clock that is trusted now are noticed
_PAUSE_S: Final = 0.1  # between two updates, if others write what is said here
_DELETED_CHARACTERS_MAX: Final = 256 * 1024  # of one update: twice of what is said of all periods
_AGAIN_S: Final = 1.0, 60.0


def _branch(name: Term) -> str:
    return f"{{ ?about {name} ?o BIND({name} AS ?p) }}"


_CURE: Final = "it is tried again by itself; the log of the gateway has more"
_BEGINS, _ENDS, _DAYS = _DECLARATION = tuple(map(iri, (BEGINS, ENDS, ON_WEEKDAY)))
_ACTIVE, _CHANGES_AT, _PROBLEM = map(iri, (ACTIVE, CHANGES_AT, PERIOD_PROBLEM))
_DATE, _WEEKDAY, _DAYLIGHT = map(iri, (LOCAL_DATE, LOCAL_WEEKDAY, DAYLIGHT))
_DECLARED: Final = frozenset(_DECLARATION)
_SAID: Final = frozenset((_ACTIVE, _CHANGES_AT, _PROBLEM, _DATE, _WEEKDAY, _DAYLIGHT))
# A branch for each predicate, so that commits without any of them cost nothing.
_QUERY: Final = f"SELECT ?about ?p ?o {{ {' UNION '.join(map(_branch, sorted(_DECLARED | _SAID)))} }}"
_NO_POSITION: Final = "sunrise and sunset need a place: set position of [place] in the settings"

Properties = dict[Term, set[Term]]


@dataclass(eq=False)
class Declarations:
    """The sink of the subscription. about: subject -> property -> values, of what is declared and said; changed: set
    when there is something new; lost: why the subscription has ended."""

    client: str = "local time"
    identity: str | None = None
    since: datetime | None = None
    kind: str = KIND
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    lost: GatewayError | None = None
    about: dict[Term, Properties] = field(default_factory=dict)

    @property
    def connection(self) -> object:
        return self

    def subscribed(self, subscription: Subscription, keep: str | None = None, reset: str | None = None) -> None:
        self._take(subscription.first.rows, ())

    def notify(self, notification: Notification, results: Results) -> None:
        self._take(results.added.rows, results.removed.rows)

    def ended(self, spuid: str, error: GatewayError) -> None:
        self.lost = error
        self.changed.set()

    # A subscription that is not resumable is neither resumed nor taken over, and notifications name no commits.
    def resumed(self, spuid: str, attached: object) -> None: ...

    def taken_over(self, spuid: str, by: object) -> None: ...

    def name_no_commits(self) -> None: ...

    def _take(self, added: tuple[Binding, ...], removed: tuple[Binding, ...]) -> None:
        for row in removed:
            about, name, value = cast("tuple[Term, Term, Term]", row)
            values = self.about[about]
            values[name].discard(value)
            if not values[name]:
                del values[name]
            if not values:
                del self.about[about]
        for row in added:
            about, name, value = cast("tuple[Term, Term, Term]", row)
            self.about.setdefault(about, {}).setdefault(name, set()).add(value)
        self.changed.set()


def local_triples(
    about: Mapping[Term, Properties], place: LocalPlace, where: Term, now: datetime
) -> tuple[dict[Term, Properties], datetime]:
    """What is to be said: of each period, and of the place; and the next instant at which it changes.

    about: as of `Declarations`; where: IRI of the place; now: in UTC.
    """
    due = next_midnight(now, place)
    said: dict[Term, Properties] = {where: {}}
    today = place.local_date(now)
    said[where][_DATE] = {literal(today.isoformat(), datatype=XSD + "date")}
    said[where][_WEEKDAY] = {literal(WEEKDAYS[today.weekday()])}
    if place.position is not None:
        day = _DAYTIME.state(now, place)
        said[where][_DAYLIGHT] = {_boolean(day.active)}
        due = min(due, day.changes or due)
    periods = [subject for subject, values in about.items() if is_iri(subject) and not _DECLARED.isdisjoint(values)]
    if len(periods) > PERIODS_MAX:
        # Not those that came first: a start reads them in another order.
        periods = nsmallest(PERIODS_MAX, periods)
    for subject in periods:
        begins, ends, days = ([lexical(value) for value in about[subject].get(name, ())] for name in _DECLARATION)
        try:
            period = Period.parse(begins, ends, days)
            if period.needs_position and place.position is None:
                raise ValueError(_NO_POSITION)
        except ValueError as error:
            said.setdefault(subject, {})[_PROBLEM] = {literal(str(error))}
            continue
        active, changes = period.state(now, place)
        said.setdefault(subject, {})[_ACTIVE] = {_boolean(active)}
        if changes is not None:
            # In the store's own spelling: it would differ from what is said otherwise, and be corrected for ever.
            said[subject][_CHANGES_AT] = {literal(f"{changes:%Y-%m-%dT%H:%M:%SZ}", datatype=XSD + "dateTime")}
            due = min(due, changes)
    return said, due


def difference(about: Mapping[Term, Properties], said: Mapping[Term, Properties]) -> str:
    """An update that makes the dataset say this and nothing else; empty if it does. What others have said may be more
    than one update can take: it deletes a part then, and the next one more."""
    old = set(_statements({subject: values for subject, values in about.items() if is_iri(subject)}))
    new = set(_statements(said))
    parts = (("DELETE", _first(sorted(old - new))), ("INSERT", sorted(new - old)))
    return " ; ".join(f"{verb} DATA {{ {' '.join(triples)} }}" for verb, triples in parts if triples)


def _first(triples: list[str]) -> list[str]:
    """The first ones, at least one, that have at most `_DELETED_CHARACTERS_MAX` characters together."""
    ends = accumulate(map(len, triples))
    return [
        triple
        for number, (triple, end) in enumerate(zip(triples, ends, strict=True))
        if not number or end <= _DELETED_CHARACTERS_MAX
    ]


def _statements(about: Mapping[Term, Properties]) -> Iterator[str]:
    for subject, properties in about.items():
        for name, values in properties.items():
            if name in _SAID:
                # What somebody else says there with a blank node has no name by which it could be deleted.
                yield from (f"{subject} {name} {value} ." for value in values if "_:" not in value or is_literal(value))


def _boolean(value: bool) -> Term:
    return literal(str(value).lower(), datatype=XSD + "boolean")


_DAYTIME: Final = Period(TimeOfDay.parse("sunrise"), TimeOfDay.parse("sunset"))


class LocalTime:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._failures = 0  # in a row
        self._problem = ""

    def components(self) -> list[Component]:
        """For the health of the gateway, while the settings have a place."""
        if not self._runner.settings.place.is_set:
            return []
        if self._problem:
            return [not_ok(COMPONENT, "degraded", f"it is not kept: {self._problem}", _CURE)]
        if not self._runner.log.clock.trusted():
            why, cure = "the clock is not synchronised", "see the component clock"
            if self._runner.settings.gateway.clock_trusted == "never":  # then that component is well
                why = 'gateway.clock_trusted is "never"'
                cure = 'set it to "auto", or to "always" if the machine has a clock that runs without power'
            return [not_ok(COMPONENT, "degraded", f"{why}; periods do not begin or end", cure)]
        return [Component(name=COMPONENT)]

    async def keep(self) -> None:
        """Until cancelled, while the settings have a place."""
        while True:
            try:
                if self._runner.settings.place.is_set:
                    await self._follow()
                await asyncio.sleep(_LOOK_S)
            except Exception as error:  # the gateway does its work nevertheless
                self._failures += 1
                self._problem = str(error) or type(error).__name__
                pause = back_off_s(self._failures, *_AGAIN_S)
                unexpected = not isinstance(error, GatewayError)
                logger.warning("local time not kept", reason=error, again_s=round(pause), exc_info=unexpected)
                await asyncio.sleep(pause)

    async def _follow(self) -> None:
        """Until the settings have no place any more; what was said is deleted then. Raises GatewayError."""
        declarations = Declarations()
        spuid = await self._runner.subscribe(_QUERY, declarations, None, None)
        try:
            while declarations.lost is None:
                if not await self._say(declarations):
                    return
        finally:
            self._runner.disconnect(declarations, [spuid])
        raise declarations.lost

    async def _say(self, declarations: Declarations) -> bool:
        """Says what holds now, and returns when something has changed or may have: whether to go on. Raises
        GatewayError."""
        declarations.changed.clear()
        clock, settings = self._runner.log.clock, self._runner.settings
        wait_s, now, going_on = _LOOK_S, clock.wall(), settings.place.is_set
        if clock.trusted() or not going_on:
            said: Mapping[Term, Properties] = {}
            if going_on:
                where = iri(f"{settings.gateway.base_iri}place")
                said, due = local_triples(declarations.about, LocalPlace.of(settings.place), where, now)
                wait_s = min(wait_s, max((due - now).total_seconds(), _PAUSE_S))
            if update := difference(declarations.about, said):
                await self._runner.updates.update(UpdateCall(update, Cause(KIND, iso(now))))
                await asyncio.sleep(_PAUSE_S)
        self._failures, self._problem = 0, ""
        if going_on:
            # Not `wait_for`: that of Python 3.11 loses a cancellation in the moment of a change.
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await declarations.changed.wait()
        return going_on
