"""Values of expressions as columns: terms, strings, booleans and numbers, and the conversions between them.

A term is its N-Triples text as the store writes it: canonical numbers, booleans and times, and language tags in lower
case. An expression's own values stay in Spark's types until a term is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.tables.terms import plain
from lamplighter.engine.terms import XSD

if TYPE_CHECKING:
    from pyspark.sql import Column

TERM = "term"
STRING = "string"
BOOLEAN = "boolean"
INTEGER = "integer"
NUMBER = "number"

BOOLEAN_TERMS = tuple(f'"{text}"^^<{XSD}boolean>' for text in ("false", "true"))
LENGTH_MAX = 2**31 - 1

_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"), ("\b", "\\b"), ("\f", "\\f"))
_OTHER_ESCAPED = (*range(0x20), 0x7F, 0xFFFE, 0xFFFF)


@dataclass(frozen=True)
class TypedColumn:
    """A column and what it holds; null is an error, or an unbound variable.

    type: TERM: N-Triples text; STRING: the text of an xsd:string; BOOLEAN; INTEGER: a bigint, an xsd:integer; NUMBER: a
    struct of `numbers`. cheap: whether the column can occur several times in an expression: an attribute, or a field.
    """

    type: str
    column: Column
    cheap: bool = False


def let(values: tuple[TypedColumn, ...], body: Callable[..., Column]) -> Column:
    """body of the values' columns, each of which is evaluated once however often the body has it."""
    # Spark has no such expression, so nested expressions would grow exponentially. A lambda over an array of one
    # element is one, at the price that its body is interpreted; cheap columns do without.
    dear = [at for at, value in enumerate(values) if not value.cheap]
    if not dear:
        return body(*(value.column for value in values))
    # An element that is null would make all of its fields null.
    bound = F.array(F.struct(*(values[at].column.alias(f"v{at}") for at in dear)))

    def inner(element: Column) -> Column:
        return body(*(element[f"v{at}"] if at in dear else value.column for at, value in enumerate(values)))

    return F.get(F.transform(bound, inner), F.lit(0))


def first_true(condition: Column, then: Column, otherwise: Column) -> Column:
    """then or otherwise by a boolean that occurs once in the expression; null if it is null. Evaluates both."""
    # In ANSI mode, Spark 4.3 takes `array[index]` for never null although the index may be.
    return F.get(F.array(otherwise, then), condition.cast("int"))


def suffix(term: Column) -> Column:
    """What follows the text of a literal: ``""``, ``@`` and the language, or ``^^`` and the datatype; else the term."""
    return F.substring_index(term, '"', -1)


def is_simple(term: Column) -> Column:
    """Whether a term is an xsd:string: no other term ends with a quote. Takes less than `suffix`."""
    return F.endswith(term, F.lit('"'))


def datatype_suffix(name: str) -> str:
    """`suffix` of a literal with a datatype of XML Schema."""
    return f"^^<{XSD}{name}>"


def inside(term: Column) -> Column:
    """The text of a literal without quotes in it, such as a number: escapes stay."""
    return F.substring(F.substring_index(term, '"', 2), 2, LENGTH_MAX)


def simple_string(value: TypedColumn) -> Column:
    """The text of an xsd:string; null for other values. value: cheap or STRING."""
    if value.type == STRING:
        return value.column
    if value.type != TERM:
        return F.lit(None).cast("string")
    return F.when(is_simple(value.column), simple_text(value.column))


def simple_text(term: Column) -> Column:
    """The text of an xsd:string. term: cheap, and an xsd:string."""
    quoted = F.substring(term, F.lit(2), F.length(term) - 2)
    return F.when(F.contains(term, F.lit("\\")), plain(term)).otherwise(quoted)


def string_suffix(value: TypedColumn) -> Column:
    """``""`` or ``@`` and the language of a string; null for other values. value: cheap or STRING."""
    if value.type == STRING:
        return F.when(value.column.isNotNull(), F.lit(""))
    if value.type != TERM:
        return F.lit(None).cast("string")
    found = suffix(value.column)
    return F.when(is_simple(value.column), "").when(F.startswith(found, F.lit("@")), found)


def string_text(value: TypedColumn) -> Column:
    """The text of a string with or without a language; null for other values. value: cheap or STRING."""
    if value.type == STRING:
        return value.column
    if value.type != TERM:
        return F.lit(None).cast("string")
    tagged = F.startswith(suffix(value.column), F.lit("@"))
    return F.when(is_simple(value.column), simple_text(value.column)).when(tagged, plain(value.column))


def literal(text: Column, ending: Column | str = "") -> Column:
    """The term of a text, escaped as the store does. ending: `suffix` of the literal."""
    for sign, escape in _ESCAPES:
        text = F.replace(text, F.lit(sign), F.lit(escape))
    ending = F.lit(ending) if isinstance(ending, str) else ending
    return F.concat(F.lit('"'), _rare_escapes(text), F.lit('"'), ending)


def _rare_escapes(text: Column) -> Column:
    """Control characters without a short escape. Looks for them before it replaces them."""

    def escape_rare(found: Column) -> Column:
        changed = found
        for code in _OTHER_ESCAPED:
            changed = F.replace(changed, F.lit(chr(code)), F.lit(f"\\u{code:04X}"))
        return F.when(found.rlike("[\\x00-\\x1f\\x7f\\ufffe\\uffff]"), changed).otherwise(found)

    return let((TypedColumn(STRING, text),), escape_rare)


def typed_literal(text: Column, name: str) -> Column:
    """The term of a text without characters to escape. name: its datatype of XML Schema."""
    return F.concat(F.lit('"'), text, F.lit('"' + datatype_suffix(name)))
