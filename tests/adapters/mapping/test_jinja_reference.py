"""Templates give what Jinja gives with the filters of Home Assistant, which are written down here a second time."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jinja2.filters
import jinja2.sandbox
import msgspec
import pytest

from lamplighter.adapters.mapping.jinja import VALUE_NAMES, JinjaTemplate, payload_text
from lamplighter.adapters.mapping.payloads import Payload
from lamplighter.engine.errors import PayloadError

NO_DEFAULT: Any = object()


def or_default(convert: Callable[[], Any], default: Any) -> Any:
    try:
        return convert()
    except (ValueError, TypeError):
        if default is NO_DEFAULT:
            raise
        return default


def rounded(value: Any, precision: int = 0, method: str = "common", default: Any = NO_DEFAULT) -> Any:
    def convert() -> Any:
        scale = float(10**precision)
        if method in ("ceil", "floor"):
            found = getattr(math, method)(float(value) * scale) / scale
        else:
            found = round(float(value) * 2) / 2 if method == "half" else round(float(value), precision)
        return int(found) if precision == 0 else found

    return or_default(convert, default)


def boolean(value: Any, default: Any = NO_DEFAULT) -> Any:
    def convert() -> bool:
        if isinstance(value, bool | int | float):
            return value != 0
        words = {"1": True, "true": True, "yes": True, "on": True, "enable": True}
        words |= {"0": False, "false": False, "no": False, "off": False, "disable": False}
        if not isinstance(value, str) or value.lower().strip() not in words:
            raise ValueError
        return words[value.lower().strip()]

    return or_default(convert, default)


def whole(value: Any, default: Any = NO_DEFAULT, base: int = 10) -> Any:
    found = jinja2.filters.do_int(value, default=default, base=base)
    if found is NO_DEFAULT:
        raise ValueError
    return found


def is_number(value: Any) -> bool:
    return bool(or_default(lambda: math.isfinite(float(value)), False))


def chosen(value: Any, if_true: Any = True, if_false: Any = False, if_none: Any = NO_DEFAULT) -> Any:
    return if_none if value is None and if_none is not NO_DEFAULT else if_true if value else if_false


def defined(value: Any) -> Any:
    if isinstance(value, jinja2.Undefined):
        raise ValueError
    return value


BOTH = {
    "bool": boolean,
    "float": lambda value, default=NO_DEFAULT: or_default(lambda: float(value), default),
    "iif": chosen,
    "int": whole,
    "is_number": is_number,
}
HOME_ASSISTANT = jinja2.sandbox.ImmutableSandboxedEnvironment()
HOME_ASSISTANT.globals.update(BOTH, max=max, min=min)
HOME_ASSISTANT.filters.update(
    BOTH,
    add=lambda value, amount, default=NO_DEFAULT: or_default(lambda: float(value) + amount, default),
    bitwise_and=lambda value, second: value & second,
    bitwise_or=lambda value, second: value | second,
    from_json=json.loads,
    is_defined=defined,
    multiply=lambda value, amount, default=NO_DEFAULT: or_default(lambda: float(value) * amount, default),
    round=rounded,
    to_json=lambda value: msgspec.json.encode(value).decode(),
)
VALUES = [
    *("value", "value_json", "value_json.a", "value_json.b", "value_json.m", "value_json.l", "value_json.l[0]"),
    *("none", "true", "false", "1", "0", "2.5", '"x"', '""', '"1"', '"0.0"', '"on"', "-7"),
]
FILTERS = [
    *("int", "int(0)", "int(default=5)", "int(base=16)", "float", "float(0)", "float(default=none)", "bool"),
    *("round", "round(1)", "round(1, 'ceil')", "round(0, 'floor')", "round(0, 'half')", "round(1, 'half')"),
    *("round(-1)", "round(1, default=3)", "bool(false)", "bool(default=true)", "iif", "iif('a', 'b', 'c')"),
    *("is_number", "multiply(2)", "multiply(0.1, default=1)", "add(1)", "default", "default(3)", "default('x', true)"),
    *("d(none)", "is_defined", "lower", "upper", "title", "capitalize", "trim", "string", "length", "count"),
    *("first", "last", "abs", "bitwise_and(1)", "bitwise_or(4)", "to_json", "join('-')", "replace('1', '2')"),
    *("from_json", "int | string", "float | int", "format(1)", "sum", "max", "min"),
]
TESTS = [
    *("defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping"),
    *("sequence", "even", "odd", "divisibleby(3)", "eq(1)", "ne 1", "gt(1)", "lt 3", "in ['1', 1]", "equalto 1"),
]
MEMBERS = [
    *(".split('.')[0]", ".upper()", ".strip()", ".startswith('1')", ".get('a')", ".get('zz', 3)", ".isdigit()", "[0]"),
    *("[0:2]", "[-1]", "['a']", ".replace('1', '9')", ".count('1')", ".find('1')", ".x.y", "[1:]", "[::-1]"),
]
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "and", "or", "in", "not in"]
PAYLOADS = [
    *("1", "21.5", "on", "-0", "[1, 2]", "null", "true", '"1"', "007", " 5 ", "NaN", "1e3", "0x1f", "1,5"),
    '{"a": 1, "b": "2.50", "m": null, "l": [3, 1.5]}',
    '{"a": true, "b": "ON", "l": ["x"]}',
    '{"a": 0.1, "b": 1e20, "l": []}',
]


def templates() -> list[str]:
    one = [*FILTERS, *(f"is {test}" for test in TESTS), *(f"is not {test}" for test in TESTS[:6])]
    found = [f"{value} {'' if what.startswith('is ') else '| '}{what}" for value in VALUES for what in one]
    found += [f"{value}{member}" for value in VALUES if value[0] == "v" for member in MEMBERS]
    found += [f"{left} {sign} {right}" for left, sign, right in itertools.product(VALUES, OPERATORS, VALUES)]
    found += [part for value in VALUES for part in (value, f"-{value}", f"not {value}", f"'a' if {value} else 'b'")]
    return ["{{ " + text + " }}" for text in found if "value" in text]


def expected(template: jinja2.Template, payload: str) -> str | None:
    names: dict[str, Any] = {"value": payload}
    with suppress(ValueError):
        names["value_json"] = json.loads(payload, parse_constant=lambda word: json.loads(""))
    try:
        return template.render(**names).strip()
    except Exception:
        return None


def test_no_template_gives_another_text_than_in_home_assistant() -> None:
    wrong, given = [], 0
    for source in templates():
        ours, theirs = JinjaTemplate(source, VALUE_NAMES), HOME_ASSISTANT.from_string(source)
        for payload in PAYLOADS:
            try:
                found = payload_text(ours, Payload(payload.encode()))
            except PayloadError:
                continue  # what is told, or absent
            given += 1
            if found != expected(theirs, payload):
                wrong.append((source, payload, found, expected(theirs, payload)))
    assert not wrong, wrong[:20]
    assert given > 15_000


@pytest.mark.parametrize("source", ["{{ value_json.x | float(0) }}", "{{ is_number(value_json.x) }}"])
def test_a_missing_value_fails_there_too(source: str) -> None:
    assert expected(HOME_ASSISTANT.from_string(source), "{}") is None
