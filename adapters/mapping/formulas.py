"""Values, operators, filters, tests and methods of `jinja` templates, as functions whose costs are bounded.

A value is what JSON has: null, a boolean, a number, a text, a list or an object; or `UNDEFINED`, which Jinja says of a
name without a value. The meanings are those of Jinja with the filters of Home Assistant. Nothing else of Python can be
reached: each function here is one that a template may name.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from lamplighter.adapters.mapping.payloads import AbsentError, Number
from lamplighter.adapters.mapping.values import TEXT_CHARS_MAX
from lamplighter.engine.errors import PayloadError

Value = Any
INTEGER_MAX = 10**64
LIST_MAX = 4_096
"""Items of a list that a template makes."""
_EXPONENT_MAX = 64
_FORMAT = re.compile(r"(?:[^%]|%%|%[-+0 ]{0,2}(?:[1-9][0-9]?)?(?:\.[0-9]{1,2})?[dfsxXeg])*")
"""A text has one way to match: with more, texts that do not match would take exponential time."""
_WORD_BEGINNINGS = re.compile(r"([-\s({\[<]+)")
_MISSING: Any = object()


class Undefined:
    """A name without a value. It is false and has no text; nothing can be computed with it."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return ""


UNDEFINED = Undefined()


def with_size(value: Value) -> Value:
    """The value. Raises PayloadError if it is too long or too large."""
    if isinstance(value, str):
        if len(value) > TEXT_CHARS_MAX:
            raise PayloadError(f"a text in the template has more than {TEXT_CHARS_MAX} characters")
    elif isinstance(value, int):
        if not -INTEGER_MAX < value < INTEGER_MAX:
            raise PayloadError("a number in the template is too large")
    elif isinstance(value, complex) or (isinstance(value, list) and len(value) > LIST_MAX):
        raise PayloadError("the template makes a list that is too long, or no real number")
    return value


def plain_value(found: Value) -> Value:
    """A value of `Payload.json` with its numbers as numbers. Raises RecursionError."""
    if isinstance(found, Number):
        return float(found)
    if isinstance(found, dict):
        return {name: plain_value(inner) for name, inner in found.items()}
    return [plain_value(inner) for inner in found] if isinstance(found, list) else found


def member(owner: Value, name: Value) -> Value:
    """An item of a list or a text, or a member of an object. Raises AbsentError if there is no owner."""
    if owner is UNDEFINED:
        raise AbsentError("the payload has no value that the template needs")
    try:
        return owner[name] if isinstance(owner, dict | list | str) else UNDEFINED
    except (LookupError, TypeError):
        return UNDEFINED


def text(value: Value) -> str:
    """As Python spells it: None, True and 21.5. Raises PayloadError for lists and objects, and if it is too long."""
    return str(with_size(value if isinstance(value, str) else str(single(value))))


def single(value: Value) -> Value:
    """The value. Raises PayloadError for a list or an object: lists of lists would grow without a bound."""
    if isinstance(value, list | dict):
        raise PayloadError("the template uses a list or an object as a single value")
    return value


def present(value: Value) -> Value:
    """The value. Raises AbsentError if there is none."""
    if value is UNDEFINED:
        raise AbsentError("the payload has no value that the template needs")
    return value


# Operators


def _numeric(apply: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def operate(left: Any, right: Any) -> Any:
        if isinstance(present(left), int | float) and isinstance(present(right), int | float):
            return with_size(apply(left, right))
        raise PayloadError("the template computes with a value that is no number")

    return operate


def plus(left: Any, right: Any) -> Any:
    """The sum of two numbers, or one text behind the other."""
    if isinstance(left, str) and isinstance(right, str):
        return with_size(left + right)
    return _numeric(operator.add)(left, right)


def _power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > _EXPONENT_MAX:
        raise PayloadError(f"an exponent in the template is greater than {_EXPONENT_MAX}")
    return base**exponent


def contains(item: Any, container: Any) -> bool:
    """Whether a list has an item, an object a member, or a text a part. Nothing is in what is not there. Raises
    PayloadError for other values."""
    if container is UNDEFINED:
        return False
    if isinstance(container, list | dict) or (isinstance(container, str) and isinstance(present(item), str)):
        return item in container
    raise PayloadError("the template looks for a value in what has no such items")


def _ordering(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda left, right: compare(present(left), present(right))


_remainder = _numeric(operator.mod)


def _modulo(left: Any, right: Any) -> Any:
    """The remainder of two numbers, or a text with a value in its place, as of `format`."""
    return _format(left, right) if isinstance(left, str) else _remainder(left, right)


OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": plus,
    "Sub": _numeric(operator.sub),
    "Mul": _numeric(operator.mul),
    "Div": _numeric(operator.truediv),
    "FloorDiv": _numeric(operator.floordiv),
    "Mod": _modulo,
    "Pow": _numeric(_power),
}
"""By the names of Jinja's nodes."""
COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": _ordering(operator.gt),
    "gteq": _ordering(operator.ge),
    "lt": _ordering(operator.lt),
    "lteq": _ordering(operator.le),
    "in": contains,
    "notin": lambda item, container: not contains(item, container),
}

