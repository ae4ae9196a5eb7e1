"""After any kind of stop, the dataset on disk agrees with the log. It is rebuilt only when it must be."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lamplighter.engine.errors import GatewayError
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.settings import LogSettings, Settings, StoreSettings
from tests.properties.sparql_texts import case_of
from tests.support.amounts import Amounts
from tests.support.gateway_parts import (
    CLIENT,
    FakeClock,
    application,
    dump,
    idle,
    lines,
    put_lines,
    reactions,
    recovered_runner,
    runner_over,
    running,
    segments,
    update,
)

ON_DISK = Settings(store=StoreSettings(path="store"), log=LogSettings(snapshot_records=7))
COPIER = application(
    "copy",
    {
        "queries": {"Q": {"sparql": "SELECT ?x { ?x <urn:in> ?y }"}},
        "updates": {
            "U": {
                "sparql": "INSERT { ?x <urn:out> [] } WHERE {}",
                "forcedBindings": {"x": {"type": "uri", "value": ""}},
            }
        },
        "extended": {"lamplighter": {"aggregators": {"copy": {"query": "Q", "added": "U"}}}},
    },
)


async def play(runner: Runner, seed: int) -> None:
    for step in case_of(seed).steps:
        if step.kind == "update":
            try:
                await runner.updates.update(UpdateCall(step.text, CLIENT))
            except GatewayError:
                continue
        await runner.log_keeper.turn()


def rebuilt(caplog: pytest.LogCaptureFixture) -> bool:
    found = any("store rebuilt" in record.message for record in caplog.records)
    caplog.clear()
    return found


@pytest.mark.parametrize("end", ["killed", "power cut", "in order", "in order, then a restart of the machine"])
async def test_what_the_store_holds_is_what_the_log_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, end: str, amounts: Amounts
) -> None:
    clock = FakeClock()
    for seed in range(amounts.of(3)):
        runner = runner_over(tmp_path / "disk", clock, settings=ON_DISK)
        runner.recover()
        async with running(runner, orderly=end.startswith("in order")):
            await play(runner, seed)
        rebuilt(caplog)
        if end != "killed":
            clock.reboot(f"boot {seed}") if end != "in order" else None
        before = runner.figures.status()["sequence"]
        again = runner_over(tmp_path / "disk", clock, settings=ON_DISK)
        again.recover()
        assert rebuilt(caplog) == (end == "power cut")
        held = dump(again)
        again.close()
        # The same log, without the store, in memory.
        memory = runner_over(tmp_path / "disk", clock)
        memory.recover()
        assert held == dump(memory)
        assert memory.figures.status()["sequence"] == before
        memory.close()


async def test_the_store_is_taken_back_from_whatever_it_has(tmp_path: Path) -> None:
    """The quads before the snapshot are left alone; what the log has since is replayed, reactions included."""
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, [COPIER], ON_DISK) as runner:
        for number in range(20):
            await update(runner, f"INSERT DATA {{ <urn:{number}> <urn:in> {number} }}")
            if number % 3 == 0:
                await update(runner, f"DELETE DATA {{ <urn:{number}> <urn:in> {number} }}")
            await runner.log_keeper.turn()
        await idle(runner)
        before = dump(runner)
    # As if the gateway had been killed before the last reaction was written.
    assert sum(b"urn:out" in line for line in before) == 20
    (tmp_path / "snapshots" / sorted(path.name for path in (tmp_path / "snapshots").iterdir())[-1]).unlink()
    async with recovered_runner(tmp_path, clock, [COPIER], ON_DISK) as runner:
        await idle(runner)
        assert dump(runner) == before
    assert len(reactions(tmp_path)) == len(set(reactions(tmp_path)))


async def test_after_damage_the_store_has_no_more_than_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, settings=ON_DISK) as runner:
        for number in range(4):
            await update(runner, f"INSERT DATA {{ <urn:s> <urn:p> {number} }}")
        assert len(dump(runner)) == 4
    (segment,) = segments(tmp_path)
    content = lines(segment)
    put_lines(tmp_path, [*content[:2], content[2].replace(b"2", b"3"), content[3]])
    async with recovered_runner(tmp_path, clock, settings=ON_DISK) as runner:
        assert rebuilt(caplog)
        assert len(dump(runner)) == 2
        assert runner.figures.status()["status"] == "damaged"


async def test_the_store_of_another_gateway_is_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, settings=ON_DISK) as runner:
        await update(runner, "INSERT DATA { <urn:s> <urn:p> 1 }")
    for path in (tmp_path / "log").iterdir():
        path.unlink()
    (tmp_path / "identity").write_text("gw-other\n")
    with caplog.at_level(logging.WARNING):
        async with recovered_runner(tmp_path, clock, settings=ON_DISK) as runner:
            assert rebuilt(caplog)
            assert dump(runner) == []


async def test_a_damaged_store_is_built_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, settings=ON_DISK) as runner:
        await update(runner, "INSERT DATA { <urn:s> <urn:p> 1 }")
        before = dump(runner)
    for path in (tmp_path / "store").glob("MANIFEST*"):
        path.write_bytes(b"no manifest")
    async with recovered_runner(tmp_path, clock, settings=ON_DISK) as runner:
        assert rebuilt(caplog)
        assert dump(runner) == before
