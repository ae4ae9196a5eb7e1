"""Applications as components."""

from __future__ import annotations

from lamplighter.gateway.monitoring.health.components import Reports
from lamplighter.gateway.monitoring.health.others import ApplicationComponents
from lamplighter.gateway.state.outcomes import ApplicationOutcomes, Outcomes


def test_an_application_has_the_same_printable_name_in_each_state() -> None:
    """Else its file's name could write lines into `STATUS=`, and its time would begin anew with each state."""
    file, reports = "a\nSTATUS=\x1b[2J", Reports()
    found = ApplicationComponents(Outcomes({file: ApplicationOutcomes({})}), reports)
    [well] = found.components()
    reports.add(f"application/{file}", "failed", "it was stopped", "restart it")
    [bad] = found.components()
    assert well.name == bad.name == "application/a STATUS= [2J"
    assert (well.state, bad.state) == ("ok", "failed")
