"""Gateways that are put back to an older state, or copied: the lake keeps their histories apart, each whole."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from lamplighter.cloud_sync.answers import LANDED, SnapshotSeal
from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.fleet.collection.collector import CollectionSummary, Collector, TurnLimits
from lamplighter.cloud_sync.fleet.collection.manifest import Manifest
from lamplighter.engine.change_log import SUFFIX, Gap, Record, decode, encode
from tests.support.seeds import seeds
from tests.support.shipped_logs import Written, lines_of, memory_folder, record, snapshot, written

CASES = 25


class Life:
    """What one card writes: records, cut into sealed segments. seed: of its records from here on. named: whether its
    epochs have ids, as those of earlier versions have not."""

    def __init__(self, seed: int, *, named: bool = True) -> None:
        self.seed = seed
        self.named = named
        self.epoch_id = f"{seed:016x}" if named else ""
        self.lines: list[bytes] = []
        self.sealed: list[Written] = []
        self.epoch = 1
        self.begin = 0
        """Index of the first line that is not sealed."""
        self.sequence = 0

    def copied(self, seed: int) -> Life:
        other = Life(seed, named=self.named)
        other.epoch_id = self.epoch_id
        other.lines, other.sealed = list(self.lines), list(self.sealed)
        other.epoch, other.begin, other.sequence = self.epoch, self.begin, self.sequence
        return other

    def write(self, count: int) -> None:
        for _ in range(count):
            self.sequence += 1
            self.append(record("gw-1", self.epoch, self.sequence, seed=self.seed))

    def append(self, one: Record) -> None:
        begins = self.begin == len(self.lines)
        self.lines.append(encode(msgspec.structs.replace(one, epoch_id=self.epoch_id if begins else "")))

    def lose(self, first: int) -> None:
        """A record says that the segments from a record of the epoch on, up to the last sealed one, are removed."""
        gap = Gap(self.epoch, first, "over log.bytes_max", self.sealed[-1].seal.last)
        self.sequence += 1
        self.append(record("gw-1", self.epoch, self.sequence, gap=gap))

    def seal(self) -> list[Written]:
        """What is written becomes a segment."""
        if self.begin == len(self.lines):
            return []
        lines = self.lines[self.begin :]
        first = decode(lines[0].rstrip(b"\n"))
        previous = self.sealed[-1].seal.sha256 if self.sealed else None
        self.sealed.append(written(lines, first, previous))
        self.begin = len(self.lines)
        return self.sealed[-1:]

    def new_epoch(self) -> list[Written]:
        sealed = self.seal()
        gap = Gap(self.epoch, self.sequence + 1, f"another history has the records behind it {self.seed}")
        self.epoch, self.sequence = self.epoch + 1, 1
        self.epoch_id = f"{self.seed:08x}{self.epoch:08x}" if self.named else ""
        self.append(record("gw-1", self.epoch, 1, gap=gap))
        return sealed


class Site:
    def __init__(self, folder: Path) -> None:
        self.source, self.lake = folder / "source", folder / "lake"
        (self.source / "gw-1").mkdir(parents=True)
        self.sent = 0

    def ship(self, *some: Written) -> None:
        """Under names that are free; those of a shipper tell nothing."""
        for one in some:
            self.sent += 1
            one.put(self.source / "gw-1", f"{one.stem}.x{self.sent}")

    def collect(self) -> CollectionSummary:
        with Collector(LocalFolder(self.source), self.lake) as collector:
            summary = collector.collect(full=True)
            assert collector.problems == []
            return summary

    def histories(self) -> dict[str, list[bytes]]:
        """The lines of each history, as the gateway wrote them, with those that it shares with its parents."""
        with contextlib.closing(Manifest(self.lake)) as manifest:
            found = {}
            for history in manifest.histories("gw-1"):
                lines = []
                for epoch in range(1, 30):
                    for landed, (first, last) in manifest.landed_in(history, epoch, 1, 10**12):
                        name = f"{epoch}-{landed.first:012d}-{landed.last:012d}{SUFFIX}"
                        content = lines_of((self.lake / "segments" / landed.gw / name).read_bytes())
                        lines += content[first - landed.first : last - landed.first + 1]
                found[history.name] = [encode(msgspec.structs.replace(decode(line), gw="gw-1")) for line in lines]
            return found

    def own(self) -> list[bytes]:
        """All landed lines, whatever their history."""
        files = (self.lake / "segments").rglob(f"*{SUFFIX}")
        lines = (decode(line) for file in files for line in lines_of(file.read_bytes()))
        return [encode(msgspec.structs.replace(line, gw="gw-1")) for line in lines]

    def quarantined(self) -> list[str]:
        with contextlib.closing(Manifest(self.lake)) as manifest:
            return [one.reason for one in manifest.quarantined_objects()]


@pytest.fixture
def site() -> Iterator[Site]:
    with memory_folder() as folder:
        yield Site(folder)


def test_a_restored_card_continues_a_history_of_its_own(site: Site) -> None:
    first = Life(0)
    first.write(100)
    site.ship(*first.seal())
    first.write(29)
    restored = first.copied(1)
    first.write(21)
    site.ship(*first.seal())
    first.write(50)
    site.ship(*first.seal())
    site.collect()
    for count in (31, 60, 40):  # none of these ends where the other life ends one
        restored.write(count)
        site.ship(*restored.seal())
        site.collect()
    site.ship(*restored.new_epoch())
    restored.write(3)
    site.ship(*restored.seal())
    first.write(7)
    site.ship(*first.seal())
    site.collect()
    assert site.histories() == {"gw-1": first.lines, "gw-1~2": restored.lines}
    assert site.quarantined() == []
    with contextlib.closing(Manifest(site.lake)) as manifest:
        assert [(one.gw, one.forked, one.missing) for one in manifest.arrivals()] == [
            ("gw-1", "", 0),
            ("gw-1~2", "gw-1 at 1/129", 0),
        ]


def test_what_is_behind_a_break_waits_and_the_gateway_keeps_it(site: Site) -> None:
    first = Life(0)
    first.write(10)
    site.ship(*first.seal())
    restored = first.copied(1)
    first.write(10)
    site.ship(*first.seal())
    site.collect()
    restored.write(15)
    (fork,) = restored.seal()
    restored.write(5)
    (behind,) = restored.seal()
    broken = msgspec.structs.replace(fork.seal, bytes=len(fork.data) - 3)
    Written(broken, fork.data[:-3]).put(site.source / "gw-1", "damaged")
    (site.source / "gw-1/damaged.json").write_bytes(fork.seal_bytes)
    site.ship(behind)
    site.collect()
    assert site.histories() == {"gw-1": first.lines}
    assert len(site.quarantined()) == 2
    names = [path.name for path in (site.source / "gw-1").glob("*.refused.json")]
    assert names == ["damaged.refused.json"], "the segment behind it is not refused: its gateway is to keep it"
    site.ship(fork)
    assert site.collect()["released"] == 1
    assert site.histories() == {"gw-1": first.lines, "gw-1~2": restored.lines}
    assert len(list((site.source / "gw-1").glob(f"{behind.stem}*{LANDED}"))) == 1


@pytest.mark.parametrize("bad", [(0,), (1,), (1, 2), (3,)], ids=str)
def test_segments_that_are_damaged_on_the_card_hold_up_nothing_else(site: Site, bad: tuple[int, ...]) -> None:
    life = Life(0)
    for _ in range(4):
        life.write(5)
        life.seal()
    life.new_epoch()
    life.seal()
    for number, one in enumerate(life.sealed):
        site.ship(Written(one.seal, one.data[:-3]) if number in bad else one)
    site.collect()
    assert len(site.quarantined()) == len(bad)
    good = [line for number, line in enumerate(life.lines) if number // 5 not in bad]
    assert site.histories() == {"gw-1": good}


def test_another_life_does_not_fill_the_hole_of_a_damaged_segment(site: Site) -> None:
    first = Life(0)
    first.write(5)
    site.ship(*first.seal())
    site.collect()
    first.write(3)
    restored = first.copied(1)
    first.write(7)
    (damaged,) = first.seal()
    first.write(5)
    site.ship(Written(damaged.seal, damaged.data[:-3]), *first.seal())
    site.collect()
    assert [len(lines) for lines in site.histories().values()] == [10], "the next one has landed behind the hole"
    restored.write(2)
    (other,) = restored.seal()
    site.ship(other)
    site.collect()
    assert any("it has records of 1/6-15, which is damaged" in reason for reason in site.quarantined())
    site.ship(damaged)
    site.collect()
    assert site.histories() == {"gw-1": first.lines, "gw-1~2": restored.lines}
    restored.write(2)
    site.ship(*restored.seal())
    site.collect()
    assert site.histories() == {"gw-1": first.lines, "gw-1~2": restored.lines}


@pytest.mark.parametrize("late", [[1], [14, 15], list(range(1, 15))], ids=["second", "middle", "before the first"])
def test_more_may_wait_than_a_turn_checks(site: Site, late: list[int]) -> None:
    life = Life(0)
    for _ in range(30):
        life.write(2)
        life.seal()
    limits = TurnLimits(objects_max=5)
    begin = [] if len(late) > 2 else [life.sealed[0]]
    for one in begin + [one for number, one in enumerate(life.sealed) if number and number not in late]:
        one.put(site.source / "gw-1", one.stem)
    for between in (True, False):
        with Collector(LocalFolder(site.source), site.lake, limits=limits) as collector:
            rounds = 1
            while collector.collect(full=True)["left"]:
                rounds += 1
                assert rounds < 400, "a pass over what waits has an end"
        if between:
            for number in late:
                life.sealed[number].put(site.source / "gw-1", life.sealed[number].stem)
    assert site.quarantined() == []
    assert len(site.own()) == (60 if begin else 58)
    with Collector(LocalFolder(site.source), site.lake, limits=limits) as collector:
        assert collector.collect()["left"] == 0


def test_a_snapshot_lands_in_the_history_of_its_record(site: Site) -> None:
    first = Life(0)
    first.write(10)
    site.ship(*first.seal())
    restored = first.copied(1)
    first.write(10)
    site.ship(*first.seal())
    restored.write(15)
    content = snapshot("gw-1", 1, 18)
    line = hashlib.sha256(restored.lines[17].rstrip(b"\n")).hexdigest()
    digest = hashlib.sha256(content).hexdigest()
    seal = SnapshotSeal(1, "gw-1", 1, 18, 3, len(content), digest, line)
    folder = site.source / "gw-1/snapshots"
    folder.mkdir()
    (folder / f"1-000000000018{SUFFIX}").write_bytes(content)
    (folder / "1-000000000018.json").write_bytes(msgspec.json.encode(seal))
    site.collect()
    assert not (site.lake / "snapshots").exists()
    assert site.quarantined() == ["record 1/18, of which it is, has not landed"]
    site.ship(*restored.seal())
    assert site.collect()["released"] == 1
    (path,) = (site.lake / "snapshots").rglob(f"*{SUFFIX}")
    assert path.parent.name == "gw-1~2"
    assert {decode(one).gw for one in lines_of(path.read_bytes())} == {"gw-1~2"}


def _two_second_epochs(site: Site) -> tuple[Life, Life]:
    """Two copies that began an epoch 2 each, both offline: the lake has the begin of the first one's."""
    first = Life(0)
    first.write(10)
    site.ship(*first.seal())
    other = first.copied(1)
    for life in (first, other):
        life.new_epoch()
        life.write(49)
    site.ship(*first.seal())
    site.collect()
    other.seal()  # went to another destination, which is gone
    return first, other


