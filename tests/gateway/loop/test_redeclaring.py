"""Applications that begin, change and end while the gateway runs: their reactions are exactly once all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lamplighter.engine.errors import ChangeLogError
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.state.applications import Application
from tests.support.gateway_parts import (
    FakeClock,
    FullDisk,
    application,
    dump,
    idle,
    opened_log,
    reactions,
    records,
    recovered_runner,
    running,
    time_passes,
    update,
)

PREFIX = "PREFIX : <http://e/> "


def follower(name: str, result: str = "seen", **members: Any) -> Application:
    """Notes each thing that comes, by a triple of its own."""
    return application(
        name,
        {
            "namespaces": {"e": "http://e/"},
            "queries": {"THINGS": {"sparql": "SELECT ?thing { ?thing a e:Thing }"}},
            "updates": {
                "NOTE": {
                    "sparql": f"INSERT {{ ?thing e:{result} true }} WHERE {{}}",
                    "forcedBindings": {"thing": {"type": "uri", "value": ""}},
                    **({"delay": members.pop("delay")} if "delay" in members else {}),
                }
            },
            "extended": {"lamplighter": {"aggregators": {"note": {"query": "THINGS", "added": "NOTE", **members}}}},
        },
    )


async def come(runner: Runner, *things: str) -> None:
    for thing in things:
        await update(runner, f"{PREFIX} INSERT DATA {{ :{thing} a :Thing }}")
    await idle(runner)


def notes(runner: Runner, result: str = "seen") -> set[str]:
    quads = runner._engine.store.quads(None)
    return {quad.s.removeprefix("<http://e/")[:-1] for quad in quads if quad.p == f"<http://e/{result}>"}


def beginnings(data: Path) -> list[str]:
    """The records with which applications began and ended, in order, without their digests."""
    causes = [record.cause for record in records(data) if record.cause is not None and record.cause.seq is None]
    return [
        cause.id.partition("@")[0] + ("" if cause.id.endswith("@") else "+")
        for cause in causes
        if cause.kind == "application"
    ]


async def test_new_application_reacts_to_what_comes_from_then_on(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        await come(runner, "before")
        await runner.declarations.reload([follower("a")])
        await come(runner, "after")
        assert notes(runner) == {"after"}
        await runner.declarations.reload([follower("a"), follower("b", "first", firstResults=True)])
        await idle(runner)
        assert notes(runner, "first") == {"before", "after"}
        assert runner.applications.get("b") is not None
    assert beginnings(tmp_path) == ["a+", "b+"]
    both = [follower("a"), follower("b", "first", firstResults=True)]
    async with recovered_runner(tmp_path, applications=both) as runner:
        await come(runner, "later")
        assert notes(runner) == {"after", "later"}
    assert beginnings(tmp_path) == ["a+", "b+"], "they go on as if they had been there at the first start"
    assert len(reactions(tmp_path)) == 4


async def test_changed_application_leaves_its_place_to_the_new_version(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, applications=[follower("a"), follower("b", "other")]) as runner:
        await come(runner, "one")
        await runner.declarations.reload([follower("a", "known"), follower("b", "other")])
        await come(runner, "two")
        assert notes(runner) == {"one"}
        assert notes(runner, "known") == {"two"}
        assert notes(runner, "other") == {"one", "two"}
        assert len(runner._aggregators.subscriptions) == 2
    assert beginnings(tmp_path) == ["a+", "b+", "a+"]


async def test_removed_application_ends_and_its_delayed_updates_stay(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, [follower("a", delay="PT30S")]) as runner:
        await come(runner, "one")
        await runner.declarations.reload([])
        await come(runner, "two")
        await time_passes(runner, clock, 31)
        assert notes(runner) == {"one"}
        assert not runner._aggregators.subscriptions
        assert runner._engine.subscription_count == 0
    assert beginnings(tmp_path) == ["a+", "a"]


async def test_same_files_change_nothing(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, applications=[follower("a")]) as runner:
        await come(runner, "one")
        before = runner.log.sequence
        outcomes = runner._reactions.outcomes.applications["a"]
        await runner.declarations.reload([follower("a")])
        assert runner.log.sequence == before
        assert runner._reactions.outcomes.applications["a"] is outcomes
        await come(runner, "two")
        assert notes(runner) == {"one", "two"}


async def test_stopped_application_begins_again_without_its_report(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, applications=[follower("a")]) as runner:
        [(app, _)] = runner._aggregators.subscriptions.values()
        runner._aggregators.stop(app, "it was stopped by this test")
        await come(runner, "one")
        [component] = [one for one in runner.figures.health.components() if one.name == "application/a"]
        assert component.state == "failed"
        await runner.declarations.reload([follower("a")])
        await come(runner, "two")
        assert notes(runner) == {"two"}
        [component] = [one for one in runner.figures.health.components() if one.name == "application/a"]
        assert component.state == "ok"
    assert beginnings(tmp_path) == ["a+", "a", "a+"]


async def test_full_disk_refuses_and_a_second_try_takes_all_up(tmp_path: Path) -> None:
    disk = FullDisk()
    log = opened_log(tmp_path, FakeClock(), disk=disk)
    made = Runner(Settings(), log, [follower("a")])
    made.recover()
    async with running(made) as runner:
        await come(runner, "one")
        disk.left = 0
        with pytest.raises(ChangeLogError):
            await runner.declarations.reload([follower("b", "other")])
        disk.left = None
        await runner.declarations.reload([follower("b", "other")])
        await come(runner, "two")
        assert (notes(runner), notes(runner, "other")) == ({"one"}, {"two"})
    assert beginnings(tmp_path)[0] == "a+"
    assert sorted(beginnings(tmp_path)[1:]) == ["a", "b+"]


async def test_kill_at_each_record_of_a_reload_leaves_each_reaction_once(tmp_path: Path) -> None:
    before = [follower("a"), follower("b", "other"), follower("gone", "gone")]
    after = [
        follower("a", "known", firstResults=True),
        follower("b", "other"),
        follower("c", "first", firstResults=True),
    ]
    whole = tmp_path / "whole"
    async with recovered_runner(whole, applications=before) as runner:
        await come(runner, "one", "two")
        [segment] = (whole / "log").iterdir()
        begin = segment.stat().st_size
        await runner.declarations.reload(after)
        await idle(runner)
        end = segment.stat().st_size
        expected = dump(runner)
    assert beginnings(whole)[3:] == ["gone", "a+", "c+"]
    written = next((whole / "log").iterdir()).read_bytes()
    found = set()
    for size in range(begin, end + 1, 7):  # less than any record has
        data = tmp_path / str(size)
        (data / "log").mkdir(parents=True)
        (data / "log" / segment.name).write_bytes(written[:size])
        found.add(len(beginnings(data)))
        async with recovered_runner(data, applications=after) as runner:
            await idle(runner)
            assert dump(runner) == expected, size
            await come(runner, "three")
            assert "three" in notes(runner, "known") & notes(runner, "first") & notes(runner, "other")
        assert len(set(map(str, reactions(data)))) == len(reactions(data)), size
        assert sorted(beginnings(data)[3:]) == ["a+", "c+", "gone"], size
    assert found == {3, 4, 5, 6}
