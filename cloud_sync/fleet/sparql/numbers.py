"""Numbers of SPARQL as structs: xsd:integer, xsd:decimal, xsd:float and xsd:double (XQuery operators, section 4).

A number is `struct<rank INT, scaled DECIMAL(38,0), double DOUBLE>`: rank INTEGER_RANK and DECIMAL_RANK have the value
times 10^18 in `scaled`, as Oxigraph's decimals; FLOAT_RANK and DOUBLE_RANK have it in `double`. All other fields are
null, and so is the field with the value of an error. Unlike Oxigraph, an xsd:decimal of 10^20 or more is an error.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from lamplighter.cloud_sync.fleet.lazy import F
from lamplighter.cloud_sync.fleet.sparql.values import (
    NUMBER,
    STRING,
    TypedColumn,
    datatype_suffix,
    inside,
    let,
    suffix,
    typed_literal,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

INTEGER_RANK, DECIMAL_RANK, FLOAT_RANK, DOUBLE_RANK = 1, 2, 3, 4
RANKS = {"integer": INTEGER_RANK, "decimal": DECIMAL_RANK, "float": FLOAT_RANK, "double": DOUBLE_RANK}

_EXACT = "decimal(38,0)"
_DIGITS = 18
_ONE = 10**_DIGITS
_INTEGER_MAX = 2**63 - 1
_INTEGER_TEXT = "^[+-]?[0-9]+$"
_DECIMAL_TEXT = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)$"
_DOUBLE_TEXT = r"^[+-]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|(?i:inf|infinity|nan))$"
_WHOLE_DOUBLES = 2.0**52  # from here on, all doubles are whole


def number(term: Column) -> Column:
    """The number of a term; all fields are null for other terms. term: cheap."""
    tail, text = suffix(term), inside(term)
    rank = F.when(tail == datatype_suffix("integer"), INTEGER_RANK)
    for name in ("decimal", "float", "double"):
        rank = rank.when(tail == datatype_suffix(name), RANKS[name])
    scaled = F.when(tail == datatype_suffix("integer"), integer_of(text)).when(
        tail == datatype_suffix("decimal"), decimal_of(text)
    )
    double = F.when(tail == datatype_suffix("double"), double_of(text)).when(
        tail == datatype_suffix("float"), double_of(text).cast("float").cast("double")
    )
    return struct(rank, scaled, double)


def struct(rank: Column | int, scaled: Column | None, double: Column | None) -> Column:
    """A number of its fields, None for null."""
    rank = F.lit(rank) if isinstance(rank, int) else rank
    scaled = F.lit(None).cast(_EXACT) if scaled is None else scaled
    double = F.lit(None).cast("double") if double is None else double
    return F.struct(rank.alias("rank"), scaled.alias("scaled"), double.alias("double"))


def of_integer(value: Column) -> Column:
    """The number of a bigint."""
    scaled = F.concat(value.cast("string"), F.lit("0" * _DIGITS)).cast(_EXACT)
    return struct(INTEGER_RANK, scaled, None)


def integer_of(text: Column) -> Column:
    """`scaled` of the text of an xsd:integer. text: cheap."""
    digits = F.when(text.rlike(_INTEGER_TEXT), text.try_cast("bigint")).cast("string")
    return F.concat(digits, F.lit("0" * _DIGITS)).cast(_EXACT)


def decimal_of(text: Column) -> Column:
    """`scaled` of the text of an xsd:decimal. text: cheap."""
    whole = F.substring_index(text, ".", 1)
    fraction = F.when(F.contains(text, F.lit(".")), F.rtrim(F.substring_index(text, ".", -1), F.lit("0"))).otherwise("")
    digits = F.concat(whole, F.rpad(fraction, _DIGITS, "0"))
    return F.when(text.rlike(_DECIMAL_TEXT) & (F.length(fraction) <= _DIGITS), digits.try_cast(_EXACT))


def double_of(text: Column) -> Column:
    """The double of the text of an xsd:double. text: cheap."""
    return F.when(text.rlike(_DOUBLE_TEXT), F.ltrim(text, F.lit("+")).try_cast("double"))


def is_number(value: Column) -> Column:
    """Whether a struct is a number, and no error."""
    return value["scaled"].isNotNull() | value["double"].isNotNull()


def as_double(value: Column) -> Column:
    """The double of a number. That of a decimal is rounded twice, as Oxigraph does: without trailing zeros, by a power
    of ten."""
    scaled = value["scaled"]
    text = scaled.cast("string")
    zeros = F.least(F.length(text) - F.length(F.rtrim(text, F.lit("0"))), F.lit(_DIGITS))
    digits = F.substring(text, F.lit(1), F.length(text) - zeros).try_cast("double")
    return F.coalesce(value["double"], F.when(scaled == 0, 0.0).otherwise(digits / F.pow(F.lit(10.0), _DIGITS - zeros)))


def as_float(value: Column) -> Column:
    """The float of a number."""
    return as_double(value).cast("float")


def is_true(value: Column) -> Column:
    """The effective boolean value of a number."""
    return F.coalesce(value["scaled"] != 0, (value["double"] != 0) & ~F.isnan(value["double"]))


def ordering(left: Column, right: Column) -> Column:
    """-1, 0 or 1; null if either is NaN or no number. left, right: cheap."""

    def of_doubles(x: Column) -> Column:
        return F.when(~F.isnan(x["left"]) & ~F.isnan(x["right"]), three_way(x["left"], x["right"]))

    rank = _rank(left, right)
    pair = F.struct(
        *(
            F.when(rank == FLOAT_RANK, as_float(value).cast("double")).otherwise(as_double(value)).alias(name)
            for name, value in (("left", left), ("right", right))
        )
    )
    exact = three_way(left["scaled"], right["scaled"])
    return F.when(rank <= DECIMAL_RANK, exact).otherwise(let((TypedColumn(NUMBER, pair),), of_doubles))


def three_way(left: Column, right: Column) -> Column:
    """-1, 0 or 1."""
    return F.when(left < right, -1).when(left > right, 1).when(left == right, 0)


def _rank(left: Column, right: Column) -> Column:
    """The rank to which both operands are promoted; null if either is no number."""
    known = left["rank"].isNotNull() & right["rank"].isNotNull()
    return F.when(known, F.greatest(left["rank"], right["rank"]))


def arithmetic(sign: str, left: TypedColumn, right: TypedColumn) -> Column:
    """The number ``left sign right``. left, right: NUMBER."""

    def body(x: Column, y: Column) -> Column:
        rank = _rank(x, y)
        exact = {"+": _sum, "-": _difference, "*": _product, "/": _quotient}[sign]
        doubles = _divide if sign == "/" else _integer_arithmetic
        float_, double_ = (
            doubles(sign, as_float(x), as_float(y), "float").cast("double"),
            doubles(sign, as_double(x), as_double(y), "double"),
        )
        scaled = F.when(rank <= DECIMAL_RANK, exact(x["scaled"], y["scaled"]))
        double = F.when(rank == FLOAT_RANK, float_).when(rank == DOUBLE_RANK, double_)
        if sign == "/":
            rank = F.greatest(rank, F.lit(DECIMAL_RANK))
        return struct(rank, scaled, double)

    found = let((left, right), body)
    return found if sign == "/" else _check_integer(found)


def _check_integer(value: Column) -> Column:
    """The number, or an error if it is an integer of more than 64 bits."""

    def body(x: Column) -> Column:
        low, high = (F.lit(Decimal(bound * _ONE)) for bound in (-_INTEGER_MAX - 1, _INTEGER_MAX))
        fits = (x["rank"] != INTEGER_RANK) | x["scaled"].between(low, high)
        return struct(x["rank"], F.when(fits, x["scaled"]), x["double"])

    return let((TypedColumn(NUMBER, value),), body)


def _sum(x: Column, y: Column) -> Column:
    return F.try_add(x, y).cast(_EXACT)


def _difference(x: Column, y: Column) -> Column:
    return F.try_subtract(x, y).cast(_EXACT)


def _strip_zeros(x: Column) -> tuple[Column, Column]:
    """The digits of an exact number other than 0 without final zeros, and how many zeros those are."""
    text = x.cast("string")
    digits = F.rtrim(text, F.lit("0"))
    return digits, F.length(text) - F.length(digits)


def _product(x: Column, y: Column) -> Column:
    """Oxigraph's result: an error if it has more than 18 fraction digits."""
    (left, left_zeros), (right, right_zeros) = _strip_zeros(x), _strip_zeros(y)
    zeros = left_zeros + right_zeros - _DIGITS
    digits = F.try_multiply(left.cast(_EXACT), right.cast(_EXACT)).cast("string")
    found = F.when(zeros >= 0, F.concat(digits, F.repeat(F.lit("0"), zeros)).try_cast(_EXACT))
    return F.when(x.isNotNull() & y.isNotNull() & ((x == 0) | (y == 0)), F.lit(0).cast(_EXACT)).otherwise(found)