@pytest.mark.parametrize("sent", ["behind a loss", "under a seal of the shipper's", "by a snapshot"])
def test_two_copies_that_begin_the_same_epoch_apart_are_never_one_history(site: Site, sent: str) -> None:
    first, other = _two_second_epochs(site)
    if sent == "behind a loss":
        other.write(10)
        other.seal()
        other.lose(51)
        other.write(5)
        site.ship(*other.seal())
    elif sent == "under a seal of the shipper's":
        other.write(10)
        (cut,) = other.seal()
        site.ship(Written(msgspec.structs.replace(cut.seal, previous=None), cut.data))
    else:
        content = snapshot("gw-1", 2, 30)
        digest = hashlib.sha256(content).hexdigest()
        seal = SnapshotSeal(1, "gw-1", 2, 30, 3, len(content), digest, epoch_id=other.epoch_id)
        (site.source / "gw-1/snapshots").mkdir()
        (site.source / f"gw-1/snapshots/2-000000000030{SUFFIX}").write_bytes(content)
        (site.source / "gw-1/snapshots/2-000000000030.json").write_bytes(msgspec.json.encode(seal))
    site.collect()
    assert site.histories() == {"gw-1": first.lines}
    assert not (site.lake / "snapshots").exists()
    [reason] = site.quarantined()
    assert "another epoch" in reason
    first.write(3)
    site.ship(*first.seal())
    site.collect()
    assert site.histories() == {"gw-1": first.lines}, "the other one is not in its way"
    # Once the begin of the other life is there, everything of it has a place.
    site.ship(*other.sealed[1:2])
    site.collect()
    assert site.quarantined() == []
    begin, behind = other.lines[:60], other.lines[70:] if sent == "behind a loss" else other.lines[60:]
    assert site.histories() == {"gw-1": first.lines, "gw-1~2": [*begin, *behind]}
    assert [path.parent.name for path in (site.lake / "snapshots").rglob(f"*{SUFFIX}")] == ["gw-1~2"] * (
        sent == "by a snapshot"
    )


