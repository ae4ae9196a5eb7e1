"""A forged backup is refused as a whole. Nothing is written, and the error names the place."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import google_crc32c
import msgspec
import pytest
import zstandard

from lamplighter.engine.errors import ChangeLogError, LimitExceededError, MalformedRequestError
from lamplighter.engine.term_bounds import TERM_BYTES_MAX
from lamplighter.gateway.history import backup
from lamplighter.gateway.history.records import History
from lamplighter.gateway.history.restoring import Part, comparison, difference
from lamplighter.gateway.history.verification import verify
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import DelayedSettings, Settings
from tests.support.gateway_parts import (
    START,
    FakeClock,
    dump,
    lines,
    put_lines,
    recovered_runner,
    segments,
    snapshot_lines,
    time_passes,
    update,
)
from tests.support.tables import each_row

Lines = list[Any]
"""The lines of a backup as JSON, without their checksums."""
Place = tuple[str | int, ...]

HOSTILE: tuple[Any, ...] = (
    "garbage",
    "",
    "\x00",
    "\x1b[2J\u202e",
    "x" * 100_000,
    "99999-01-01T00:00:00Z",
    "-0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00",
    "2026-01-01T00:00:00",
    "<urn:a> <urn:p> <urn:o> .\n<urn:forged>",
    "<has space>",
    "INSERT DATA { <urn:a> <urn:p>",
    -1,
    -(2**63),
    2**53 + 1,
    2**63 - 1,
    2**64,
    10**30,
    1.5,
    1e308,
    True,
    None,
    [],
    {},
    [[]],
    [None],
)


def read(path: Path) -> Lines:
    return [json.loads(line) for line in snapshot_lines(path)]


def written_line(record: Any) -> bytes:
    """A line whose checksum is right, whatever it says."""
    if not isinstance(record, dict):
        return json.dumps(record).encode() + b"\n"
    bare = {name: value for name, value in record.items() if name != "crc"}
    body = json.dumps(bare, separators=(",", ":"), ensure_ascii=False).encode()[:-1]
    return b'%s,"crc":"%08x"}\n' % (body, google_crc32c.value(body))


def written(path: Path, content: Lines) -> Path:
    """A backup with these lines."""
    path.write_bytes(zstandard.compress(b"".join(map(written_line, content))))
    return path


def places(value: Any, path: Place = ()) -> Iterator[Place]:
    """Every member and element, at any depth."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        if name != "crc":
            yield (*path, name)
            yield from places(member, (*path, name))


def changed(content: Lines, path: Place, change: Callable[[Any, Any], None]) -> Lines:
    """The lines with one place changed. change: is given what the place is in, and its name there."""
    copy = json.loads(json.dumps(content))
    at = copy
    for name in path[:-1]:
        at = at[name]
    change(at, path[-1])
    return copy


def put(value: Any) -> Callable[[Any, Any], None]:
    def change(at: Any, name: Any) -> None:
        at[name] = value

    return change


def removed(at: Any, name: Any) -> None:
    del at[name]


async def good(runner: Runner, path: Path) -> Lines:
    """A backup with everything that one can have."""
    await update(runner, "INSERT DATA { <urn:a> <urn:p> 1 . GRAPH <urn:g> { _:b <urn:q> 'x'@en } }", request_id="r")
    await update(runner, "CREATE GRAPH <urn:empty>")
    await update(runner, "INSERT DATA { <urn:s> <urn:p> 1 }", delay="PT1H", missed="skip", request_id="s")
    await update(runner, "INSERT DATA { <urn:s> <urn:p> 2 }", at="2030-01-01T00:00:00Z")
    taken = await runner.backups.take_snapshot()
    backup.save(path, [chunk async for chunk in taken.content.chunks()])
    return read(path)


def state(runner: Runner) -> tuple[Any, ...]:
    return dump(runner), sorted(runner._engine.store.graphs()), runner._delayed.state(), runner._log.sequence


async def restored(runner: Runner, path: Path) -> None:
    try:
        await runner.backups.restore(await difference(await runner.backups.begin(path)))
    finally:
        runner.backups.end()


async def refused(runner: Runner, path: Path) -> str:
    """Why a restore was refused, "" if it was not. Nothing may have changed then."""
    before = state(runner)
    try:
        await restored(runner, path)
    except MalformedRequestError as error:
        assert state(runner) == before
        return str(error)
    return ""


