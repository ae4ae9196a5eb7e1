"""A gateway's dataset as of any record: `lamplighter-fleet state`."""

from __future__ import annotations

import argparse
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.fleet import session
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.subcommands import add_lake_command
from lamplighter.cloud_sync.fleet.tables.past import FleetPast, Place
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.tables import count_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLACE = re.compile(r"(?:([0-9]{1,9})/)?([0-9]{1,12})")


class GatewayPast:
    """The records and snapshots of one gateway in the lake. Raises ConfigurationError if there are none."""

    def __init__(self, spark: SparkSession, lake: Lake, gateway: str) -> None:
        self.gateway = _check_gateway(gateway)
        self._past = FleetPast(spark, lake, lambda name: name == gateway)
        if not self._past.gateways:
            raise ConfigurationError(f"gateway {gateway!r}: bronze has no records; run ingest, or correct the name")
        self.records = self._past.records

    def place(self, text: str) -> Place:
        """The place that a text names. Raises ConfigurationError.

        ``17``: in the newest epoch that has it; ``1/17``; or a time: the last record that is not later by the gateway's
        clock, which may have been wrong.
        """
        named = _PLACE.fullmatch(text)
        if named is None:
            found = self._past.ends(moment(text, "a sequence, epoch/sequence, or ")).get(self.gateway)
        else:
            condition = F.col("seq") == int(named[2])
            if named[1] is not None:
                condition &= F.col("epoch") == int(named[1])
            row = self.records.where(condition).agg(F.max(F.struct("epoch", "seq")).alias("place")).first()
            found = None if row is None or row["place"] is None else (row["place"]["epoch"], row["place"]["seq"])
        if found is None:
            raise ConfigurationError(f"gateway {self.gateway}: bronze has no record {text}; choose another one")
        return found

    def dataset(self, place: Place) -> DataFrame:
        """The quads after a record: s, p, o, g, each once. Raises ConfigurationError if records are missing."""
        return self._past.dataset({self.gateway: place}).drop("gw")


def nquads(quads: DataFrame) -> DataFrame:
    """s, p, o, g -> the statement in N-Quads, `line`."""
    return quads.select(F.concat_ws(" ", "s", "p", "o", "g", F.lit(".")).alias("line"))


def write_lines(lines: DataFrame, target: Path, end: str = "\n") -> int:
    """Writes a column of text to a file atomically. Returns the number of rows."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    count = 0
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            for row in lines.toLocalIterator(prefetchPartitions=True):
                file.write(row[0] + end)
                count += 1
        temporary.replace(target)
    except OSError as error:
        raise ConfigurationError(f"{target}: {error.strerror}; set --output to another file") from error
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _check_gateway(gateway: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", gateway):
        raise ConfigurationError(f"{gateway!r} is not a gateway's name; use one such as gw-7f3a0c11")
    return gateway


def moment(text: str, others: str = "") -> datetime:
    """The time of an option ``--at``; UTC without a zone. others: what else it takes. Raises ConfigurationError."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(f"--at {text}: write {others}a time such as 2026-11-21T10:00:00Z") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


# --- the command --------------------------------------------------------------------------------------------


def add_commands(commands: Any) -> None:
    """Declares `state`."""
    parser = add_lake_command(commands, "state", "write the dataset of a gateway as of a record or a time", _run_state)
    parser.add_argument("gateway", metavar="GW", help="the gateway, such as gw-7f3a0c11")
    parser.add_argument(
        "--at", required=True, help="a sequence, epoch/sequence, or a time such as 2026-11-21T10:00:00Z"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="an N-Quads file")
    session.add_arguments(parser)


def _run_state(arguments: argparse.Namespace) -> int:
    lake = Lake(arguments.lake)
    rows = sum(batch.rows for batch in table(lake, "bronze").live())
    with session.engine_of(arguments, "state", lake, rows=rows) as engine:
        past = GatewayPast(engine, lake, arguments.gateway)
        place = past.place(arguments.at)
        count = write_lines(nquads(past.dataset(place)).orderBy("line"), arguments.output)
    print(f"wrote {count_text(count, 'quad')} as of record {place[0]}/{place[1]} to {arguments.output}")
    return 0
