"""Days of rated load in minutes (`make soak ARGS=days`): memory, open files and the log's room stay flat.

Ten readings a second of a hundred sensors, each replacing a value, one in a hundred delayed, an application that
reacts, subscriptions that come and go, all over one gateway whose clock goes as fast as the machine lets it. Segments
are sealed, snapshots taken and old segments evicted as in three days of a real one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import mean

from lamplighter.engine.core import Notification, Subscription
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.protocol import Results
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.service.process import share_heap
from lamplighter.gateway.settings import LogSettings, Settings
from tests.support.gateway_parts import CLIENT, FakeClock, application, dump, rearm

SENSORS = 100
PER_SECOND = 10
HOUR_S = 3600
LIVE = Settings(log=LogSettings(bytes_max=48 * 1024 * 1024))
WARM_SHARE = 4
"""One part in so many of the time is left for caches to fill; memory is compared after it."""
GROWTH_MAX = 1.10
PREFIX = "PREFIX : <http://e/> "
KEEPER = application(
    "keeper",
    {
        "namespaces": {"": "http://e/"},
        "queries": {"HOT": {"sparql": "SELECT ?s { ?s :value ?v FILTER(?v > 97) }"}},
        "updates": {
            "NOTE": {
                "sparql": "DELETE { ?s :hot ?n } INSERT { ?s :hot ?m } WHERE { OPTIONAL { ?s :hot ?n } "
                "BIND(COALESCE(?n, 0) + 1 AS ?m) }",
                "forcedBindings": {"s": {"type": "uri", "value": ""}},
            }
        },
        "extended": {"lamplighter": {"aggregators": {"hot": {"query": "HOT", "added": "NOTE"}}}},
    },
)


class NoSync(Disk):
    """Waits for nothing: what is looked at is what grows, not what a power cut leaves."""

    def sync(self, file: int) -> None:
        pass

    def sync_folder(self, path: Path) -> None:
        pass


class Counting:
    """A client that counts what it is told."""

    client = "soak"
    identity = None
    since = None
    heard = 0

    def __init__(self) -> None:
        self.connection = self

    def subscribed(self, subscription: Subscription, keep: str | None, reset: str | None) -> None:
        self.heard += 1

    def notify(self, notification: Notification, results: Results) -> None:
        self.heard += 1

    def __getattr__(self, name: str) -> object:
        if name in ("resumed", "taken_over", "ended"):
            return lambda *arguments: None
        raise AttributeError(name)


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def hour(runner: Runner, clock: FakeClock, chance: Random, clients: list[Counting]) -> None:
    """One hour of readings, with what else happens in it."""
    for second in range(HOUR_S):
        for _ in range(PER_SECOND):
            sensor, value = f":s{chance.randrange(SENSORS)}", chance.randrange(100)
            text = (
                f"{PREFIX}DELETE {{ {sensor} :value ?v ; :time ?t }} "
                f'INSERT {{ {sensor} :value {value} ; :time "{clock.now.isoformat()}" }} '
                f"WHERE {{ OPTIONAL {{ {sensor} :value ?v ; :time ?t }} }}"
            )
            delay = "PT30S" if chance.random() < 0.01 else None
            request = f"{chance.getrandbits(128):032x}"
            await runner.updates.update(UpdateCall(text, CLIENT, request_id=request, delay=delay))
            clock.advance(1 / PER_SECOND)
        rearm(runner)
        runner._upkeep.turn(quiet=True)  # it takes its turns by the real clock, once a second
        if second % 60 == 0:
            await runner.log_keeper.turn()
            client = Counting()
            sensor = f":s{chance.randrange(SENSORS)}"
            await runner.subscribe(f"{PREFIX}SELECT ?v {{ {sensor} :value ?v }}", client, None, None)  # type: ignore[arg-type]
            clients.append(client)
        if len(clients) > 50:
            gone = clients.pop(0)
            runner.disconnect(gone, [spuid for spuid, sink in runner._subscribers.sinks.items() if sink is gone])  # type: ignore[arg-type]


async def soak(hours: int, seed: int, data: Path) -> list[str]:
    """Runs so many hours; what did not stay flat."""
    clock, chance, begun = FakeClock(), Random(seed), time.monotonic()
    log = LogWriter(data, clock, "fsync", NoSync())
    log.open()
    runner = Runner(LIVE, log, [KEEPER])
    runner.recover()
    memory: list[float] = []
    files: list[int] = []
    clients: list[Counting] = []
    work = asyncio.create_task(runner.run())
    try:
        for number in range(hours):
            await hour(runner, clock, chance, clients)
            gc.collect()
            memory.append(resident_mb())
            files.append(open_files())
            status = runner.figures.status()
            print(
                f"{time.monotonic() - begun:7.0f} s  hour {number + 1:3d} of {hours}: {memory[-1]:6.1f} MiB, "
                f"{files[-1]} open files, log {status['log']['bytes'] / 2**20:5.1f} MiB, "
                f"{status['log']['sealed']} sealed, {status['log']['evicted']} evicted, record {status['sequence']}, "
                f"{status['delayed']} pending, {status['counters']['delayed_fired']} fired",
                flush=True,
            )
        before, status = dump(runner), runner.figures.status()
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        runner.close()
    again = Runner(LIVE, _log(data, clock), [KEEPER])
    again.recover()
    troubles = [] if dump(again) == before else ["a start over the log gives another dataset"]
    again.close()
    warm = max(1, hours // WARM_SHARE)
    early, late = mean(memory[warm : 2 * warm]), mean(memory[-warm:])
    print(f"memory {early:.1f} MiB in the second quarter, {late:.1f} in the last; open files at most {max(files)}")
    if late > early * GROWTH_MAX:
        troubles.append(f"memory grew from {early:.1f} to {late:.1f} MiB")
    if max(files[warm:]) > max(files[:warm]) + 2:
        troubles.append(f"open files grew from {max(files[:warm])} to {max(files[warm:])}")
    if status["log"]["bytes"] > LIVE.log.bytes_max * 1.2:
        troubles.append(f"the log takes {status['log']['bytes']} bytes")
    if status["status"] != "ok":
        troubles.append(f"health: {status['problems']}")
    return troubles


def _log(data: Path, clock: FakeClock) -> LogWriter:
    log = LogWriter(data, clock, "fsync", NoSync())
    log.open()
    return log


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.soak days", description=__doc__)
    parser.add_argument("--hours", type=int, default=72)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    logging.basicConfig(level=logging.ERROR)
    print(f"seed {seed}", flush=True)
    share_heap()
    with tempfile.TemporaryDirectory() as folder:
        try:
            troubles = asyncio.run(soak(options.hours, seed, Path(folder)))
        except GatewayError as error:
            troubles = [str(error)]
    for trouble in troubles:
        print(trouble)
    print("not flat" if troubles else "memory, open files and the log's room stayed flat")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
