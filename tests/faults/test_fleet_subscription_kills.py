"""The properties of fleet subscriptions (Pellegrino 2013, 3.2) while matcher, its JVM and delivery are killed.

Real processes match and deliver what lands. They are killed at random moments and started again. Afterwards the
notifications are compared with what the store finds in each event.
"""

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyoxigraph as ox
import pytest

from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.subscriptions.records import FilesSink
from lamplighter.cloud_sync.fleet.subscriptions.registry import SubscriptionRegistry
from lamplighter.engine.change_log import Record
from tests.support.components import require_command
from tests.support.fleet_matches import QUERIES, expected_matches, in_segments, random_commits
from tests.support.places import ROOT
from tests.support.small_lake import write_segment

pytestmark = [pytest.mark.faults, pytest.mark.fleet_faults]

GATEWAYS = ("gw-1", "gw-2", "gw-3")
RECORDS = 120
MATCHER_KILLS = ("jvm", "driver")
FIRST, SECOND = ("warm", "placed", "graphs", "told", "everything"), "hot"
"""Subscriptions from the beginning, and one that is registered when a part of the segments has landed."""
WAIT_S = 300.0


class _Fleet:
    """A lake in which segments land, and the processes that match and deliver."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.lake = folder / "lake"
        self.notified = folder / "notifications"
        self.notified.mkdir()
        self._log = folder / "log"
        self.records = {gateway: random_commits(self.random, gateway, RECORDS) for gateway in GATEWAYS}
        segments = [one for records in self.records.values() for one in in_segments(self.random, records)]
        # Arrival: roughly in order, each up to a third of the whole too early or too late.
        self.arriving = sorted(segments, key=lambda one: one[0].seq / RECORDS + self.random.uniform(0, 1 / 3))
        self.landed: list[Record] = []
        self.registry = SubscriptionRegistry(Lake(str(self.lake)))
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def subscribe(self, *names: str) -> None:
        for name in names:
            self.registry.add(name, QUERIES[name], deliver=[FilesSink(url=str(self.notified))])

    def land(self, count: int) -> None:
        """The next segments, each put in place with a rename, as the collector does it."""
        for records in self.arriving[:count]:
            written = write_segment(self.lake / "incoming", records)
            folder = self.lake / "segments" / records[0].gw
            folder.mkdir(parents=True, exist_ok=True)
            written.rename(folder / written.name)
            self.landed += records
        del self.arriving[:count]

    def command(self, name: str, *arguments: str) -> list[str]:
        spark = ["--order-wait", "100000", "--master", "local[2]", "--conf", "spark.driver.memory=1g"]
        options = spark if name == "match" else []
        command = ["-m", "lamplighter.cloud_sync.fleet", "subscriptions", name, str(self.lake)]
        return [sys.executable, *command, *options, *arguments]

    def start(self, name: str) -> None:
        with self._log.open("ab") as out:
            command = self.command(name, "--every", "0.2")
            self.running[name] = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)

    def kill(self, name: str, pid: int | None = None) -> None:
        """Kills a process, or its JVM; it must not have ended by itself."""
        process = self.running.pop(name)
        assert process.poll() is None, f"{name} ended by itself with {process.returncode}"
        os.kill(pid or process.pid, signal.SIGKILL)
        assert process.wait(WAIT_S) != 0, "a matcher without its JVM says so"

    def match_once(self) -> None:
        done = subprocess.run(self.command("match"), cwd=ROOT, capture_output=True, timeout=WAIT_S)
        assert done.returncode == 0, done.stderr.decode()

    def delivered(self) -> list[dict[str, Any]]:
        """The notifications when there are as many as matches; what comes too much is found by its content."""
        self.start("deliver")
        matches = sum(batch.rows for batch in table(Lake(str(self.lake)), "matches").live())
        _wait_until(lambda: len(self.notifications()) >= matches, "not all matches are delivered")
        process = self.running.pop("deliver")
        process.terminate()
        assert process.wait(WAIT_S) == 0
        return self.notifications()

    def batches(self) -> int:
        """Manifests of bronze and of `matches`: what the matcher's progress is seen by."""
        return sum(1 for _ in self.lake.rglob("_batches/*.json"))

    def notifications(self) -> list[dict[str, Any]]:
        """In the order of delivery, for each subscription."""
        files = sorted(self.notified.rglob("*.ndjson"))
        return [json.loads(line) for path in files for line in path.read_bytes().splitlines()]

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""


