"""Applications that are put, changed and removed while the gateway runs: exactly once, wherever it is killed."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lamplighter.engine.errors import ChangeLogError, ConfigurationError, LimitExceededError
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.loop.declarations import ApplicationDeclarations, FileConflictError
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.state.applications import parse_application
from lamplighter.gateway.state.stored_applications import FILE, STORED_MAX, StoredApplication, StoredApplications
from tests.gateway.loop.test_redeclaring import beginnings, come, follower, notes
from tests.support.event_loops import until
from tests.support.gateway_parts import (
    FakeClock,
    FullDisk,
    dump,
    idle,
    opened_log,
    reactions,
    recovered_runner,
    running,
    time_passes,
)


def stored(name: str, result: str = "seen", *, delay: str = "", **members: Any) -> StoredApplication:
    """Notes each thing that comes, by a triple of its own."""
    document = {
        "namespaces": {"e": "http://e/"},
        "queries": {"THINGS": {"sparql": "SELECT ?thing { ?thing a e:Thing }"}},
        "updates": {
            "NOTE": {
                "sparql": f"INSERT {{ ?thing e:{result} true }} WHERE {{}}",
                "forcedBindings": {"thing": {"type": "uri", "value": ""}},
                **({"delay": delay} if delay else {}),
            }
        },
        "extended": {"lamplighter": {"aggregators": {"note": {"query": "THINGS", "added": "NOTE", **members}}}},
    }
    return StoredApplication(name, json.dumps(document))


def names(declarations: ApplicationDeclarations) -> list[str]:
    return [one.name for one in declarations.declared]


async def test_it_begins_goes_on_after_a_restart_changes_and_ends(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        await come(runner, "before")
        done = await runner.declarations.store(stored("a"))
        assert (done.created, done.changed, done.place) == (True, True, (1, 2))
        await come(runner, "one")
        assert notes(runner) == {"one"}
    async with recovered_runner(tmp_path) as runner:
        await come(runner, "two")
        assert notes(runner) == {"one", "two"}
        done = await runner.declarations.store(stored("a", "known"))
        assert (done.created, done.changed) == (False, True)
        await come(runner, "three")
        assert (notes(runner), notes(runner, "known")) == ({"one", "two"}, {"three"})
        assert await runner.declarations.remove("a") is not None
        assert await runner.declarations.remove("a") is None
        await come(runner, "four")
        assert notes(runner, "known") == {"three"}
        assert not runner._aggregators.subscriptions
    assert beginnings(tmp_path) == ["a+", "a+", "a"]
    assert not StoredApplications(tmp_path, Disk()).applications


async def test_the_same_again_changes_nothing_and_a_stopped_one_begins_again(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        await runner.declarations.store(stored("a"))
        await runner.declarations.store(stored("b", "other"))
        before = runner.log.sequence
        assert not (await runner.declarations.store(stored("a"))).changed
        assert runner.log.sequence == before
        for app, _ in list(runner._aggregators.subscriptions.values()):
            runner._aggregators.stop(app, "it was stopped by this test")
        await idle(runner)
        await runner.declarations.store(stored("a"))
        await come(runner, "one")
        assert (notes(runner), notes(runner, "other")) == ({"one"}, set()), "only the one that was put"
    assert sorted(beginnings(tmp_path)[:4]) == ["a", "a+", "b", "b+"] and beginnings(tmp_path)[4:] == ["a+"]


async def test_delayed_updates_of_a_removed_one_stay(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:
        await runner.declarations.store(stored("a", delay="PT30S"))
        await runner.declarations.store(stored("ab", "other", delay="PT30S"))
        await come(runner, "one", "two")
        assert [await runner.declarations.pending(name) for name in ("a", "ab")] == [2, 2]
        await runner.declarations.remove("a")
        await come(runner, "three")
        await time_passes(runner, clock, 31)
        assert notes(runner) == {"one", "two"}
        assert await runner.declarations.pending("a") == 0


async def test_a_file_is_not_changed_and_takes_precedence(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, applications=[follower("a", "file")]) as runner:
        with pytest.raises(FileConflictError, match=r"edit apps/a\.jsap and reload"):
            await runner.declarations.store(stored("a"))
        with pytest.raises(FileConflictError, match=r"remove apps/a\.jsap"):
            await runner.declarations.remove("a")
        await runner.declarations.store(stored("b"))
        assert names(runner.declarations) == ["a", "b"]
    # Somebody writes a file of that name while the gateway is off, or before a reload.
    async with recovered_runner(tmp_path, applications=[follower("b", "file")]) as runner:
        await come(runner, "one")
        assert (notes(runner), notes(runner, "file")) == (set(), {"one"})
        [found] = [one for one in runner.figures.health.components() if one.name == "application/b"]
        assert found.state == "degraded" and "lamplighter apps remove b" in found.cure
        await runner.declarations.reload([])
        await come(runner, "two")
        assert notes(runner) == {"two"}, "the stored one runs again"


async def test_a_reload_keeps_stored_ones(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        await runner.declarations.store(stored("a", "a"))
        await asyncio.gather(
            *(runner.declarations.store(stored(name, name)) for name in "bc"),
            runner.declarations.reload([follower("file", "file")]),
            *(runner.declarations.store(stored(name, name)) for name in "de"),
            runner.declarations.remove("a"),
        )
        assert names(runner.declarations) == ["b", "c", "d", "e", "file"]
        await come(runner, "one")
        assert all(notes(runner, name) == {"one"} for name in ("b", "c", "d", "e", "file"))


@pytest.mark.parametrize("step", ["put", "change", "remove"])
async def test_killed_anywhere_each_reaction_is_there_once(tmp_path: Path, step: str) -> None:
    """The file has the change or not, and the log is cut at each place; the outcome is that of the file."""
    whole = tmp_path / "whole"
    async with recovered_runner(whole) as runner:
        await runner.declarations.store(stored("b", "other"))
        if step != "put":
            await runner.declarations.store(stored("a"))
        await come(runner, "one", "two")
        [segment] = (whole / "log").iterdir()
        begin, before = segment.stat().st_size, (whole / FILE).read_bytes()
        if step == "remove":
            await runner.declarations.remove("a")
        else:
            await runner.declarations.store(stored("a", "known", firstResults=True))
        await idle(runner)
        end, after = segment.stat().st_size, (whole / FILE).read_bytes()
        expected = dump(runner)
        count = len(beginnings(whole))
    written, seen = segment.read_bytes(), set()
    for size in [begin, *range(begin + 1, end, 7), end]:
        data = tmp_path / str(size)
        (data / "log").mkdir(parents=True)
        (data / "log" / segment.name).write_bytes(written[:size])
        (data / FILE).write_bytes(after)
        seen.add(len(beginnings(data)))
        async with recovered_runner(data) as runner:
            await idle(runner)
            assert dump(runner) == expected, size
            # The client had no answer, so it sends it again.
            if step == "remove":
                assert await runner.declarations.remove("a") is None
            else:
                assert not (await runner.declarations.store(stored("a", "known", firstResults=True))).changed
            await come(runner, "three")
            assert ("three" in notes(runner, "known")) == (step != "remove")
            assert "three" in notes(runner, "other")
        assert len(set(map(str, reactions(data)))) == len(reactions(data)), size
        assert len(beginnings(data)) == count, size
        shutil.rmtree(data)
    assert seen == {count - 1, count}
    # Killed before the file was written: nothing has happened.
    data = tmp_path / "nothing"
    (data / "log").mkdir(parents=True)
    (data / "log" / segment.name).write_bytes(written[:begin])
    (data / FILE).write_bytes(before)
    async with recovered_runner(data) as runner:
        await come(runner, "three")
        assert notes(runner, "known") == set()
    assert len(beginnings(data)) == count - 1


async def test_full_disk_refuses_and_what_is_stored_begins_without_a_further_request(tmp_path: Path) -> None:
    disk = FullDisk()
    made = Runner(Settings(), opened_log(tmp_path, FakeClock(), disk=disk))
    made.recover()
    async with running(made) as runner:
        await come(runner, "one")
        disk.left = 0
        with pytest.raises(ChangeLogError, match="nothing was changed"):
            await runner.declarations.store(stored("a"))
        assert names(runner.declarations) == [] and not (tmp_path / FILE).exists()
        disk.left = 1  # the file, and no record
        with pytest.raises(ChangeLogError):
            await runner.declarations.store(stored("a"))
        disk.left = None
        await until(lambda: beginnings(tmp_path) == ["a+"])
        await come(runner, "two")
        assert notes(runner) == {"two"}


async def test_a_request_that_is_given_up_is_done_all_the_same(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        asked = asyncio.ensure_future(runner.declarations.store(stored("a")))
        await until(lambda: (tmp_path / FILE).exists())
        asked.cancel()
        await until(lambda: names(runner.declarations) == ["a"])
        await runner.declarations.store(stored("b"))
        await come(runner, "one")
        assert notes(runner) == {"one"}


async def test_amounts_are_bounded(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        with pytest.raises(LimitExceededError, match="has at most"):
            await runner.declarations.store(StoredApplication("a", json.dumps({"x": "y" * 300_000})))
        many = [stored(f"a{number}") for number in range(STORED_MAX)]
        await runner.declarations.replace(many)
        with pytest.raises(LimitExceededError, match="at most 200 applications"):
            await runner.declarations.store(stored("b"))
        assert len(names(runner.declarations)) == STORED_MAX


async def test_one_that_cannot_be_read_stays_and_is_named(tmp_path: Path) -> None:
    newer = {"name": "new", "profile": '{"updates": {"U": {"sparql": "", "novelty": 1}}}', "member": [1]}
    (tmp_path / FILE).write_text(json.dumps({"format": 1, "applications": [newer], "more": 2}))
    async with recovered_runner(tmp_path) as runner:
        [found] = [one for one in runner.figures.health.components() if one.name == "application/new"]
        assert found.state == "failed" and "updates.U.novelty: unknown member" in found.reason
        await runner.declarations.store(stored("a"))
        await come(runner, "one")
        assert notes(runner) == {"one"}
    document = json.loads((tmp_path / FILE).read_text())
    [found] = [one for one in document["applications"] if one["name"] == "new"]
    assert document["more"] == 2 and found.items() >= newer.items(), "a newer version finds all of it"


def test_a_damaged_file_stops_the_start_with_a_cure(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    with pytest.raises(
        ConfigurationError, match=r"applications\.json is damaged .*; restore a copy of it, or remove it"
    ):
        StoredApplications(tmp_path, Disk())


def test_documents_include_no_others() -> None:
    with pytest.raises(Exception, match="include: only files in apps/ include others"):
        parse_application("a", b'{"include": ["other.jsap"]}')
