"""A lamp: actuators of one device that are switched by one command, such as on/off, brightness and colour."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar, get_args

from lamplighter.adapters.mapping.tables import LampPart, Role
from lamplighter.engine.terms import Term, lexical


class LampMember(Protocol):
    """An actuator, as `actuator` describes it."""

    wanted: Term | None
    told: Term | None
    changed: int

    @property
    def known_report(self) -> Term | None: ...
    @property
    def disagrees(self) -> bool: ...
    def is_due(self, now: float) -> bool: ...
    def can_join(self) -> bool: ...


Member = TypeVar("Member", bound=LampMember)


def is_off(state: Term | None) -> bool:
    return state is not None and lexical(state) in ("false", "0")


def _rank(part: LampPart) -> tuple[int, int, str]:
    return part.order, get_args(Role).index(part.role), part.name


class LampGroup(Generic[Member]):
    """The actuators that have rules with the same lamp."""

    def __init__(self) -> None:
        self._members: dict[Member, LampPart] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._members))

    def __len__(self) -> int:
        return len(self._members)

    def add(self, actuator: Member, part: LampPart) -> None:
        self._members[actuator] = part

    def remove(self, actuator: Member) -> None:
        del self._members[actuator]

    def silences(self, actuator: Member, *, coming_on: bool = False) -> bool:
        """Whether nothing is sent to a part as things are, nor its report followed: it would turn a lamp on that is
        off, or change the colour that was set after it."""
        part = self._members[actuator]
        if part.role == "switch":
            return False
        # Colour and colour temperature exclude each other; the one that was set last counts.
        if part.role == "transition" or (part.role == "mode" and self._mode() is not actuator):
            return True
        switch = self._switch()
        if switch is None:
            return False
        # Most lamps come on when they are given a brightness or a colour.
        if is_off(switch.wanted):
            return True
        # While a lamp is off, many report no brightness, or 0.
        return not coming_on and actuator.told == actuator.wanted and is_off(switch.known_report)

    def together(self, first: Member, now: float) -> list[Member]:
        """The actuators whose states go in one command with that of the first one, in the order of the device."""
        switch = self._switch()
        if not first.can_join():
            return [first]  # it is refused, and the others are not
        if switch is not None and switch is not first and switch.is_due(now):
            # The switch leads: what goes along depends on whether the lamp comes on.
            first = switch
        if first is not switch:
            found = [one for one in self._members if one is first or one.is_due(now)]
        elif is_off(first.wanted):
            found = [first]
        else:  # it comes on as it is desired to be
            joining = [one for one in self._members if one.can_join() and not self.silences(one, coming_on=True)]
            found = [one for one in self._members if one is first or one in joining]
        found += [one for one, part in self._members.items() if part.role == "transition" and one.can_join()]
        return sorted(found, key=lambda one: _rank(self._members[one]))

    def is_rider(self, actuator: Member) -> bool:
        """Whether it only goes along, so that nothing is recorded of it."""
        return self._members[actuator].role == "transition"

    def _switch(self) -> Member | None:
        return next((one for one, part in self._members.items() if part.role == "switch"), None)

    def _mode(self) -> Member | None:
        """Of the modes with a desired state, the one that got it last; at a start, the one that is reported."""
        modes = [(one, part) for one, part in self._members.items() if part.role == "mode" and one.wanted is not None]
        ordered = sorted(modes, key=lambda mode: (mode[0].changed, not mode[0].disagrees, -mode[1].order))
        return ordered[-1][0] if ordered else None
