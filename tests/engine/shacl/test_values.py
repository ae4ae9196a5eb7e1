"""Datatypes and comparisons of values, against what the store makes of them."""

from __future__ import annotations

from itertools import product

import pyoxigraph as ox

from lamplighter.engine.shacl.components import compare
from lamplighter.engine.shacl.datatypes import checked_by, datatype_of, language_of
from lamplighter.engine.terms import XSD, Term
from tests.support.tables import each_row

VALUES = [
    ("integer", "1"),
    ("integer", "-7"),
    ("integer", "x"),
    ("decimal", "1.5"),
    ("double", "1.5"),
    ("double", "INF"),
    ("double", "NaN"),
    ("float", "2"),
    ("boolean", "true"),
    ("boolean", "false"),
    ("boolean", "yes"),
    ("string", "a"),
    ("string", "b"),
    ("dateTime", "2026-01-01T00:00:00Z"),
    ("dateTime", "2026-01-01T00:00:00+01:00"),
    ("dateTime", "2026-02-30T00:00:00Z"),
    ("date", "2026-01-01"),
    ("date", "2026-01-02"),
    ("time", "10:00:00"),
    ("time", "11:00:00"),
    ("dayTimeDuration", "PT1S"),
    ("dayTimeDuration", "PT1M"),
    ("yearMonthDuration", "P1Y"),
    ("gYear", "2026"),
]
TERMS: list[Term] = [
    *(f'"{text}"' if kind == "string" else f'"{text}"^^<{XSD}{kind}>' for kind, text in VALUES),
    '"a"@en',
    "<http://e/a>",
    "_:a",
    '"1"^^<http://e/own>',
]


def of_store(expression: str) -> bool | None:
    solutions = ox.Store().query(f"SELECT ({expression} AS ?v) {{}}")
    assert isinstance(solutions, ox.QuerySolutions)
    value = next(iter(solutions))["v"]
    return None if value is None else value.value == "true"


@each_row("one", [term for term in TERMS if not term.startswith("_:")])
def test_values_compare_as_in_the_store(one: Term) -> None:
    for other in (term for term in TERMS if not term.startswith("_:")):
        sign = compare(one, other)
        less, equal = of_store(f"{one} < {other}"), of_store(f"{one} <= {other}")
        if datatype_of(one) == datatype_of(other) == f"<{XSD}boolean>":
            continue  # SPARQL 1.1, 17.3 compares them, and the store does not
        if sign is None:
            assert not less or {datatype_of(one), datatype_of(other)} <= UNCOMPARED, (one, other)
        else:
            assert (sign < 0, sign <= 0) == (bool(less), bool(equal)), (one, other)


UNCOMPARED = {f"<{XSD}{kind}>" for kind in ("gYear",)}
"""Types whose values the store compares, and validation does not."""


def test_what_does_not_compare_violates() -> None:
    zoned, local = (f'"2026-01-01T00:00:00{zone}"^^<{XSD}dateTime>' for zone in ("Z", ""))
    assert compare(zoned, local) is None
    assert compare("_:a", "_:a") is compare("<http://e/a>", "<http://e/a>") is None


ENDS = ("25:00:00Z", "00:00:00+15:00")
VALID = {
    "integer": (["1", "-1", "+1", "007"], ["", "1.0", "x", "1 "]),
    "int": (["1", "2147483647"], ["2147483648", "x"]),
    "unsignedByte": (["0", "255"], ["-1", "256"]),
    "positiveInteger": (["1"], ["0"]),
    "decimal": (["1", "1.5", "-.5", "1."], ["1e3", ".", "INF"]),
    "double": (["1", "1e3", "-INF", "NaN"], ["1f", "e3"]),
    "boolean": (["true", "false", "1", "0"], ["TRUE", "yes"]),
    "dateTime": (
        ["2026-01-01T00:00:00", "2024-02-29T23:59:59.5Z", "2026-01-01T24:00:00-14:00"],
        ["2026-01-01", "2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", *(f"2026-01-01T{end}" for end in ENDS)],
    ),
    "date": (
        ["2026-01-01", "2026-01-01Z", "-0004-02-29", "2000-02-29", "12000-02-29"],
        ["2026-1-1", "2026-04-31", "1900-02-29", "12100-02-29"],
    ),
    "time": (["10:00:00", "10:00:00.25+01:00"], ["10:00", "24:00:01"]),
    "duration": (["P1Y", "-P1DT2H", "PT0.5S"], ["P", "PT", "1D", "P1S"]),
    "dayTimeDuration": (["P1D", "PT1S"], ["P1Y", "P"]),
    "yearMonthDuration": (["P1Y2M"], ["P1D", "P"]),
    "gYear": (["2026", "-0001", "2026Z"], ["26"]),
    "hexBinary": (["", "0aFF"], ["0", "xx"]),
}  # fmt: skip


def test_the_text_of_a_literal_is_checked() -> None:
    for name, (good, bad) in VALID.items():
        checked = checked_by(f"<{XSD}{name}>")
        stored = "integer" if name in ("int", "unsignedByte", "positiveInteger") else name
        for text, valid in [*product(good, [True]), *product(bad, [False])]:
            assert checked(f'"{text}"^^<{XSD}{stored}>') == valid, (name, text)
        for other in ('"1"', '"1"@en', "<http://e/1>", "_:b", f'"1"^^<{XSD}anyURI>'):
            assert not checked(other)


def test_other_datatypes() -> None:
    assert checked_by(f"<{XSD}string>")('"a"')
    assert not checked_by(f"<{XSD}string>")('"a"@en')
    assert checked_by("<http://e/own>")('"anything"^^<http://e/own>')
    lang = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#langString>"
    assert checked_by(lang)('"a"@en')
    assert datatype_of('"a"@ar--rtl') == lang.replace("langString", "dirLangString")
    assert (language_of('"a"@ar--rtl'), language_of('"a"'), language_of("<http://e/@en>")) == ("ar", "", "")
    stamp = checked_by(f"<{XSD}dateTimeStamp>")
    assert stamp(f'"2026-01-01T00:00:00Z"^^<{XSD}dateTime>')
    assert not stamp(f'"2026-01-01T00:00:00"^^<{XSD}dateTime>')


def test_a_long_integer_takes_no_long_time() -> None:
    assert not checked_by(f"<{XSD}long>")(f'"{"9" * 100_000}"^^<{XSD}integer>')
    assert checked_by(f"<{XSD}integer>")(f'"{"9" * 100_000}"^^<{XSD}integer>')
