"""The applications, by what stopped them and by the outcomes of their reactions."""

from __future__ import annotations

from lamplighter.gateway.monitoring.health.components import Component, not_ok, one_line
from lamplighter.gateway.monitoring.health.reports import Reports
from lamplighter.gateway.state.outcomes import ApplicationOutcomes, Outcomes


class ApplicationComponents:
    """Reads the outcomes of the declared applications."""

    def __init__(self, outcomes: Outcomes, reports: Reports) -> None:
        self._outcomes = outcomes
        self._reports = reports

    def components(self) -> list[Component]:
        return [self._component(name, found) for name, found in self._outcomes.applications.items()]

    def _component(self, application: str, outcomes: ApplicationOutcomes) -> Component:
        name = f"application/{application}"
        reported, state = self._reports.of(name), outcomes.state()
        if reported is not None and (reported.state == "failed" or state == "ok"):
            return reported
        if state == "ok":
            return Component(name=one_line(name))
        failing = list(outcomes.failing())
        reaction, worst = failing[0]
        more = f" (and {len(failing) - 1} more)" if len(failing) > 1 else ""
        reason = f"reaction {reaction}{more} fails: update {worst.update} of query {worst.query}: {worst.reason}"
        cure = f"correct apps/{application}.jsap (`lamplighter check`), then restart the gateway"
        return not_ok(name, state, reason, cure)
