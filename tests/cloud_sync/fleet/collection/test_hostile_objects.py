"""Nothing that a gateway ships harms another one: a round takes in all that is good, whatever lies beside it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import resource
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import google_crc32c
import msgspec
import pytest
from msgspec.structs import replace

from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.collection import landing
from lamplighter.cloud_sync.fleet.collection.collector import CollectionSummary, Collector, TurnLimits
from lamplighter.cloud_sync.fleet.collection.manifest import Manifest
from lamplighter.cloud_sync.fleet.collection.missing import gaps_of_epoch
from lamplighter.engine.change_log import SUFFIX, Gap, GraphChanges, encode
from lamplighter.engine.errors import UpstreamError
from tests.cloud_sync.fleet.collection.hostile_objects import (
    Hostile,
    good,
    line,
    noise,
    of_segments,
    of_snapshots,
    sealed,
)
from tests.support import odd_gateway
from tests.support.shipped_logs import (
    Written,
    landed_records,
    lines_of,
    memory_folder,
    record,
    records_of,
    segments,
    written,
)
from tests.support.small_lake import renamed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOOD = ("a-first", "m-between", "zz-last")
MEMORY_BYTES_MAX = 1024**3
_JUDGED = ("landed", "known", "snapshots", "quarantined")


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as path:
        (path / "source").mkdir()
        yield path


@pytest.fixture(autouse=True)
def bounded_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """What takes more raises MemoryError instead of stopping the machine; a JVM has limits of its own."""
    if "spark" in request.fixturenames:
        yield
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES_MAX, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def a_round(folder: Path, limits: TurnLimits | None = None) -> CollectionSummary:
    with Collector(LocalFolder(folder / "source"), folder / "lake", limits=limits, monotonic=lambda: 0.0) as collector:
        return collector.collect()


def put_good(folder: Path) -> list[bytes]:
    """The lines that have to land of the gateways that do nothing wrong."""
    found = []
    for gateway in GOOD:
        log = segments(gateway, 1, [3, 2, 4])
        for one in log:
            one.put(folder / "source" / gateway)
        found += records_of(log)
    return found


def landed_of(folder: Path, gateway: str) -> list[bytes]:
    lake = folder / "lake"
    return [text for text in landed_records(lake) if f'"gw":"{gateway}"'.encode() in text]


def commands_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = str(folder / "lake")
    capsys.readouterr()
    for arguments in (["status", lake], ["status", lake, "--json"], ["gaps", lake], ["gaps", lake, "--json"]):
        assert main(arguments) == 0
        told = capsys.readouterr().out
        assert told.isascii() or told.replace("\n", "").isprintable()
    assert main(["quarantine", lake]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["segments", "snapshots", "noise"])
def test_hostile_objects_are_kept_apart_and_every_good_gateway_lands(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    hostile = {
        "segments": lambda: of_segments("hostile"),
        "snapshots": lambda: of_snapshots("hostile"),
        "noise": lambda: noise("hostile", Random(seed), 300),
    }[kind]()
    stems = [one.put(folder / "source/hostile", number) for number, one in enumerate(hostile)]
    expected = put_good(folder)
    summary = a_round(folder)
    assert [text for gateway in GOOD for text in landed_of(folder, gateway)] == expected, "one round takes in all"
    rounds = [summary]
    while rounds[-1]["left"]:
        rounds.append(a_round(folder))
        assert len(rounds) < len(stems) / 500
    judged = {name: sum(one[name] for one in rounds) for name in _JUDGED}
    assert sum(judged.values()) == len(stems) + 3 * len(GOOD)
    assert judged["quarantined"] > len(stems) / 2
    reasons = list((folder / "lake/quarantine").rglob("*.reason.json"))
    assert len(reasons) == judged["quarantined"]
    for path in reasons:
        reason = json.loads(path.read_text())["reason"]
        assert reason
        assert reason.isprintable()
        assert len(reason) < 1200
    commands_run(folder, capsys)


@pytest.mark.parametrize("epoch", [2, 2**31 - 1, 999_999_999])
def test_gaps_are_ranges_however_large_the_numbers(
    folder: Path, epoch: int, capsys: pytest.CaptureFixture[str]
) -> None:
    put_good(folder)
    gateway = folder / "source/hostile"
    segments("hostile", 1, [2])[0].put(gateway)
    segments("hostile", epoch, [2], begin=8_000_000_000)[0].put(gateway)
    lost = record("hostile", epoch, 8_000_000_005, gap=Gap(1, 3, "gone", 999_999_999_999))
    written([encode(lost)], lost, None).put(gateway)
    a_round(folder)
    with contextlib.closing(Manifest(folder / "lake")) as manifest:
        assert len(manifest.gaps("hostile")) <= 4
    commands_run(folder, capsys)


def test_many_gaps_and_many_landed_ranges_are_compared_in_one_pass() -> None:
    count = 20_000
    landed = [(4 * number + 1, 4 * number + 1) for number in range(count)]
    lost = [(4 * number + 2, 4 * number + 2, "gone") for number in range(count)]
    kept = [(4 * number + 3, 4 * number + 9) for number in range(count)]
    begun = time.thread_time()
    found = list(gaps_of_epoch("gw", 1, landed, lost, kept))
    assert len(found) == 2 * count
    assert time.thread_time() - begun < 20, "compared one by one these take hours"


def test_a_flood_of_one_gateway_does_not_keep_the_others_waiting(folder: Path) -> None:
    for number in range(60):
        Hostile("", b"noise", b"{}").put(folder / "source/a-flood", number)
    put_good(folder)
    summary = a_round(folder, TurnLimits(objects_max=10))
    assert (summary["landed"], summary["quarantined"], summary["left"]) == (9, 10, 1)
    found = [a_round(folder, TurnLimits(objects_max=10)) for _ in range(6)]
    assert [one["quarantined"] for one in found] == [10, 10, 10, 10, 10, 0]
    assert found[-1]["left"] == 0


def test_a_folder_with_too_many_names_is_taken_page_by_page(folder: Path) -> None:
    log = segments("gw-1", 1, [1] * 200)
    for one in log:
        one.put(folder / "source/gw-1")
    put_good(folder)
    turn = TurnLimits(entries_max=150)
    rounds = 1
    while a_round(folder, turn)["left"]:
        rounds += 1
    assert rounds > 3
    assert landed_of(folder, "gw-1") == records_of(log)
    segments("gw-1", 2, [1])[0].put(folder / "source/gw-1")
    while a_round(folder, turn)["left"]:
        pass
    assert len(landed_of(folder, "gw-1")) == len(log) + 1


@pytest.mark.parametrize("way", ["a folder in the place of an answer", "an object that nobody may read"])
def test_what_cannot_be_answered_or_read_holds_up_nobody(folder: Path, way: str) -> None:
    expected = put_good(folder)
    log = segments("h", 1, [1, 1])
    for one in log:
        one.put(folder / "source/h")
    if way.startswith("a folder"):
        (folder / "source/h" / f"{log[0].stem}.landed.json").mkdir()
    source = Unreadable(folder / "source", set() if way.startswith("a folder") else {f"h/{log[0].stem}{SUFFIX}"})
    for _ in range(2):
        with Collector(source, folder / "lake") as collector:
            summary = collector.collect()
        assert summary["failed"] == 1
        (problem,) = collector.problems
        assert f"h/{log[0].stem}" in problem
    assert [text for gateway in GOOD for text in landed_of(folder, gateway)] == expected
    assert records_of(log[1:])[0] in landed_of(folder, "h")
    assert main(["collect", str(folder / "source"), str(folder / "lake")]) == (1 if way.startswith("a folder") else 0)


class Unreadable(LocalFolder):
    """Some objects cannot be read; by root everything can."""

    def __init__(self, path: Path, names: set[str]) -> None:
        super().__init__(path)
        self._names = names

    def open(self, name: str) -> AbstractContextManager[Iterator[bytes] | None]:
        if name in self._names:
            raise UpstreamError(f"{name}: Permission denied")
        return super().open(name)


@pytest.mark.parametrize(
    "name", [b"\xff\xfe", b"a\nb", b"\x1b[2J", b"-", b".hidden", b"..x", b"x" * 200, "٣".encode(), b"a b\tc", b"%2e%2e"]
)
def test_names_that_are_none_of_ours_are_passed_over(
    folder: Path, name: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = put_good(folder)
    one, named = segments("h", 1, [1])[0], os.fsdecode(name)
    for inside in (named, "h", "h/snapshots"):
        one.put(folder / "source" / inside, named)
    summary = a_round(folder)
    assert (summary["failed"], summary["gateways"]) == (0, 4)
    assert [text for gateway in GOOD for text in landed_of(folder, gateway)] == expected
    commands_run(folder, capsys)


def test_of_what_is_too_much_in_quarantine_the_beginning_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "QUARANTINE_BYTES_MAX", 500_000)
    for number in range(6):
        Hostile("", os.urandom(200_000), b"{}").put(folder / "source/h", number)
    a_round(folder)
    sizes = sorted(path.stat().st_size for path in (folder / "lake/quarantine/h").glob(f"*{SUFFIX}"))
    assert sizes == [landing.BEGINNING_BYTES] * 4 + [200_000] * 2
    assert len(list((folder / "source/h").glob("*.refused.json"))) == 2, "the gateway is to keep the others"


def test_a_line_with_a_million_quads_is_judged_in_little_memory(folder: Path) -> None:
    one = record("gw-1", 1, 1)
    quads = tuple(
        (f'"{number} \\"],[\\""', "<http://e/p>", "\n", None if number % 2 else "g") for number in range(300_000)
    )
    large = written([encode(replace(one, k=quads))], one, None)
    large.put(folder / "source/gw-1")
    bad = msgspec.to_builtins(replace(record("gw-2", 1, 1), k=quads[:100_000]))
    bad["k"] = [*bad["k"][:-1], ["<s>", "<p>", 5, None]]
    data, seal = sealed([line(bad)], good("gw-2")[1] | {"last": 1, "count": 1})
    Hostile("", data, seal).put(folder / "source/gw-2", 1)
    wide = replace(record("gw-3", 1, 1), graphs=GraphChanges(created=("<g>",) * 3_000_000))
    written([encode(wide)], wide, None).put(folder / "source/gw-3")
    del quads, bad, wide
    tracemalloc.start()
    summary = a_round(folder)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (summary["landed"], summary["quarantined"]) == (1, 2)
    assert most < 6 * len(b"".join(lines_of(large.data)))
    with contextlib.closing(Manifest(folder / "lake")) as manifest:
        told = {one.path.partition("/")[0]: one.reason for one in manifest.quarantined_objects()}
    assert "quads" in told["gw-2"]
    assert "besides its quads" in told["gw-3"]


# --- the jobs, on what lands of it ------------------------------------------------------------------------------


def _extreme(gateway: str, variant: str) -> list[Written]:
    """The log of the gateway with what is rare, with extreme numbers, times or texts that the formats allow."""
    log = []
    for number, records in enumerate(odd_gateway.segments()):
        lines = []
        for one in renamed(records, gateway):
            text = encode(one).rpartition(b',"crc":"')[0].decode()
            if variant == "times":
                text = re.sub(r'\\"[^"\\]*\\"\^\^<[^>]*dateTime>', lambda _: next(_MOMENTS), text)
            elif variant == "numbers":
                text = re.sub(r'\\"[-0-9.]+\\"\^\^<[^>]*(decimal|integer)>', lambda _: next(_VALUES), text)
            elif variant == "clocks":
                extremes = ("1970-01-01T00:00:00Z", "2199-12-31T23:59:59.999999+14:00", "2026-02-03T04:05:06-11:30")
                text = re.sub(r'"ts":"[^"]*"', f'"ts":"{extremes[one.seq % 3]}"', text)
                text = re.sub(r'"boottime_us":\d+', f'"boottime_us":{(0, 2**53)[one.seq % 2]}', text)
            elif variant == "epochs":
                text = text.replace(f'"epoch":{one.epoch},"seq"', f'"epoch":{999_999_990 + one.epoch},"seq"')
                text = text.replace('"last":', '"last":999999999999,"x":')
            elif variant == "twice":
                large = 2**53 - 1
                text = text.replace('"gap":{"epoch":1,', f'"gap":{{"first":{large},"epoch":{large},"epoch":1,')
                text = text.replace('"seq":', f'"seq":{large},"seq":')
            body = text.encode()
            lines.append(b'%s,"crc":"%08x"}\n' % (body, google_crc32c.value(body)))
        first = records[0] if variant != "epochs" else replace(records[0], epoch=999_999_990 + records[0].epoch)
        log.append(written(lines, replace(first, gw=gateway), None))
        assert number < 9
    return log


_MOMENTS = itertools.cycle(
    f'\\"{text}\\"^^<http://www.w3.org/2001/XMLSchema#dateTime>'
    for text in ("292278994-08-17T07:12:55Z", "-290308-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z")
)
_VALUES = itertools.cycle(
    f'\\"{text}\\"^^<http://www.w3.org/2001/XMLSchema#{kind}>'
    for text, kind in (("9" * 400, "integer"), ("1e308", "double"), ("-1e308", "double"), ("0." + "0" * 400, "decimal"))
)


def test_every_job_runs_on_the_extremes_that_land(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variants = ("plain", "times", "numbers", "clocks", "epochs", "twice")
    for variant in variants:
        for one in _extreme(f"gw-{variant}", variant):
            one.put(tmp_path / "source" / f"gw-{variant}")
    assert main(["collect", str(tmp_path / "source"), str(tmp_path / "lake")]) == 0
    assert f"{5 * len(variants)} landed" in capsys.readouterr().out
    commands_run(tmp_path, capsys)
    for command in ("ingest", "silver", "report"):
        assert main([command, str(tmp_path / "lake")]) == 0, capsys.readouterr().err
    assert "gw-plain" in (tmp_path / "lake/results/report.html").read_text()
    for variant in ("plain", "epochs"):
        out = tmp_path / "state.nq"
        assert main(["state", str(tmp_path / "lake"), f"gw-{variant}", "--at", "5", "-o", str(out)]) in (0, 2)
