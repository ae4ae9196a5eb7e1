"""Each function and operator of the engine in this process has Spark's result, for nulls and hostile values too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lamplighter.cloud_sync.fleet.lake import tables
from lamplighter.cloud_sync.fleet.lazy import F, Window
from lamplighter.cloud_sync.fleet.local.session import local_session
from lamplighter.cloud_sync.fleet.tables import terms
from lamplighter.engine.terms import XSD

QUAD = "STRUCT<s: STRING, p: STRING, o: STRING, g: STRING>"
COLUMNS = f"n INT, k STRING, i BIGINT, x DOUBLE, t STRING, at TIMESTAMP, many ARRAY<STRING>, quads ARRAY<{QUAD}>"

TERMS = [
    None, "<http://a/b>", "<>", "_:b0", '""', '"a"', '"a\\"b\\\\c\\n\\u00e9"', '"x"@en-GB', f'"20.5"^^<{XSD}decimal>',
    '"a<b>"', f'"1e5"^^<{XSD}double>', f'"NaN"^^<{XSD}double>', f'"-INF"^^<{XSD}double>', f'"1_000"^^<{XSD}integer>',
    f'" 7 "^^<{XSD}int>', f'"1e400"^^<{XSD}double>', f'".5"^^<{XSD}decimal>', f'"5."^^<{XSD}decimal>',
    f'"1d"^^<{XSD}double>', f'"0x1p3"^^<{XSD}double>', f'"1e149"^^<{XSD}double>', f'"-1e150"^^<{XSD}double>',
    f'"7\\n"^^<{XSD}integer>', f'"+7"^^<{XSD}integer>', f'"7.0"^^<{XSD}integer>', f'"1e3"^^<{XSD}decimal>',
    f'"true"^^<{XSD}boolean>', f'"0"^^<{XSD}boolean>', f'"maybe"^^<{XSD}boolean>', f'""^^<{XSD}double>',
    *(f'"{text}"^^<{XSD}dateTime>' for text in (
        "2026-06-01T10:00:00Z", "2026-06-01T10:00:00", "2026-06-01T10:00:00.123456789+02:00", "2026-02-30T10:00:00Z",
        "2026-06-01T24:00:00Z", "2026-02-28T24:00:00.00-05:00", "2026-06-01T24:00:01Z", "2026-06-01T10:00:00Z\\n",
        "10:00:00", "2026-6-1T10:00:00Z", "2026-06-01 10:00:00Z", "2026-06-01T10:00Z", "2026-06-01T10:00:00+02",
        "2026-06-01T10:00:60Z", "1969-12-31T23:59:59Z", "2200-01-01T00:00:00Z", "2026-06-01",
        "20260-06-01T00:00:00Z", "2026-06-01T10:00:00-18:00", "2026-06-01T10:00:00+19:00", "yesterday", "",
    )),
]  # fmt: skip

MANY = [None, [], ["a"], ["a", None, "a"], ["b", "c"], [None]]
QUADS = [
    None,
    [],
    [{"s": "a", "p": "p", "o": "1", "g": None}, {"s": "b", "p": "q", "o": "2", "g": "g"}],
    [{"s": "b", "p": "q", "o": "2", "g": "g"}, {"s": "b", "p": "q", "o": "2", "g": "g"}],
]


def write_rows(path: Path) -> None:
    rows = [
        {
            "n": n,
            "k": "abc"[n % 3] if n % 7 else None,
            "i": None if n % 5 == 0 else (n * 37) % 11,
            "x": None if n % 4 == 0 else (n % 9) / 2,
            "t": term,
            "at": None if n % 6 == 0 else 1_780_000_000_000_000 + n * 7_654_321_000,
            "many": MANY[n % len(MANY)],
            "quads": QUADS[n % len(QUADS)],
        }
        for n, term in enumerate(TERMS)
    ]
    quad = pa.struct([(name, pa.string()) for name in "spog"])
    kinds = [pa.int32(), pa.string(), pa.int64(), pa.float64(), pa.string(), pa.timestamp("us", "UTC")]
    kinds += [pa.list_(pa.string()), pa.list_(quad)]
    schema = pa.schema([*zip(["n", "k", "i", "x", "t", "at", "many", "quads"], kinds, strict=True)])
    pq.write_table(pa.Table.from_pylist(rows, schema), path)


def order(*names: str) -> Any:
    return Window.partitionBy("k").orderBy(*names, "n")


OF_ROWS: dict[str, Callable[[], Any]] = {
    "plain": lambda: terms.plain(F.col("t")),
    "datatype": lambda: terms.datatype(F.col("t")),
    "number": lambda: terms.number(terms.plain(F.col("t")), terms.datatype(F.col("t"))),
    "flag": lambda: terms.flag(terms.plain(F.col("t")), terms.datatype(F.col("t"))),
    "moment": lambda: F.unix_micros(terms.moment(F.col("t"))),
    "get": lambda: F.get(F.col("many"), F.col("i").cast("int") - 1),
    "array_position": lambda: F.array_position("many", "a"),
    "array_contains": lambda: F.array_contains(F.col("quads.s"), "b"),
    "array_except": lambda: F.size(F.array_except("many", F.array(F.lit("a")))),
    "arrays_overlap": lambda: F.arrays_overlap("many", F.array(F.lit("a"), F.lit("b"))),
    "array_distinct": lambda: F.size(F.array_distinct("quads.s")),
    "members of structs": lambda: F.concat_ws(",", F.get(F.col("quads.o"), F.lit(1)), F.get("quads", 0)["g"]),
    "filter": lambda: F.size(F.filter("quads", lambda quad: quad["g"].isNull() & (quad["s"] == "a"))),
    "transform": lambda: F.try_element_at(F.transform("quads", lambda quad: quad["o"]), F.lit(-1)),
    "concat": lambda: F.concat(F.col("k"), F.lit("-"), F.col("t")),
    "concat_ws": lambda: F.concat_ws(" ", "k", F.col("i"), F.lit(".")),
    "substring": lambda: F.substring(F.col("t"), F.lit(3), F.col("i") - 4),
    "substring_index": lambda: F.substring_index("t", "/", -2),
    "three-valued": lambda: (F.col("i") > 3) & ~(F.col("x") < 2) | F.col("k").isin("a", "b"),
    "eqNullSafe": lambda: F.col("k").eqNullSafe(F.get("many", 0)),
    "structs in order": lambda: F.struct("k", "i") < F.struct(F.lit("b").alias("k"), F.lit(5).alias("i")),
    "case": lambda: F.when(F.col("i") > 5, "high").when(F.col("i").isNull(), "none").otherwise(F.col("k")),
    "greatest": lambda: F.greatest("i", F.lit(4), F.col("n").cast("bigint")),
    "numbers": lambda: (F.lit(1.0) - F.col("x") * 3) / 7 + -F.col("i"),
    "halves": lambda: F.format_string("%.0f %%", F.col("x")),
    "hour": lambda: F.hour("at"),
    "day": lambda: F.unix_micros(F.date_trunc("day", "at")),
    "between": lambda: F.col("at").between(
        F.timestamp_micros(F.lit(1_780_050_000_000_000)), F.col("at") + F.expr("INTERVAL 5 MINUTES")
    ),
    "json": lambda: F.get_json_object(F.concat(F.lit('{"v":'), F.coalesce("k", F.lit("1")), F.lit("}")), "$.v"),
    "bigint": lambda: F.substring(F.col("t"), F.lit(2), F.lit(1)).try_cast("bigint"),
    "lag": lambda: F.lag("i").over(order("x")),
    "lead of structs": lambda: F.lead(F.struct("i", "x")).over(order("at"))["x"],
    "last known": lambda: F.last("x", ignorenulls=True).over(order("i").rowsBetween(Window.unboundedPreceding, -1)),
    "max of a window": lambda: F.max("i").over(Window.partitionBy("k")),
    "descending": lambda: F.lag("n").over(Window.partitionBy("k").orderBy(F.col("i").desc(), F.col("n").desc())),
}

OF_GROUPS: dict[str, Callable[[], Any]] = {
    "count": lambda: F.count("*") + F.count("i") * 100,
    "count_if": lambda: F.count_if(F.col("i") > 3),
    "sum": lambda: F.sum("i"),
    "avg": lambda: F.avg("i"),
    "min of structs": lambda: F.min(F.struct("i", "x", "n"))["n"],
    "max of structs": lambda: F.max(F.struct("x", "n"))["n"],
    "max_by": lambda: F.max_by("i", F.struct("x", "n")),
    "min_by": lambda: F.min_by(F.when(F.col("i") > 2, F.col("i")), F.when(F.col("x") > 1, F.struct("x", "n"))),
    "percentiles": lambda: F.concat_ws(
        " ", *(F.percentile_approx(F.col("i"), share, 10_000) for share in (0.05, 0.5, 0.9, 0.95))
    ),
    "bool_or": lambda: F.bool_or(F.col("i") > 9),
    "collect_set": lambda: F.size(F.collect_set("i")),
    "collect_list": lambda: F.size(F.flatten(F.collect_list("many"))),
    "sort_array": lambda: F.get(F.sort_array(F.collect_list(F.struct("x", "n"))), F.lit(0))["n"],
}


Made = Callable[[Any], Any]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    write_rows(path)
    return str(path)


@pytest.fixture(scope="module")
def both(spark: SparkSession, rows: str) -> Callable[[Made], tuple[list[Any], list[Any]]]:
    """The rows that both engines make of the same frame: of this one, of Spark."""
    frame = spark.read.schema(COLUMNS).parquet(rows)

    def compute(made: Made) -> tuple[list[Any], list[Any]]:
        with local_session() as engine:
            ours = [row.asDict() for row in made(engine.read.schema(COLUMNS).parquet(rows)).collect()]
        return sorted(ours, key=repr), sorted((row.asDict() for row in made(frame).collect()), key=repr)

    return compute


def named(columns: dict[str, Callable[[], Any]]) -> list[Any]:
    return [value().alias(name) for name, value in columns.items()]


# All columns in one query, since Spark takes longer to begin one than for the rest.
@pytest.fixture(scope="module")
def columns(both: Callable[[Made], tuple[list[Any], list[Any]]]) -> tuple[list[Any], list[Any]]:
    return both(lambda frame: frame.select("n", *named(OF_ROWS)))


@pytest.fixture(scope="module")
def groups(both: Callable[[Made], tuple[list[Any], list[Any]]]) -> tuple[list[Any], list[Any]]:
    return both(lambda frame: frame.groupBy("k").agg(*named(OF_GROUPS)))


@pytest.mark.parametrize("name", OF_ROWS)
def test_a_column_is_that_of_spark(columns: tuple[list[Any], list[Any]], name: str) -> None:
    ours, theirs = ({row["n"]: row[name] for row in side} for side in columns)
    assert len({repr(value) for value in theirs.values()}) > 1, "no case tells anything"
    assert ours == theirs


@pytest.mark.parametrize("name", OF_GROUPS)
def test_a_group_is_that_of_spark(groups: tuple[list[Any], list[Any]], name: str) -> None:
    ours, theirs = ({row["k"]: row[name] for row in side} for side in groups)
    assert len(theirs) > 1
    assert ours == theirs


FRAMES: dict[str, Callable[[Any], Any]] = {
    "inline": lambda frame: frame.select("n", F.inline("quads")),
    "explode": lambda frame: frame.withColumn("one", F.explode("many")).select("n", "one"),
    "full join": lambda frame: (
        frame.where("i > 4").select("n", "k").join(frame.where("i < 7").select("n", "x"), "n", "full")
    ),
    "join by a condition": lambda frame: (
        frame.select("n", "i").alias("a").join(
            frame.select("n", "i").alias("b"), [F.col("a.i") == F.col("b.i"), F.col("a.n") < F.col("b.n")], "left"
        ).select(F.col("a.n").alias("one"), F.col("b.n").alias("other"))
    ),
    "anti": lambda frame: frame.select("n", "i").join(frame.where("x > 1").select("i"), "i", "left_anti"),
    "except": lambda frame: frame.select("k", "i").exceptAll(frame.where("x > 1").select("k", "i")),
    "distinct": lambda frame: frame.select("k", "i").distinct(),
    "fill": lambda frame: frame.select("n", "i", "x").na.fill(0, ["i", "x"]),
    "no rows": lambda frame: frame.where("false").agg(F.max("i").alias("most"), F.count("*").alias("rows")),
    "renamed": lambda frame: frame.select("n", "i").withColumnsRenamed({"i": "n2"}).withColumn("n2", F.col("n2") + 1),
    "window of hours": lambda frame: frame.groupBy("k", F.date_trunc("hour", "at").alias("hour"))
        .agg(F.count("*").alias("count")).select("k", F.unix_micros("hour").alias("us"), "count"),
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_is_that_of_spark(both: Callable[[Made], tuple[list[Any], list[Any]]], name: str) -> None:
    ours, theirs = both(FRAMES[name])
    assert theirs
    assert [[*row] for row in ours] == [[*row] for row in theirs], "the order of columns"
    assert ours == theirs


def test_a_file_of_an_older_version_lacks_columns(tmp_path: Path) -> None:
    """As on Spark: they are null."""
    pq.write_table(pa.table({"gw": ["a"], "seq": pa.array([1], pa.int64())}), tmp_path / "a[1].parquet")
    with local_session() as engine:
        frame = engine.read.schema(tables.FACTS).parquet(str(tmp_path / "a[1].parquet"))
        assert frame.columns == ["gw", "epoch", "seq", "ts", "added", "s", "p", "o", "g"]
        assert [row["gw"] for row in frame.collect()] == ["a"]
        assert frame.collect()[0]["ts"] is None


def test_a_name_that_is_not_there_is_told_with_those_that_are(rows: str) -> None:
    with local_session() as engine, pytest.raises(LookupError, match="nothing: no column of n, k, i"):
        engine.read.schema(COLUMNS).parquet(rows).select("nothing")
