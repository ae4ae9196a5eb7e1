"""Shipper, collector, the stream and its JVM are killed at random moments: each record arrives once all the same."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from lamplighter.cloud_sync.fleet.collection.manifest import Manifest
from lamplighter.engine.change_log import SUFFIX
from lamplighter.engine.errors import ConfigurationError
from tests.support.components import require_command
from tests.support.destinations import require_module
from tests.support.places import ROOT
from tests.support.shipped_logs import DataFolder, Written, lines_of, recut, segments

pytestmark = pytest.mark.faults

KILLS = 40
JVM_KILLS, DRIVER_KILLS = 2, 1
ALIVE = (0.8, 3.0)
"""How long a process lives, of the time that one takes to start, look, and end."""
ROUNDS_MAX = 30
HARMS = ("flipped", "cut off", "copied", "cut in another way", "lost", "seal lost", "seal damaged")
END_S = 60.0


class Street:
    """A gateway that goes on writing its log, its shipper, the way to the cloud, and the collector there."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.folder = folder
        self.data = DataFolder(folder / "data")
        self.way = folder / "way"
        self.lake = folder / "lake"
        self.way.mkdir()
        self.written: list[Written] = []
        self.evicted = 0
        self.harm: Counter[str] = Counter()
        self._harms: list[str] = []
        (folder / "lamplighter.toml").write_text(
            "[gateway]\nclock_trusted = 'always'\n"
            f"[sync]\ndestination = '{self.way}'\ninterval_s = 1\nbytes_per_s_max = 60000\nsnapshot_s = 1\n"
        )

    @property
    def shipper(self) -> list[str]:
        return ["lamplighter.cloud_sync", "run", "--config", str(self.folder / "lamplighter.toml")]

    @property
    def collector(self) -> list[str]:
        return ["lamplighter.cloud_sync.fleet", "collect", str(self.way), str(self.lake)]

    @property
    def stream(self) -> list[str]:
        return [
            "lamplighter.cloud_sync.fleet",
            "ingest",
            str(self.lake),
            "--master",
            "local[2]",
            "--conf",
            "spark.driver.memory=1g",
        ]

    def write(self) -> None:
        """A few more sealed segments, and sometimes a snapshot; what is confirmed may go."""
        before = self.written[-1].seal if self.written else None
        begin, previous = (before.last + 1, before.sha256) if before else (1, None)
        sizes = [self.random.randint(1, 400) for _ in range(self.random.randint(1, 3))]
        new = segments("gw-1", 1, sizes, previous=previous, begin=begin)
        self.data.add(*new)
        self.written += new
        if self.random.random() < 0.3:
            self.data.add_snapshot(1, new[-1].seal.last)
        shipped = self.shipped()
        while self.evicted < len(self.written) and self.written[self.evicted].seal.last <= shipped:
            self.data.evict(self.written[self.evicted])
            self.evicted += 1

    def shipped(self) -> int:
        path = self.data.path / "shipped.json"
        return int(json.loads(path.read_text())["last"]) if path.exists() else 0

    def harm_something(self) -> None:
        """What happens to objects on their way, whether they have landed yet or not."""
        folder = self.way / "gw-1"
        there = sorted(path for path in folder.glob(f"*{SUFFIX}")) if folder.exists() else []
        if not there:
            return
        path = self.random.choice(there)
        stem = path.name.removesuffix(SUFFIX)
        data = path.read_bytes()
        self._harms = self._harms or self.random.sample(HARMS, len(HARMS))  # each of them has its turn
        kind = self._harms.pop()
        if kind == "flipped" and data:
            at = self.random.randrange(len(data))
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << self.random.randrange(8)]) + data[at + 1 :])
        elif kind == "cut off":
            path.write_bytes(data[: self.random.randrange(len(data) + 1)])
        elif kind == "copied" and (folder / f"{stem}.json").exists():
            copy = f"copy-{self.harm['copied']}"
            (folder / f"{copy}{SUFFIX}").write_bytes(data)
            (folder / f"{copy}.json").write_bytes((folder / f"{stem}.json").read_bytes())
        elif kind == "cut in another way" and len(self.written) > 3:
            some = self.random.randrange(len(self.written) - 3)
            cut = self.written[some : some + 3]
            first = self.random.randint(max(2, cut[0].seal.first), cut[1].seal.last)
            recut(cut, first, self.random.randint(first, cut[2].seal.last)).put(folder, f"cut-{self.harm[kind]}")
        elif kind == "lost":
            path.unlink()
        elif kind == "seal lost":
            (folder / f"{stem}.json").unlink(missing_ok=True)
        elif kind == "seal damaged":
            (folder / f"{stem}.json").write_bytes(b'{"v":1')
        self.harm[kind] += 1

    def landed(self) -> list[bytes]:
        """The lines in the lake, by the manifest's word on which files count."""
        try:
            manifest = Manifest(self.lake)
        except ConfigurationError as error:
            assert "collect into this lake first" in str(error)
            return []
        with contextlib.closing(manifest):
            names = [f"{one.epoch}-{one.first:012d}-{one.last:012d}{SUFFIX}" for one in manifest.all_landed("gw-1")]
            moves = {target: source for source, target in manifest.moves()}
        lines = []
        for name in names:
            path = self.lake / "segments/gw-1" / name
            if not path.exists():  # its collector was killed before it had put it there
                path = self.lake / moves[f"segments/gw-1/{name}"]
            lines += lines_of(path.read_bytes())
        return lines


