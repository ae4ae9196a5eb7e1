"""All jobs over one set of tables. Shared intermediate results are computed once and cached until `close`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.jobs import (
    aggregates,
    anomalies,
    clocks,
    dead_sensors,
    fleet_health,
    gaps,
    lamps,
    reactions,
)
from lamplighter.cloud_sync.fleet.lake.tables import by_gateway
from lamplighter.cloud_sync.fleet.lazy import F

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class AnalysisOptions:
    """since, until, as_of: with a time zone. None: no bound, and the last landing."""

    since: datetime | None = None
    until: datetime | None = None
    as_of: datetime | None = None
    z_min: float = anomalies.Z_MIN
    readings_min: int = anomalies.READINGS_MIN
    gap_factor: float = gaps.FACTOR
    gap_min_s: float = gaps.GAP_MIN_S
    dead_min_s: float = dead_sensors.SILENT_MIN_S
    gateway_silent_min_s: float = dead_sensors.GATEWAY_SILENT_MIN_S
    watts: float = lamps.WATTS
    watts_of: Mapping[str, float] = field(default_factory=dict)


class Analysis:
    """Each result as an attribute, computed on first use. Use it as a context manager."""

    def __init__(
        self,
        streams: DataFrame,
        observations: DataFrame,
        actuations: DataFrame,
        gateway_health: DataFrame,
        options: AnalysisOptions | None = None,
        *,
        short_plans: bool = False,
    ) -> None:
        """short_plans: shared intermediate results become the source of later plans, without how they were computed.

        This makes planning much faster. But Spark cannot compute them again if it loses an executor, so it is for
        small tables in one process. They are freed when Python frees this object.
        """
        self.streams = streams
        self.observations = observations
        self.actuations = actuations
        self.gateway_health = gateway_health
        self.options = options or AnalysisOptions()
        self._short_plans = short_plans
        self._kept: list[DataFrame] = []

    def __enter__(self) -> Analysis:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Frees the cached results."""
        while self._kept:
            self._kept.pop().unpersist()

    @cached_property
    def readings(self) -> DataFrame:
        """Observations with their times, within since and until."""
        return self._in_period(self._timed_observations, "time", since=True)

    @cached_property
    def hourly(self) -> DataFrame:
        return aggregates.aggregates(self.readings, "hour")

    @cached_property
    def daily(self) -> DataFrame:
        return aggregates.aggregates(self.readings, "day")

    @cached_property
    def trends(self) -> DataFrame:
        """Aggregates by property over the whole fleet, by hour."""
        return aggregates.aggregates(self.readings, "hour", aggregates.PROPERTY_KEYS)

    @cached_property
    def gaps(self) -> DataFrame:
        return self._keep(gaps.gaps(self._intervals, self._usual, self.options.gap_factor, self.options.gap_min_s))

    @cached_property
    def uptime(self) -> DataFrame:
        return self._keep(gaps.uptime(self.readings, self._usual, self.gaps))

    @cached_property
    def anomalies(self) -> DataFrame:
        return self._keep(anomalies.anomalies(self.readings, self.options.z_min, self.options.readings_min))

    @cached_property
    def anomalous_streams(self) -> DataFrame:
        return anomalies.anomalous_streams(self.anomalies)

    @cached_property
    def lamp_days(self) -> DataFrame:
        timed = self._in_period(self._timed_actuations, "time")
        last = lamps.last_moments(self._in_period(self._timed_observations, "time"), timed)
        days = lamps.lamp_days(lamps.lamp_states(timed, last), self.options.watts, self.options.watts_of)
        since = self.options.since
        return days if since is None else days.where(F.col("day") >= F.date_trunc("day", F.lit(since)))

    @cached_property
    def reactions(self) -> DataFrame:
        return self._keep(
            reactions.reactions(self._timed_observations, self._in_period(self._timed_actuations, "time", since=True))
        )

    @cached_property
    def reaction_times(self) -> DataFrame:
        return reactions.reaction_times(self.reactions)

    @cached_property
    def dead_sensors(self) -> DataFrame:
        options = self.options
        return self._keep(
            dead_sensors.dead_sensors(
                self.streams,
                self._usual,
                self.uptime,
                self._last_heard,
                self.as_of,
                silent_min_s=options.dead_min_s,
                gateway_silent_min_s=options.gateway_silent_min_s,
            )
        )

    @cached_property
    def clock_quality(self) -> DataFrame:
        return self._keep(clocks.clock_quality(self._in_period(self._health, "hour", since=True), self.readings))

    @cached_property
    def fleet_health(self) -> DataFrame:
        return fleet_health.fleet_health(
            self.clock_quality,
            self.uptime,
            self.dead_sensors,
            self.anomalous_streams,
            self._last_heard,
            self.streams,
            self.as_of,
            self.options.gateway_silent_min_s,
        )

    @cached_property
    def as_of(self) -> datetime:
        """The time up to which silence is measured: `options.as_of`, or the last landing, or the last known time of any
        gateway if no landing is known, or 1970."""
        known = self.options.as_of or self.options.until
        if known is not None:
            return known
        last = self._last_heard.agg(F.unix_micros(F.coalesce(F.max("landed"), F.max("heard"))).alias("us")).first()
        return datetime.fromtimestamp((last.us if last and last.us is not None else 0) / 1e6, UTC)

    @cached_property
    def _timed_observations(self) -> DataFrame:
        """All observations with their times."""
        return self._keep(by_gateway(clocks.with_times(self.observations, self._offsets)))

    @cached_property
    def _timed_actuations(self) -> DataFrame:
        """All actuations with their times."""
        return self._keep(by_gateway(clocks.with_times(self.actuations, self._offsets)))

    @cached_property
    def _health(self) -> DataFrame:
        return self._keep(self.gateway_health)

    @cached_property
    def _offsets(self) -> DataFrame:
        columns = clocks.CLOCK_COLUMNS
        return self._keep(
            clocks.clock_offsets(self.observations.select(*columns).unionByName(self.actuations.select(*columns)))
        )

    @cached_property
    def _intervals(self) -> DataFrame:
        return self._keep(gaps.intervals(self.readings))

    @cached_property
    def _usual(self) -> DataFrame:
        return self._keep(gaps.usual_intervals(self._intervals))

    @cached_property
    def _last_heard(self) -> DataFrame:
        return self._keep(dead_sensors.last_heard(self._in_period(self._health, "last_ts"), self._usual))

    def _in_period(self, frame: DataFrame, time: str, *, since: bool = False) -> DataFrame:
        """The rows within since and until. Rows without a time are kept only if neither is set."""
        if self.options.until is not None:
            frame = frame.where(F.col(time) < F.lit(self.options.until))
        if since and self.options.since is not None:
            frame = frame.where(F.col(time) >= F.lit(self.options.since))
        return frame

    def _keep(self, frame: DataFrame) -> DataFrame:
        if self._short_plans:
            return frame.localCheckpoint(eager=False)
        from pyspark.storagelevel import StorageLevel

        self._kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame
