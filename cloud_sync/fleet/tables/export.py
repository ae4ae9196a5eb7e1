"""`lamplighter-fleet export`: change logs as RDF Patch, tables as Delta.

The RDF Patch (Apache Jena) is the same as that of `lamplighter log export --format rdfpatch`: a patch for each commit
that changed quads or graphs, with the previous one as `prev`. It is made in Spark, for a whole fleet.
"""

from __future__ import annotations

import argparse
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.fleet import session
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.tables import SCHEMAS, table
from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.subcommands import add_lake_command
from lamplighter.cloud_sync.fleet.tables.state import GatewayPast, write_lines
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.terms import XSD

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Matches strings and IRIs, which are skipped, or a blank node. A term never contains a raw  or .
_BLANK = r'("(?:[^"\\]|\\.)*"|<[^<>]*>)|(_:[^\s<>")]+)'


def patches(records: DataFrame) -> DataFrame:
    """BRONZE -> gw, epoch, seq, `patch`. The patches of a gateway form a chain in the order of (epoch, seq)."""
    from pyspark.sql import Window

    def some(name: str) -> Column:
        return F.coalesce(F.size(name), F.lit(0)) > 0

    def rows(name: str, sign: str) -> Column:
        return F.transform(name, lambda quad: F.concat(F.lit(f"{sign} "), _row(quad), F.lit(" .")))

    def graphs(name: str) -> Column:
        return F.transform(name, lambda graph: F.concat(F.lit(f"# graph {name}: "), graph))

    commits = records.where((F.col("type") == "commit") & (some("d") | some("a") | some("created") | some("dropped")))
    named = F.concat_ws("/", "gw", "epoch", "seq")
    order = Window.partitionBy("gw").orderBy("epoch", "seq")
    commits = commits.withColumn("id", _uuid5(F.concat(F.lit("lamplighter:"), named))).withColumn(
        "prev", F.lag("id").over(order)
    )
    # Six digits, as in the change log.
    time = F.date_format("ts", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
    none = F.array().cast("ARRAY<STRING>")
    lines = F.concat(
        F.array(F.concat(F.lit("H id "), "id", F.lit(" ."))),
        F.when(F.col("prev").isNotNull(), F.array(F.concat(F.lit("H prev "), "prev", F.lit(" .")))).otherwise(none),
        F.array(
            F.concat(F.lit('H record "'), named, F.lit('" .')),
            F.concat(F.lit('H time "'), time, F.lit(f'"^^<{XSD}dateTime> .')),
            F.lit("TX ."),
        ),
        F.coalesce(rows("d", "D"), none),
        F.coalesce(graphs("dropped"), none),
        F.coalesce(graphs("created"), none),
        F.coalesce(rows("a", "A"), none),
        F.array(F.lit("TC .")),
    )
    return commits.select("gw", "epoch", "seq", F.array_join(lines, "\n").alias("patch"))


def _row(quad: Column) -> Column:
    text = F.concat_ws(" ", quad["s"], quad["p"], quad["o"], quad["g"])
    marked = F.regexp_replace(text, _BLANK, "$1\x01$2\x02")
    jena = F.replace(
        F.replace(F.replace(marked, F.lit("\x01\x02"), F.lit("")), F.lit("\x01"), F.lit("<")), F.lit("\x02"), F.lit(">")
    )
    return F.when(F.instr(text, "_:") == 0, text).otherwise(jena)


def _uuid5(name: Column) -> Column:
    """`<urn:uuid:...>` of `uuid.uuid5(uuid.NAMESPACE_URL, name)` (RFC 9562, 5.5)."""
    digest = F.sha1(F.concat(F.unhex(F.lit(uuid.NAMESPACE_URL.hex)), F.encode(name, "UTF-8")))
    variant = F.translate(F.substring(digest, 17, 1), "0123456789abcdef", "89ab" * 4)
    parts = [(1, 8, ""), (9, 4, "-"), (14, 3, "-5"), (18, 3, None), (21, 12, "-")]
    text = [F.lit("<urn:uuid:")]
    for begin, length, before in parts:
        text += [F.concat(F.lit("-"), variant) if before is None else F.lit(before), F.substring(digest, begin, length)]
    return F.concat(*text, F.lit(">"))


def write_delta(lake: Lake, name: str, target: Path) -> int:
    """Writes a table of the lake as a Delta table, or replaces it. Returns the number of rows. Needs no Spark."""
    import deltalake
    import pyarrow
    import pyarrow.dataset

    batches = table(lake, name)
    files = [lake.path(batches.name, file) for batch in batches.live() for file in batch.files]
    if not files:
        raise ConfigurationError(f"table {name} has no rows; run ingest and silver first")
    found = pyarrow.dataset.dataset(files, filesystem=lake.fs, format="parquet")
    # Files of earlier versions lack later columns.
    schemas = [fragment.physical_schema for fragment in found.get_fragments()]
    found = found.replace_schema(pyarrow.unify_schemas(schemas))
    deltalake.write_deltalake(str(target), found.scanner().to_reader(), mode="overwrite", schema_mode="overwrite")
    return int(found.count_rows())


# --- the command --------------------------------------------------------------------------------------------


def add_commands(commands: Any) -> None:
    """Declares `export`."""
    parser = add_lake_command(commands, "export", "write change logs as RDF Patch, or a table as Delta", _run_export)
    parser.add_argument("--format", choices=("rdfpatch", "delta"), required=True)
    parser.add_argument("--gateway", metavar="GW", help="rdfpatch: the gateway")
    parser.add_argument("--table", choices=sorted(set(SCHEMAS) - {"facts", "gateway_health"}), help="delta: the table")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PATH", help="a file; a folder for delta")
    session.add_arguments(parser)


def _run_export(arguments: argparse.Namespace) -> int:
    lake = Lake(arguments.lake)
    if arguments.format == "delta":
        if arguments.table is None:
            raise ConfigurationError("--format delta: set the table with --table")
        print(f"{write_delta(lake, arguments.table, arguments.output):,} rows are in {arguments.output}")
        return 0
    if arguments.gateway is None:
        raise ConfigurationError("--format rdfpatch: set the gateway with --gateway")
    spark = session.of_arguments(arguments, "export")
    past = GatewayPast(spark, lake, arguments.gateway)
    ordered = patches(past.records).orderBy("epoch", "seq").select("patch")
    print(f"{write_lines(ordered, arguments.output):,} patches are in {arguments.output}")
    return 0
