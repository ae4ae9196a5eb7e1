"""Charts of a month: what the index of past values costs, and a chart by it."""

import statistics
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import zstandard

from benchmarks.effort import Effort
from benchmarks.measuring import Progress, target
from lamplighter.engine.access import EVERY
from lamplighter.engine.change_log import VERSION, Cause, Record, SegmentName, encode
from lamplighter.engine.terms import XSD, Quad, literal
from lamplighter.gateway.clock import iso, since_1970_us
from lamplighter.gateway.history.charts import ChartRange, chart_of
from lamplighter.gateway.history.indexing import next_step
from lamplighter.gateway.history.series_index import FOLDER
from lamplighter.ontology.vocabulary import HAS_SIMPLE_RESULT, RESULT_TIME

_SENSORS = 10
_START = datetime(2026, 11, 1, tzinfo=UTC)
_DAY_US = 86_400_000_000


def _subject(sensor: int) -> str:
    return f"<http://bench.example/observation/room-{sensor}/temperature>"


def _make_log(data: Path, days: int) -> tuple[int, datetime]:
    """A log of sensors that report each minute, in segments of an hour. Returns the last sequence and its time."""
    for folder in ("log", "snapshots", FOLDER):
        (data / folder).mkdir()
    sequence, now = 0, _START
    for hour in range(24 * days):
        first, lines = sequence + 1, []
        for minute in range(60):
            for sensor in range(_SENSORS):
                sequence += 1
                now = _START + timedelta(hours=hour, minutes=minute, seconds=sensor)
                value = literal(str(20 + sequence * 7919 % 100 / 10), datatype=f"{XSD}decimal")
                added = (
                    Quad(_subject(sensor), f"<{HAS_SIMPLE_RESULT}>", value, None),
                    Quad(_subject(sensor), f"<{RESULT_TIME}>", literal(iso(now), datatype=f"{XSD}dateTime"), None),
                )
                cause = Cause("mqtt", f"room-{sensor}/temperature")
                record = Record(
                    VERSION, "commit", "gw-bench", 1, sequence, iso(now), True, "boot", sequence, cause=cause, a=added
                )
                lines.append(encode(record))
        path = data / "log" / str(SegmentName(1, first, sequence))
        path.write_bytes(zstandard.ZstdCompressor(level=9).compress(b"".join(lines)))
    return sequence, now


def history(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """Processor time of the index of a log, and of charts by it."""
    days = effort.history_days
    with TemporaryDirectory() as folder:
        data = Path(folder)
        last, now = _make_log(data, days)
        begun, more = time.process_time(), True
        while more:
            step, content = next_step(data)
            if step.name:
                (data / FOLDER / step.name).write_bytes(content)
            for name in step.obsolete:
                (data / FOLDER / name).unlink()
            more = step.more
        index_s = time.process_time() - begun
        sizes = [sum(path.stat().st_size for path in (data / name).iterdir()) for name in ("log", FOLDER)]
        until = since_1970_us(now)
        charts = {}
        for span in (1, 7, days):
            taken = []
            for _ in range(5):
                begun = time.process_time()
                chart = chart_of(
                    data, ChartRange(_subject(0), until - span * _DAY_US, until, 1_500, EVERY, (1, last), until)
                )
                taken.append((time.process_time() - begun) * 1000)
            assert chart is not None and chart.points
            charts[f"{span} d"] = statistics.median(taken)
    progress(
        f"{last:,} records: index {index_s:.1f} s, {sizes[1] / sizes[0]:.1%} of the log; "
        + ", ".join(f"{name} {ms:.0f} ms" for name, ms in charts.items())
    )
    return {
        "records": last,
        "index s": index_s,
        "share of the log": sizes[1] / sizes[0],
        "charts ms": charts,
        "targets": [target(f"chart of {days} days at a reading a minute", charts[f"{days} d"], 200, "ms")],
    }