@contextlib.contextmanager
def street() -> Iterator[Street]:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        yield Street(Path(folder), seed)


def started(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, stdout=out, stderr=out)


def killed(process: subprocess.Popen[bytes], after_s: float) -> None:
    """Lets a process live for so long and kills it; it must not have ended by itself."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
        raise AssertionError(f"it ended by itself with {process.returncode}")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_every_record_lands_once_across_kills_and_damage() -> None:
    with street() as at:
        kills: Counter[str] = Counter()
        log = at.folder / "log"
        commands = {"shipper": at.shipper, "collector": [*at.collector, "--every", "0.05"]}
        begun = time.monotonic()
        subprocess.run([sys.executable, "-m", *at.shipper, "--once"], cwd=ROOT, check=True, capture_output=True)
        life_s = time.monotonic() - begun
        running = {name: started(command, log) for name, command in commands.items()}
        try:
            while kills.total() < KILLS:
                at.write()
                at.harm_something()
                name = at.random.choice(sorted(running))
                killed(running[name], life_s * at.random.uniform(*ALIVE))
                kills[name] += 1
                _check_shipped(at)
                running[name] = started(commands[name], log)
        except AssertionError:
            print(log.read_text())
            raise
        finally:
            for process in running.values():
                process.kill()
                process.wait()
        _ends_well(at)
        print(kills, at.harm)
        assert min(kills.values()) > KILLS / 5
        assert set(at.harm) == set(HARMS)


def test_every_record_is_in_bronze_once_across_kills_of_the_stream() -> None:
    require_command("java")
    for name in ("pyspark", "duckdb"):
        require_module(name)
    with street() as at:
        log = at.folder / "log"
        kills: Counter[str] = Counter()
        process = None
        try:
            while kills["jvm"] < JVM_KILLS or kills["driver"] < DRIVER_KILLS:
                _ship(at)
                process = started([*at.stream, "--every", "0.5"], log)
                _wait_for_change(at.lake / "bronze", process)
                _ship(at)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(at.random.uniform(0, 3))
                jvm = _jvm(process)
                name = "driver" if kills["jvm"] >= JVM_KILLS or kills["driver"] < kills["jvm"] else "jvm"
                os.kill({"driver": process.pid, "jvm": jvm}[name], signal.SIGKILL)
                kills[name] += 1
                assert process.wait(END_S) != 0, "a driver without its JVM says so"
                _wait_for_end(jvm)
            _ends_well(at)
            done = subprocess.run([sys.executable, "-m", *at.stream], cwd=ROOT, capture_output=True, timeout=3 * END_S)
            assert done.returncode == 0, done.stderr
        except AssertionError:
            print(log.read_text()[-10_000:])
            raise
        finally:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        committed = [(1, sequence) for sequence in range(1, at.written[-1].seal.last + 1)]
        assert _bronze(at.lake) == committed
        print(kills, len(committed))


def _ship(at: Street) -> None:
    for _ in range(at.random.randint(1, 3)):
        at.write()
    for command in ([*at.shipper, "--once"], at.collector):
        subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=True, capture_output=True, timeout=END_S)


def _files(folder: Path) -> int:
    return sum(1 for _ in folder.rglob("*")) if folder.exists() else 0


def _wait_for_change(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the stream has begun to note something."""
    before, deadline = _files(folder), time.monotonic() + 30 * END_S
    while _files(folder) == before:
        assert process.poll() is None
        assert time.monotonic() < deadline, "the stream has not begun"
        time.sleep(0.05)


def _jvm(process: subprocess.Popen[bytes]) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (pid,) = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text().strip() == "java"]
    return pid


def _wait_for_end(pid: int) -> None:
    """A JVM ends by itself when its driver has; the next stream is not to begin before."""
    deadline = time.monotonic() + END_S
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "the JVM outlives its driver"
        time.sleep(0.05)


def _bronze(lake: Path) -> list[tuple[int, int]]:
    """(epoch, sequence) of all rows that count, in their order, read by another engine."""
    import duckdb

    batches = [json.loads(path.read_text()) for path in (lake / "bronze/_batches").glob("*.json")]
    files = [str(lake / "bronze" / name) for batch in batches for name in batch["files"]]
    query = "SELECT epoch, seq FROM read_parquet($1) ORDER BY ALL"
    return [(int(epoch), int(seq)) for epoch, seq in duckdb.sql(query, params=[files]).fetchall()]


def _check_shipped(at: Street) -> None:
    """What counts as shipped has landed, and nothing has twice."""
    landed = at.landed()
    assert len(landed) == len(set(landed))
    shipped = [line for one in at.written if one.seal.last <= at.shipped() for line in lines_of(one.data)]
    assert set(shipped) <= set(landed)


def _ends_well(at: Street) -> None:
    """Left alone, shipper and collector come to an end of it."""
    everything = [line for one in at.written for line in lines_of(one.data)]
    for _ in range(ROUNDS_MAX):
        for command in ([*at.shipper, "--once"], [*at.collector]):
            done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, timeout=END_S)
            assert done.returncode == 0, done.stderr
        if at.shipped() == at.written[-1].seal.last:
            break
    assert at.shipped() == at.written[-1].seal.last
    assert at.landed() == everything
    with contextlib.closing(Manifest(at.lake)) as manifest:
        assert manifest.gaps() == []
        kept = manifest.quarantined_objects()
    assert bool(kept) == bool(at.harm)
    assert all(one.reason for one in kept)
    assert list((at.lake / "incoming").iterdir()) == []
