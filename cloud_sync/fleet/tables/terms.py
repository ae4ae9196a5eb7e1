"""N-Triples terms in Spark: the parts of a term as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.engine.terms import XSD

if TYPE_CHECKING:
    from pyspark.sql import Column

NUMERIC = tuple(
    XSD + name
    for name in (
        *("integer", "decimal", "double", "float", "int", "long", "short", "byte", "nonNegativeInteger"),
        *("positiveInteger", "nonPositiveInteger", "negativeInteger", "unsignedInt", "unsignedLong", "unsignedShort"),
        "unsignedByte",
    )
)

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
    """The double of a literal with a numeric datatype; null for infinities and other terms."""
    found = F.when(kind.isin(*NUMERIC), value.try_cast("double"))
    return F.when(F.abs(found) < float("inf"), found)  # NaN compares as greater than any number


def flag(value: Column, kind: Column) -> Column:
    """The value of an xsd:boolean."""
    return F.when(kind == XSD + "boolean", F.when(value.isin("true", "1"), True).when(value.isin("false", "0"), False))


def moment(term: Column) -> Column:
    """The time of an xsd:dateTime, in UTC if it has no zone; null for other terms and outside the years 1970 to 2199.

    Sums with later times overflow, and Python has no times after the year 9999.
    """
    found = F.when(datatype(term) == XSD + "dateTime", plain(term).try_cast("timestamp"))
    return F.when((F.unix_micros(found) >= 0) & (F.unix_micros(found) < _YEAR_2200_US), found)
