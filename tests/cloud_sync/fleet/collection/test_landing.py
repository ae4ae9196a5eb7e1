"""Whatever is delivered, in whatever order, and whenever the collector dies: each good record lands, once."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.fleet.collection.collector import Collector
from lamplighter.cloud_sync.fleet.collection.manifest import Manifest
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.landings import LandingLog
from lamplighter.engine.change_log import SUFFIX
from tests.support.shipped_logs import Written, landed_records, lines_of, memory_folder, records_of, recut, segments

FIRST = segments("gw-1", 1, [3, 1, 4, 2, 5])
SECOND = segments("gw-1", 2, [2, 3, 2], previous=FIRST[-1].seal.sha256)
OTHER = segments("gw-2", 1, [4, 4])
CUTS = (FIRST, SECOND, OTHER)


class Killed(BaseException):
    """What a SIGKILL is to the code that it hits: nothing catches it."""


class Kill:
    """Dies before or after the so-manieth thing that is done to a disk."""

    def __init__(self, moment: int) -> None:
        self._left = moment

    def passed(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise Killed

    def around(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            self.passed()
            result = plain(*arguments, **options)
            self.passed()
            return result

        return step

    def torn(self, plain: Callable[[int, bytes], int]) -> Callable[[int, bytes], int]:
        """A write that may reach the file in part only."""

        def write(descriptor: int, data: bytes) -> int:
            half = len(data) // 2
            if self._left == 1:
                plain(descriptor, data[:half])
            self.passed()
            return plain(descriptor, data)

        return write

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        plain = Manifest.transaction

        @contextlib.contextmanager
        def transaction(manifest: Manifest) -> Iterator[None]:
            self.passed()
            with plain(manifest):
                yield
                self.passed()
            self.passed()

        class Connection(sqlite3.Connection):
            def execute(connection, *arguments: Any) -> sqlite3.Cursor:
                self.passed()
                return super().execute(*arguments)

        opened: list[Connection] = []

        def connect(*arguments: Any, **options: Any) -> Connection:
            opened.append(plain_connect(*arguments, **options, factory=Connection))
            return opened[-1]

        plain_connect = sqlite3.connect
        with (
            mock.patch.object(sqlite3, "connect", connect),
            mock.patch.object(Manifest, "transaction", transaction),
            mock.patch.object(os, "fsync", self.around(os.fsync)),
            mock.patch.object(os, "rename", self.around(os.rename)),
            mock.patch.object(os, "write", self.torn(os.write)),
            contextlib.suppress(Killed),
        ):
            yield
        for connection in opened:  # a process that is dead holds no locks
            connection.close()


class Delivery(msgspec.Struct, frozen=True):
    """log, number: a segment; cut: (where it begins, how long it is) where it was cut in another way; harm: what was
    done to it, at a share of its length."""

    log: int
    number: int
    cut: tuple[int, int] | None = None
    harm: str = ""
    at: float = 0.0

    @property
    def segment(self) -> Written:
        if self.cut is None:
            return CUTS[self.log][self.number % len(CUTS[self.log])]
        end = CUTS[self.log][-1].seal.last
        first = 2 + self.cut[0] % (end - 1)
        return recut(CUTS[self.log], first, min(end, first + self.cut[1]))

    def put(self, folder: Path, stem: str) -> None:
        segment = self.segment
        folder = folder / segment.seal.gw
        segment.put(folder, stem)
        data, seal = segment.data, segment.seal_bytes
        at = int(self.at * (len(data) - 1))
        if self.harm == "flipped":
            (folder / f"{stem}{SUFFIX}").write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        elif self.harm == "cut off":
            (folder / f"{stem}{SUFFIX}").write_bytes(data[:at])
        elif self.harm == "of another":
            (folder / f"{stem}.json").write_bytes(seal.replace(b'"gw":"gw-', b'"gw":"hw-'))
        elif self.harm == "no seal":
            (folder / f"{stem}.json").unlink()


deliveries = st.builds(
    Delivery,
    log=st.integers(0, 2),
    number=st.integers(0, 9),
    cut=st.none() | st.tuples(st.integers(0, 99), st.integers(0, 6)),
    harm=st.sampled_from(["", "", "", "flipped", "cut off", "of another", "no seal"]),
    at=st.floats(0, 1),
)
kills = st.integers(1, 120)


def collect(source: Path, lake: Path) -> None:
    with Collector(LocalFolder(source), lake) as collector:
        collector.collect()


@given(st.lists(deliveries | kills, max_size=20))
@settings(max_examples=60, deadline=None)
def test_each_record_of_good_segments_lands_once(events: list[Delivery | int]) -> None:
    with memory_folder() as folder:
        source, lake = folder / "source", folder / "lake"
        source.mkdir()
        delivered: dict[str, Delivery] = {}
        for number, event in enumerate(events):
            if isinstance(event, int):
                with Kill(event).armed():
                    collect(source, lake)
                continue
            # The first delivery of a segment has its name, further ones have others.
            gateway, stem = event.segment.seal.gw, event.segment.stem
            name = stem if f"{gateway}/{stem}" not in delivered else f"{stem}.r{number}"
            event.put(source, name)
            delivered[f"{gateway}/{name}"] = event
        collect(source, lake)
        # Those whose predecessors have not come wait.
        some = {line for one in delivered.values() if not one.harm for line in lines_of(one.segment.data)}
        landed = landed_records(lake) if (lake / "segments").exists() else []
        assert len(set(landed)) == len(landed)
        assert set(landed) <= some
        for log, cut in enumerate(CUTS):
            for number, one in enumerate(cut):
                Delivery(log, number).put(source, f"{one.stem}.whole")
                delivered[f"{one.seal.gw}/{one.stem}.whole"] = Delivery(log, number)
        for _ in range(3):
            collect(source, lake)

        good = {line for one in delivered.values() if not one.harm for line in lines_of(one.segment.data)}
        landed = landed_records(lake)
        assert sorted(landed) == sorted(good)
        _check_names(lake)
        _check_log(lake)
        _check_answers(source, delivered)
        _check_gaps(lake, list(delivered.values()))
        assert list((lake / "incoming").iterdir()) == []
        bad = [name for name, one in delivered.items() if one.harm not in ("", "no seal")]
        assert len(list((lake / "quarantine").rglob(f"*{SUFFIX}"))) == len(bad)
        assert len(list((lake / "quarantine").rglob("*.reason.json"))) == len(bad)


def _check_names(lake: Path) -> None:
    with contextlib.closing(Manifest(lake)) as manifest:
        known = {f"{one.gw}/{one.epoch}-{one.first:012d}-{one.last:012d}{SUFFIX}" for one in manifest.all_landed()}
    files = list((lake / "segments").rglob(f"*{SUFFIX}"))
    assert {str(file.relative_to(lake / "segments")) for file in files} == known
    for file in files:
        found = [msgspec.json.decode(line) for line in lines_of(file.read_bytes())]
        epoch, first, last = (int(part) for part in file.name.removesuffix(SUFFIX).split("-"))
        assert [(one["epoch"], one["seq"]) for one in found] == [(epoch, seq) for seq in range(first, last + 1)]


def _check_log(lake: Path) -> None:
    """Each landed file has one number, and the log has them in order."""
    found = LandingLog(Lake(str(lake))).after(0, 10_000)
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    with contextlib.closing(Manifest(lake)) as manifest:
        assert sorted(one.segment for one in found) == sorted(one.segment for one in manifest.all_landed())


def _check_gaps(lake: Path, delivered: list[Delivery]) -> None:
    with contextlib.closing(Manifest(lake)) as manifest:
        gaps = manifest.gaps()
    told: set[tuple[str, int, int]] = set()
    unknown = set()
    for gap in gaps:
        if gap.last is None:
            unknown.add((gap.gw, gap.epoch))
        else:
            records = {(gap.gw, gap.epoch, sequence) for sequence in range(gap.first, gap.last + 1)}
            assert not told & records, "each is told of once"
            told |= records
    here: set[tuple[str, int, int]] = set()
    heard: set[tuple[str, int, int]] = set()
    for one in delivered:
        seal = one.segment.seal
        records = {(seal.gw, seal.epoch, sequence) for sequence in range(seal.first, seal.last + 1)}
        heard |= records if one.harm in ("", "flipped", "cut off") else set()
        here |= records if not one.harm else set()
    ends: dict[tuple[str, int], int] = {}
    for gw, epoch, sequence in heard:
        ends[gw, epoch] = max(sequence, ends.get((gw, epoch), 0))
    assert told == {(*key, sequence) for key, end in ends.items() for sequence in range(1, end + 1)} - here
    assert unknown == ({("gw-1", 1)} if ("gw-1", 2) in ends and ("gw-1", 1) not in ends else set())


def _check_answers(source: Path, delivered: dict[str, Delivery]) -> None:
    for name, one in delivered.items():
        answers = [kind for kind in ("landed", "refused") if (source / f"{name}.{kind}.json").exists()]
        assert answers == {"": ["landed"], "no seal": []}.get(one.harm, ["refused"]), name


def test_a_kill_at_any_moment_loses_nothing() -> None:
    for moment in itertools.count(1):
        with memory_folder() as folder:
            if not _dies(folder / "source", folder / "lake", moment):
                break
    assert moment > 90


def _dies(source: Path, lake: Path, moment: int) -> bool:
    """Whether a collector was killed at that moment, and was not done before. What its successor does is right."""
    FIRST[0].put(source / "gw-1")
    recut(FIRST, 2, 5).put(source / "gw-1", "1-again")
    Delivery(0, 2, harm="flipped", at=0.5).put(source, "1-broken")
    died = True
    with Kill(moment).armed():
        collect(source, lake)
        died = False
    collect(source, lake)
    assert landed_records(lake) == records_of(FIRST)[:5], moment
    assert [path.name for path in (lake / "quarantine").rglob(f"*{SUFFIX}")] == [f"1-broken{SUFFIX}"], moment
    answers = {path.name for path in (source / "gw-1").iterdir() if "landed" in path.name or "refused" in path.name}
    assert answers == {f"{FIRST[0].stem}.landed.json", "1-again.landed.json", "1-broken.refused.json"}, moment
    return died
