"""A component of the gateway and its state; what parts of the process report of their components."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from lamplighter.gateway.clock import iso

State = Literal["ok", "degraded", "failed"]
STATES: tuple[State, ...] = ("ok", "degraded", "failed")  # each is worse than the one before
NOT_RUNNING = "the adapter does not run"
_CHARACTERS_MAX = 400
_READ_MAX = 4 * _CHARACTERS_MAX  # of a text that becomes one line: its blanks may be many


class Component(msgspec.Struct, frozen=True, kw_only=True):
    """name: such as ``log`` or ``mqtt/default``. reason: what is wrong; cure: what to do about it; both are empty if
    all is well. since: when the state began, None if that is not known yet."""

    name: str
    state: State = "ok"
    reason: str = ""
    cure: str = ""
    since: datetime | None = None

    @property
    def well(self) -> bool:
        return self.state == "ok"

    def members(self) -> dict[str, Any]:
        """As in `GET /health` and `GET /figures`."""
        return {
            "name": self.name,
            "state": self.state,
            "since": None if self.since is None else iso(self.since),
            "reason": self.reason,
            "cure": self.cure,
        }

    def problem(self) -> str:
        """In one line: ``disk degraded: 2 % is free; remove files``."""
        return f"{self.name} {self.state}: {self.reason}{self.cure and '; '}{self.cure}"


def not_ok(name: str, state: State, reason: str, cure: str, since: datetime | None = None) -> Component:
    """A component that is not well. Texts of devices and peers become one line of bounded length."""
    return Component(name=one_line(name), state=state, reason=one_line(reason), cure=one_line(cure), since=since)


def one_line(text: str) -> str:
    """A text without control characters, cut if it is long."""
    line = "".join(sign if sign.isprintable() else " " for sign in text[:_READ_MAX])
    line = " ".join(line.split())
    whole = len(line) <= _CHARACTERS_MAX and len(text) <= _READ_MAX
    return line if whole else f"{line[: _CHARACTERS_MAX - 1]}…"


def worst_first(components: Iterable[Component]) -> list[Component]:
    return sorted(components, key=lambda one: -STATES.index(one.state))


def span(lasted: timedelta) -> str:
    """A duration in the largest unit of which there is at least one."""
    seconds = max(0, int(lasted.total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


REPORTS_MAX = 10  # reports of one component that are kept; the first ones are closest to the cause


class Reports:
    def __init__(self) -> None:
        self._found: dict[str, list[Component]] = {}

    def add(self, name: str, state: State, reason: str, cure: str) -> None:
        """Reports a component. The same reason is kept once."""
        found, report = self._found.setdefault(name, []), not_ok(name, state, reason, cure)
        if len(found) < REPORTS_MAX and all(one.reason != report.reason for one in found):
            found.append(report)

    def failing(self, name: str, cure: str) -> Callable[[str], None]:
        """A function that reports a component as failed. It takes the reason."""
        return lambda reason: self.add(name, "failed", reason, cure)

    def forget(self, name: str) -> None:
        """The component is another one now."""
        self._found.pop(name, None)

    def of(self, name: str) -> Component | None:
        """The worst report of a component with all reasons; None if there is none."""
        found = self._found.get(name)
        if not found:
            return None
        worst = max(found, key=lambda one: STATES.index(one.state))
        return not_ok(name, worst.state, "; ".join(one.reason for one in found), worst.cure)
