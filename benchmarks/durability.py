"""What it costs that nothing is lost: the change log over the engine alone, recovery, and bytes on the card."""

import asyncio
import gc
import shutil
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks import street_lighting as street
from benchmarks.effort import Effort
from benchmarks.measuring import Cost, Progress, cost_of, target
from benchmarks.profiles import loaded_engine
from lamplighter.adapters.model.latest import reading_update
from lamplighter.adapters.model.readings import Reading, Stream
from lamplighter.engine import Engine
from lamplighter.engine.change_log import Cause
from lamplighter.gateway.clock import MachineClock, RecordClocks
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.log import entries
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.settings import Durability, GatewaySettings, LogSettings, Settings

GROUP = 100
DAY_S = 86_400
PAGE = 4096


def durable(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """LAMP updates that are logged and synced in groups of 100, against the same without a log (CPU)."""
    texts = [entry.text for entry in street.subscription_profile()]
    engines = [loaded_engine(street.document(bare=effort.bare), texts) for _ in range(2)]
    log = _log(out / "durable", "fsync")
    sides = {
        "engine alone": lambda texts: _run(engines[0], None, texts),
        "durable": lambda texts: _run(engines[1], log, texts),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    profiles = [street.every_lamp_profile(value)[: effort.durable] for value in ("100", "0")]
    for repetition in range(effort.lamp + 1):
        gc.collect()
        total = dict.fromkeys(sides, Cost())
        updates = profiles[repetition % 2]
        for begin in range(0, len(updates), GROUP):
            group = updates[begin : begin + GROUP]
            for name in list(sides) if (begin // GROUP) % 2 else reversed(list(sides)):
                total[name] += cost_of(lambda name=name, group=group: sides[name](group))  # type: ignore[misc]
        if repetition:  # the first one parses the shapes
            for name, cost in total.items():
                costs[name].append(Cost(cost.cpu * 1e6 / len(updates), cost.wall * 1e6 / len(updates)))
        progress(f"repetition {repetition} of {effort.lamp}")
    count, written = log.sequence, _written(log.data)
    log.finish()
    cpu = {name: median(cost.cpu for cost in found) for name, found in costs.items()}
    wall = {name: median(cost.wall for cost in found) for name, found in costs.items()}
    more = median(b.cpu - a.cpu for a, b in zip(costs["engine alone"], costs["durable"], strict=True))
    return {
        "note": f"durable LAMP in groups of {GROUP}: {cpu['durable']:.1f} us CPU an update, {cpu['engine alone']:.1f} "
        f"without a log; by the clock {wall['durable']:.0f} and {wall['engine alone']:.0f} us. "
        f"{written / count:.0f} bytes a record before sealing.",
        "cpu us": cpu,
        "wall us": wall,
        "bytes a record": written / count,
        "targets": [target(f"durable LAMP in groups of {GROUP}, over the same without a log", more, 25, " us")],
    }


def recovery(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """A start from a snapshot of the knowledge base and 20,000 updates behind it."""
    data = out / "recovery"
    shutil.rmtree(data, ignore_errors=True)
    settings = Settings(log=LogSettings(snapshot_records=1_000_000))
    updates = [text for value in ("100", "0", "50") for text in street.every_lamp_profile(value)][: effort.recovered]

    async def prepare() -> tuple[int, float]:
        async with _running(data, settings, Disk()) as runner:
            _load(runner, street.document(bare=effort.bare))
            longest = asyncio.create_task(_longest_pause())
            await runner.log_keeper.take_snapshot()
            longest.cancel()
            pause = await longest
            progress("snapshot taken")
            for begin in range(0, len(updates), GROUP):
                group = updates[begin : begin + GROUP]
                await asyncio.gather(
                    *[runner.updates.update(UpdateCall(text, Cause("http", "bench"))) for text in group]
                )
            return runner.quad_count, pause

    quads, pause = asyncio.run(prepare())
    progress(f"{len(updates)} updates logged")
    costs = []
    for _ in range(effort.recoveries):
        gc.collect()
        runner = _runner(data, settings, Disk())
        found: list[int] = []
        costs.append(cost_of(lambda runner=runner, found=found: found.append(runner.recover().records)))  # type: ignore[misc]
        assert found[0] == len(updates), found
        assert runner.quad_count == quads
        runner.close()
        progress(f"recovered in {costs[-1].wall:.2f} s")
    cpu, wall = median(cost.cpu for cost in costs), median(cost.wall for cost in costs)
    (snapshot,) = (data / "snapshots").iterdir()
    return {
        "note": f"recovery of {quads:,} quads and {len(updates):,} logged updates: {wall:.2f} s, "
        f"{cpu:.2f} s of it CPU; the snapshot has {snapshot.stat().st_size / 1e6:.1f} MB, and the loop stood "
        f"still for {pause * 1e3:.0f} ms at most while it was taken",
        "cpu s": cpu,
        "wall s": wall,
        "pause ms": pause * 1e3,
        "targets": [
            target("recovery", wall, 3, " s"),
            target("longest pause while a snapshot is taken", pause * 1e3, 100, " ms"),
        ],
    }


def wear(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """Bytes that ten readings a second make the gateway write in a day."""
    result: dict[str, Any] = {"MB a day": {}, "MB a day in pages": {}}
    lines = []
    sealed = 0.0
    for name, durability, sync_s in (
        ("fsync", "fsync", 0),
        ("interval of 1 s", "interval", 1),
        ("interval of 10 s", "interval", 10),
    ):
        data = out / "wear"
        shutil.rmtree(data, ignore_errors=True)
        disk = _CountingDisk()
        seconds = effort.wear_s
        asyncio.run(_readings(data, durability, sync_s, seconds, disk))
        days = DAY_S / seconds / 1e6
        result["MB a day"][name], result["MB a day in pages"][name] = disk.written * days, disk.pages * PAGE * days
        sealed = sum(path.stat().st_size for path in (data / "log").glob("*-*-*.zst")) / (seconds * 10)
        lines.append(f"{name}: {disk.written * days:,.0f} MB in bytes, {disk.pages * PAGE * days:,.0f} MB in pages")
        progress(lines[-1])
    result["note"] = (
        "written in a day of ten readings a second over 100 streams, log, sealing and snapshots together:\n  "
        + "\n  ".join(lines)
        + f"\n  (pages of {PAGE} bytes that are handed to the disk at each sync, without the file system's own; "
        f"sealed, a reading takes {sealed:.0f} bytes)"
    )
    result["targets"] = [target("written in a day of ten readings a second", result["MB a day"]["fsync"], 200, " MB")]
    return result


# --- parts of it ---


def _log(data: Path, durability: Durability) -> LogWriter:
    shutil.rmtree(data, ignore_errors=True)
    log = LogWriter(data, MachineClock("always"), durability)
    log.open()
    log.replay(lambda record: None)
    return log


def _written(data: Path) -> int:
    return sum(path.stat().st_size for path in (data / "log").iterdir())


def _run(engine: Engine, log: LogWriter | None, texts: Sequence[str]) -> None:
    for text in texts:
        delta = engine.prepare(text)
        if log is not None:
            log.append(entries.commit(delta, Cause("http", "bench")))
        engine.commit(delta)
    if log is not None:
        log.sync()


def _runner(data: Path, settings: Settings, disk: Disk, clock: Any = None) -> Runner:
    clock = clock or MachineClock("always")
    log = LogWriter(data, clock, settings.gateway.durability, disk)
    log.open()
    return Runner(settings, log)


@asynccontextmanager
async def _running(data: Path, settings: Settings, disk: Disk, clock: Any = None):  # type: ignore[no-untyped-def]
    runner = _runner(data, settings, disk, clock)
    runner.recover()
    task = asyncio.create_task(runner.run())
    try:
        yield runner
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        runner.close()


def _load(runner: Runner, document: bytes) -> None:
    """Puts a document into a gateway's dataset as one commit."""
    delta = runner._engine.prepare_load(document, "application/n-triples")
    runner._ledger.commit(delta, Cause("http", "bench"))


async def _longest_pause() -> float:
    """For how long nothing else had its turn, at most, until cancelled; in seconds."""
    longest, before = 0.0, time.perf_counter()
    try:
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, before = max(longest, now - before), now
    except asyncio.CancelledError:
        return longest


class _Clock:
    """A machine's clocks that go as fast as they are told to."""

    boot = "bench"

    def __init__(self) -> None:
        self.seconds = 0.0

    def wall(self) -> datetime:
        return datetime(2026, 11, 21, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def boottime_us(self) -> int:
        return int(self.seconds * 1e6)

    def trusted(self) -> bool:
        return True

    def sample(self) -> RecordClocks:
        return RecordClocks(self.wall(), self.trusted(), self.boottime_us())


class _CountingDisk(Disk):
    """Counts bytes, and the pages that hold bytes which were not synced before; waits for nothing."""

    def __init__(self) -> None:
        self.written = 0
        self.pages = 0
        self._sizes: dict[int, tuple[int, int]] = {}

    def create(self, path: Path) -> int:
        file = super().create(path)
        self._sizes[file] = (0, 0)
        return file

    def write(self, file: int, data: bytes) -> int:
        taken = super().write(file, data)
        self.written += taken
        synced, size = self._sizes[file]
        self._sizes[file] = (synced, size + taken)
        return taken

    def sync(self, file: int) -> None:
        synced, size = self._sizes.get(file, (0, 0))
        if size > synced:
            self.pages += (size - 1) // PAGE - synced // PAGE + 1
            self._sizes[file] = (size, size)


async def _readings(data: Path, durability: Durability, sync_s: int, seconds: int, disk: _CountingDisk) -> None:
    clock = _Clock()
    # The clock that decides about segments is this one; syncing by interval is done by hand.
    settings = Settings(gateway=GatewaySettings(durability=durability), log=LogSettings(sync_interval_ms=10**9))
    streams = [_stream(number) for number in range(100)]
    chance = Random(1)  # neither values nor times nor names may be easier to compress than real ones
    async with _running(data, settings, disk, clock) as runner:
        for tick in range(seconds * 10):
            clock.seconds = tick / 10 + chance.random() / 20
            stamp = clock.wall().isoformat(timespec="milliseconds").replace("+00:00", "Z")
            value = f'"{chance.gauss(20, 3):.2f}"^^<http://www.w3.org/2001/XMLSchema#decimal>'
            time_ = f'"{stamp}"^^<http://www.w3.org/2001/XMLSchema#dateTime>'
            reading = Reading(chance.choice(streams), value, time_, False)
            cause = Cause("mqtt", reading.stream.topic)
            request = f"{chance.getrandbits(128):032x}"
            await runner.updates.update(UpdateCall(reading_update(reading), cause, request_id=request))
            if sync_s and tick % (sync_s * 10) == 0:
                runner._log.sync()
            if tick % 600 == 0:
                await runner.log_keeper.turn()


def _stream(number: int) -> Stream:
    base = f"http://lamplighter.local/stream/street/{number}/temperature"
    return Stream(
        iri=f"<{base}>",
        observation=f"<{base}/observation>",
        sensor=f"<{base}/sensor>",
        property="<http://lamplighter.example/ns/lighting#temperature>",
        feature=f"<http://lamplighter.local/post/{number}>",
        platform="<http://lamplighter.local/>",
        unit=None,
        topic=f"street/{number}/temperature",
        label=None,
        rule="street.toml",
    )
