"""The relations of SPARQL between terms (SPARQL 1.1 Query, section 17.3), as Oxigraph defines them.

Comparisons of numbers and times that differ clearly, and of texts, are ordinary code. All others go through `let`.
Two different durations, times of day, calendar values (xsd:gYear, ...) or triple terms are an error, and so is each of
them beside a literal of another kind: whether such a text is valid is not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.sparql import moments, numbers
from lamplighter.cloud_sync.fleet.sparql.values import (
    BOOLEAN_TERMS,
    NUMBER,
    TERM,
    TypedColumn,
    datatype_suffix,
    inside,
    is_simple,
    let,
    suffix,
)
from lamplighter.cloud_sync.fleet.tables.terms import plain

if TYPE_CHECKING:
    from pyspark.sql import Column

RESOURCE, LANGUAGE, STRINGS, NUMBERS, BOOLEANS, DATE_TIMES, DATES, UNKNOWN = range(8)

# Characters of a number that is in the range of its type whatever its digits are, and of a decimal whose double
# `numbers.as_double` rounds once.
_SHORT = {"integer": 18, "decimal": 16}


def parts(term: Column) -> Column:
    """All that a relation has to know of a term: a number, a moment, and `sort`, one of the constants above.

    struct<sort INT, rank INT, scaled DECIMAL, double DOUBLE, kind STRING, seconds DECIMAL, zoned BOOLEAN>. term: cheap.
    """
    tail = suffix(term)
    moment = F.when(F.contains(tail, F.lit("#date")), moments.moment(term))

    def body(n: Column, m: Column) -> Column:
        sort = F.when(is_resource(term), RESOURCE).when(~F.startswith(term, F.lit('"')), UNKNOWN)
        sort = sort.when(tail == "", STRINGS).when(F.startswith(tail, F.lit("@")), LANGUAGE)
        sort = sort.when(term.isin(*BOOLEAN_TERMS), BOOLEANS).when(numbers.is_number(n), NUMBERS)
        sort = sort.when(m["kind"] == "date", DATES).when(m["kind"] == "dateTime", DATE_TIMES).otherwise(UNKNOWN)
        fields = [n[name].alias(name) for name in ("rank", "scaled", "double")]
        fields += [m[name].alias(name) for name in ("kind", "seconds", "zoned")]
        return F.struct(sort.alias("sort"), *fields)

    return let((TypedColumn(NUMBER, numbers.number(term)), TypedColumn(TERM, moment)), body)


def fast_number(term: Column) -> Column:
    """The double nearest to a short integer or decimal, or to a finite double; null for other terms. term: cheap.

    Spark reads numbers more leniently than XML Schema does. The exponent that is appended makes what is no plain number
    unreadable, such as ``1d`` and ``INF``, and so do the checks for a space and for no text.
    """
    text = inside(term)
    found = F.when(_short(term, "integer"), F.concat(text, F.lit(".0e0")).try_cast("double"))
    found = found.when(_short(term, "decimal"), F.concat(text, F.lit("e0")).try_cast("double"))
    found = found.when(_has_datatype(term, "double"), F.concat(text, F.lit("e0")).try_cast("double"))
    return F.when(~F.startswith(term, F.lit('" ')) & ~F.startswith(term, F.lit('""')), found)


def _has_datatype(term: Column, name: str) -> Column:
    """Whether a term has a datatype of XML Schema. Takes less than `suffix`."""
    return F.endswith(term, F.lit('"' + datatype_suffix(name)))


def _short(term: Column, name: str) -> Column:
    """Whether a term has a datatype, and at most as many characters as `_SHORT` says."""
    return _has_datatype(term, name) & (F.octet_length(term) <= len('""' + datatype_suffix(name)) + _SHORT[name])


def _later(left: Column, right: Column) -> Column:
    """Whether a number is greater; null if it is equal or not known. Each operand occurs once."""
    return F.try_divide(F.lit(1.0), left * 0.5 - right * 0.5) > 0


def greater(left: Column, right: Column) -> Column:
    """Whether left > right for clearly different numbers or times; null for other terms. left, right: cheap."""
    as_numbers = _later(fast_number(left), fast_number(right))
    as_times = _later(moments.microseconds(left).cast("double"), moments.microseconds(right).cast("double"))
    return F.coalesce(as_numbers, as_times)


def ordering(left: Column, right: Column) -> Column:
    """-1, 0 or 1 for ``<``, ``<=``, ``>`` and ``>=``; null for an error. left, right: cheap terms."""
    tail = suffix(left)
    text = F.startswith(left, F.lit('"')) & (suffix(right) == tail) & ((tail == "") | F.startswith(tail, F.lit("@")))

    def body(x: Column, y: Column) -> Column:
        both_numbers = (x["sort"] == NUMBERS) & (y["sort"] == NUMBERS)
        return F.when(both_numbers, numbers.ordering(x, y)).otherwise(moments.ordering(x, y))

    values = let((TypedColumn(TERM, parts(left)), TypedColumn(TERM, parts(right))), body)
    return F.when(left == right, 0).when(text, numbers.three_way(plain(left), plain(right))).otherwise(values)


def equality(left: Column, right: Column) -> Column:
    """Whether left ``=`` right; null for an error. left, right: cheap terms."""

    def body(x: Column, y: Column) -> Column:
        same = F.when(left == right, ~F.startswith(left, F.lit('"NaN"^^')) | (x["sort"] != NUMBERS))
        same = same.when((x["sort"] == RESOURCE) | (y["sort"] == RESOURCE), False)
        same = same.when((x["sort"] == LANGUAGE) | (y["sort"] == LANGUAGE), False)
        same = same.when((x["sort"] == UNKNOWN) | (y["sort"] == UNKNOWN), None)
        same = same.when(x["sort"] != y["sort"], False)
        same = same.when(x["sort"] == NUMBERS, F.coalesce(numbers.ordering(x, y) == 0, F.lit(False)))
        return same.when(x["sort"].isin(DATE_TIMES, DATES), moments.same(x, y)).otherwise(False)

    return let((TypedColumn(TERM, parts(left)), TypedColumn(TERM, parts(right))), body)


def comparable(left: Column, right: Column) -> Column:
    """Whether `ordering` may find an order: datatypes are equal, or both numeric. left, right: cheap terms."""

    def numeric(term: Column) -> Column:
        found = _has_datatype(term, "integer")
        for name in ("decimal", "double", "float"):
            found = found | _has_datatype(term, name)
        return found

    return (numeric(left) & numeric(right)) | (suffix(left) == suffix(right))


def clearly_equal(left: Column, right: Column) -> Column:
    """Whether left ``=`` right for IRIs, blank nodes, strings and equal integers; else null. left, right: cheap."""
    equal = is_simple(right) | is_resource(right) | _has_datatype(right, "integer")
    equal = equal | F.startswith(suffix(right), F.lit("@"))
    return (
        F.when(left == right, F.when(equal, True))
        .when(is_resource(left) | is_resource(right), False)
        .when(is_simple(left) & is_simple(right), False)
        .when(_short(left, "integer") & _short(right, "integer"), F.when(_whole(left) & _whole(right), False))
    )


def _whole(term: Column) -> Column:
    """Whether a term of the datatype integer is one."""
    return term.rlike('^"-?[0-9]+"')


def is_resource(term: Column) -> Column:
    """Whether a term is an IRI or a blank node."""
    return ~F.startswith(term, F.lit('"')) & ~F.startswith(term, F.lit("<<"))
