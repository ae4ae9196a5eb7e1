"""An application that is rehearsed on the past does what it does in a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.clock import iso
from lamplighter.gateway.history.records import History
from lamplighter.gateway.history.rehearsal import Act, Rehearsal
from lamplighter.gateway.state.applications import Application
from lamplighter.gateway.templates.catalogue import TEMPLATES, Choice
from tests.gateway.loop.test_redeclaring import follower
from tests.support.gateway_parts import (
    START,
    FakeClock,
    application,
    idle,
    records,
    recovered_runner,
    time_passes,
    update,
)

PREFIX = (
    "PREFIX : <http://e/> PREFIX sosa: <http://www.w3.org/ns/sosa/> PREFIX g: <http://lamplighter.example/ns/gateway#> "
)
Step = tuple[float, str, bool]  # seconds since the step before, sensor, whether it detects somebody


def motion_light() -> Application:
    chosen = TEMPLATES["motion-light"]
    choice = Choice(name="light", base_iri="http://e/", actuator="light", actuators=["http://e/lamp"], delay="PT30S")
    return application("light", chosen.profile(choice, chosen.properties))


def reading(sensor: str, value: bool) -> str:
    return (
        f"{PREFIX} DELETE {{ :{sensor} sosa:hasSimpleResult ?r }} INSERT {{ :{sensor} sosa:hasSimpleResult "
        f"{str(value).lower()} ; sosa:observedProperty g:motion ; sosa:madeBySensor :s{sensor} }} "
        f"WHERE {{ OPTIONAL {{ :{sensor} sosa:hasSimpleResult ?r }} }}"
    )


async def live(data: Path, steps: Sequence[Step], applications: Sequence[Application]) -> list[tuple[str, str]]:
    """What changed at the lamp: times and quads, with a sign."""
    clock = FakeClock()
    async with recovered_runner(data, clock, applications) as runner:
        await update(runner, f"{PREFIX} INSERT DATA {{ :house a :House }}")
        for seconds, sensor, value in steps:
            # In steps of a second, so that what is due has its own time.
            for _ in range(int(seconds)):
                await time_passes(runner, clock, 1)
            await update(runner, reading(sensor, value))
            await idle(runner)
        for _ in range(40):
            await time_passes(runner, clock, 1)
    return [
        (record.ts, f"{sign} {quad.s} {quad.o}")
        for record in records(data)
        for sign, quads in (("-", record.delta.removed), ("+", record.delta.added))
        for quad in quads
        if "desiredState" in quad.p
    ]


def rehearsed(data: Path, app: Application) -> list[Act]:
    clock = FakeClock()
    history = History(data, clock)
    replay = history.replay((1, 1))
    end = START + timedelta(hours=3)
    return list(Rehearsal(replay, app, START).rehearse(history.records((1, 1)), end))


def changes(acts: Sequence[Act]) -> list[tuple[str, str]]:
    return [
        (act.ts, f"{sign} {quad.s} {quad.o}")
        for act in acts
        for sign, quads in (("-", act.delta.removed), ("+", act.delta.added))
        for quad in quads
        if "desiredState" in quad.p
    ]


@pytest.mark.parametrize("seed", range(4))
async def test_rehearsal_is_what_a_gateway_does(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    steps = [(random.choice([0, 1, 5, 29, 30, 31, 45]), random.choice("ab"), random.random() < 0.5) for _ in range(25)]
    app = motion_light()
    expected = await live(tmp_path / "with", steps, [app])
    assert await live(tmp_path / "without", steps, []) == []
    assert expected
    assert changes(rehearsed(tmp_path / "without", app)) == expected


async def test_what_another_version_did_is_left_out(tmp_path: Path) -> None:
    app = motion_light()
    expected = await live(tmp_path, [(1, "a", True), (10, "a", False), (40, "a", True)], [app])
    assert changes(rehearsed(tmp_path, app)) == expected, "each change once"


async def test_delay_that_changes_nothing_is_counted(tmp_path: Path) -> None:
    app = motion_light()
    await live(tmp_path, [(1, "a", True), (5, "a", False), (5, "a", True), (5, "a", False)], [])
    history = History(tmp_path, FakeClock())
    rehearsal = Rehearsal(history.replay((1, 1)), app, START)
    acts = list(rehearsal.rehearse(history.records((1, 1)), START + timedelta(hours=1)))
    assert (rehearsal.delayed, rehearsal.idle, rehearsal.records) == (2, 1, 4)
    [off] = [act for act in acts if act.set_at]
    assert (off.set_at, off.ts) == (iso(START + timedelta(seconds=16)), iso(START + timedelta(seconds=46)))


async def test_faults_are_named(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        for name in ("one", "two"):
            await update(runner, f"{PREFIX} INSERT DATA {{ :{name} a :Thing }}")
    history = History(tmp_path, FakeClock())
    endless = application(
        "endless",
        {
            "queries": {"N": {"sparql": "SELECT ?n { ?s <http://e/n> ?n }"}},
            "updates": {
                "NEXT": {
                    "sparql": "DELETE { ?s <http://e/n> ?n } INSERT { <http://e/x> <http://e/n> ?m } "
                    "WHERE { OPTIONAL { ?s <http://e/n> ?n } BIND(COALESCE(?n, 0) + 1 AS ?m) }"
                },
                "FIRST": {"sparql": "INSERT DATA { <http://e/x> <http://e/n> 0 }"},
            },
            "extended": {"lamplighter": {"aggregators": {"n": {"query": "N", "added": "NEXT", "firstResults": True}}}},
        },
    )
    async with recovered_runner(tmp_path) as runner:
        await update(runner, "INSERT DATA { <http://e/x> <http://e/n> 0 }")
    with pytest.raises(ConfigurationError, match="1000 reactions follow from one record"):
        list(Rehearsal(history.replay((1, 2)), endless, START).rehearse(history.records((1, 2)), START))
    unfit = follower("unfit", firstResults=True)
    [*_, last] = Rehearsal(history.replay((1, 2)), unfit, START).rehearse((), START)
    assert (last.reaction, last.rows, last.failure) == ("note/added", 2, "")


async def test_delays_of_no_time_that_follow_from_each_other_end(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        await update(runner, f"{PREFIX} INSERT DATA {{ :house a :House }}")
        await update(runner, f"{PREFIX} INSERT DATA {{ :n :is 0 }}")
    counter = application(
        "counter",
        {
            "namespaces": {"e": "http://e/"},
            "queries": {"NUMBER": {"sparql": "SELECT ?n { e:n e:is ?n }"}},
            "updates": {
                "NEXT": {
                    "sparql": "DELETE { e:n e:is ?n } INSERT { e:n e:is ?m } WHERE { e:n e:is ?n BIND(?n + 1 AS ?m) }",
                    "delay": "PT0S",
                }
            },
            "extended": {"lamplighter": {"aggregators": {"count": {"query": "NUMBER", "added": "NEXT"}}}},
        },
    )
    with pytest.raises(ConfigurationError, match="1000 reactions"):
        rehearsed(tmp_path, counter)
