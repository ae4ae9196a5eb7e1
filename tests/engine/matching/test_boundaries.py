"""The instant at which a comparison with the clock changes: solved here, or found by asking the store."""

from itertools import product
from typing import Any

import pytest

from lamplighter.engine.matching import boundaries
from lamplighter.engine.matching.boundaries import AFTER, BEFORE, boundary
from lamplighter.engine.sparql.algebra import Variable
from lamplighter.engine.sparql.clock_conditions import name_of_part, read_condition
from lamplighter.engine.sparql.clock_function import CLOCK, CLOCK_TIME
from lamplighter.engine.work import Meter, Work
from tests.support.tables import each_row

XSD = "http://www.w3.org/2001/XMLSchema#"
A, B = Variable("a"), Variable("b")
NOON = 1_795_683_600_000_000  # 2026-11-26T09:00:00Z
METER = Meter(Work(10**9), {})


def term(text: str, datatype: str) -> str:
    return f'"{text}"^^<{XSD}{datatype}>'


TERMS = [
    term("2026-11-26T09:00:00Z", "dateTime"),
    term("2026-11-26T09:00:00.0000005Z", "dateTime"),
    term("2026-11-26T11:00:00+02:00", "dateTime"),
    term("2026-11-26T09:00:00", "dateTime"),
    term("0001-01-01T00:00:00Z", "dateTime"),
    term("2026-11-26", "date"),
    term("PT5M", "duration"),
    term("PT0.25S", "dayTimeDuration"),
    term("-PT5M", "dayTimeDuration"),
    term("P1M", "yearMonthDuration"),
    term("5", "integer"),
    term(str(NOON), "integer"),
    term(f"{NOON}.5", "decimal"),
    term("1.795E15", "double"),
    term("9223372036854775807", "integer"),
    '"x"',
]


def condition(*parts: Any) -> Any:
    found = []
    for part in parts:
        found += [part, "(", ")"] if part in (CLOCK, CLOCK_TIME) else [part]
    return read_condition(found, name_of_part)


FORMS = [
    *((f, sign, A) for f in (CLOCK, CLOCK_TIME) for sign in ("<", "<=", ">", ">=")),
    *((f, "-", A, sign, B) for f in (CLOCK, CLOCK_TIME) for sign in ("<", ">=")),
    *((A, "-", f, sign, B) for f in (CLOCK, CLOCK_TIME) for sign in ("<=", ">")),
    *((A, "-", B, "<", f) for f in (CLOCK, CLOCK_TIME)),
    (A, "*", B, "+", A, "<=", CLOCK),
    ("(", CLOCK_TIME, "-", A, ")", "-", B, ">", B),
]


@each_row("form", FORMS, ids=lambda form: " ".join(getattr(part, "name", part[-6:]) for part in form))
def test_what_is_solved_is_what_the_store_decides(form: tuple[Any, ...]) -> None:
    compared = condition(*form)
    operands = [variable for variable in (A, B) if variable in form]
    found = boundary(compared, operands, METER)
    searched = boundaries._searched_boundary(compared, operands, METER)
    solved = boundaries._solved_boundary(compared, operands, METER)
    assert solved is not None or "(" in form
    sample = TERMS if len(operands) == 1 else TERMS[::3]
    for terms in product(sample, repeat=len(operands)):
        if solved is not None and solved(*terms) is not None:
            assert found(*terms) == searched(*terms), terms


def test_a_duration_is_added_whatever_the_spelling() -> None:
    """The store sorts summands, and cannot add a dateTime to a duration: by chance it is one or the other."""
    found = boundary(condition(CLOCK_TIME, ">=", A, "+", B), [A, B], METER)
    searched = boundaries._searched_boundary(condition(CLOCK_TIME, ">=", A, "+", B), [A, B], METER)
    for minutes in range(1, 30):
        terms = TERMS[0], term(f"PT{minutes}M", "dayTimeDuration")
        assert found(*terms) == searched(*terms) == NOON + minutes * 60_000_000


@each_row(
    ("sign", "text", "edge"),
    [
        (">=", "2026-11-26T09:00:00Z", NOON),
        (">", "2026-11-26T09:00:00Z", NOON + 1),
        ("<", "2026-11-26T09:00:00Z", NOON),
        ("<=", "2026-11-26T09:00:00Z", NOON + 1),
        (">=", "2026-11-26T09:00:00.0000005Z", NOON + 1),
        (">", "2026-11-26T09:00:00.0000005Z", NOON + 1),
        (">", "2026-11-26T09:00:00", NOON + 14 * 3_600_000_000 + 1),
        ("<", "2026-11-26T09:00:00", NOON - 14 * 3_600_000_000),
        ("<", "12026-11-26T09:00:00Z", AFTER),
        (">", "12026-11-26T09:00:00Z", AFTER),
        (">", "-0001-11-26T09:00:00Z", BEFORE),
    ],
)
def test_the_edges_of_an_instant(sign: str, text: str, edge: int) -> None:
    assert boundary(condition(CLOCK_TIME, sign, A), [A], METER)(term(text, "dateTime")) == edge


@pytest.mark.parametrize(("sign", "edge"), [(">", AFTER), ("<", BEFORE)])
def test_what_cannot_be_compared_never_holds(sign: str, edge: int) -> None:
    for value in ('"soon"', term("NaN", "double"), "<urn:x>"):
        assert boundary(condition(CLOCK_TIME, sign, A), [A], METER)(value) == edge
