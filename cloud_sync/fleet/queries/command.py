"""`lamplighter-fleet query`: SPARQL over the state or the history of all gateways. Spark is loaded when it runs."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lamplighter.cloud_sync.fleet import session
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.subcommands import add_lake_command, printable, small_text
from lamplighter.cloud_sync.fleet.tables.state import moment
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.tables import count_text, text_table
from lamplighter.engine.terms import XSD, Term, is_blank, is_term, lexical, literal, term_to_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lamplighter.cloud_sync.fleet.queries.fleet_data import FleetData
    from lamplighter.cloud_sync.fleet.sparql.modifiers import BatchQuery

# Rows of an answer, unless `--limit-rows` says more.
ROWS_MAX = 100_000
_BYTES_MAX = 131_072
# Added variable -> its column.
_GATEWAY = {"gateway": "gw"}
_EVENT = {"gateway": "gw", "epoch": "epoch", "sequence": "seq", "time": "ts"}


def add_commands(commands: Any) -> None:
    """Declares `query`."""
    parser = add_lake_command(commands, "query", "ask the state or the history of all gateways in SPARQL", _run_query)
    parser.add_argument("query", nargs="?", metavar="QUERY", help="the SPARQL query, SELECT or ASK")
    parser.add_argument("--file", type=Path, metavar="FILE", help="file with the query")
    parser.add_argument(
        "--at", metavar="TIME", help="the state as of this time, such as 2026-11-21T10:00:00Z (default: the newest)"
    )
    parser.add_argument(
        "--history", action="store_true", help="ask all events, each one alone, as subscriptions do, not the state"
    )
    parser.add_argument(
        "--changes",
        choices=("added", "deleted", "both"),
        help="with --history: events of added quads, of deleted quads, or both (default: added)",
    )
    parser.add_argument(
        "--per-gateway",
        action="store_true",
        help="ask each gateway alone, and add the variable gateway; with --history also epoch, sequence and time",
    )
    parser.add_argument(
        "--gateway",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only these gateways, such as 'gw-7*'; repeatable (default: all)",
    )
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: table")
    parser.add_argument(
        "--limit-rows", type=int, default=ROWS_MAX, metavar="N", help="at most N rows (default: %(default)s)"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the answer to a file")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="tell how each group of triple patterns is answered, instead of the answer",
    )
    session.add_arguments(parser)


def _run_query(arguments: argparse.Namespace) -> int:
    """Exit code 1: some gateways or rows are left out; stderr names them."""
    from lamplighter.cloud_sync.fleet.queries.star_plan import StarPlan

    began = time.monotonic()
    query, added = _check_query(arguments)
    lake = Lake.existing(arguments.lake)
    if not table(lake, "bronze").live():
        raise ConfigurationError(f"lake {lake.url!r}: no records yet; run `lamplighter-fleet ingest` first")
    spark = session.of_arguments(arguments, "query")
    data = _data(arguments, spark, lake, query)
    quads = data.quads.persist()
    try:
        plan = StarPlan.of(quads, data.key, query.query)
        if arguments.explain:
            with _open_output(arguments.output) as out:
                out.writelines(f"{printable(line)}\n" for line in plan.lines())
            return 1 if data.left_out else 0
        rows = _rows(quads, data.key, query, added, plan.narrow)
        with _open_output(arguments.output) as out:
            if query.form == "ASK":
                write_boolean(not rows.isEmpty(), arguments.format, out)
                shown, more = 1, False
            else:
                counter = _Counter(arguments.limit_rows)
                found = counter.through(_terms(rows.limit(arguments.limit_rows + 1), added))
                write_rows((*added, *query.variables), found, arguments.format, out)
                shown, more = counter.count, counter.more
    finally:
        quads.unpersist()
    _say(f"{count_text(shown, 'row', ',')}, {time.monotonic() - began:.1f} s")
    if more:
        _say(f"there are more than {count_text(shown, 'row', ',')}; raise --limit-rows, or restrict the query")
    return 1 if more or data.left_out else 0


def _check_query(arguments: argparse.Namespace) -> tuple[BatchQuery, dict[str, str]]:
    """The query, and its added variables with their columns."""
    from lamplighter.cloud_sync.fleet.sparql.modifiers import batch_query

    if (arguments.query is None) == (arguments.file is None):
        raise ConfigurationError("query: give the query, or a file with it by --file")
    if arguments.history and arguments.at is not None:
        raise ConfigurationError("--at: the history has all times; leave out --at or --history")
    if arguments.changes is not None and not arguments.history:
        raise ConfigurationError("--changes: a state has none; add --history")
    if arguments.limit_rows < 1:
        raise ConfigurationError(f"--limit-rows {arguments.limit_rows}: use a number from 1 on")
    if arguments.at is not None:
        moment(arguments.at)
    text = small_text(arguments.file, _BYTES_MAX) if arguments.query is None else arguments.query
    query = batch_query(text)
    of_events = arguments.history and query.modifiers.groups is None
    added = {} if not arguments.per_gateway else _EVENT if of_events else _GATEWAY
    if query.form == "ASK" and (added or arguments.format == "csv"):
        option = "--per-gateway" if added else "--format csv"
        raise ConfigurationError(f"{option}: the answer of an ASK has no rows; write SELECT")
    for name in added:
        if name in query.variables:
            raise ConfigurationError(f"--per-gateway adds the variable ?{name}; give that of the query another name")
    return query, added


def _data(arguments: argparse.Namespace, spark: SparkSession, lake: Lake, query: BatchQuery) -> FleetData:
    from lamplighter.cloud_sync.fleet.queries.fleet_data import history, state

    wanted = _gateway_filter(arguments.gateway)
    if arguments.history:
        return history(spark, lake, query.query, wanted=wanted, changes=arguments.changes or "added", say=_say)
    at = None if arguments.at is None else moment(arguments.at)
    return state(spark, lake, query.query, wanted=wanted, at=at, per_gateway=arguments.per_gateway, say=_say)


def _gateway_filter(patterns: list[str]) -> Callable[[str], bool]:
    return lambda gateway: not patterns or any(fnmatchcase(gateway, pattern) for pattern in patterns)


def _rows(
    quads: DataFrame, key: tuple[str, ...], query: BatchQuery, added: dict[str, str], narrow: frozenset[Term]
) -> DataFrame:
    """The rows of the answer, with the columns of the added variables."""
    from lamplighter.cloud_sync.fleet.sparql import csma
    from lamplighter.cloud_sync.fleet.sparql.modified import answer

    return answer(csma.solutions(quads, query.query, key, narrow), query, tuple(added.values()))


def _terms(rows: DataFrame, added: dict[str, str]) -> Iterator[Answer]:
    if "time" in added:
        rows = rows.withColumn("ts", F.date_format("ts", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"))
    for row in rows.toLocalIterator():
        yield (*(_added_term(name, row[column]) for name, column in added.items()), *row["row"])


def _added_term(name: str, value: str | int) -> Term:
    kinds = {"epoch": "integer", "sequence": "integer", "time": "dateTime"}
    return literal(str(value), datatype=f"{XSD}{kinds[name]}") if name in kinds else literal(str(value))


class _Counter:
    """Counts rows up to a limit. more: whether there was another one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.count = 0
        self.more = False

    def through(self, rows: Iterator[Answer]) -> Iterator[Answer]:
        for row in rows:
            if self.count == self._most:
                self.more = True
                return
            self.count += 1
            yield row