def compared(runner: Runner, path: Path) -> str:
    """Why the backup is refused, as the fork finds out, "" if it is not."""
    out = io.BytesIO()
    try:
        comparison(path, runner._engine, 10, START)(out)
    except ChangeLogError as error:
        return str(error)
    return msgspec.json.decode(out.getvalue().splitlines()[-1], type=Part).error


@pytest.mark.faults
@pytest.mark.parametrize("part", [0, 1])
async def test_whatever_a_backup_says_it_is_taken_whole_or_not_at_all(tmp_path: Path, part: int) -> None:
    """One that is taken leaves a gateway that lists and executes its delayed updates, and starts again."""
    seed = Random().randrange(10**9)
    print(f"\nseed {seed}")
    chance = Random(seed)
    clock, taken = FakeClock(), 0
    async with recovered_runner(tmp_path / "data", clock) as runner:
        content = await good(runner, tmp_path / "good")
        cases = [(path, value) for path in places(content) for value in (*HOSTILE, removed)][part::2]
        for path, value in cases:
            file = written(tmp_path / "forged", changed(content, path, value if value is removed else put(value)))
            why = compared(runner, file)
            if why:
                assert str(file) in why or "newer program" in why, (path, value, why)
                assert len(why) <= 500 and why.isprintable(), (path, value, why)
            if (why and chance.random() < 0.98) or (not why and chance.random() < 0.8):
                continue  # all the way for some
            assert await refused(runner, file) == why, (path, value)
            if not why:
                taken += 1
                assert len(runner.delayed_updates()) == len(runner._delayed), (path, value)
                json.dumps(runner.delayed_updates())
                await time_passes(runner, clock, 1)
        await time_passes(runner, clock, 7200)
        await restored(runner, tmp_path / "good")
        wanted = dump(runner)
        assert taken > 5
    assert verify(tmp_path / "data", clock).problems == []
    async with recovered_runner(tmp_path / "data", clock) as runner:
        assert dump(runner) == wanted


PENDING = (0, "snapshot", "state", "delayed", "pending")
OF_DELAY, OF_AT = (*PENDING, 0, 0), (*PENDING, 1, 0)


@each_row(
    ("path", "value", "said"),
    [
        ((*OF_AT, "timer", "at"), "garbage", r"delayed\.pending\[1\]: timer\.at: 'garbage' is no moment"),
        ((*OF_AT, "timer", "at"), "99999-01-01T00:00:00Z", r"pending\[1\]: timer\.at"),
        ((*OF_AT, "timer", "at"), "2030-01-01T00:00:00", r"pending\[1\]: timer\.at.*no time zone"),
        ((*OF_AT, "timer", "at"), "0001-01-01T00:00:00+14:00", r"pending\[1\]: timer\.at"),
        ((*OF_AT, "timer", "at"), 5, r"at"),
        ((*OF_AT, "timer", "delay_us"), 5, r"pending\[1\]: timer must have one of delay_us and at"),
        ((*PENDING, 1, 1), 5, r"pending\[1\]: the time at which it is due"),
        ((*OF_DELAY, "timer", "delay_us"), removed, r"pending\[0\]: timer must have one of delay_us and at"),
        ((*OF_DELAY, "timer", "delay_us"), -1, r"delay_us|>= 0"),
        ((*OF_DELAY, "timer", "delay_us"), 10**15, r"pending\[0\]: timer\.delay_us: it is more than 3650 days"),
        ((*PENDING, 0, 1), 2**64, r"pending"),
        ((*PENDING, 0, 1), 10**15, r"pending\[0\]: it is due in [0-9]+ microseconds"),
        ((*PENDING, 0, 1), None, r"pending\[0\]: the time at which it is due"),
        ((*OF_DELAY, "timer", "update"), "DROP ALL ; INSERT", r"pending\[0\]: timer\.update: line 1, column"),
        ((*OF_DELAY, "timer", "parts"), [3, 4], r"pending\[0\]: timer\.parts: they are not the lengths"),
        ((*OF_DELAY, "timer", "update"), "LOAD <http://e/>", r"pending\[0\]: timer\.update"),
        ((*OF_DELAY, "timer", "update"), "", None),
        ((*OF_DELAY, "timer", "missed"), "perhaps", r"missed"),
        ((*OF_DELAY, "timer", "client"), "x" * 201, r"pending\[0\]: timer\.client"),
        ((*OF_DELAY, "timer", "id"), "\x1b[2J", r"pending\[0\]: timer\.id"),
        ((*OF_DELAY, "timer"), removed, r"pending\[0\]: timer is missing"),
        ((*OF_DELAY, "ts"), "yesterday", r"pending\[0\]: ts: 'yesterday'"),
        ((*OF_DELAY, "boottime_us"), -5, r"boottime_us"),
        ((0, "ts"), "\x1b[2J", r"ts: '\\x1b\[2J'"),
        ((0, "boottime_us"), 2**60, r"boottime_us"),
        ((0, "graphs", "created", 0), '"a literal"', r"no name of a graph: '\"a literal\"'"),
        ((0, "graphs", "created", 0), "<urn:g> .\n<urn:a> <urn:p> <urn:o>", r"no name of a graph"),
        ((1, "a", 0, 2), "<urn:o> .\n<urn:forged> <urn:p> <urn:o>", r"quad 1 is none"),
        ((1, "a", 1, 0), '"literal"', r"quad 2 is none"),
        ((1, "a", 0, 1), "<no iri>", r"quad 1 is none"),
        ((1, "a", 0, 2), f'"{"x" * TERM_BYTES_MAX}"', r"limits\.term_bytes_max = 1048576"),
        ((1, "a", 0, 2), "<<( <urn:s> <urn:p> " * 51 + "1" + " )>>" * 51, r"nested 51 deep"),
        ((1, "a", 0, 2), "<<( <urn:s> <urn:p> " * 30_000 + "1" + " )>>" * 30_000, r"nested 30000 deep"),
        ((1, "a", 0, 0), "<urn:s> <urn:p> " + "<<( <urn:s> <urn:p> " * 30_000, r"nested 30000 deep"),
        ((0, "graphs", "created", 0), f"<urn:{'x' * TERM_BYTES_MAX}>", r"limits\.term_bytes_max"),
        ((1, "a", 0, 2), "", r"quad 1 is none"),
    ],
    is_amount=True,
)
async def test_the_error_names_the_place(tmp_path: Path, path: Place, value: Any, said: str | None) -> None:
    async with recovered_runner(tmp_path / "data") as runner:
        content = await good(runner, tmp_path / "good")
        await update(runner, "CLEAR ALL")
        change = removed if value is removed else put(value)
        why = await refused(runner, written(tmp_path / "forged", changed(content, path, change)))
        assert re.search(said, why) if said else not why, why


