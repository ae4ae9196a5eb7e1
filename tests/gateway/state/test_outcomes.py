"""The outcomes of reactions, and what they make of an application's health."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lamplighter.engine.change_log import Cause
from lamplighter.gateway.monitoring.metrics import exposition
from lamplighter.gateway.state.applications import Application
from lamplighter.gateway.state.outcomes import RECOVERED, Outcomes
from tests.support.gateway_parts import FakeClock, application, idle, recovered_runner, time_passes, update

PREFIX = "PREFIX : <http://e/> "
FAILS = "CLEAR GRAPH <http://e/none>"  # an error until somebody makes the graph


def app(**updates: dict[str, Any]) -> Application:
    """An application with an aggregator for each update: it reacts to ``:NAME``."""
    queries = {name: {"sparql": f"SELECT ?x {{ ?x <http://e/{name}> ?v }}"} for name in updates}
    aggregators = {name: {"query": name, "added": name} for name in updates}
    return application(
        "app", {"queries": queries, "updates": updates, "extended": {"lamplighter": {"aggregators": aggregators}}}
    )


def component(status: dict[str, Any]) -> dict[str, Any]:
    [found] = [one for one in status["components"] if one["name"] == "application/app"]
    return dict(found)


async def trigger(runner: Any, name: str, number: int) -> None:
    await update(runner, PREFIX + f"INSERT DATA {{ :x{number} :{name} {number} }}")
    await idle(runner)


async def test_an_application_all_of_whose_reactions_fail_has_failed(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, applications=[app(bad={"sparql": FAILS})]) as runner:
        assert component(runner.figures.status())["state"] == "ok", "nothing has run"
        await trigger(runner, "bad", 1)
        status = runner.figures.status()
        found = component(status)
        assert (status["status"], found["state"]) == ("degraded", "failed")
        assert found["reason"] == (
            "reaction bad/added fails: update bad of query bad: the graph <http://e/none> does not exist; use SILENT "
            "to ignore that"
        )
        assert found["cure"] == "correct apps/app.jsap (`lamplighter check`), then reload the gateway"
        await trigger(runner, "bad", 2)
        assert runner.figures.monitoring()["applications"] == {"app": {"reactions": 2, "failed": 2, "refused": 0}}
        text = exposition(runner.figures, "text/plain")[0].decode()
        assert 'lamplighter_application_reactions_total{application="app"} 2.0' in text
        assert 'lamplighter_application_reactions_failed_total{application="app"} 2.0' in text
        assert 'lamplighter_component_state{component="application/app",state="failed"} 1.0' in text
        assert 'lamplighter_component_state{component="application/app",state="ok"} 0.0' in text


async def test_an_application_some_of_whose_reactions_fail_is_degraded_and_recovers(tmp_path: Path) -> None:
    good = {"sparql": "INSERT DATA { <http://e/a> <http://e/done> 1 }"}
    async with recovered_runner(tmp_path, applications=[app(bad={"sparql": FAILS}, good=good)]) as runner:
        await trigger(runner, "good", 1)
        await trigger(runner, "bad", 2)
        found = component(runner.figures.status())
        assert (found["state"], found["reason"].startswith("reaction bad/added fails")) == ("degraded", True)
        await update(runner, "CREATE GRAPH <http://e/none>")
        states = []
        for number in range(3, 3 + RECOVERED):
            states.append(component(runner.figures.status())["state"])
            await trigger(runner, "bad", number)
        assert set(states) == {"degraded"}
        assert component(runner.figures.status())["state"] == "ok"
        await update(runner, "DROP GRAPH <http://e/none>")
        await trigger(runner, "bad", 9)
        assert component(runner.figures.status())["state"] == "degraded"


async def test_a_delayed_reaction_fails_when_its_update_is_due(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, [app(late={"sparql": FAILS, "delay": "PT30S"})]) as runner:
        await trigger(runner, "late", 1)
        assert component(runner.figures.status())["state"] == "ok"
        await time_passes(runner, clock, 30)
        assert component(runner.figures.status())["state"] == "failed"
        assert runner.figures.monitoring()["applications"]["app"] == {"reactions": 1, "failed": 0, "refused": 1}


def test_causes_of_others_are_not_counted() -> None:
    outcomes = Outcomes.of([app(good={"sparql": "INSERT DATA { <a:a> <a:b> 1 }"})])
    causes = [
        None,
        Cause("ws", "app/good/added", 1),
        Cause("application", "app@abc"),
        Cause("application", "app/good/added"),
        Cause("application", "app/good/removed", 1),
        Cause("application", "other/good/added", 1),
    ]
    for cause in causes:
        outcomes.note_refusal(cause, ValueError("a"))
        outcomes.note_success(cause)
    assert outcomes.applications["app"].refused == 0
    outcomes.note_refusal(Cause("application", "app/good/added", 1), ValueError())
    assert outcomes.applications["app"].by_reaction["good/added"].reason == "ValueError"
    assert list(outcomes.applications) == ["app"]