@contextmanager
def _open_output(target: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that is written atomically."""
    if target is None:
        yield sys.stdout
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            yield file
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


FORMATS = ("table", "json", "csv")

# One solution: a term for each variable, None where unbound.
Answer = Sequence[Term | None]


def write_boolean(answer: bool, format: str, out: TextIO) -> None:
    """The answer of an ASK. format: json, or table."""
    out.write((json.dumps({"head": {}, "boolean": answer}) if format == "json" else str(answer).lower()) + "\n")


def write_rows(variables: Sequence[str], rows: Iterable[Answer], format: str, out: TextIO) -> None:
    """The rows of a SELECT. JSON and CSV are written row by row. Raises PayloadError for what is no term."""
    checked = map(_check_terms, rows)
    if format == "table":
        shown = [[None if term is None else plain(term) for term in row] for row in checked]
        out.write(text_table(count_text(len(shown), "row", ","), variables, shown, len(shown), len(shown)) + "\n")
    elif format == "csv":
        lines = csv.writer(out)  # its line ends are CRLF, as the recommendation has them
        lines.writerow(variables)
        for row in checked:
            lines.writerow(["" if term is None else plain(term) for term in row])
    else:
        out.write(f'{{"head": {{"vars": {json.dumps(list(variables))}}}, "results": {{"bindings": [')
        before = "\n"
        for row in checked:
            bound = {name: term_to_json(term) for name, term in zip(variables, row, strict=True) if term is not None}
            out.write(f"{before}{json.dumps(bound)}")
            before = ",\n"
        out.write("\n]}}\n")


def plain(term: Term) -> str:
    """A term as in SPARQL 1.1 Query Results CSV, section 3.2: without quotes, datatype and language."""
    return term if is_blank(term) or term.startswith("<<(") else lexical(term)


def _check_terms(row: Answer) -> Answer:
    for term in row:
        if term is not None and not is_term(term):
            raise PayloadError(f"{term[:100]!r} in the answer is no RDF term; correct the query")
    return row