@contextlib.contextmanager
def _fleet() -> Iterator[_Fleet]:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        fleet = _Fleet(Path(folder), seed)
        try:
            yield fleet
        except AssertionError:
            print(fleet.log()[-10_000:])
            raise
        finally:
            fleet.end()


def test_each_match_is_notified_in_order_whatever_is_killed() -> None:
    require_command("java")
    with _fleet() as fleet:
        fleet.subscribe(*FIRST)
        before: list[Record] = []
        each = len(fleet.arriving) // (len(MATCHER_KILLS) + 1)
        deliveries_killed = 0
        for number, victim in enumerate(MATCHER_KILLS):
            if number == len(MATCHER_KILLS) // 2:
                before = list(fleet.landed)
                fleet.subscribe(SECOND)
            fleet.start("match")
            fleet.land(each // 2)
            deliveries_killed += _killed_deliveries_until_progress(fleet)
            fleet.land(each - each // 2)
            time.sleep(fleet.random.uniform(0, 4))
            jvm = _jvm(fleet.running["match"])
            fleet.kill("match", jvm if victim == "jvm" else None)
            _wait_until(lambda: not Path(f"/proc/{jvm}").exists(), "the JVM outlives its driver")  # noqa: B023
        told = fleet.log()
        assert told.count("Spark's JVM has ended") == MATCHER_KILLS.count("jvm")
        fleet.land(len(fleet.arriving))
        fleet.match_once()
        found = fleet.delivered()
        print(f"{len(found)} notifications, {deliveries_killed} deliveries killed, {fleet.batches()} batches")
        assert deliveries_killed >= len(MATCHER_KILLS)
        _check(fleet, found, before)


def _killed_deliveries_until_progress(fleet: _Fleet) -> int:
    """Starts and kills delivery until the matcher has written something; at least once."""
    batches, killed, end = fleet.batches(), 0, time.monotonic() + WAIT_S
    while not killed or fleet.batches() == batches:
        assert time.monotonic() < end, "the matcher has not begun"
        assert fleet.running["match"].poll() is None, "the matcher has ended by itself"
        fleet.start("deliver")
        time.sleep(fleet.random.uniform(0.2, 4))
        fleet.kill("deliver")
        killed += 1
    return killed


def _check(fleet: _Fleet, found: Sequence[dict[str, Any]], before: Sequence[Record]) -> None:
    told = Counter(map(_key, found))
    assert told.total() == len(told), "a repetition writes the same file again"
    assert len({one["id"] for one in found}) == len(found)
    everything = [record for records in fleet.records.values() for record in records]
    wanted = expected_matches(everything, FIRST)
    of_second = Counter(key for key in told if key[0] == SECOND)
    assert told - of_second == wanted, "every matching event, and no other"
    # What had landed before may have been matched before, or after.
    had = {(record.gw, record.epoch, record.seq) for record in before}
    due = Counter(key for key in expected_matches(everything, [SECOND]) if key[1:4] not in had)
    assert not due - of_second, "honoured for all that landed after it"
    assert not of_second - expected_matches(everything, [SECOND])
    assert due and wanted
    places: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for one in found:
        places.setdefault((one["subscription"], one["gateway"]), []).append((one["epoch"], one["sequence"]))
    assert all(of_gateway == sorted(of_gateway) for of_gateway in places.values()), "the order of the gateway's log"
    assert not any(one["late"] for one in found)


def _key(one: dict[str, Any]) -> tuple[Any, ...]:
    graph = None if one["graph"] is None else f"<{one['graph']}>"
    place = (one["gateway"], one["epoch"], one["sequence"], one["change"], graph)
    return (one["subscription"], *place, _rows(one["results"]))


def _rows(results: dict[str, Any]) -> tuple[tuple[str | None, ...], ...]:
    """The rows as N-Triples texts, in the order of `expected_matches`; none for ASK."""
    if "boolean" in results:
        return ()
    names = results["head"]["vars"]
    rows = [tuple(_term(row.get(name)) for name in names) for row in results["results"]["bindings"]]
    return tuple(sorted(rows, key=lambda row: [(value is not None, value or "") for value in row]))


def _term(binding: dict[str, str] | None) -> str | None:
    if binding is None:
        return None
    if binding["type"] == "uri":
        return f"<{binding['value']}>"
    assert binding["type"] == "literal"
    datatype, language = binding.get("datatype"), binding.get("xml:lang")
    return str(ox.Literal(binding["value"], datatype=datatype and ox.NamedNode(datatype), language=language))


def _jvm(process: subprocess.Popen[bytes]) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (pid,) = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text().strip() == "java"]
    return pid


def _wait_until(done: Any, what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.05)
