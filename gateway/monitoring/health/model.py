"""The health model: all components, worst first, each with the time of its last change.

A change of state is logged once. Times are measured with CLOCK_BOOTTIME, so a clock that is set later corrects them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

import msgspec

from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.clock import Clock
from lamplighter.gateway.monitoring.health.components import STATES, Component, worst_first
from lamplighter.gateway.monitoring.health.own import LOG, OwnComponents

logger = EventLogger(__name__)

TICK_S = 10.0  # interval of the checks of the components between requests
CHANGES_MAX = 20  # changes that are logged in one minute
_MINUTE_US = 60_000_000

Overall = Literal["ok", "degraded", "refusing", "damaged"]


class ComponentSource(Protocol):
    def components(self) -> list[Component]: ...


class HealthModel:
    """The components of a gateway. own: those of the gateway itself; others: further ones, in this order."""

    def __init__(self, clock: Clock, own: OwnComponents, others: Sequence[ComponentSource]) -> None:
        self.own = own
        self._clock = clock
        self.sources: list[ComponentSource] = [own, *others]
        self._known: dict[str, tuple[Component, int]] = {}  # with CLOCK_BOOTTIME of the change
        self._minute = self._logged = self._left_out = 0

    def components(self) -> list[Component]:
        """All components, worst first."""
        now_us, wall = self._clock.boottime_us(), self._clock.wall()
        found, before = [], self._known
        self._known = {}
        for one in _by_name(one for source in self.sources for one in source.components()):
            last, since_us = before.pop(one.name, (None, now_us))
            if last is None or last.state != one.state:
                since_us = now_us
                self._log(one, last)
            self._known[one.name] = one, since_us
            since = one.since or _began(wall, now_us - since_us)
            found.append(msgspec.structs.replace(one, since=since))
        for gone, _ in before.values():  # devices that are well are not listed
            self._log(Component(name=gone.name), gone)
        return worst_first(found)

    def overall(self, components: Sequence[Component]) -> Overall:
        """The state of the gateway as a whole. damaged: data was lost or is wrong."""
        if self.own.has_damage():
            return "damaged"
        if self.own.refusal():
            return "refusing"
        return "ok" if all(one.well for one in components) else "degraded"

    def unready(self) -> str:
        """The component because of which updates are refused; empty if they are not."""
        return LOG if self.own.refusal() else ""

    async def run(self) -> None:
        """Looks at the components until cancelled, so that changes are logged and dated."""
        while True:
            try:
                self.components()
            except Exception:  # the gateway does its work nevertheless
                logger.exception("health not determined")
            await asyncio.sleep(TICK_S)

    def _log(self, now: Component, before: Component | None) -> None:
        """Logs a change; at the first look, only what is not ok."""
        if now.well and (before is None or before.well):
            return
        minute = self._clock.boottime_us() // _MINUTE_US
        if minute != self._minute:
            if self._left_out:
                logger.warning("component changes not logged", count=self._left_out)
            self._minute, self._logged, self._left_out = minute, 0, 0
        if self._logged >= CHANGES_MAX:
            self._left_out += 1
            return
        self._logged += 1
        fields: dict[str, Any] = {"component": now.name}
        if now.well:
            logger.info("component ok", **fields)
        else:
            logger.warning(f"component {now.state}", **fields, reason=now.reason, cure=now.cure)


def _by_name(components: Iterable[Component]) -> Iterable[Component]:
    """Each name once, with its worst state: an actuator may be named as a device, and long names are cut."""
    found: dict[str, Component] = {}
    for one in components:
        found[one.name] = max(found.get(one.name, one), one, key=lambda same: STATES.index(same.state))
    return found.values()


def _began(wall: datetime, ago_us: int) -> datetime:
    return wall - timedelta(microseconds=ago_us)
