"""N-Triples terms in Spark: the parts of a term as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.engine.terms import XSD

if TYPE_CHECKING:
    from pyspark.sql import Column

_INTEGERS = tuple(
    XSD + name
    for name in (
        *("integer", "int", "long", "short", "byte", "nonNegativeInteger", "positiveInteger", "nonPositiveInteger"),
        *("negativeInteger", "unsignedInt", "unsignedLong", "unsignedShort", "unsignedByte"),
    )
)
# Lexical forms of XML Schema 1.1, part 2. A cast of Spark takes others too, such as `1d`, `0x1p3` and a time of today.
# `$` would also be before a line break at the end.
_INTEGER = r"^[+-]?[0-9]+\z"
_DECIMAL = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)\z"
_DOUBLE = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([Ee][+-]?[0-9]+)?\z"
_DATE_TIME = (
    r"^([0-9]{4}-[0-9]{2}-[0-9]{2}T)(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?|24:00:00(\.0+)?)"
    r"(Z|[+-](0[0-9]|1[0-3]):[0-5][0-9]|[+-]14:00)?\z"
)
# From here on sums, squares and ratios of readings might be infinite.
NUMBER_MAX = 1e150
_YEAR_2200_US = 7_258_118_400_000_000


def plain(term: Column) -> Column:
    """The plain text of a term, as `engine.terms.lexical`: the IRI, the literal's text or the blank node's label."""
    inner = F.btrim(term, F.lit("<>"))  # an IRI contains neither character
    quoted = F.substring(term, F.lit(2), F.length(term) - F.length(F.substring_index(term, '"', -1)) - 2)
    # The store escapes as JSON does.
    unescaped = F.when(F.instr(quoted, "\\") == 0, quoted).otherwise(
        F.get_json_object(F.concat(F.lit('{"v":"'), quoted, F.lit('"}')), "$.v")
    )
    return (
        F.when(F.startswith(term, F.lit("<")), inner)
        .when(F.startswith(term, F.lit('"')), unescaped)
        .otherwise(F.substring(term, F.lit(3), F.length(term)))
    )


def datatype(term: Column) -> Column:
    """A literal's datatype as an IRI; null for an IRI or a blank node."""
    tail = F.substring_index(term, '"', -1)
    return F.when(
        F.startswith(term, F.lit('"')),
        F.when(F.startswith(tail, F.lit("^^<")), F.substring(tail, F.lit(4), F.length(tail) - 4))
        .when(F.startswith(tail, F.lit("@")), F.lit("http://www.w3.org/1999/02/22-rdf-syntax-ns#langString"))
        .otherwise(F.lit(XSD + "string")),
    )


def number(value: Column, kind: Column) -> Column:
    """The double of a literal with a numeric datatype; null for `NUMBER_MAX` and more, NaN, and other terms."""
    found = F.when(kind.isin(*_INTEGERS), _double(value, _INTEGER))
    found = found.when(kind == XSD + "decimal", _double(value, _DECIMAL))
    return _within_bounds(found.when(kind.isin(XSD + "double", XSD + "float"), _double(value, _DOUBLE)))


def any_number(value: Column) -> Column:
    """As `number`, of a text of any numeric datatype."""
    return _within_bounds(_double(value, _DOUBLE))


def _double(value: Column, form: str) -> Column:
    return F.when(value.rlike(form), value.try_cast("double"))


def _within_bounds(found: Column) -> Column:
    return F.when(F.abs(found) < NUMBER_MAX, found)  # NaN compares as greater than any number


def flag(value: Column, kind: Column) -> Column:
    """The value of an xsd:boolean."""
    return F.when(kind == XSD + "boolean", F.when(value.isin("true", "1"), True).when(value.isin("false", "0"), False))


def moment(term: Column) -> Column:
    """The time of an xsd:dateTime, in UTC if it has no zone; null for other terms and outside the years 1970 to 2199.

    Sums with later times overflow, and Python has no times after the year 9999.
    """
    text = plain(term)
    # The hour 24 is the end of the day.
    whole_day = F.contains(text, F.lit("T24:"))
    time = F.when(whole_day, F.replace(text, F.lit("T24:"), F.lit("T00:"))).otherwise(text).try_cast("timestamp")
    found = F.when(whole_day, time + F.expr("INTERVAL 24 HOURS")).otherwise(time)
    found = F.when((datatype(term) == XSD + "dateTime") & text.rlike(_DATE_TIME), found)
    return F.when((F.unix_micros(found) >= 0) & (F.unix_micros(found) < _YEAR_2200_US), found)