# Filters. A parameter has the name that a template may use.


def _or_default(convert: Callable[[], Any], value: Any, default: Any) -> Any:
    """The default is for what is no number. A value that is missing has none, as in Home Assistant: 0 in its place
    would be a reading."""
    present(value)
    try:
        return with_size(convert())
    except (ValueError, TypeError, OverflowError, PayloadError):
        if default is not _MISSING:
            return default
        raise PayloadError("the value is not a number, and the template has no default for it") from None


def _float(value: Any, default: Any = _MISSING) -> Any:
    return _or_default(lambda: float(value), value, default)


def _int(value: Any, default: Any = _MISSING, base: int = 10) -> Any:
    def convert() -> int:
        if isinstance(value, str):
            try:
                return int(value if len(value) <= 80 else "long", base)
            except ValueError:
                return int(float(value))
        return int(value)

    return _or_default(convert, value, default)


def _round(value: Any, precision: int = 0, method: str = "common", default: Any = _MISSING) -> Any:
    def convert() -> float:
        number, scale = float(value), 10.0**precision
        if method == "ceil":
            number = math.ceil(number * scale) / scale
        elif method == "floor":
            number = math.floor(number * scale) / scale
        elif method == "half":
            number = round(number * 2) / 2
        else:
            number = round(number, precision)
        return int(number) if precision == 0 else number

    return _or_default(convert, value, default)


