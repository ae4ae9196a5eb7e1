"""Every job's result equals DuckDB's on the same Parquet files, and what it makes of wrong clocks is as documented."""

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyarrow import Table
from pyarrow.compute import field
from pyarrow.parquet import write_table
from pyspark.sql import SparkSession

from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.jobs.analysis import Analysis, AnalysisOptions
from lamplighter.cloud_sync.fleet.jobs.commands import write_results
from lamplighter.cloud_sync.fleet.jobs.results import RESULTS, top_rows
from lamplighter.cloud_sync.fleet.lake import Lake, tables
from tests.cloud_sync.fleet.jobs import jobs_oracle
from tests.cloud_sync.fleet.jobs.made_up_tables import (
    BASE,
    CELSIUS,
    COLUMNS,
    FAHRENHEIT,
    LIGHTING,
    START,
    small_fleet,
)
from tests.support.small_lake import PLAN, SmallFleet

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Computed:
    """folder: of the written results; oracle: over the tables that they were made of."""

    folder: Path
    oracle: duckdb.DuckDBPyConnection

    def file(self, name: str, suffix: str) -> Path:
        return self.folder / RESULTS[name].job / f"{name}{suffix}"


def analysis_of(spark: SparkSession, folder: Path, options: AnalysisOptions | None = None) -> Analysis:
    return Analysis(
        *(spark.read.schema(tables.SCHEMAS[name]).parquet(str(folder / f"{name}.parquet")) for name in COLUMNS),
        options=options,
    )


