"""Expressions -> columns (SPARQL 1.1 Query, section 17), with the results of Oxigraph.

The columns only use expressions of Spark without side effects, also inside lambdas. They raise nothing in ANSI mode.
Their size grows linearly with the expression's.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.sparql import comparisons, moments, numbers, strings
from lamplighter.cloud_sync.fleet.sparql.expression_tree import FunctionCall, Literal, Tree
from lamplighter.cloud_sync.fleet.sparql.values import (
    BOOLEAN,
    BOOLEAN_TERMS,
    INTEGER,
    NUMBER,
    STRING,
    TERM,
    TypedColumn,
    datatype_suffix,
    first_true,
    inside,
    is_simple,
    let,
    literal,
    simple_string,
    string_suffix,
    string_text,
    suffix,
    typed_literal,
)
from lamplighter.engine.sparql.algebra import Constant, Variable

if TYPE_CHECKING:
    from pyspark.sql import Column

_RELATIONS = ("=", "!=", "<", "<=", ">", ">=")


class Expressions:
    """Columns of expressions.

    term: the column with the N-Triples text of a variable, null if it is unbound, or of a constant. It must be cheap,
    such as an attribute or a field, since expressions have it several times. Texts must be in the store's form.
    """

    def __init__(self, term: Callable[[Variable | Constant], Column]) -> None:
        self._term = term

    def condition(self, tree: Tree) -> Column:
        """The effective boolean value; null for an error."""
        return truth(self._typed_column(tree))

    def term(self, tree: Tree) -> Column:
        """The N-Triples text; null for an error or an unbound variable."""
        return as_term(self._typed_column(tree))

    def _typed_column(self, tree: Tree) -> TypedColumn:
        if isinstance(tree, (Variable, Constant)):
            return TypedColumn(TERM, self._term(tree), cheap=True)
        if isinstance(tree, Literal):
            return TypedColumn(TERM, F.lit(tree.term), cheap=True)
        name = tree.name
        if name in ("||", "&&", "!"):
            conditions = [self.condition(argument) for argument in tree.arguments]
            if name == "!":
                return TypedColumn(BOOLEAN, ~conditions[0])
            both = conditions[0] | conditions[1] if name == "||" else conditions[0] & conditions[1]
            return TypedColumn(BOOLEAN, both)
        if name == "BOUND":
            (variable,) = tree.arguments
            return TypedColumn(BOOLEAN, self.term(variable).isNotNull())
        if name == "IF":
            condition, then, otherwise = tree.arguments
            return TypedColumn(TERM, first_true(self.condition(condition), self.term(then), self.term(otherwise)))
        if name == "COALESCE":
            return TypedColumn(TERM, F.coalesce(*(self.term(argument) for argument in tree.arguments)))
        if name in ("IN", "NOT IN"):
            found = self._among(tree)
            return TypedColumn(BOOLEAN, found if name == "IN" else ~found)
        return _call(name, tuple(self._typed_column(argument) for argument in tree.arguments))

    def _among(self, call: FunctionCall) -> Column:
        """Whether the first argument equals one of the others; an error only if it equals none."""
        first, *others = (self._typed_column(argument) for argument in call.arguments)

        def body(column: Column) -> Column:
            value = TypedColumn(first.type, column, cheap=True)
            found = F.lit(False)
            for other in others:
                found = found | relation("=", value, other)
            return found

        return let((first,), body)


def _call(name: str, arguments: tuple[TypedColumn, ...]) -> TypedColumn:
    """The value of an operator or function whose arguments are evaluated first."""
    if name in _RELATIONS:
        return TypedColumn(BOOLEAN, relation(name, *arguments))
    if name in ("+", "-", "*", "/"):
        left, right = (TypedColumn(NUMBER, as_number(argument)) for argument in arguments)
        return TypedColumn(NUMBER, numbers.arithmetic(name, left, right))
    if name in ("negative", "positive", "ABS", "CEIL", "FLOOR", "ROUND"):
        return TypedColumn(NUMBER, numbers.numeric_function(name, TypedColumn(NUMBER, as_number(arguments[0]))))
    if name.startswith("xsd:"):
        return _cast(name.removeprefix("xsd:"), arguments[0])
    if name in _OF_TERMS:
        type_, body = _OF_TERMS[name]
        terms = tuple(TypedColumn(TERM, as_term(argument), argument.cheap) for argument in arguments)
        return TypedColumn(type_, let(terms, body))
    return _string_function(name, arguments)


def _is_literal(term: Column) -> Column:
    return F.startswith(term, F.lit('"'))


def _is_iri(term: Column) -> Column:
    return F.startswith(term, F.lit("<")) & ~F.startswith(term, F.lit("<<"))


def _is_blank(term: Column) -> Column:
    return F.startswith(term, F.lit("_"))


def _is_numeric(term: Column) -> Column:
    found = let((TypedColumn(NUMBER, numbers.number(term)),), numbers.is_number)
    return F.when(term.isNotNull(), found)


def _seconds(term: Column) -> Column:
    """The number SECONDS."""
    text = moments.part("SECONDS", term).try_cast("decimal(38,18)")
    scaled = (text.cast("decimal(20,18)") * F.lit(Decimal(10**18))).cast("decimal(38,0)")
    return numbers.struct(numbers.DECIMAL_RANK, scaled, None)


def _date_part(name: str) -> Callable[[Column], Column]:
    return lambda term: moments.part(name, term)


_OF_TERMS: dict[str, tuple[str, Callable[..., Column]]] = {
    "SAMETERM": (BOOLEAN, lambda left, right: left == right),
    "ISIRI": (BOOLEAN, _is_iri),
    "ISBLANK": (BOOLEAN, _is_blank),
    "ISLITERAL": (BOOLEAN, _is_literal),
    "ISNUMERIC": (BOOLEAN, _is_numeric),
    "LANG": (STRING, strings.language),
    "DATATYPE": (TERM, strings.datatype_term),
    **{name: (INTEGER, _date_part(name)) for name in ("YEAR", "MONTH", "DAY", "HOURS", "MINUTES")},
    "SECONDS": (NUMBER, _seconds),
    "TIMEZONE": (TERM, lambda term: moments.zone_term(moments.zone(term))),
    "TZ": (STRING, moments.zone),
}


def _string_function(name: str, arguments: tuple[TypedColumn, ...]) -> TypedColumn:
    """Functions of strings. Arguments that are no strings make errors."""
    values = tuple(TypedColumn(TERM, as_term(one)) if one.type in (NUMBER, BOOLEAN) else one for one in arguments)
    texts = values[0].type == STRING if values else False

    def bind_values(body: Callable[..., Column]) -> Column:
        """body of the values as cheap ones."""
        return let(values, lambda *columns: body(*_with_columns(values, columns)))

    if name == "STR":
        if texts:
            return values[0]
        return TypedColumn(
            STRING, bind_values(strings.lexical) if values[0].type == TERM else values[0].column.cast("string")
        )
    if name in ("CONTAINS", "STRSTARTS", "STRENDS"):
        if values[0].type == STRING and (values[1].cheap or values[1].type == STRING):
            return TypedColumn(BOOLEAN, strings.compatible(name, *values))
        return TypedColumn(BOOLEAN, bind_values(lambda *found: strings.compatible(name, *found)))
    if name == "STRLEN":
        return TypedColumn(INTEGER, bind_values(lambda one: F.length(string_text(one)).cast("bigint")))
    if name in ("UCASE", "LCASE") and texts:
        return TypedColumn(STRING, strings.change_case(name, values[0].column))
    if name in ("UCASE", "LCASE"):
        return TypedColumn(
            TERM, bind_values(lambda one: literal(strings.change_case(name, string_text(one)), string_suffix(one)))
        )
    if name == "ENCODE_FOR_URI":
        return TypedColumn(STRING, bind_values(lambda one: strings.percent_encoded(string_text(one))))
    if name in ("MD5", "SHA1", "SHA256", "SHA384", "SHA512"):
        return TypedColumn(STRING, bind_values(lambda one: strings.hash_text(name, simple_string(one))))
    if name == "LANGMATCHES":
        return TypedColumn(
            BOOLEAN, bind_values(lambda one, two: strings.language_matches(simple_string(one), simple_string(two)))
        )
    return TypedColumn(TERM, bind_values(_MAKES_TERM[name]))


def _with_columns(values: tuple[TypedColumn, ...], columns: tuple[Column, ...]) -> tuple[TypedColumn, ...]:
    return tuple(TypedColumn(value.type, column, cheap=True) for value, column in zip(values, columns, strict=True))


def _substr(source: TypedColumn, start: TypedColumn, length: TypedColumn | None = None) -> Column:
    cut = strings.part(string_text(source), _integer(start), None if length is None else _integer(length))
    return literal(cut, string_suffix(source))


def _strdt(text: TypedColumn, name: TypedColumn) -> Column:
    return let(
        (TypedColumn(STRING, simple_string(text)), TypedColumn(TERM, as_term(name), cheap=True)), strings.with_datatype
    )


_MAKES_TERM: dict[str, Callable[..., Column]] = {
    "SUBSTR": _substr,
    "STRBEFORE": strings.before,
    "STRAFTER": strings.after,
    "CONCAT": lambda *values: strings.concatenate(values),
    "IRI": strings.iri,
    "STRLANG": lambda text, tag: strings.with_language(simple_string(text), simple_string(tag)),
    "STRDT": _strdt,
}


def _integer(value: TypedColumn) -> Column:
    """The bigint of an xsd:integer; null for other values. value: cheap."""
    if value.type == INTEGER:
        return value.column
    if value.type != TERM:
        return F.lit(None).cast("bigint")
    scaled = F.when(suffix(value.column) == datatype_suffix("integer"), numbers.integer_of(inside(value.column)))
    return F.when(scaled.isNotNull(), inside(value.column).try_cast("bigint"))


def as_term(value: TypedColumn) -> Column:
    """The N-Triples text of a value."""
    if value.type == TERM:
        return value.column
    if value.type == STRING:
        return literal(value.column)
    if value.type == BOOLEAN:
        return first_true(value.column, F.lit(BOOLEAN_TERMS[1]), F.lit(BOOLEAN_TERMS[0]))
    if value.type == INTEGER:
        return typed_literal(value.column.cast("string"), "integer")
    return let((value,), numbers.number_term)


def as_number(value: TypedColumn) -> Column:
    """The number of a value, with null fields if it is none."""
    if value.type == NUMBER:
        return value.column
    if value.type == INTEGER:
        return numbers.of_integer(value.column)
    return let((TypedColumn(TERM, as_term(value), value.cheap),), numbers.number)


def truth(value: TypedColumn) -> Column:
    """The effective boolean value (section 17.2.2)."""
    if value.type == BOOLEAN:
        return value.column
    if value.type == STRING:
        return value.column != ""
    if value.type == INTEGER:
        return value.column != 0
    if value.type == NUMBER:
        return let((value,), numbers.is_true)

    def body(term: Column) -> Column:
        return (
            F.when(term == BOOLEAN_TERMS[1], True)
            .when(term == BOOLEAN_TERMS[0], False)
            .when(is_simple(term), term != '""')
            .otherwise(let((TypedColumn(NUMBER, numbers.number(term)),), numbers.is_true))
        )

    return let((value,), body)


def relation(sign: str, left: TypedColumn, right: TypedColumn) -> Column:
    """A relation between two values."""
    if sign == "!=":
        return ~relation("=", left, right)
    types = {left.type, right.type}
    if types in ({STRING}, {INTEGER}) or (types == {BOOLEAN} and sign == "="):
        return _comparison(sign, left.column, right.column)
    if STRING in types and TERM in types and sign == "=":
        text, term = (left, right) if left.type == STRING else (right, left)
        return _text_equals(text, term)
    if types <= {INTEGER, NUMBER, TERM} and types != {TERM}:
        return _number_related(sign, left, right)
    terms = tuple(TypedColumn(TERM, as_term(value), value.cheap) for value in (left, right))
    return let(terms, lambda x, y: _terms_related(sign, x, y))


def _comparison(sign: str, left: Column, right: Column) -> Column:
    return {"=": left == right, "<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[sign]


def _terms_related(sign: str, left: Column, right: Column) -> Column:
    terms = TypedColumn(TERM, F.struct(left.alias("left"), right.alias("right")))
    if sign == "=":
        certain = let((terms,), lambda x: comparisons.equality(x["left"], x["right"]))
        known = left.isNotNull() & right.isNotNull()
        return F.when(known, F.coalesce(comparisons.clearly_equal(left, right), certain))
    certain = let((terms,), lambda x: comparisons.ordering(x["left"], x["right"]))
    greater = comparisons.greater(left, right)
    quick = greater if sign.startswith(">") else ~greater
    return F.coalesce(quick, F.when(comparisons.comparable(left, right), _comparison(sign, certain, F.lit(0))))


def _text_equals(text: TypedColumn, term: TypedColumn) -> Column:
    """An xsd:string ``=`` a term."""

    def body(string: Column, other: Column) -> Column:
        def certain(x: Column) -> Column:
            return F.when(x["sort"] != comparisons.UNKNOWN, False)

        same = F.when(is_simple(other), string == simple_string(TypedColumn(TERM, other)))
        known = string.isNotNull() & other.isNotNull()
        return same.when(known, let((TypedColumn(TERM, comparisons.parts(other)),), certain))

    return let((text, term), body)


def _number_related(sign: str, left: TypedColumn, right: TypedColumn) -> Column:
    """A relation with at least one number; the other value may be any term."""
    values = tuple(TypedColumn(NUMBER, as_number(value)) for value in (left, right))
    if sign != "=":

        def ordering(x: Column, y: Column) -> Column:
            # To Oxigraph, the same NaN is neither less nor greater, and another NaN is an error.
            same = (x["rank"] == y["rank"]) & F.isnan(x["double"]) & F.isnan(y["double"])
            return F.when(same, 0).otherwise(numbers.ordering(x, y))

        return _comparison(sign, let(values, ordering), F.lit(0))
    other = next((value for value in (left, right) if value.type == TERM), None)
    if other is None:
        return let(values, _equal_numbers)

    def body(x: Column, y: Column) -> Column:
        different = numbers.is_number(x) & (y["sort"] != comparisons.UNKNOWN)
        return F.when(y["sort"] == comparisons.NUMBERS, _equal_numbers(x, y)).when(different, False)

    def parts(term: Column) -> Column:
        return F.when(term.isNotNull(), comparisons.parts(term))

    number = values[1] if left.type == TERM else values[0]
    return let((number, TypedColumn(TERM, let((other,), parts))), body)


def _equal_numbers(x: Column, y: Column) -> Column:
    """Whether two numbers are equal; false if either is NaN."""
    valid = numbers.is_number(x) & numbers.is_number(y)
    return F.when(valid, F.coalesce(numbers.ordering(x, y) == 0, F.lit(False)))


def _cast(name: str, value: TypedColumn) -> TypedColumn:
    """A cast function (section 17.5). name: of the datatype."""
    term = TypedColumn(TERM, as_term(value), value.cheap)
    if name == "string":
        return (
            _string_function("STR", (value,))
            if value.type == STRING
            else TypedColumn(STRING, let((term,), lambda x: strings.lexical(TypedColumn(TERM, x, cheap=True))))
        )
    if name == "dateTime":
        return TypedColumn(TERM, let((term,), moments.date_time))

    def boolean(x: Column) -> Column:
        written = F.when(inside(x).isin("true", "1"), True).when(inside(x).isin("false", "0"), False)
        kept = F.when(x == BOOLEAN_TERMS[1], True).when(x == BOOLEAN_TERMS[0], False)
        numeric = let((TypedColumn(NUMBER, numbers.number(x)),), numbers.is_true)
        return F.when(suffix(x) == "", written).otherwise(F.coalesce(kept, numeric))

    if name == "boolean":
        return TypedColumn(BOOLEAN, let((term,), boolean))
    return TypedColumn(NUMBER, let((term,), lambda x: numbers.cast_to(name, x)))
