"""`--metrics FILE`: the outcome of a command in Prometheus' text format, for node_exporter's textfile collector."""

from __future__ import annotations

import time
from pathlib import Path

from lamplighter.cloud_sync.fleet.delivery.runner import read_states
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.batches import comparison_counts
from lamplighter.cloud_sync.fleet.lake.tables import SCHEMAS, table
from lamplighter.engine.errors import ConfigurationError, GatewayError

PREFIX = "lamplighter_fleet"
_SUCCESS = f"{PREFIX}_last_success_timestamp_seconds"


def write_metrics(path: Path, command: str, lake: Lake, code: int, seconds: float) -> None:
    """Replaces the file atomically. The time of the last success is kept while the command fails.

    code: the command's exit code; 0 and 1 are successes. Raises ConfigurationError if the file cannot be written.
    """
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    registry = CollectorRegistry()

    def gauge(name: str, text: str, value: float | None) -> None:
        if value is not None:
            Gauge(f"{PREFIX}_{name}", text, ["command", "lake"], registry=registry).labels(command, lake.url).set(value)

    now = time.time()
    gauge("last_run_timestamp_seconds", "End of the last run.", now)
    gauge("last_success_timestamp_seconds", "End of the last run that succeeded.", now if code < 2 else _before(path))
    gauge("duration_seconds", "Duration of the last run.", seconds)
    gauge("exit_code", "Exit code of the last run.", code)
    labels = ["command", "lake", "table"]
    rows = Gauge(f"{PREFIX}_table_rows", "Rows of a table.", labels, registry=registry)
    batches = Gauge(f"{PREFIX}_table_batches", "Batches of a table that count.", labels, registry=registry)
    text = "Matches that gateways sent ahead of the segments, by outcome of their comparison with Spark's."
    ahead = Gauge(f"{PREFIX}_ahead_matches", text, ["command", "lake", "outcome"], registry=registry)
    of_sink = ["command", "lake", "subscription", "sink"]
    dead = Gauge(
        f"{PREFIX}_sink_dead", "Dead letters of a sink: notifications, and orders.", of_sink, registry=registry
    )
    text = "Orders of a sink that gateways have not answered."
    unanswered = Gauge(f"{PREFIX}_sink_unanswered_orders", text, of_sink, registry=registry)
    text = "Gateways that a sink passes because they answer no orders."
    passed = Gauge(f"{PREFIX}_sink_passed_gateways", text, of_sink, registry=registry)
    try:
        states = read_states(lake)
        for one in states.sinks if states is not None else ():
            dead.labels(command, lake.url, one.subscription, one.sink).set(one.dead)
            unanswered.labels(command, lake.url, one.subscription, one.sink).set(one.unanswered)
            passed.labels(command, lake.url, one.subscription, one.sink).set(len(one.behind))
        for name in SCHEMAS:
            live = table(lake, name).live()
            rows.labels(command, lake.url, name).set(sum(batch.rows for batch in live))
            batches.labels(command, lake.url, name).set(len(live))
            for outcome, number in comparison_counts(live).items():
                ahead.labels(command, lake.url, outcome).set(number)
    except (GatewayError, OSError):
        # The command has reported that the lake cannot be read.
        rows.clear()
        batches.clear()
        ahead.clear()
        dead.clear()
        unanswered.clear()
        passed.clear()
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise ConfigurationError(f"--metrics {path}: {error.strerror}; use a file in a folder that exists") from error


def _before(path: Path) -> float | None:
    """The time of the last success in the file that is there."""
    try:
        lines = path.read_text().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{_SUCCESS}{{")), None)
    except (OSError, ValueError):
        return None