def _default(value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    return default_value if value is UNDEFINED or (boolean and not value) else value


def _replace(value: Any, old: Any, new: Any, count: Any = -1) -> str:
    whole, before, after = text(value), text(old), text(new)
    if len(whole) + whole.count(before) * (len(after) - len(before)) > TEXT_CHARS_MAX:
        raise PayloadError(f"a text in the template has more than {TEXT_CHARS_MAX} characters")
    return whole.replace(before, after, -1 if count is None else count)


def _as_json(value: Any) -> str:
    return text(msgspec.json.encode(present(value)).decode())


def _from_json(value: Any) -> Any:
    if not isinstance(present(value), str):
        raise PayloadError("the template decodes as JSON what is no text")
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        raise PayloadError("the text that the template decodes is not JSON") from error


def _boolean(value: Any, default: Any = _MISSING) -> Any:
    if isinstance(value, int | float):
        return value != 0
    word = value.lower().strip() if isinstance(value, str) else ""
    if word in ("true", "yes", "on", "enable", "1"):
        return True
    if word in ("false", "no", "off", "disable", "0"):
        return False
    if default is _MISSING:
        present(value)
        raise PayloadError("the value is not a boolean, and the template has no default for it")
    return default


def _iif(value: Any, if_true: Any = True, if_false: Any = False, if_none: Any = _MISSING) -> Any:
    if value is None and if_none is not _MISSING:
        return if_none
    return if_true if value else if_false


def _format(value: Any, *args: Any) -> str:
    if not isinstance(value, str) or not _FORMAT.fullmatch(value):
        raise PayloadError("format in the template has another form than '%.1f'")
    return text(value % tuple(single(present(one)) for one in args))


def _extreme(choose: Callable[[Any], Any]) -> Callable[..., Any]:
    def function(value: Any, *more: Any) -> Any:
        found = [value, *more] if more else value
        if not isinstance(present(found), list):
            raise PayloadError("the template looks for the least or greatest of what is no list")
        return choose([present(one) for one in found]) if found else UNDEFINED

    return function


def _join(value: Any, d: str = "") -> str:
    if not isinstance(value, list | str):
        raise PayloadError("the template joins what is no list")
    parts = list(map(text, value))
    if sum(map(len, parts)) + len(parts) * len(d) > TEXT_CHARS_MAX:
        raise PayloadError(f"a text in the template has more than {TEXT_CHARS_MAX} characters")
    return d.join(parts)


def _title(value: Any) -> str:
    """As Jinja's filter: only spaces, hyphens and opening brackets begin a word."""
    words = _WORD_BEGINNINGS.split(text(value))
    return text("".join(word[:1].upper() + word[1:].lower() for word in words))


def _bits(apply: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def function(value: Any, second: Any) -> Any:
        if isinstance(present(value), int) and isinstance(present(second), int):
            return apply(value, second)
        raise PayloadError("the template combines bits of what is no whole number")

    return function


def _end(place: int) -> Callable[[Any], Any]:
    return lambda value: member(list(value) if isinstance(value, dict) else value, place)


FILTERS: Mapping[str, Callable[..., Any]] = {
    "abs": lambda value: abs(present(value)),
    "add": lambda value, amount, default=_MISSING: _or_default(lambda: float(value) + amount, value, default),
    "bitwise_and": _bits(operator.and_),
    "bitwise_or": _bits(operator.or_),
    "bool": _boolean,
    "capitalize": lambda value: text(value).capitalize(),
    "count": lambda value: 0 if value is UNDEFINED else len(value),
    "d": _default,
    "default": _default,
    "first": _end(0),
    "float": _float,
    "format": _format,
    "from_json": _from_json,
    "iif": _iif,
    "int": _int,
    "is_defined": present,
    "is_number": lambda value: isinstance(_float(value, None), float) and math.isfinite(float(value)),
    "join": _join,
    "last": _end(-1),
    "length": lambda value: 0 if value is UNDEFINED else len(value),
    "lower": lambda value: text(value).lower(),
    "max": _extreme(max),
    "min": _extreme(min),
    "multiply": lambda value, amount, default=_MISSING: _or_default(lambda: float(value) * amount, value, default),
    "replace": _replace,
    "round": _round,
    "string": text,
    "sum": lambda value: sum(present(value)),
    "title": _title,
    "to_json": _as_json,
    "tojson": _as_json,
    "trim": lambda value: text(value).strip(),
    "upper": lambda value: text(value).upper(),
}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    name: FILTERS[name] for name in ("bool", "float", "iif", "int", "is_number", "max", "min")
}
"""What Home Assistant has as filters and functions."""

TESTS: Mapping[str, Callable[..., Any]] = {
    "boolean": lambda value: isinstance(value, bool),
    "defined": lambda value: value is not UNDEFINED,
    "divisibleby": lambda value, num: _remainder(value, num) == 0,
    "even": lambda value: _remainder(value, 2) == 0,
    "false": lambda value: value is False,
    "float": lambda value: isinstance(value, float),
    "in": contains,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "mapping": lambda value: isinstance(value, dict),
    "none": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float),
    "odd": lambda value: _remainder(value, 2) == 1,
    "sequence": lambda value: value is UNDEFINED or isinstance(value, list | dict | str),
    "string": lambda value: isinstance(value, str),
    "true": lambda value: value is True,
    "undefined": lambda value: value is UNDEFINED,
    **{name: COMPARISONS[name] for name in ("eq", "ne", "gt", "lt")},
    "==": operator.eq,
    "equalto": operator.eq,
    "ge": COMPARISONS["gteq"],
    "le": COMPARISONS["lteq"],
}


def _of_text(name: str, arguments: int) -> Callable[..., Any]:
    def method(owner: Any, *args: Any) -> Any:
        if not isinstance(present(owner), str) or len(args) > arguments:
            raise PayloadError(f"{name} in the template is of no text")
        return with_size(getattr(owner, name)(*args))

    return method


def _get(owner: Any, name: Any, default: Any = None) -> Any:
    if not isinstance(present(owner), dict):
        raise PayloadError("get in the template is of no object")
    found = member(owner, name)
    return default if found is UNDEFINED else found


def _replace_in_text(owner: Any, old: Any, new: Any, count: Any = -1) -> str:
    if not isinstance(present(owner), str):
        raise PayloadError("replace in the template is of no text")
    return _replace(owner, old, new, count)


METHODS: Mapping[str, Callable[..., Any]] = {
    "get": _get,
    "replace": _replace_in_text,
    **{name: _of_text(name, 2) for name in ("split", "rsplit", "find")},
    **{name: _of_text(name, 1) for name in ("startswith", "endswith", "strip", "lstrip", "rstrip", "count")},
    **{name: _of_text(name, 0) for name in ("lower", "upper", "title", "capitalize", "isdigit", "isnumeric")},
}
"""Of texts, and `get` of objects."""
