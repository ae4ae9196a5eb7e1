"""Literals of the silver tables, in the lexical forms of XML Schema 1.1."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from lamplighter.cloud_sync.fleet.tables import terms
from lamplighter.engine.terms import XSD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.fleet

# Datatype and text -> the number; None for what has none.
NUMBERS = {
    "double": {
        "1e3": 1000.0, "1E+3": 1000.0, "-0": -0.0, "+1.5": 1.5, ".5": 0.5, "5.": 5.0, "1e-400": 0.0, "9.9e149": 9.9e149,
        "INF": None, "+INF": None, "-INF": None, "NaN": None, "1.8e308": None, "1e150": None, "-1e150": None,
        "1d": None, "1f": None, "0x1p3": None, " 1": None, "1 ": None, "": None, "Infinity": None, "1e": None,
        "e3": None, "1e3.0": None, "--1": None,
    },
    "float": {"1e3": 1000.0, "1f": None},
    "decimal": {"1.50": 1.5, "+1": 1.0, "1e3": None, "INF": None, ".": None},
    "integer": {"007": 7.0, "+7": 7.0, "7.0": None, "7e0": None, "7\n": None},
    "unsignedByte": {"7": 7.0},
    "string": {"7": None},
}  # fmt: skip
TIMES = {
    "2026-06-01T12:00:00Z": "2026-06-01T12:00:00",
    "2026-06-01T12:00:00": "2026-06-01T12:00:00",
    "2026-06-01T12:00:00.123456789Z": "2026-06-01T12:00:00.123456",
    "2026-06-01T12:00:00.5+02:30": "2026-06-01T09:30:00.500000",
    "2026-06-01T12:00:00-14:00": "2026-06-02T02:00:00",
    "2026-12-31T24:00:00Z": "2027-01-01T00:00:00",
    "2026-12-31T24:00:00.000+01:00": "2026-12-31T23:00:00",
    "2026-02-28T24:00:00": "2026-03-01T00:00:00",
} | dict.fromkeys(
    (
        *("2026-12-31T24:00:01Z", "2026-02-30T12:00:00Z", "2026-06-01T12:00:60Z", "2026-06-01T12:00:00+14:01"),
        *("+2026-06-01T12:00:00Z", "12026-06-01T12:00:00Z", "-2026-06-01T12:00:00Z", "2026-06-01 12:00:00Z"),
        *("2026-06-01", "2026-6-1T12:00:00Z", "12:00:00", "2026-06-01T12:00Z", "2026-06-01T12:00:00.Z"),
        *("2026-06-01T12:00:00 Europe/Rome", "2026-06-01T12:00:00UTC", "2026-06-01T12:00:00+2", "now", ""),
        *(" 2026-06-01T12:00:00Z", "1969-12-31T23:59:59Z", "2200-01-01T00:00:00Z", "0000-01-01T00:00:00Z"),
        "2026-06-01T12:00:00Z\\n",
    )
)


def test_numbers(spark: SparkSession) -> None:
    given = [(text, XSD + kind, value) for kind, texts in NUMBERS.items() for text, value in texts.items()]
    frame = spark.createDataFrame([one[:2] for one in given], "value STRING, kind STRING")
    rows = frame.select("*", terms.number(frame["value"], frame["kind"]).alias("number")).collect()
    assert {(row["value"], row["kind"]): row["number"] for row in rows} == {one[:2]: one[2] for one in given}


def test_times(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(f'"{text}"^^<{XSD}dateTime>',) for text in TIMES], "term STRING")
    rows = frame.select(terms.moment(frame["term"]).cast("string").alias("time")).collect()
    found = {text: row["time"] for text, row in zip(TIMES, rows, strict=True)}
    wanted = {text: None if time is None else datetime.fromisoformat(time) for text, time in TIMES.items()}
    assert {
        text: None if time is None else datetime.fromisoformat(time).replace(tzinfo=UTC) for text, time in found.items()
    } == {text: None if time is None else time.replace(tzinfo=UTC) for text, time in wanted.items()}
