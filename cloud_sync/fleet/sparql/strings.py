"""The functions of SPARQL on strings, terms and hashes (SPARQL 1.1 Query, sections 17.4.2, 17.4.3 and 17.4.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.sparql.moments import date_time_of
from lamplighter.cloud_sync.fleet.sparql.numbers import decimal_of, double_of, integer_of, number_term, struct
from lamplighter.cloud_sync.fleet.sparql.values import (
    BOOLEAN_TERMS,
    NUMBER,
    STRING,
    TERM,
    TypedColumn,
    let,
    literal,
    simple_string,
    string_suffix,
    string_text,
    suffix,
)
from lamplighter.cloud_sync.fleet.tables.terms import datatype, plain
from lamplighter.engine.terms import XSD

if TYPE_CHECKING:
    from pyspark.sql import Column

_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_LANGUAGE_TAG = (  # RFC 5646, section 2.1, without the irregular tags
    "^(?i:(?:[a-z]{2,3}(?:-[a-z]{3}){0,3}|[a-z]{4,8})(?:-[a-z]{4})?(?:-(?:[a-z]{2}|[0-9]{3}))?"
    "(?:-(?:[a-z0-9]{5,8}|[0-9][a-z0-9]{3}))*(?:-[0-9a-wyz](?:-[a-z0-9]{2,8})+)*(?:-x(?:-[a-z0-9]{1,8})+)?"
    "|x(?:-[a-z0-9]{1,8})+)$"
)
_ABSOLUTE_IRI = (
    r"^[A-Za-z][A-Za-z0-9+.-]*:(?:[^\x00-\x20<>\"{}|^`\\%\x7f-\x9f\[\]]|%[0-9A-Fa-f]{2}|\[[0-9A-Fa-f:.]+\])*$"
)
_INTEGERS = (
    *("integer", "byte", "short", "int", "long", "unsignedByte", "unsignedShort", "unsignedInt", "unsignedLong"),
    *("positiveInteger", "negativeInteger", "nonPositiveInteger", "nonNegativeInteger"),
)


def compatible(name: str, left: TypedColumn, right: TypedColumn) -> Column:
    """CONTAINS, STRSTARTS or STRENDS. left, right: cheap or STRING."""
    relation = {"CONTAINS": F.contains, "STRSTARTS": F.startswith, "STRENDS": F.endswith}[name]
    found = relation(string_text(left), string_text(right))
    return found if right.type == STRING else F.when(_fits(left, right), found)


def _fits(left: TypedColumn, right: TypedColumn) -> Column:
    """Whether the arguments are compatible (section 17.4.3.1.2)."""
    if left.type == STRING:
        return string_suffix(right) == ""
    return (string_suffix(right) == "") | (string_suffix(right) == string_suffix(left))


def before(left: TypedColumn, right: TypedColumn) -> Column:
    """The term of STRBEFORE. left, right: cheap."""
    text, part = string_text(left), string_text(right)
    at = F.instr(text, part)
    cut = literal(F.substring(text, F.lit(1), at - 1), string_suffix(left))
    return F.when(_fits(left, right), F.when(at > 0, cut).when(at == 0, '""'))


def after(left: TypedColumn, right: TypedColumn) -> Column:
    """The term of STRAFTER. left, right: cheap."""
    text, part = string_text(left), string_text(right)
    at = F.instr(text, part)
    cut = literal(F.substring(text, at + F.length(part), F.length(text)), string_suffix(left))
    return F.when(_fits(left, right), F.when(at > 0, cut).when(at == 0, '""'))


def change_case(name: str, text: Column) -> Column:
    """UCASE or LCASE of a text."""
    return F.upper(text) if name == "UCASE" else F.lower(text)


def part(text: Column, start: Column, length: Column | None) -> Column:
    """SUBSTR in code points: the characters from start up to before start + length. start, length: bigints."""

    def body(x: Column) -> Column:
        first = F.greatest(x["start"], F.lit(1).cast("bigint"))
        end = F.length(x["text"]) + 1
        if length is not None:
            end = F.least(F.coalesce(F.try_add(x["start"], x["length"]), end), end)
        chosen = F.substring(x["text"], first.try_cast("int"), (end - first).try_cast("int"))
        valid = x["text"].isNotNull() & x["start"].isNotNull() & x["length"].isNotNull()
        return F.when(valid, F.when(end > first, chosen).otherwise(""))

    arguments = F.struct(
        text.alias("text"),
        start.alias("start"),
        (F.lit(0) if length is None else length).cast("bigint").alias("length"),
    )
    return let((TypedColumn(STRING, arguments),), body)


def concatenate(values: tuple[TypedColumn, ...]) -> Column:
    """The term of CONCAT. values: cheap or STRING."""
    if not values:
        return F.lit('""')
    tails = F.array_distinct(F.array(*(string_suffix(value) for value in values)))
    ending = let((TypedColumn(TERM, tails),), lambda x: F.when(F.size(x) == 1, x[0]).otherwise(""))
    return literal(F.concat(*(string_text(value) for value in values)), ending)


def lexical(value: TypedColumn) -> Column:
    """STR: the text of an IRI or a literal. value: cheap."""
    blank = F.startswith(value.column, F.lit("_")) | F.startswith(value.column, F.lit("<<"))
    return F.when(~blank, plain(value.column))


def language(term: Column) -> Column:
    """LANG: the tag of a literal. term: cheap."""
    tail = suffix(term)
    tag = F.substring_index(F.substring(tail, 2, 255), "--", 1)
    return F.when(F.startswith(tail, F.lit("@")), tag).when(F.startswith(term, F.lit('"')), "")


def language_matches(tag: Column, wanted: Column) -> Column:
    """LANGMATCHES of two texts (RFC 4647, section 3.3.1)."""

    def body(x: Column) -> Column:
        same = (x["tag"] == x["range"]) | F.startswith(x["tag"], F.concat(x["range"], F.lit("-")))
        return F.when(x["range"] == "*", x["tag"] != "").otherwise(same)

    arguments = F.struct(F.lower(tag).alias("tag"), F.lower(wanted).alias("range"))
    return let((TypedColumn(STRING, arguments),), body)


def datatype_term(term: Column) -> Column:
    """DATATYPE of a literal. term: cheap."""
    tail = suffix(term)
    directed = F.startswith(tail, F.lit("@")) & F.contains(tail, F.lit("--"))
    return F.when(directed, f"<{_RDF}dirLangString>").otherwise(F.concat(F.lit("<"), datatype(term), F.lit(">")))


def iri(value: TypedColumn) -> Column:
    """IRI of an IRI or the text of an absolute one. value: cheap."""
    text = simple_string(value)
    made = F.when(text.rlike(_ABSOLUTE_IRI), F.concat(F.lit("<"), text, F.lit(">")))
    if value.type != TERM:
        return made
    named = F.startswith(value.column, F.lit("<")) & ~F.startswith(value.column, F.lit("<<"))
    return F.when(named, value.column).otherwise(made)


def with_language(text: Column, tag: Column) -> Column:
    """STRLANG of two texts."""
    valid = let((TypedColumn(STRING, tag),), lambda x: F.when(x.rlike(_LANGUAGE_TAG), F.lower(x)))
    return literal(text, F.concat(F.lit("@"), valid))


def with_datatype(text: Column, name: Column) -> Column:
    """STRDT of a text and an IRI's term. Numbers, booleans and dateTimes get the store's form. text, name: cheap."""

    def is_(*names: str) -> Column:
        return name.isin(*(f"<{XSD}{one}>" for one in names))

    def number_of(rank: int, scaled: Column | None, double: Column | None) -> Column:
        value = TypedColumn(NUMBER, struct(rank, scaled, double))
        return let((value,), number_term)

    written = F.when(F.startswith(name, F.lit("<")), literal(text, F.concat(F.lit("^^"), name)))
    float_ = double_of(text).cast("float").cast("double")
    valued = (
        F.when(is_("string"), literal(text))
        .when(is_(*_INTEGERS), number_of(1, integer_of(text), None))
        .when(is_("decimal"), number_of(2, decimal_of(text), None))
        .when(is_("float"), number_of(3, None, float_))
        .when(is_("double"), number_of(4, None, double_of(text)))
        .when(is_("boolean") & text.isin("true", "1"), BOOLEAN_TERMS[1])
        .when(is_("boolean") & text.isin("false", "0"), BOOLEAN_TERMS[0])
        .when(is_("dateTime", "dateTimeStamp"), date_time_of(text))
    )
    return F.coalesce(valued, written)


def percent_encoded(text: Column) -> Column:
    """ENCODE_FOR_URI of a text: all but the unreserved characters of RFC 3986."""
    form = F.url_encode(text)
    for sign, escape in (("+", "%20"), ("*", "%2A"), ("%7E", "~")):
        form = F.replace(form, F.lit(sign), F.lit(escape))
    return form


def hash_text(name: str, text: Column) -> Column:
    """MD5, SHA1, SHA256, SHA384 or SHA512 of a text, in hexadecimal."""
    data = text.cast("binary")
    if name == "MD5":
        return F.md5(data)
    return F.sha1(data) if name == "SHA1" else F.sha2(data, int(name[3:]))