def test_epochs_of_an_earlier_version_prove_nothing(site: Site) -> None:
    """What lands without the id of its epoch lands as before, also beside a segment with it."""
    life = Life(0, named=False)
    life.write(10)
    site.ship(*life.seal())
    site.collect()
    life.named, life.epoch_id = True, "of the version after it"
    life.write(5)
    life.seal()
    life.lose(11)
    site.ship(*life.seal())
    site.collect()
    life.epoch_id = ""
    life.write(5)
    site.ship(*life.seal())
    site.collect()
    assert site.quarantined() == []
    assert site.histories() == {"gw-1": [*life.lines[:10], *life.lines[15:]]}


def test_a_segment_of_two_epochs_of_one_number_is_damaged(site: Site) -> None:
    lines = [encode(record("gw-1", 1, seq, epoch_id=f"{seq}")) for seq in (1, 2)]
    site.ship(written(lines, record("gw-1", 1, 1), None))
    site.collect()
    assert site.quarantined() == ["record 1/2 is of another epoch 1 than those before it"]


def test_lives_that_are_restored_and_copied_at_any_time_are_histories_of_their_own() -> None:
    check_lives(CASES)


def check_lives(cases: int) -> None:
    """Each acknowledged record of each life has landed exactly once, and no history has records of two lives."""
    seen = 0

    def check() -> None:
        assert seen > cases / 2, "histories have forked"

    for seed in seeds(cases, check):
        random = Random(seed)
        with memory_folder() as folder:
            site = Site(folder)
            lives, images = [Life(0, named=random.random() < 0.7)], []
            lives[0].write(random.randint(1, 9))
            site.ship(*lives[0].seal())  # a lake knows the gateway from its beginning
            site.collect()
            for step in range(random.randint(10, 40)):
                life = random.choice(lives)
                what = random.random()
                if what < 0.5:
                    life.write(random.randint(1, 9))
                elif what < 0.75:
                    site.ship(*_on_its_way(random, site, life.seal()))
                elif what < 0.8 and life.sequence:
                    site.ship(*life.new_epoch())
                elif what < 0.88:
                    images.append(life.copied(step + 1))
                elif what < 0.92 and images and len(lives) < 4:
                    lives.append(random.choice(images).copied(1000 + step))  # beside the others, or after one has ended
                else:
                    site.collect()
            for life in lives:
                life.write(1)
                life.seal()
                site.ship(*life.sealed)  # what was harmed is sent again
            for _ in range(3):
                site.collect()
            found = site.histories()
            for life in lives:
                assert life.lines in found.values(), f"seed {seed}"
            everything = {line for life in lives for line in life.lines}
            assert sorted(site.own()) == sorted(everything), f"seed {seed}"
            seen += len(found) > 1


def _on_its_way(random: Random, site: Site, sealed: list[Written]) -> list[Written]:
    """What arrives of segments: some are late, some are damaged."""
    arrived = []
    for one in sealed:
        fate = random.random()
        if fate < 0.15:
            cut = one.data[: random.randrange(len(one.data))]
            site.sent += 1
            (site.source / "gw-1" / f"{one.stem}.x{site.sent}{SUFFIX}").write_bytes(cut)
            (site.source / "gw-1" / f"{one.stem}.x{site.sent}.json").write_bytes(one.seal_bytes)
        elif fate > 0.1:
            arrived.append(one)
    return arrived
