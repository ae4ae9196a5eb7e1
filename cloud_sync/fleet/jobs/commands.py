"""The commands of the jobs. Spark is loaded when one runs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet import session
from lamplighter.cloud_sync.fleet.jobs.results import RESULTS, top_rows, write
from lamplighter.cloud_sync.fleet.jobs.texts import text_table
from lamplighter.cloud_sync.fleet.lake import Lake, tables
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.tables import count_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lamplighter.cloud_sync.fleet.jobs.analysis import Analysis


JOBS = {
    "aggregates": "readings by hour and day",
    "uptime": "gaps and uptime of sensors",
    "anomalies": "readings far from those of the fleet",
    "lamps": "on-time and energy of lamps",
    "reactions": "reaction times from a reading to the command",
    "dead-sensors": "silent sensors",
    "clocks": "quality of the gateways' clocks",
    "health": "health of each gateway, with reasons",
    "all": "all jobs",
}


def results_of(job: str) -> tuple[str, ...]:
    """The names of the results that a job writes."""
    return tuple(name for name, result in RESULTS.items() if job in ("all", result.job))


def add_commands(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declares `jobs`."""
    parser = subparsers.add_parser(
        "jobs",
        help="compute results from the tables: " + ", ".join(JOBS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Writes LAKE/results/JOB/*.parquet and .csv, and prints the first rows of each result.\n\njobs:\n"
        + "\n".join(f"  {name:13} {what}" for name, what in JOBS.items()),
    )
    parser.add_argument("job", metavar="JOB", choices=JOBS, help="see the list above")
    add_arguments(parser)
    parser.add_argument("--out", metavar="DIR", help="folder or URL of the results (default: results in the lake)")
    parser.add_argument("--rows", type=int, default=20, help="printed rows per result (default: 20)")
    parser.set_defaults(run=run_job)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the jobs and of the report."""
    parser.add_argument("lake", metavar="LAKE", help="the lake: a folder, or a URL")
    parser.add_argument(
        "--since", type=moment, metavar="TIME", help="readings from this time on, such as 2026-06-01T00:00Z"
    )
    parser.add_argument("--until", type=moment, metavar="TIME", help="readings before this time")
    parser.add_argument(
        "--as-of", type=moment, metavar="TIME", help="measure silence up to this time (default: the last landing)"
    )
    options = parser.add_argument_group("thresholds")
    options.add_argument("--z", type=float, default=3.5, help="robust z-score of an anomaly (default: 3.5)")
    options.add_argument(
        "--gap-factor", type=float, default=3.0, help="length of a gap as a multiple of the usual interval (default: 3)"
    )
    options.add_argument("--gap-min", type=float, default=60.0, metavar="S", help="shortest gap (default: 60)")
    options.add_argument(
        "--dead-min", type=float, default=3600.0, metavar="S", help="silence of a dead sensor (default: 3600)"
    )
    options.add_argument(
        "--gateway-silent",
        type=float,
        default=86_400.0,
        metavar="S",
        help="silence of a silent gateway (default: 86400)",
    )
    options.add_argument("--watts", type=float, default=40.0, help="power of a lamp (default: 40)")
    options.add_argument(
        "--lamp-watts",
        type=lamp_watts,
        action="append",
        default=[],
        metavar="IRI=WATTS",
        help="power of one lamp; repeatable",
    )
    session.add_arguments(parser)


def moment(text: str) -> datetime:
    """A time from an argument; UTC without a zone."""
    try:
        value = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write it as 2026-06-01T00:00Z") from error
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def lamp_watts(text: str) -> tuple[str, float]:
    """An IRI and a number."""
    iri, sign, watts = text.rpartition("=")
    try:
        if sign and iri:
            return iri, float(watts)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: write IRI=WATTS, the lamp's IRI and its power")


@contextmanager
def analysis(arguments: argparse.Namespace, lake: Lake) -> Iterator[Analysis]:
    """The jobs over the tables of a lake, with the options and by the engine of the arguments."""
    batches = [batch for name in ("observations", "actuations") for batch in tables.table(lake, name).live()]
    rows = sum(batch.rows for batch in batches)
    from lamplighter.cloud_sync.fleet.jobs.analysis import Analysis, AnalysisOptions

    if not tables.table(lake, "observations").live():
        raise ConfigurationError(f"lake {lake.url!r}: no observations yet; run `lamplighter-fleet silver` first")
    options = AnalysisOptions(
        since=arguments.since,
        until=arguments.until,
        as_of=arguments.as_of,
        z_min=arguments.z,
        gap_factor=arguments.gap_factor,
        gap_min_s=arguments.gap_min,
        dead_min_s=arguments.dead_min,
        gateway_silent_min_s=arguments.gateway_silent,
        watts=arguments.watts,
        watts_of=dict(arguments.lamp_watts),
    )
    with session.engine_of(arguments, arguments.command, lake, rows=rows) as engine:
        streams, observations, actuations, health = (
            tables.read(engine, lake, name) for name in ("streams", "observations", "actuations", "gateway_health")
        )
        short_plans = session.has_short_plans(engine, rows)
        with Analysis(streams, observations, actuations, health, options, short_plans=short_plans) as found:
            yield found


def results_folder(lake: Lake) -> Lake:
    """The folder of a lake's results."""
    return Lake(f"{lake.url.rstrip('/')}/results")


def write_results(found: Analysis, names: tuple[str, ...], out: Lake) -> dict[str, DataFrame]:
    """Computes and writes results one after the other, with progress on stderr."""
    written = {}
    for number, name in enumerate(names, 1):
        began = time.monotonic()
        print(f"[{number}/{len(names)}] {name}: {RESULTS[name].title} ...", end="", file=sys.stderr, flush=True)
        written[name], rows = write(getattr(found, name), RESULTS[name], out)
        print(f" {count_text(rows, 'row', ',')}, {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return written


def run_job(arguments: argparse.Namespace) -> int:
    """Writes a job's results and prints the first rows of each."""
    lake = Lake(arguments.lake)
    out = Lake(arguments.out) if arguments.out else results_folder(lake)
    with analysis(arguments, lake) as found:
        written = write_results(found, results_of(arguments.job), out)
        for name in written:
            result = RESULTS[name]
            rows = top_rows(out, result, arguments.rows).rows
            print(f"\n{result.title}: {out.path(result.job, name)}.parquet, .csv")
            print(text_table(rows, result.columns) if rows else "none")
    return 0