def _quotient(x: Column, y: Column) -> Column:
    """Oxigraph's result, cut after 18 fraction digits: an error if the dividend has too many digits for that."""
    right, zeros = _strip_zeros(y)
    dividend = F.concat(x.cast("string"), F.repeat(F.lit("0"), F.greatest(_DIGITS - zeros, F.lit(0))))
    divisor = F.concat(right, F.repeat(F.lit("0"), F.greatest(zeros - _DIGITS, F.lit(0))))
    bound = TypedColumn(STRING, F.struct(dividend.try_cast(_EXACT).alias("n"), divisor.try_cast(_EXACT).alias("d")))
    # Oxigraph cannot shift the zero of a dividend to the digits of the result.
    defined = (y != 0) & ((x != 0) | (zeros >= _DIGITS))
    return F.when(defined, let((bound,), lambda pair: _whole_quotient(pair["n"], pair["d"])))


def _whole_quotient(n: Column, d: Column) -> Column:
    """n / d without its fraction. A quotient of decimals has six fraction digits, so it is made of two parts."""
    part = Decimal(10**8)
    wide = F.try_multiply(d, F.lit(part)).cast(_EXACT)
    low_part = F.try_subtract(n % wide, n % d).cast(_EXACT)
    high_part = F.try_subtract(n, n % wide).cast(_EXACT)
    low = F.try_divide(low_part, d).cast(_EXACT)
    high = F.try_divide(high_part, wide).cast(_EXACT)
    both = F.try_add(F.try_multiply(high, F.lit(part)).cast(_EXACT), low).cast(_EXACT)
    single = F.try_divide(F.try_subtract(n, n % d).cast(_EXACT), d).cast(_EXACT)
    return F.when(wide.isNotNull(), both).otherwise(single)