async def test_all_lines_and_delayed_updates_belong_to_one_backup(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path / "data") as runner:
        content = await good(runner, tmp_path / "good")
        named = json.loads(json.dumps(content))
        for line in named:
            line["gw"] = "gw\n\x1b[2J"
        assert "gw is no name" in await refused(runner, written(tmp_path / "b", named))
        with pytest.raises(ChangeLogError, match="gw is no name"):
            backup.check(tmp_path / "b")  # the command shows it
        twice = json.loads(json.dumps(content))
        pending = twice[0]["snapshot"]["state"]["delayed"]["pending"]
        pending.append(pending[0])
        why = await refused(runner, written(tmp_path / "b", twice))
        assert "delayed.pending[2]: timer.id: another one has it too" in why


async def test_more_delayed_updates_than_may_be_pending_are_not_taken_in(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path / "data", settings=Settings(delayed=DelayedSettings(pending_max=5))) as runner:
        content = await good(runner, tmp_path / "good")
        pending = content[0]["snapshot"]["state"]["delayed"]["pending"]
        for number in range(5000):
            pending.append(json.loads(json.dumps(pending[0])))
            pending[-1][0]["timer"]["id"] = str(number)
        written(tmp_path / "b", content)
        before = state(runner)
        found = await difference(await runner.backups.begin(tmp_path / "b"))
        assert len(found.timers) == 6
        with pytest.raises(LimitExceededError, match=r"delayed\.pending_max = 5"):
            await runner.backups.restore(found)
        runner.backups.end()
        assert state(runner) == before


async def test_a_log_whose_times_are_none_is_told_of(tmp_path: Path) -> None:
    """`lamplighter log restore --at` looks for a time in it."""

    async with recovered_runner(tmp_path / "data") as runner:
        await update(runner, "INSERT DATA { <urn:a> <urn:p> 1 }")
    [line] = lines(segments(tmp_path / "data")[0])
    put_lines(tmp_path / "data", [written_line(json.loads(line) | {"ts": 5}).rstrip(b"\n")])
    with pytest.raises(ChangeLogError, match="not a record: Expected `str`, got `int`"):
        History(tmp_path / "data", FakeClock()).at(START)
