"""What parts of the process report of their components. A report stays until the next start."""

from __future__ import annotations

from collections.abc import Callable

from lamplighter.gateway.monitoring.health.components import STATES, Component, State, not_ok

REPORTS_MAX = 10  # reports of one component that are kept; the first ones are closest to the cause


class Reports:
    """The reports by component."""

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

    def of(self, name: str) -> Component | None:
        """The worst report of a component with all reasons; None if there is none."""
        found = self._found.get(name)
        if not found:
            return None
        worst = max(found, key=lambda one: STATES.index(one.state))
        return not_ok(name, worst.state, "; ".join(one.reason for one in found), worst.cure)