def _integer_arithmetic(sign: str, x: Column, y: Column, _: str) -> Column:
    return {"+": x + y, "-": x - y, "*": x * y}[sign]


def _divide(_: str, x: Column, y: Column, kind: str) -> Column:
    """IEEE 754: a division by zero is infinite, or NaN."""
    same_sign = F.startswith(x.cast("string"), F.lit("-")) == F.startswith(y.cast("string"), F.lit("-"))
    nan, infinity = F.lit(float("nan")).cast(kind), F.lit(float("inf")).cast(kind)
    by_zero = F.when((x == 0) | F.isnan(x), nan).when(same_sign, infinity).otherwise(-infinity)
    # A quotient of floats is one of doubles, rounded: twice rounded is right, since a double has more than 2*24+2 bits.
    # An error divided by zero is an error.
    return F.when(x.isNotNull() & (y == 0), by_zero).otherwise(
        F.try_divide(x.cast("double"), y.cast("double")).cast(kind)
    )


def numeric_function(name: str, value: TypedColumn) -> Column:
    """A number after ``negative``, ``positive``, ABS, CEIL, FLOOR or ROUND. value: NUMBER."""

    def body(x: Column) -> Column:
        scaled, double = x["scaled"], x["double"]
        one, half = F.lit(Decimal(_ONE)), F.lit(Decimal(_ONE // 2))

        def floor(exact: Column) -> Column:
            return F.try_subtract(exact, F.pmod(exact, one)).cast(_EXACT)

        if name == "positive":
            return x
        if name == "negative":
            return struct(x["rank"], -scaled, -double)
        if name == "ABS":
            return struct(x["rank"], F.abs(scaled), F.abs(double))
        if name == "FLOOR":
            return struct(x["rank"], floor(scaled), _whole_double(double, F.floor(double)))
        if name == "CEIL":
            return struct(x["rank"], -floor(-scaled), _whole_double(double, F.ceil(double)))
        # Halves are rounded up, also negative ones.
        up = F.floor(double) + (double - F.floor(double) >= 0.5).cast("bigint")
        return struct(x["rank"], floor(F.try_add(scaled, half).cast(_EXACT)), _whole_double(double, up))

    return _check_integer(let((value,), body))


def _whole_double(value: Column, rounded: Column) -> Column:
    """rounded as a double, with the sign of the value if it is zero. rounded: only valid for small values."""
    zero = F.when(F.startswith(value.cast("string"), F.lit("-")), F.lit(-0.0)).otherwise(F.lit(0.0))
    whole = rounded.cast("double")
    return F.when(F.abs(value) < _WHOLE_DOUBLES, F.when(whole == 0, zero).otherwise(whole)).otherwise(value)


def number_term(value: Column) -> Column:
    """The term of a number, in Oxigraph's form. value: cheap."""
    found = F.when(value["rank"] == INTEGER_RANK, typed_literal(exact_text(value["scaled"]), "integer"))
    found = found.when(value["rank"] == DECIMAL_RANK, typed_literal(exact_text(value["scaled"]), "decimal"))
    found = found.when(value["rank"] == FLOAT_RANK, typed_literal(_rust_text(value["double"], "float"), "float"))
    return found.when(value["rank"] == DOUBLE_RANK, typed_literal(_rust_text(value["double"], "double"), "double"))


def exact_text(scaled: Column) -> Column:
    """The decimal text without final zeros."""
    sign = F.when(scaled < 0, "-").otherwise("")
    digits = F.abs(scaled).cast("string")
    wide = F.lpad(digits, F.greatest(F.length(digits), F.lit(_DIGITS + 1)), F.lit("0"))
    pointed = F.regexp_replace(wide, f"^([0-9]+)([0-9]{{{_DIGITS}}})$", "$1.$2")
    return F.concat(sign, F.regexp_replace(pointed, r"\.?0+$", ""))


def _rust_text(value: Column, kind: str) -> Column:
    """A float or double as Rust writes it: the fewest digits that are read as the value, without an exponent.

    Java 17 sometimes writes one digit more, which is taken off here, or another last digit, which stays.
    """

    def plain_text(x: Column) -> Column:
        digits, point, sign = x["digits"], x["point"], x["sign"]
        large = F.when(F.length(digits) <= point, F.rpad(digits, point, F.lit("0"))).otherwise(
            F.concat(F.substring(digits, F.lit(1), point), F.lit("."), F.substring(digits, point + 1, F.lit(400)))
        )
        small = F.concat(F.lit("0."), F.repeat(F.lit("0"), -point), digits)
        zero = F.when(digits == "", "0")
        return F.concat(sign, zero.when(point > 0, large).otherwise(small))

    def body(x: Column) -> Column:
        text, digits, point = x["text"], x["digits"], x["point"]
        cut = F.substring(digits, F.lit(1), F.length(digits) - 1)
        up = F.lpad((cut.try_cast("bigint") + 1).cast("string"), F.length(cut), F.lit("0"))

        def same(shorter: Column) -> Column:
            read = F.concat(x["sign"], F.lit("0."), shorter, F.lit("E"), point.cast("string"))
            return F.when(read.try_cast(kind) == x["value"], shorter)

        shorter = F.coalesce(same(cut), same(up), digits)
        chosen = F.when(F.length(digits) > (7 if kind == "float" else 15), shorter).otherwise(digits)
        number_ = F.struct(x["sign"].alias("sign"), chosen.alias("digits"), point.alias("point"))
        finite = let((TypedColumn(STRING, number_),), plain_text)
        special = F.when(text == "Infinity", "INF").when(text == "-Infinity", "-INF").when(text == "NaN", text)
        return special.otherwise(finite)

    def split_mantissa(x: Column) -> Column:
        mantissa = F.ltrim(F.substring_index(x["text"], "E", 1), F.lit("-"))
        exponent = F.coalesce(F.substring_index(x["text"], "E", -1).try_cast("int"), F.lit(0))
        return F.struct(
            x["text"].alias("text"),
            x["value"].alias("value"),
            F.when(F.startswith(x["text"], F.lit("-")), "-").otherwise("").alias("sign"),
            F.rtrim(F.replace(mantissa, F.lit("."), F.lit("")), F.lit("0")).alias("digits"),
            (exponent + F.instr(mantissa, ".") - 1).alias("point"),
        )

    typed = value.cast(kind)
    java = F.when(value.isNotNull(), F.struct(typed.alias("value"), typed.cast("string").alias("text")))
    parts = let((TypedColumn(STRING, java),), split_mantissa)
    return F.when(value.isNotNull(), let((TypedColumn(STRING, parts),), body))


def cast_to(name: str, term: Column) -> Column:
    """The cast of a string, boolean or number to a numeric datatype. term: cheap. name: integer, decimal, ..."""
    text = inside(term)
    is_text, flags = suffix(term) == "", tuple(f'"{flag}"{datatype_suffix("boolean")}' for flag in ("false", "true"))
    flag = F.when(term == flags[1], 1).when(term == flags[0], 0)

    def body(x: Column) -> Column:
        if name in ("integer", "decimal"):
            of_double = _exact_of(x["double"])
            exact = F.coalesce(
                F.when(is_text, integer_of(text) if name == "integer" else decimal_of(text)), x["scaled"]
            )
            exact = F.coalesce(exact, of_double, (flag * F.lit(Decimal(_ONE))).cast(_EXACT))
            if name == "integer":
                exact = let((TypedColumn(STRING, exact),), lambda y: F.try_subtract(y, y % F.lit(Decimal(_ONE))))
            return struct(RANKS[name], exact.cast(_EXACT), None)
        double = F.coalesce(F.when(is_text, double_of(text)), flag.cast("double"))
        if name == "float":
            narrow = F.when(is_number(x), as_float(x)).otherwise(double.cast("float"))
            return struct(FLOAT_RANK, None, narrow.cast("double"))
        return struct(DOUBLE_RANK, None, F.when(is_number(x), as_double(x)).otherwise(double))

    return _check_integer(let((TypedColumn(NUMBER, number(term)),), body))


def _exact_of(double: Column) -> Column:
    """`scaled` of a double: its product with 10^18 in all digits, as Oxigraph does."""
    high_unit, low_unit = 2.0**64, 2.0**32

    def body(x: Column) -> Column:
        product = x["product"]
        high = _towards_zero(product / high_unit)
        rest = product - high * high_unit
        middle = _towards_zero(rest / low_unit)
        low = _towards_zero(rest - middle * low_unit)
        parts = [
            F.lit(Decimal(int(unit))) * part.try_cast("bigint").cast("decimal(19,0)")
            for unit, part in ((high_unit, high), (low_unit, middle))
        ]
        total = F.try_add(parts[0].cast(_EXACT), parts[1].cast(_EXACT)).cast(_EXACT)
        small = F.try_add(total, low.try_cast("bigint").cast(_EXACT)).cast(_EXACT)
        return F.when(F.abs(product) < 1e38, small)

    return let((TypedColumn(STRING, F.struct((double * 1e18).alias("product"))),), body)


def _towards_zero(value: Column) -> Column:
    """A double without its fraction. value: less than 2^63."""
    return value.try_cast("bigint").cast("double")
