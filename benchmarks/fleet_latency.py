"""How long after a segment landed its notifications are written, with the real processes on a lake of files.

Ten simulated gateways land a segment each second. `lamplighter-fleet subscriptions match` ingests and matches, and
`subscriptions deliver` writes to files. A segment has landed when it is renamed to its place, as the collector does it;
a notification is written when its file is.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from statistics import quantiles

import msgspec
import zstandard

from benchmarks import text_table
from benchmarks.spark_cost import say
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.subscriptions.records import FilesSink
from lamplighter.cloud_sync.fleet.subscriptions.registry import SubscriptionRegistry
from lamplighter.demo.fleet.simulated_gateway import BASE, SimulatedGateway
from lamplighter.demo.fleet.simulated_machine import FleetPlan
from lamplighter.engine.change_log import Record, SegmentName, encode

GATEWAYS = 10
POSTS = 40
SUBSCRIPTIONS = 100
WARM_UP_S = 30
EVERY_S = 0.5
COMMAND = (sys.executable, "-m", "lamplighter.cloud_sync.fleet")
_RECORDS_PER_POST_DAY = 1500
_START_TIMEOUT_S = 180.0
_END_TIMEOUT_S = 120.0
_PREFIX = (
    "PREFIX sosa: <http://www.w3.org/ns/sosa/> PREFIX lighting: <http://lamplighter.example/ns/lighting#> "
    "PREFIX qudt: <http://qudt.org/schema/qudt/> "
)


@dataclass(frozen=True)
class LatencyResult:
    text: str
    p95_s: float


@dataclass(frozen=True)
class _Landing:
    """A segment, ready to land. second: when, since the start."""

    second: int
    path: Path
    gateway: str
    name: SegmentName
    records: int


def latency(folder: Path, *, seconds: int, rate: int) -> LatencyResult:
    """Lands `rate` records a second in an empty lake. Raises AssertionError if matches and notifications differ."""
    lake, written = Lake(str(folder / "lake")), folder / "notifications"
    written.mkdir(parents=True)
    gateways = min(GATEWAYS, rate)
    landings = landing_segments(folder / "fleet", gateways, rate // gateways, WARM_UP_S + seconds)
    registry = SubscriptionRegistry(lake)
    for number, query in enumerate(latency_queries()):
        registry.add(f"s{number:03d}", query, deliver=[FilesSink(url=str(written))])
    landed: dict[str, float] = {}
    with _running(lake, folder):
        first = [one for one in landings if one.second == 0]
        _land(lake, first, landed)
        _await(
            lambda: any(written.rglob("*.ndjson")),
            _START_TIMEOUT_S,
            "the first notification",
        )
        load = _land_in_time(lake, landings[len(first) :], landed)
        _await(lambda: _is_matched(lake, landed), _END_TIMEOUT_S, "the last match")
        _await(lambda: _lines(written) == _matches(lake), _END_TIMEOUT_S, "the last notification")
    return _result(lake, written, landed, landings, seconds, load)


def latency_queries() -> list[str]:
    """80 of the temperature of one post, ten of its presence, and ten of other shapes."""
    reading = "?o sosa:madeBySensor <{sensor}> ; sosa:hasSimpleResult ?value ; sosa:resultTime ?time"
    queries = [
        f"SELECT ?value ?time WHERE {{ {reading} FILTER(?value > {10 + number // POSTS * 2}) }}".replace(
            "{sensor}", f"{BASE}sensor/{number % POSTS + 1}/temperature"
        )
        for number in range(80)
    ]
    queries += [
        f"SELECT ?value ?time WHERE {{ {reading} }}".replace("{sensor}", f"{BASE}sensor/{number + 1}/presence")
        for number in range(10)
    ]
    lamp, post = f"<{BASE}lamp/1>", f"<{BASE}post/2>"
    queries += [
        f"SELECT ?status WHERE {{ {lamp} lighting:hasStatus ?status }}",
        f"ASK {{ {lamp} lighting:hasStatus 'ON' }}",
        f"SELECT * WHERE {{ ?o sosa:hasFeatureOfInterest {post} ; sosa:hasSimpleResult ?value FILTER(?value > 11) }}",
        f"SELECT ?p ?v WHERE {{ ?o sosa:hasFeatureOfInterest {post} ; sosa:observedProperty ?p ; "
        "sosa:hasSimpleResult ?v }",
        f"SELECT * WHERE {{ GRAPH ?g {{ ?o sosa:madeBySensor <{BASE}sensor/3/temperature> ; sosa:resultTime ?t }} }}",
        f"SELECT (?v * 1.8 + 32 AS ?f) WHERE {{ ?o sosa:madeBySensor <{BASE}sensor/4/temperature> ; "
        "sosa:hasSimpleResult ?v }",
        f"SELECT * WHERE {{ ?o sosa:madeBySensor <{BASE}sensor/5/temperature> ; sosa:hasSimpleResult ?v "
        "OPTIONAL { ?o sosa:hasFeatureOfInterest ?f } }",
        "SELECT * WHERE { ?o sosa:hasSimpleResult ?v FILTER(?v > 100) }",
        f"SELECT ?v WHERE {{ {{ ?o sosa:madeBySensor <{BASE}sensor/6/temperature> ; sosa:hasSimpleResult ?v }} UNION "
        f"{{ {lamp} lighting:hasStatus ?v }} }}",
        f"SELECT ?b WHERE {{ ?o sosa:madeBySensor <{BASE}sensor/7/temperature> ; sosa:hasSimpleResult ?v "
        "BIND(IF(?v > 12, 'warm', 'cold') AS ?b) }",
    ]
    assert len(queries) == SUBSCRIPTIONS
    return [_PREFIX + query for query in queries]


def landing_segments(folder: Path, gateways: int, records: int, seconds: int) -> list[_Landing]:
    """A segment for each gateway and second, sorted by second.

    Two gateways are simulated, one of each model; the others have their records, since simulating takes longer than
    what is measured.
    """
    days = 1.2 * records * seconds / (POSTS * _RECORDS_PER_POST_DAY)
    say(f"  simulating {days:.2f} days")
    kinds = [
        list(SimulatedGateway(1, 1, FleetPlan(days, posts=POSTS, event_share=share)).records()) for share in (0.0, 1.0)
    ]
    found = []
    for number in range(gateways):
        gateway = f"gw-{number + 1:06d}"
        for second, part in enumerate(islice(_segments(kinds[number % 2], records), seconds)):
            lines = b"".join(encode(msgspec.structs.replace(record, gw=gateway)) for record in part)
            name = SegmentName(part[0].epoch, part[0].seq, part[-1].seq)
            path = folder / gateway / str(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(zstandard.ZstdCompressor().compress(lines))
            found.append(_Landing(second, path, gateway, name, len(part)))
    assert len(found) == gateways * seconds, "the simulated days are too short"
    return sorted(found, key=lambda one: one.second)


def _segments(records: Sequence[Record], size: int) -> Iterator[list[Record]]:
    """Segments of so many records; a new epoch begins a new one."""
    for _, group in groupby(records, key=lambda record: record.epoch):
        while part := list(islice(group, size)):
            yield part


@contextmanager
def _running(lake: Lake, folder: Path) -> Iterator[None]:
    """The two processes, which are ended afterwards. Their output is shown if the block fails."""
    every = ["--every", f"{EVERY_S}"]
    with ExitStack() as stack:
        stack.enter_context(
            _process(folder, "match", lake.url, *every, "--master", "local[2]", "--conf", "spark.driver.memory=1g")
        )
        stack.enter_context(_process(folder, "deliver", lake.url, *every))
        yield


@contextmanager
def _process(folder: Path, command: str, *arguments: str) -> Iterator[None]:
    """`lamplighter-fleet subscriptions COMMAND`."""
    log = folder / f"{command}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*COMMAND, "subscriptions", command, *arguments], stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield
            assert process.poll() is None, f"subscriptions {command} has ended"
        except BaseException:
            say(log.read_text()[-4000:])
            raise
        finally:
            process.terminate()
            process.wait(60)


def _land(lake: Lake, landings: Sequence[_Landing], landed: dict[str, float]) -> None:
    incoming = Path(lake.path("incoming"))
    incoming.mkdir(parents=True, exist_ok=True)
    for one in landings:
        target = Path(lake.path("segments", one.gateway))
        target.mkdir(parents=True, exist_ok=True)
        copy = incoming / one.path.name
        copy.write_bytes(one.path.read_bytes())
        copy.rename(target / one.path.name)
        landed[f"{one.gateway}/{one.path.name}"] = time.time()


def _land_in_time(lake: Lake, landings: Sequence[_Landing], landed: dict[str, float]) -> list[float]:
    """Spreads the segments of a second over it. The load of the machine, once a second."""
    began, load = time.monotonic(), []
    start = landings[0].second
    for number, one in enumerate(landings):
        of_second = [other for other in landings[max(0, number - GATEWAYS) : number] if other.second == one.second]
        due = began + one.second - start + len(of_second) / GATEWAYS
        time.sleep(max(0.0, due - time.monotonic()))
        _land(lake, [one], landed)
        if not of_second:
            load.append(os.getloadavg()[0])
    return load


def _is_matched(lake: Lake, landed: dict[str, float]) -> bool:
    return landed.keys() <= {segment for batch in table(lake, "matches").all() for segment in batch.segments}


def _matches(lake: Lake) -> int:
    return sum(batch.rows for batch in table(lake, "matches").live())


def _lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("*.ndjson"))


def _await(done: Callable[[], bool], timeout_s: float, what: str) -> None:
    end = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < end, f"{what} was not there after {timeout_s:.0f} s"
        time.sleep(0.2)


def _result(
    lake: Lake, written: Path, landed: dict[str, float], landings: Sequence[_Landing], seconds: int, load: list[float]
) -> LatencyResult:
    """Each notification of the measured seconds counts once, with its segment."""
    measured = {
        (one.gateway, one.name.epoch, sequence): f"{one.gateway}/{one.path.name}"
        for one in landings
        if one.second >= WARM_UP_S
        for sequence in range(one.name.first, (one.name.last or 0) + 1)
    }
    bronze, matched = _manifest_times(lake, "bronze"), _manifest_times(lake, "matches")
    delays: dict[str, list[float]] = {"in bronze": [], "matched": [], "notification written": []}
    for path in written.rglob("*.ndjson"):
        at = path.stat().st_mtime
        for line in path.read_bytes().splitlines():
            one = json.loads(line)
            segment = measured.get((one["gateway"], one["epoch"], one["sequence"]))
            if segment is not None:
                for name, end in zip(delays, (bronze[segment], matched[segment], at), strict=True):
                    delays[name].append(end - landed[segment])
    rows = [["landed ->", "p50 s", "p95 s", "most s"]]
    for name, values in delays.items():
        rows.append([name, *(f"{value:.2f}" for value in (*_p50_p95(values), max(values)))])
    records = sum(one.records for one in landings if one.second >= WARM_UP_S)
    batches = len(set(matched.values()))
    text = (
        f"{text_table.table(rows)}\n\n{records / seconds:,.0f} records/s for {seconds} s, "
        f"{SUBSCRIPTIONS} subscriptions, "
        f"{len(delays['matched']) / seconds:,.0f} notifications/s, {batches} batches of matches, load "
        f"{min(load):.1f} to {max(load):.1f}"
    )
    return LatencyResult(text, _p50_p95(delays["notification written"])[1])


def _manifest_times(lake: Lake, name: str) -> dict[str, float]:
    """When the batch of each segment was committed."""
    found = table(lake, name)
    times: dict[str, float] = {}
    for batch in found.live():
        at = Path(lake.path(found.name, "_batches", f"{batch.id}.json")).stat().st_mtime
        times.update(dict.fromkeys(batch.segments, at))
    return times


def _p50_p95(values: Sequence[float]) -> tuple[float, float]:
    cuts = quantiles(values, n=20, method="inclusive")
    return cuts[9], cuts[18]
