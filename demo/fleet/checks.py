"""Checks of the demo: the lake and the jobs' results compared with ground truth, which the pipeline never reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.fleet.collection.missing import MissingRecords
from lamplighter.cloud_sync.fleet.lake import Lake, tables
from lamplighter.cloud_sync.fleet.tables.state import GatewayPast, nquads
from lamplighter.demo.fleet.gateways import RealGateway
from lamplighter.demo.fleet.simulated_machine import nquads_lines_hash
from lamplighter.demo.fleet.truth import Truth
from lamplighter.engine.change_log import segment_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LAST_RECORD_S = 60.0
"""Tolerance for a lamp that is on at the end: the tables end with the last record, and records come once a minute."""
_COMMIT_MS = 5.0
_SURE = timedelta(hours=6)
"""A silence after which a sensor must be found dead. After its first reading, a sensor sends every half hour."""
_STATES = 4


@dataclass(frozen=True)
class Check:
    """One row of the table: expected and found values as text."""

    name: str
    expected: str
    found: str
    ok: bool


def same(name: str, expected: Any, found: Any) -> Check:
    """Compares numbers, or collections, which are shown by their size and first difference."""
    if isinstance(expected, int) and isinstance(found, int):
        return Check(name, f"{expected:,}", f"{found:,}", expected == found)
    both = Counter(expected), Counter(found)
    if both[0] == both[1]:
        return Check(name, f"{both[0].total():,}", f"{both[1].total():,}", True)
    lacking, surplus = both[0] - both[1], both[1] - both[0]
    text = f"{both[1].total():,}: {lacking.total():,} lack, {surplus.total():,} too many, such as "
    first = next(iter(sorted(map(str, lacking or surplus))))
    return Check(name, f"{both[0].total():,}", text + first, False)


def missing(truth: Truth) -> list[tuple[str, int, int, int]]:
    """Ranges of a gateway's records that never arrive: gw, epoch, first, last."""
    found: list[tuple[str, int, int, int]] = []
    for segment in truth.segments:
        name = segment_name(segment.name)
        assert name is not None
        if segment.fate != "missing":
            continue
        if found and found[-1][1] == name.epoch and found[-1][3] == segment.first - 1:
            found[-1] = (*found[-1][:3], segment.last)
        else:
            found.append((truth.gw, name.epoch, segment.first, segment.last))
    return found


def gaps(truths: Iterable[Truth], reported: Iterable[MissingRecords]) -> Check:
    """Compares gaps. The last missing records of an epoch cannot be detected."""
    expected = []
    for truth in truths:
        ends = {segment_name(segment.name).epoch: segment.last for segment in truth.segments}  # type: ignore[union-attr]
        expected += [one for one in missing(truth) if one[3] != ends[one[1]]]
    found = [(gap.gw, gap.epoch, gap.first, gap.last) for gap in reported if not gap.said]
    return same("gaps that the collector reports", expected, found)


def silent_sensors(truths: Mapping[str, Truth], end: str, states: Mapping[tuple[str, str], str]) -> Check:
    """Sensors that have been dead for long must be found, and those that never sent; no others but the silent ones.

    end: time of the last record; states: of the job, by gateway and stream; other gateways than those of truths are
    ignored. A sensor is silent at the end if it has died, or if a period without readings lasts until then.
    """
    long_ago, silent, unheard = set(), set(), set()
    for gw, truth in truths.items():
        for name, stream in truth.streams.items():
            if not stream.readings:
                unheard.add((gw, name))
            if stream.dead_since is not None:
                silent.add((gw, name))
                if datetime.fromisoformat(end) - datetime.fromisoformat(stream.dead_since) > _SURE:
                    long_ago.add((gw, name))
            if stream.silent is not None and stream.silent[0] <= end < stream.silent[1]:
                silent.add((gw, name))
    expected = long_ago | unheard
    found = {one for one in states if one[0] in truths}
    never = {one for one in found if states[one] == "never"}
    alive = len(found - silent - unheard)
    text = f"{len(found & expected):,}, {len((found & silent) - expected):,} silent lately, {alive:,} alive"
    ok = expected <= found <= expected | silent and never == unheard
    return Check("sensors dead for long, or never heard", f"{len(expected):,}", text, ok)


