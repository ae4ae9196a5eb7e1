"""Ground truth of a simulated fleet: small files beside the segments, which the pipeline never reads."""

from __future__ import annotations

from typing import Literal

import msgspec

Fate = Literal["shipped", "late", "damaged", "missing"]


class StreamTruth(msgspec.Struct):
    """A stream and its readings. sum, low, high: of numbers; trues: number of true readings.

    hours: hour of the result time, such as `2026-06-01T13`, -> readings, sum. dead_since: when the sensor broke;
    silent: periods without readings.
    """

    sensor: str
    property: str
    feature: str
    unit: str | None
    readings: int = 0
    sum: float = 0.0
    low: float | None = None
    high: float | None = None
    trues: int = 0
    dead_since: str | None = None
    silent: list[str] | None = None
    hours: dict[str, list[float]] = {}

    def note(self, hour: str, text: str, number: bool) -> None:
        """Adds a reading."""
        self.readings += 1
        counted = self.hours.setdefault(hour, [0, 0.0])
        counted[0] += 1
        if number:
            value = float(text)
            self.sum += value
            counted[1] += value
            self.low = value if self.low is None else min(self.low, value)
            self.high = value if self.high is None else max(self.high, value)
        elif text == "true":
            self.trues += 1


class LampTruth(msgspec.Struct):
    """on_us: time between acknowledged ON and OFF, by a monotonic clock."""

    commands: int = 0
    acknowledged: int = 0
    on_us: int = 0


class StateTruth(msgspec.Struct, array_like=True):
    """The dataset after a record. sha256: of its sorted N-Quads lines."""

    epoch: int
    seq: int
    ts: str
    quads: int
    sha256: str


class SegmentTruth(msgspec.Struct):
    """A sealed segment. fate: whether it was shipped in time, late, damaged or not at all; readings: their number."""

    name: str
    first: int
    last: int
    readings: int
    fate: Fate = "shipped"
    resent: str | None = None
    """The name of another segment that repeats some of its records."""


class Truth(msgspec.Struct):
    """Ground truth of one gateway. reactions_us: from a reading of presence to the lamp's acknowledgement of ON;
    anomalies: stream, epoch, sequence, value."""

    gw: str
    model: str
    records: int = 0
    commits: int = 0
    timers: int = 0
    quads_added: int = 0
    quads_deleted: int = 0
    untrusted: int = 0
    boots: int = 1
    streams: dict[str, StreamTruth] = {}
    lamps: dict[str, LampTruth] = {}
    reactions_us: list[int] = []
    anomalies: list[list[str | int | float]] = []
    states: list[StateTruth] = []
    segments: list[SegmentTruth] = []

    @property
    def readings(self) -> int:
        """The number of readings in all streams."""
        return sum(stream.readings for stream in self.streams.values())


def read_truth(data: bytes) -> Truth:
    """The truth of a gateway, from the content of its file."""
    return msgspec.json.decode(data, type=Truth)