def of_parquet(path: Path) -> Rows:
    """The rows of a written file, by DuckDB."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return jobs_oracle.rows(connection, f"FROM '{path}'")


def assert_same(found: Rows, expected: Rows, keys: Sequence[str]) -> None:
    """The same rows, by their keys; numbers to nine digits, since sums depend on their order."""

    def by_key(rows: Rows) -> dict[tuple[str, ...], dict[str, Any]]:
        keyed = {tuple(str(row[key]) for key in keys): row for row in rows}
        assert len(keyed) == len(rows)
        return keyed

    ours, theirs = by_key(found), by_key(expected)
    assert ours.keys() == theirs.keys()
    for key, row in theirs.items():
        for name, value in row.items():
            if isinstance(value, (float, Decimal)):
                assert ours[key][name] is not None, (key, name, value)
                assert math.isclose(ours[key][name], value, rel_tol=1e-9, abs_tol=1e-6), (key, name)
            else:
                assert ours[key][name] == value, (key, name)


@pytest.fixture(scope="module")
def computed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Computed]:
    folder = tmp_path_factory.mktemp("small-fleet")
    small_fleet().write(folder)
    with analysis_of(spark, folder, AnalysisOptions(watts_of={f"{BASE}lamp/9": 150.0})) as found:
        write_results(found, tuple(RESULTS), Lake(str(folder / "results")))
    with jobs_oracle.connect(folder) as oracle:
        yield Computed(folder / "results", oracle)


@pytest.mark.parametrize("name", RESULTS)
def test_result_is_that_of_another_engine(computed: Computed, name: str) -> None:
    expected = jobs_oracle.rows(computed.oracle, jobs_oracle.RESULTS[name])
    assert expected
    assert_same(of_parquet(computed.file(name, ".parquet")), expected, RESULTS[name].keys)


@pytest.mark.parametrize("name", RESULTS)
def test_files_are_in_order_and_csv_says_what_parquet_says(computed: Computed, name: str) -> None:
    rows = of_parquet(computed.file(name, ".parquet"))
    order = [[(row[key] is not None, row[key]) for key in RESULTS[name].keys] for row in rows]
    assert order == sorted(order)
    with computed.file(name, ".csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    for line, row in zip(lines, rows, strict=True):
        assert list(line) == list(row)
        for column, value in row.items():
            assert of_text(line[column], value) == value, (column, line)


def rows_of(computed: Computed, name: str, **wanted: Any) -> Rows:
    """Rows of a result that have these values."""
    rows = of_parquet(computed.file(name, ".parquet"))
    return [row for row in rows if all(row[column] == value for column, value in wanted.items())]


def test_units_are_never_mixed(computed: Computed) -> None:
    rows = rows_of(computed, "daily", gw="gw-rare", feature=f"{BASE}post/4")
    assert {row["unit"] for row in rows} == {FAHRENHEIT} and min(row["min"] for row in rows) == 68.0
    units = {row["unit"] for row in rows_of(computed, "trends", property=f"{LIGHTING}temperature")}
    assert units == {CELSIUS, FAHRENHEIT}
    celsius = rows_of(computed, "anomalies", property=f"{LIGHTING}temperature", unit=CELSIUS)
    assert celsius and all(row["median"] < 30 for row in celsius)
    assert not rows_of(computed, "anomalies", gw="gw-rare")


def test_what_is_no_number_is_a_reading_and_nothing_else(computed: Computed) -> None:
    (row,) = rows_of(computed, "daily", gw="gw-rare", feature=f"{BASE}post/3")
    assert (row["count"], row["measured"], row["mean"], row["p50"]) == (3, 0, None, None)


def test_one_reading_has_no_uptime_and_two_have_no_gap(computed: Computed) -> None:
    for gateway in ("gw-0", "gw-1", "gw-2"):
        (once,) = rows_of(computed, "uptime", gw=gateway, stream=f"{BASE}stream/5-t")
        assert (once["readings"], once["expected_s"], once["gaps"], once["uptime"]) == (1, None, 0, None)
    (twice,) = rows_of(computed, "uptime", gw="gw-rare", stream=f"{BASE}stream/2-t")
    assert (twice["readings"], twice["expected_s"], twice["gaps"], twice["uptime"]) == (2, 108_000.0, 0, 1.0)


def test_a_gap_is_the_gateway_s_only_if_nothing_came_from_it(computed: Computed) -> None:
    (gap,) = rows_of(computed, "gaps", gw="gw-rare", stream=f"{BASE}stream/4-t")
    assert (gap["gap_s"], gap["gateway_s"], gap["reason"]) == (11 * 1800, 1800, "sensor")
    assert {gap["reason"] for gap in rows_of(computed, "gaps", gw="gw-2", restarted=True)} == {"gateway"}


def test_a_clock_that_was_stepped_back_is_told_and_makes_no_gap(computed: Computed) -> None:
    (clock,) = rows_of(computed, "clock_quality", gw="gw-steps-back")
    assert (clock["quality"], clock["spread_ms"], clock["readings"]) == ("stepped", 3_600_000.0, 120)
    assert not rows_of(computed, "gaps", gw="gw-steps-back")
    (lamp,) = rows_of(computed, "lamp_days", gw="gw-steps-back")
    assert lamp["on_s"] == 40 * 60  # by the clock that nobody steps


def test_readings_of_a_clock_that_came_late_are_where_they_belong(computed: Computed) -> None:
    hours = rows_of(computed, "hourly", gw="gw-late-clock", property=f"{LIGHTING}temperature")
    assert min(row["hour"] for row in hours) == START + timedelta(hours=20)
    assert sum(row["repaired"] for row in hours) == 60
    (clock,) = rows_of(computed, "clock_quality", gw="gw-late-clock")
    assert (clock["quality"], clock["repaired"], clock["untimed"]) == ("untrusted", 60, 0)


def test_without_any_synchronised_clock_there_are_no_times_but_lengths(computed: Computed) -> None:
    assert not rows_of(computed, "hourly", gw="gw-no-clock")
    (clock,) = rows_of(computed, "clock_quality", gw="gw-no-clock")
    assert (clock["quality"], clock["untimed"]) == ("unknown", 40)
    (lamp,) = rows_of(computed, "lamp_days", gw="gw-no-clock", day=None)
    assert lamp["on_s"] == 20 * 45 and lamp["unknown"] == 1
    assert {row["acknowledged_ms"] for row in rows_of(computed, "reactions", gw="gw-no-clock")} == {250.0}
    (health,) = rows_of(computed, "fleet_health", gw="gw-no-clock")
    assert (health["health"], health["heard"], health["why"]) == ("watch", None, "clock unknown")
    assert not rows_of(computed, "dead_sensors", gw="gw-no-clock")


def test_a_lamp_that_is_still_on_is_counted_until_the_last_record(computed: Computed) -> None:
    (row,) = rows_of(computed, "lamp_days", gw="gw-rare")
    assert (row["on_s"], row["switched_on"], row["kwh"]) == (900.0, 1, 0.01)


def test_what_ran_into_another_epoch_is_not_guessed(computed: Computed) -> None:
    rows = rows_of(computed, "lamp_days", gw="gw-two-epochs")
    assert sum(row["unknown"] for row in rows) == 1
    assert sum(row["on_s"] for row in rows) == 15 * 120 + 15 * 120


def test_tables_without_rows_have_results_without_rows(spark: SparkSession) -> None:
    frames = [spark.createDataFrame([], tables.SCHEMAS[name]).where("false") for name in COLUMNS]
    with Analysis(*frames) as found:
        for name in RESULTS:
            assert getattr(found, name).isEmpty(), name
        assert found.as_of == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def reported(silver_lake: tuple[SmallFleet, Lake]) -> tuple[SmallFleet, Path]:
    """The simulated fleet, and the results of its lake as the command wrote them."""
    simulated, lake = silver_lake
    assert main(["report", lake.url]) == 0
    return simulated, Path(lake.path("results"))


def test_the_report_s_links_lead_to_the_results(reported: tuple[SmallFleet, Path]) -> None:
    simulated, folder = reported
    document = (folder / "report.html").read_text()
    assert all(gateway in document for gateway in simulated.gateways)
    hours = of_parquet(folder / "aggregates/trends.parquet")
    assert f"<b>{sum(row['count'] for row in hours):,}</b> readings" in document
    assert f"to {max(row['hour'] for row in hours):%Y-%m-%d %H:%M}, by the hour" in document
    links = {folder / link for link in re.findall(r'href="([^"#]+)"', document)}
    files = {folder / result.job / name for name, result in RESULTS.items()}
    assert links == {path.with_suffix(suffix) for path in files for suffix in (".csv", ".parquet")}
    assert all(link.is_file() for link in links)
    assert not list(folder.rglob(".*"))


def test_every_reading_of_the_simulated_fleet_is_counted(reported: tuple[SmallFleet, Path]) -> None:
    simulated, folder = reported
    counted = {(row["gw"], row["stream"]): row for row in of_parquet(folder / "uptime/uptime.parquet")}
    hours = of_parquet(folder / "aggregates/hourly.parquet")
    for gateway, truth in simulated.truths.items():
        for name, stream in truth.streams.items():
            assert counted[gateway, name]["readings"] == stream.readings
            what = (gateway, stream.property, stream.feature)
            own = [row for row in hours if (row["gw"], row["property"], row["feature"]) == what]
            assert {row["unit"] for row in own} == {stream.unit}
            assert sum(row["count"] for row in own) == stream.readings - counted[gateway, name]["untimed"]
            total = math.fsum(row["mean"] * row["measured"] for row in own)
            assert math.isclose(total, stream.trues if stream.unit is None else stream.sum, rel_tol=1e-9)


def test_lamps_were_on_as_long_as_in_the_simulated_world(reported: tuple[SmallFleet, Path]) -> None:
    simulated, folder = reported
    days = of_parquet(folder / "lamps/lamp_days.parquet")
    compared = 0
    for gateway, truth in simulated.truths.items():
        for lamp, expected in truth.lamps.items():
            own = [row for row in days if (row["gw"], row["actuator"]) == (gateway, lamp)]
            if sum(row["unknown"] for row in own) == 0:
                # The log ends with its last record, the world up to an interval later.
                assert sum(row["on_s"] for row in own) == pytest.approx(expected.on_us / 1e6, abs=PLAN.interval_s)
                compared += 1
    assert compared >= 4


def test_reactions_took_as_long_as_in_the_simulated_world(reported: tuple[SmallFleet, Path]) -> None:
    simulated, folder = reported
    rows = of_parquet(folder / "reactions/reactions.parquet")
    for gateway, truth in simulated.truths.items():
        own = [row for row in rows if row["gw"] == gateway and row["value"] == "ON"]
        found = sorted(row["acknowledged_ms"] for row in own if row["acknowledged_ms"] is not None)
        # The world's begin when the sensor sends, ours when the gateway has it, 0.8 to 4 ms later.
        for ours, world in zip(found, sorted(truth.reactions_us), strict=True):
            assert 0.8 <= world / 1000 - ours <= 4


def test_a_job_s_command_shows_its_first_rows(
    reported: tuple[SmallFleet, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lake = reported[1].parent
    assert main(["jobs", "clocks", str(lake), "--rows", "2", "--out", str(tmp_path), "--since", "2026-06-01"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1] == f"clocks of the gateways: {tmp_path}/clocks/clock_quality.parquet, .csv"
    assert shown[2].split()[:3] == ["gw", "quality", "records"] and len(shown) == 5
    assert {path.name for path in (tmp_path / "clocks").iterdir()} == {"clock_quality.parquet", "clock_quality.csv"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["jobs", "clocks", "{lake}"], "run `lamplighter-fleet silver` first"),
        (["report", "nowhere://x"], "nowhere"),
    ],
)
def test_a_lake_without_tables_is_told(
    spark: SparkSession, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([argument.format(lake=tmp_path) for argument in arguments]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [["--since", "yesterday"], ["--lamp-watts", "40"], ["--lamp-watts", "http://a/lamp=much"], ["--z", "x"]],
)
def test_an_argument_that_means_nothing_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["jobs", "all", "lake", *wrong])
    assert wrong[0] in capsys.readouterr().err


COMPUTED_KEYS = {"distance": "abs(z)", "severity": "list_position(['silent', 'bad', 'watch', 'good'], health)"}


@pytest.mark.parametrize("name", RESULTS)
def test_first_rows_are_those_of_another_engine(computed: Computed, name: str) -> None:
    result, out = RESULTS[name], Lake(str(computed.folder))
    terms = [term.partition(" ") for term in result.top]
    order = ", ".join(f"{COMPUTED_KEYS.get(key, key)} {way or 'ASC'} NULLS LAST" for key, _, way in terms)
    every = of_parquet(computed.file(name, ".parquet"))
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; SET threads = 1")
        expected = jobs_oracle.rows(
            connection, f"SELECT *, {', '.join(COMPUTED_KEYS.get(key, key) for key, _, _ in terms)} "
            f"FROM '{computed.file(name, '.parquet')}' ORDER BY {order} LIMIT 3"
        )  # fmt: skip
    found = top_rows(out, result, 3)
    assert found.all == len(every) and len(found.rows) == min(3, len(every))
    for ours, theirs in zip(found.rows, expected, strict=True):
        assert ours.items() <= theirs.items()


def test_first_rows_of_a_condition_come_from_the_whole_file(tmp_path: Path) -> None:
    """Of more rows than are read at a time, in an order that is not that of the file, and with nulls."""
    result, out = RESULTS["anomalies"], Lake(str(tmp_path))
    (tmp_path / result.job).mkdir()
    z = [None, *(float(number if number % 2 else -number) for number in range(200_000))]
    columns = {"z": z, "gw": ["gw"] * len(z), "epoch": [1] * len(z), "seq": list(range(len(z)))}
    write_table(Table.from_pydict(columns), tmp_path / result.job / "anomalies.parquet", row_group_size=70_000)
    assert [row["z"] for row in top_rows(out, result, 2).rows] == [199_999.0, -199_998.0]
    few = top_rows(out, result, 5, field("z") > -3)
    assert few.all == 100_002 and [row["z"] for row in few.rows[:2]] == [199_999.0, 199_997.0]
    assert top_rows(out, result, 1, field("seq") == 0).rows == [{"z": None, "gw": "gw", "epoch": 1, "seq": 0}]


def of_text(text: str, like: Any) -> Any:
    """A value of a CSV file, of the type that it is to have."""
    if text == "":
        return None
    if isinstance(like, bool):
        return {"true": True, "false": False}[text]
    if isinstance(like, datetime):
        return datetime.fromisoformat(text)
    return type(like)(text)