class Checks:
    """results: of all jobs, by name."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        truths: Sequence[Truth],
        real: Sequence[RealGateway],
        results: Mapping[str, DataFrame],
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._truths = {truth.gw: truth for truth in truths}
        self._real = {gateway.name: gateway for gateway in real}
        self._results = results
        # For gateways with missing records, the events in those are unknown.
        self._whole = {gw: truth for gw, truth in self._truths.items() if not missing(truth)}

    def all(self) -> list[Check]:
        """All checks that need Spark's tables."""
        return [
            *self._records(),
            *self._readings(),
            self._hours(),
            self._anomalies(),
            self._dead(),
            self._lamps(),
            self._reactions(),
            self._clocks(),
            *self._states(),
            *self._of_real_gateways(),
        ]

    def _records(self) -> list[Check]:
        from pyspark.sql import functions as F

        expected = sum(
            truth.records - sum(one[3] - one[2] + 1 for one in missing(truth)) for truth in self._truths.values()
        )
        expected += sum(gateway.sequence for gateway in self._real.values())
        bronze = tables.read(self._spark, self._lake, "bronze")
        row = bronze.agg(
            F.count(F.lit(1)).alias("rows"), F.count_distinct("gw", "epoch", "seq").alias("records")
        ).first()
        assert row is not None
        return [
            same("records in bronze", expected, row["rows"]),
            same("the same, each counted once", expected, row["records"]),
        ]

    def _readings(self) -> list[Check]:
        from pyspark.sql import functions as F

        lost = {
            gw: sum(segment.readings for segment in truth.segments if segment.fate == "missing")
            for gw, truth in self._truths.items()
        }
        expected = sum(truth.readings - lost[gw] for gw, truth in self._truths.items())
        observations = tables.read(self._spark, self._lake, "observations")
        simulated = observations.where(F.col("gw").isin(*self._truths))
        per_stream = simulated.where(F.col("gw").isin(*self._whole)).groupBy("gw", "stream").agg(
            F.count(F.lit(1)).alias("count"),
            F.sum("number").alias("sum"),
            F.min("number").alias("low"),
            F.max("number").alias("high"),
            F.count_if("flag").alias("trues"),
        )  # fmt: skip
        found = [
            (row["gw"], row["stream"], row["count"], round(row["sum"] or 0, 3), row["low"], row["high"], row["trues"])
            for row in per_stream.collect()
        ]
        wanted = [
            (gw, name, stream.readings, round(stream.sum, 3), stream.low, stream.high, stream.trues)
            for gw, truth in self._whole.items()
            for name, stream in truth.streams.items()
            if stream.readings
        ]
        return [
            same("readings in observations", expected, simulated.count()),
            same("streams: count, sum, extremes", wanted, found),
        ]

    def _hours(self) -> Check:
        """Checks gateways whose clock was always right. The jobs repair the times of the others."""
        right = {gw: truth for gw, truth in self._whole.items() if not truth.untrusted}
        expected = [
            (gw, stream.property, stream.feature, hour, int(count))
            for gw, truth in right.items()
            for stream in truth.streams.values()
            for hour, (count, _) in stream.hours.items()
        ]
        rows = self._results["hourly"].collect()
        found = [
            (row["gw"], row["property"], row["feature"], row["hour"].strftime("%Y-%m-%dT%H"), row["count"])
            for row in rows
            if row["gw"] in right
        ]
        return same("hours of the job aggregates", expected, found)

    def _anomalies(self) -> Check:
        expected = [
            (truth.gw, stream, epoch, seq)
            for truth in self._whole.values()
            for stream, epoch, seq, _ in truth.anomalies
        ]
        rows = self._results["anomalies"].collect()
        found = [(row["gw"], row["stream"], row["epoch"], row["seq"]) for row in rows if row["gw"] in self._whole]
        lacking = set(expected) - set(found)
        text = f"{len(expected) - len(lacking):,}, and {len(set(found) - set(expected)):,} that were none"
        return Check("anomalies that were made", f"{len(expected):,}", text, not lacking)

    def _dead(self) -> Check:
        rows = self._results["dead_sensors"].collect()
        end = max(state.ts for truth in self._truths.values() for state in truth.states)
        return silent_sensors(self._whole, end, {(row["gw"], row["stream"]): row["state"] for row in rows})

    def _lamps(self) -> Check:
        from pyspark.sql import functions as F

        rows = (
            self._results["lamp_days"]
            .groupBy("gw", "actuator")
            .agg(F.sum("on_s").alias("on_s"), F.sum("unknown").alias("unknown"))
        )
        found = {(row["gw"], row["actuator"]): row for row in rows.collect()}
        # The job reports the time of a lamp as unknown if its gateway lost history while it was on.
        expected = {
            (gw, name): lamp.on_us / 1e6
            for gw, truth in self._whole.items()
            for name, lamp in truth.lamps.items()
            if (gw, name) not in found or not found[gw, name]["unknown"]
        }
        mine = {lamp: float(found[lamp]["on_s"]) if lamp in found else 0.0 for lamp in expected}
        furthest = max((abs(mine[lamp] - seconds) for lamp, seconds in expected.items()), default=0.0)
        return Check(
            f"seconds that {len(expected)} lamps were on",
            f"{sum(expected.values()):,.0f}",
            f"{sum(mine.values()):,.0f}, one up to {furthest:.0f} off",
            furthest <= _LAST_RECORD_S,
        )

    def _reactions(self) -> Check:
        """Ground truth counts from the sensor, the tables from the commit, which is some milliseconds later."""
        expected = sorted(us / 1000 for truth in self._whole.values() for us in truth.reactions_us)
        rows = self._results["reactions"].where("acknowledged_ms IS NOT NULL AND value = 'ON'").collect()
        found = sorted(float(row["acknowledged_ms"]) for row in rows if row["gw"] in self._whole)
        furthest = max((abs(one - other) for one, other in zip(expected, found, strict=False)), default=0.0)
        close = len(expected) == len(found) and furthest <= _COMMIT_MS
        return Check(
            "reactions, presence to light", f"{len(expected):,}", f"{len(found):,}, up to {furthest:.1f} ms off", close
        )

    def _clocks(self) -> Check:
        expected = [(gw, truth.records, truth.untrusted, truth.boots) for gw, truth in self._whole.items()]
        rows = self._results["clock_quality"].collect()
        found = [
            (row["gw"], int(row["records"]), int(row["untrusted"]), row["boots"])
            for row in rows
            if row["gw"] in self._whole
        ]
        return same("clocks: untrusted records, starts", expected, found)

    def _states(self) -> list[Check]:
        wanted, found = [], []
        chosen = [(gw, state) for gw, truth in self._whole.items() for state in truth.states[-2:]]
        for gw, state in chosen[:: max(1, len(chosen) // _STATES)][:_STATES]:
            lines = self._dataset(gw, (state.epoch, state.seq))
            wanted.append((gw, state.epoch, state.seq, state.sha256))
            found.append((gw, state.epoch, state.seq, nquads_lines_hash(lines)))
        return [same("datasets as of a record", wanted, found)]

    def _dataset(self, gw: str, place: tuple[int, int]) -> list[str]:
        rows = nquads(GatewayPast(self._spark, self._lake, gw).dataset(place)).collect()
        return sorted(row[0] for row in rows)

    def _of_real_gateways(self) -> list[Check]:
        from pyspark.sql import functions as F

        observations = tables.read(self._spark, self._lake, "observations").where(F.col("gw").isin(*self._real))
        found = [
            (row["gw"], row["stream"], row["number"]) for row in observations.select("gw", "stream", "number").collect()
        ]
        expected = [
            (name, stream, value)
            for name, gateway in self._real.items()
            for stream, values in gateway.readings.items()
            for value in values
        ]
        checks = [same("real gateways: readings", expected, found)]
        for name, gateway in self._real.items():
            mine = self._dataset(name, (1, gateway.sequence))
            checks.append(same(f"{name} (real): its dataset", gateway.dataset, mine))
        return checks


def table(checks: Sequence[Check]) -> str:
    """The checks as aligned columns."""
    rows = [
        ("check", "expected", "found", ""),
        *((one.name, one.expected, one.found, "ok" if one.ok else "FAIL") for one in checks),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"  {a.ljust(widths[0])}  {b.rjust(widths[1])}  {c.rjust(widths[2])}  {d}".rstrip() for a, b, c, d in rows
    )
