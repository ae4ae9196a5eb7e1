"""Jinja templates, such as of Home Assistant, as functions of a payload.

Jinja's own parser reads the text; nothing of Jinja runs it. The tree may have what gives one text in bounded time:
values, operators, conditions, `{% if %}`, `{% set %}`, and the filters, tests and methods of `formulas`. Loops, macros,
imports and states of other devices are refused when the rule is made. Jinja is imported with the first template.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from lamplighter.adapters.mapping.formulas import (
    COMPARISONS,
    FILTERS,
    FUNCTIONS,
    METHODS,
    OPERATORS,
    TESTS,
    UNDEFINED,
    Value,
    member,
    plain_value,
    present,
    single,
    text,
    with_size,
)
from lamplighter.adapters.mapping.payloads import AbsentError, Payload
from lamplighter.adapters.mapping.values import TEXT_CHARS_MAX
from lamplighter.engine.errors import PayloadError

TEMPLATE_CHARS_MAX = 2_000
NODES_MAX, DEPTH_MAX = 400, 60
NODE_STEPS = 40_000
"""Of a part of a template, as `expressions.STEPS_MAX` counts them: looking for an item in the longest list."""
TEMPLATES_MAX = 1_000
"""That are kept after they were read."""
VALUE_NAMES = frozenset({"value", "value_json"})
COMMAND_NAMES = frozenset({"value", "action", "option", "position", "tilt_position"})
COLORS = ("red", "green", "blue")
"""Names of the state, and of the components of a colour, in command templates."""

Names = dict[str, Value]
Node = Callable[[Names], Value]


class JinjaTemplate:
    """A checked template. steps: bound of those of one message."""

    def __init__(self, source: str, names: frozenset[str]) -> None:
        """names: what it may use. Raises ValueError, which says what is not understood."""
        if len(source) > TEMPLATE_CHARS_MAX:
            raise ValueError(f"the template has more than {TEMPLATE_CHARS_MAX} characters")
        reader = _TreeReader(names)
        try:
            self._run = reader.block(_syntax_tree(source).body)
        except RecursionError as error:
            raise ValueError("the template is nested too deep") from error
        except PayloadError as error:
            raise ValueError(str(error)) from error
        self.steps = reader.nodes * NODE_STEPS
        if not reader.uses & names:
            raise ValueError("the template uses no value")

    def text(self, names: Mapping[str, Value]) -> str:
        """The text for these values, without white space around it. Raises AbsentError if a value is missing, and
        PayloadError."""
        pieces: list[str] = []
        try:
            self._run({**names, _PIECES: pieces})
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise PayloadError(f"the template fails: {type(error).__name__}") from error
        return text("".join(pieces)).strip()


@lru_cache(TEMPLATES_MAX)
def value_template(source: str) -> JinjaTemplate:
    """Of a value: it uses `value` or `value_json`. Raises ValueError."""
    return JinjaTemplate(source, VALUE_NAMES)


@lru_cache(TEMPLATES_MAX)
def command_template(source: str) -> JinjaTemplate:
    """Of a command: it may use `value`, which components of Home Assistant call by other names. Raises ValueError."""
    return JinjaTemplate(source, COMMAND_NAMES | set(COLORS))


def payload_text(template: JinjaTemplate, payload: Payload) -> str:
    """What a template makes of a payload. Raises AbsentError if that is nothing, and PayloadError."""
    found = template.text(payload.once("template", lambda: _payload_names(payload)))
    if not found:
        raise AbsentError("the template gives no value for this payload")
    return found


def _payload_names(payload: Payload) -> Names:
    names: Names = {}
    with suppress(PayloadError, RecursionError):
        names["value_json"] = plain_value(payload.json())
    try:
        whole = payload.text()
    except PayloadError:
        return names
    return names | ({"value": whole} if len(whole) <= TEXT_CHARS_MAX else {})


_SURROGATE = re.compile("[\ud800-\udfff]")
_PIECES = " pieces"
"""Stands for the pieces of text, beside the names of a template."""


def _syntax_tree(source: str) -> Any:
    # 3 MiB and 0.1 s, for gateways with such devices only.
    from jinja2 import Environment, TemplateSyntaxError
    from jinja2.parser import Parser

    try:
        return Parser(Environment(), source).parse()
    except TemplateSyntaxError as error:
        raise ValueError(f"the template is not Jinja: line {error.lineno}: {error.message}") from error
    except ValueError as error:
        raise ValueError(f"the template is not Jinja: {error}") from error


class _TreeReader:
    """Jinja's syntax tree -> functions. nodes: how many were read; uses: names that were read."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = set(names)
        self.nodes = 0
        self.uses: set[str] = set()
        self._depth = 0

    def block(self, statements: list[Any]) -> Node:
        """Statements that put their texts into the pieces, one after the other."""
        steps = [self._statement(one) for one in statements]

        def write_all(names: Names) -> None:
            for step in steps:
                step(names)

        return write_all

    def _statement(self, node: Any) -> Node:
        kind = type(node).__name__
        if kind == "Output":
            parts = [self._node(one) for one in node.nodes]

            def write(names: Names) -> None:
                names[_PIECES] += [text(part(names)) for part in parts]

            return write
        if kind == "If":
            branches = [(self._node(one.test), self.block(one.body)) for one in (node, *node.elif_)]
            otherwise = self.block(node.else_)

            def choose(names: Names) -> None:
                next((body for test, body in branches if test(names)), otherwise)(names)

            return choose
        if kind == "Assign" and type(node.target).__name__ == "Name":
            name, value = node.target.name, self._node(node.node)
            self._names.add(name)

            def assign(names: Names) -> None:
                names[name] = value(names)

            return assign
        raise ValueError(f"the template has {kind.lower()}, which is not supported")

    def _node(self, node: Any) -> Node:
        self.nodes += 1
        self._depth += 1
        if self.nodes > NODES_MAX or self._depth > DEPTH_MAX:
            raise ValueError(
                f"the template has more than {NODES_MAX} parts, or more than {DEPTH_MAX} within each other"
            )
        kind = type(node).__name__
        read = getattr(self, f"_read_{kind.lower()}", None)
        if kind in OPERATORS:
            found = self._binary(OPERATORS[kind], node)
        elif read is not None:
            found = read(node)
        else:
            raise ValueError(f"the template has {kind.lower()}, which is not supported")
        self._depth -= 1
        return found

    def _binary(self, operate: Callable[[Value, Value], Value], node: Any) -> Node:
        left, right = self._node(node.left), self._node(node.right)
        return lambda names: operate(left(names), right(names))

    def _read_const(self, node: Any) -> Node:
        value = with_size(node.value)
        if isinstance(value, str) and _SURROGATE.search(value):
            raise ValueError("the template has half of a character, such as '\\ud800'")
        return lambda names: value

    def _read_templatedata(self, node: Any) -> Node:
        value = node.data
        return lambda names: value

    def _read_name(self, node: Any) -> Node:
        name = node.name
        if name not in self._names:
            raise ValueError(f"the template uses {name[:40]!r}, which is not supported")
        self.uses.add(name)
        return lambda names: names.get(name, UNDEFINED)

    def _read_list(self, node: Any) -> Node:
        items = [self._node(one) for one in node.items]
        return lambda names: [single(item(names)) for item in items]

    _read_tuple = _read_list

    def _read_dict(self, node: Any) -> Node:
        pairs = [(self._node(one.key), self._node(one.value)) for one in node.items]
        return lambda names: {key(names): single(value(names)) for key, value in pairs}

    def _read_getattr(self, node: Any) -> Node:
        owner, name = self._node(node.node), node.attr
        return lambda names: member(owner(names), name)

    def _read_getitem(self, node: Any) -> Node:
        owner = self._node(node.node)
        if type(node.arg).__name__ == "Slice":
            ends = [None if one is None else self._node(one) for one in (node.arg.start, node.arg.stop, node.arg.step)]
            return lambda names: member(owner(names), slice(*(None if end is None else end(names) for end in ends)))
        name = self._node(node.arg)
        return lambda names: member(owner(names), name(names))

    def _read_condexpr(self, node: Any) -> Node:
        test, first = self._node(node.test), self._node(node.expr1)
        second = (lambda names: UNDEFINED) if node.expr2 is None else self._node(node.expr2)
        return lambda names: first(names) if test(names) else second(names)

    def _read_and(self, node: Any) -> Node:
        left, right = self._node(node.left), self._node(node.right)
        return lambda names: left(names) and right(names)

    def _read_or(self, node: Any) -> Node:
        left, right = self._node(node.left), self._node(node.right)
        return lambda names: left(names) or right(names)

    def _read_not(self, node: Any) -> Node:
        inner = self._node(node.node)
        return lambda names: not inner(names)

    def _read_neg(self, node: Any) -> Node:
        inner = self._node(node.node)
        return lambda names: -present(inner(names))

    def _read_pos(self, node: Any) -> Node:
        inner = self._node(node.node)
        return lambda names: +present(inner(names))

    def _read_concat(self, node: Any) -> Node:
        parts = [self._node(one) for one in node.nodes]
        return lambda names: text("".join(text(part(names)) for part in parts))

    def _read_compare(self, node: Any) -> Node:
        first = self._node(node.expr)
        rest = [(COMPARISONS[one.op], self._node(one.expr)) for one in node.ops]

        def compare(names: Names) -> bool:
            left = first(names)
            for holds, operand in rest:
                right = operand(names)
                if not holds(left, right):
                    return False
                left = right
            return True

        return compare

    def _read_filter(self, node: Any) -> Node:
        return self._application(FILTERS, "filter", node.name, node.node, node)

    def _read_test(self, node: Any) -> Node:
        return self._application(TESTS, "test", node.name, node.node, node)

    def _read_call(self, node: Any) -> Node:
        kind = type(node.node).__name__
        if kind == "Getattr":
            return self._application(METHODS, "method", node.node.attr, node.node.node, node)
        if kind == "Name" and node.args:
            return self._application(FUNCTIONS, "function", node.node.name, node.args[0], node, 1)
        raise ValueError("the template has a call that is not supported")

    def _application(
        self, known: Mapping[str, Callable[..., Value]], what: str, name: str, owner: Any, node: Any, skipped: int = 0
    ) -> Node:
        """A function of the value of `owner`, and of the arguments of a node behind those that are skipped."""
        function = known.get(name)
        if function is None or owner is None or node.dyn_args is not None or node.dyn_kwargs is not None:
            raise ValueError(f"the template has the {what} {name[:40]!r}, which is not supported")
        value = self._node(owner)
        args = [self._node(one) for one in node.args[skipped:]]
        more = {one.key: self._node(one.value) for one in node.kwargs}
        try:
            inspect.signature(function).bind(None, *args, **more)
        except TypeError as error:
            raise ValueError(f"the template has the {what} {name!r} with other arguments than it takes") from error
        return lambda names: function(
            value(names), *(one(names) for one in args), **{key: one(names) for key, one in more.items()}
        )
