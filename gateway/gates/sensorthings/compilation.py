"""``$filter`` and ``$orderby`` -> SPARQL.

Null follows OData 4.0 (11.2.5.1.2 and 5.1.1 of part 2): a comparison is true or false, and ``null eq null`` is true;
other operators and functions of null are null, which SPARQL has as an error or an unbound variable; ``and``, ``or`` and
``not`` have the same three-valued logic in both. A condition that is null does not select.

Each text that is used more than once is bound to a variable first, so the query grows linearly with the expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from typing import Final, NamedTuple

from lamplighter.engine.errors import MalformedRequestError
from lamplighter.engine.terms import XSD, literal
from lamplighter.gateway.gates.sensorthings.entities import EntityProperty, Type
from lamplighter.gateway.gates.sensorthings.expressions import Expression, ODataLiteral, ODataOperation, Path, SortKey
from lamplighter.gateway.gates.sensorthings.ids import term_of
from lamplighter.gateway.gates.sensorthings.patterns import Node, VariableNames, single
from lamplighter.gateway.gates.sensorthings.tokens import ExpressionError

IDS = ("id", "@iot.id")
NUMBER_CHARS_MAX = 40
_DURATION = re.compile(
    r"-?P(?=.)(?:[0-9]{1,9}D)?(?:T(?=.)(?:[0-9]{1,9}H)?(?:[0-9]{1,9}M)?(?:[0-9]{1,9}(?:\.[0-9]{1,9})?S)?)?"
)
_COMPARED: Mapping[str, str] = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_ARITHMETIC: Mapping[str, str] = {"add": "+", "sub": "-", "mul": "*"}
_INTEGER = f"<{XSD}integer>"
_SPATIAL = ("equals", "disjoint", "touches", "within", "overlaps", "crosses", "intersects", "contains", "relate")
_UNSUPPORTED = {
    **dict.fromkeys(
        ("geo.distance", "geo.length", "geo.intersects", *(f"st_{name}" for name in _SPATIAL)),
        "geometries are not compared by this service; write a condition on name, id or properties",
    ),
    **dict.fromkeys(
        ("before", "after", "meets", "during", "overlaps", "starts", "finishes"),
        "times here are instants; compare them with ge and lt",
    ),
    **dict.fromkeys(("any", "all"), "write the path without it; one related entity has to match"),
    **dict.fromkeys(("cast", "isof"), "values are compared as the dataset has them"),
}


class _Compiled(NamedTuple):
    """text: of a SPARQL expression; atomic: it is a variable or a constant, so that it may be repeated."""

    text: str
    type: Type
    atomic: bool = False


class _Function(NamedTuple):
    arguments: tuple[Type, ...]
    returns: Type
    text: Callable[..., str]
    least: int = -1  # of arguments, where fewer are possible


def _round(value: str) -> str:
    # OData rounds halves away from zero, SPARQL towards positive infinity.
    return f"IF({value} < 0, -ROUND(-{value}), ROUND({value}))"


def _truncation(value: str) -> str:
    return f"IF({value} < 0, CEIL({value}), FLOOR({value}))"


def _offset(zone: str) -> str:
    return (
        f'IF({zone} IN ("", "Z"), 0, ({_INTEGER}(SUBSTR({zone}, 2, 2)) * 60 + {_INTEGER}(SUBSTR({zone}, 5, 2))) '
        f'* IF(STRSTARTS({zone}, "-"), -1, 1))'
    )


def _substring(text: str, start: str, length: str | None = None) -> str:
    return f"SUBSTR({text}, {start} + 1" + ("" if length is None else f", {length}") + ")"


FUNCTIONS: Final[Mapping[str, _Function]] = {
    "contains": _Function(("string", "string"), "boolean", "CONTAINS({}, {})".format),
    "substringof": _Function(("string", "string"), "boolean", "CONTAINS({1}, {0})".format),
    "startswith": _Function(("string", "string"), "boolean", "STRSTARTS({}, {})".format),
    "endswith": _Function(("string", "string"), "boolean", "STRENDS({}, {})".format),
    "length": _Function(("string",), "number", "STRLEN({})".format),
    "indexof": _Function(
        ("string", "string"), "number", "IF(CONTAINS({0}, {1}), STRLEN(STRBEFORE({0}, {1})), -1)".format
    ),
    "substring": _Function(("string", "number", "number"), "string", _substring, 2),
    "tolower": _Function(("string",), "string", "LCASE({})".format),
    "toupper": _Function(("string",), "string", "UCASE({})".format),
    "trim": _Function(("string",), "string", 'REPLACE({}, "^\\\\s+|\\\\s+$", "")'.format),
    "concat": _Function(("string", "string"), "string", "CONCAT({}, {})".format),
    "year": _Function(("datetime",), "number", "YEAR({})".format),
    "month": _Function(("datetime",), "number", "MONTH({})".format),
    "day": _Function(("datetime",), "number", "DAY({})".format),
    "hour": _Function(("datetime",), "number", "HOURS({})".format),
    "minute": _Function(("datetime",), "number", "MINUTES({})".format),
    "second": _Function(("datetime",), "number", "FLOOR(SECONDS({}))".format),
    "fractionalseconds": _Function(("datetime",), "number", "(SECONDS({0}) - FLOOR(SECONDS({0})))".format),
    "date": _Function(("datetime",), "date", 'REPLACE(STR({}), "T.*$", "")'.format),
    "time": _Function(("datetime",), "time", 'REPLACE(STR({}), "^.*T([0-9:.]+).*$", "$1")'.format),
    "totaloffsetminutes": _Function(("datetime",), "number", _offset),
    "now": _Function((), "datetime", "NOW()".format),
    "mindatetime": _Function((), "datetime", f'"0001-01-01T00:00:00Z"^^<{XSD}dateTime>'.format),
    "maxdatetime": _Function((), "datetime", f'"9999-12-31T23:59:59.999Z"^^<{XSD}dateTime>'.format),
    "round": _Function(("number",), "number", _round),
    "floor": _Function(("number",), "number", "FLOOR({})".format),
    "ceiling": _Function(("number",), "number", "CEIL({})".format),
}


class CompiledOptions:
    """Compiles the expressions of one query about a node. binds: texts that follow its pattern, in order."""

    def __init__(self, root: Node, names: VariableNames, base_iri: str) -> None:
        self._root = root
        self._names = names
        self._base_iri = base_iri
        self._option = "$filter"
        self._bound: dict[str, str] = {}
        self.binds: list[str] = []

    def filter(self, expression: Expression) -> None:
        """Only what the expression is true of. Raises ExpressionError."""
        self._option = "$filter"
        # A filter of OData keeps what is true; null and errors are not.
        self.binds.append(f"FILTER({self._truth(expression)})")

    def order(self, key: SortKey) -> str:
        """The variable that has a key's value. Raises ExpressionError."""
        self._option = "$orderby"
        node = self._root
        for step in key.path.steps[:-1]:
            if step in node.kind.navigation and not single(node.kind, step):
                raise self._error(key.path, f"{step} may be several; order by a property of one")
            if step not in node.kind.navigation:
                break
            node = node.child(step)
        if key.path.steps[-1] in IDS and len(key.path.steps) == 1:
            return self._root.entity
        if key.path.steps[-1] in IDS:
            return self._owner(key.path)[0].entity
        return self._path(key.path).text

    def _error(self, place: Expression, reason: str) -> ExpressionError:
        return ExpressionError(self._option, place.position, reason)

    def _once(self, found: _Compiled) -> _Compiled:
        """The same, as a text that may be repeated."""
        if found.atomic:
            return found
        variable = self._bound.get(found.text)
        if variable is None:
            variable = self._bound[found.text] = self._names.new()
            # The text of a nested expression would double with each use.
            self.binds.append(f"BIND({found.text} AS {variable})")
        return _Compiled(variable, found.type, atomic=True)

    def _truth(self, expression: Expression) -> str:
        found = self._compile(expression)
        if found.type == "null":
            # An error is how SPARQL has null: it passes through operators, and COALESCE catches it.
            return "(1/0)"
        if found.type != "boolean":
            cure = "; write result eq true" if found.type == "any" else "; compare it with eq, ne, gt, ge, lt or le"
            raise self._error(expression, f"a condition is expected, and this is a {found.type}{cure}")
        return found.text

    def _compile(self, expression: Expression) -> _Compiled:
        if isinstance(expression, ODataLiteral):
            return self._literal(expression)
        if isinstance(expression, Path):
            return self._path(expression)
        name = expression.operator
        if expression.is_call:
            return self._call(expression)
        if name in ("and", "or"):
            sign = "&&" if name == "and" else "||"
            return _Compiled(f"({f' {sign} '.join(map(self._truth, expression.operands))})", "boolean")
        if name == "not":
            return _Compiled(f"(!{self._truth(expression.operands[0])})", "boolean")
        if name in ("eq", "ne"):
            same = self._equal(expression)
            return _Compiled(same if name == "eq" else f"(!{same})", "boolean")
        if name in _COMPARED:
            left, right = map(self._compile, expression.operands)
            self._check_comparable(expression, left, right)
            if "null" in (left.type, right.type):
                return _Compiled("false", "boolean", atomic=True)
            # A comparison with null is false (OData URL Conventions 5.1.1.1), while SPARQL has an error, which `not`
            # would keep.
            return _Compiled(f"COALESCE({left.text} {_COMPARED[name]} {right.text}, false)", "boolean")
        return self._arithmetic(expression)

    # --- constants and properties ---

    def _literal(self, found: ODataLiteral) -> _Compiled:
        text = found.text
        if found.kind == "string":
            return _Compiled(literal(text[1:-1].replace("''", "'")), "string", atomic=True)
        if found.kind == "number":
            if len(text) > NUMBER_CHARS_MAX:
                raise self._error(found, f"a number may have at most {NUMBER_CHARS_MAX} characters")
            return _Compiled(literal(text, datatype=XSD + _datatype(text)), "number", atomic=True)
        if found.kind == "boolean":
            return _Compiled(text, "boolean", atomic=True)
        if found.kind == "null":
            return _Compiled("(1/0)", "null", atomic=True)
        if found.kind == "geography":
            raise self._error(found, _UNSUPPORTED["geo.distance"])
        if found.kind == "duration":
            value = text.removeprefix("duration'").removesuffix("'")
            if not _DURATION.fullmatch(value):
                raise self._error(found, f"{value[:50]!r} is no duration; write one such as duration'PT1H30M'")
            return _Compiled(literal(value, datatype=XSD + "dayTimeDuration"), "duration", atomic=True)
        return self._time(found)

    def _time(self, found: ODataLiteral) -> _Compiled:
        text = found.text
        try:
            if found.kind == "date":
                date.fromisoformat(text)
                return _Compiled(literal(text), "date", atomic=True)
            seconds = _with_seconds(text)
            short = re.sub(r"(\.[0-9]{6})[0-9]+", r"\1", seconds)
            if found.kind == "time":
                time.fromisoformat(short)
                return _Compiled(literal(seconds), "time", atomic=True)
            if datetime.fromisoformat(short).tzinfo is None:
                raise self._error(found, "the time has no time zone; append Z, or an offset such as +01:00 (%2B01:00)")
        except ValueError as error:
            raise self._error(found, f"{text!r} is no {found.kind}; write one that exists") from error
        return _Compiled(literal(seconds, datatype=XSD + "dateTime"), "datetime", atomic=True)

    def _owner(self, path: Path) -> tuple[Node, tuple[str, ...]]:
        """The entity that a path leads to, and the steps that are left."""
        node, steps = self._root, path.steps
        while len(steps) > 1 and steps[0] in node.kind.navigation:
            node, steps = node.child(steps[0]), steps[1:]
        return node, steps

    def _path(self, path: Path) -> _Compiled:
        node, steps = self._owner(path)
        known = [*node.kind.properties, "id", *node.kind.navigation]
        if steps[0] in IDS:
            raise self._error(path, "an id can only be compared with a constant: id eq '...' or id ne '...'")
        if steps[0] in node.kind.navigation:
            raise self._error(path, f"{steps[0]} is an entity; name a property of it, such as {steps[0]}/id")
        found: EntityProperty | None = node.kind.properties.get(steps[0])
        if found is None:
            raise self._error(path, f"{node.kind.name} has no property {steps[0][:50]!r}; it has {', '.join(known)}")
        for place, step in enumerate(steps[1:], 1):
            above = "/".join(steps[:place])
            members = found.members
            if step not in members:
                has = f"it has {', '.join(members)}" if members else "it has none"
                raise self._error(path, f"{above} has no member {step[:50]!r}; {has}")
            found = members[step]
        if found.expression is None:
            raise self._error(path, f"{'/'.join(steps)} cannot be used here: {found.refused}")
        for part in found.parts:
            node.needed[part] = None
        text = node.text(found.expression)
        return self._once(_Compiled(text, found.type, atomic=text.startswith("?")))

    # --- operators ---

    def _check_comparable(self, place: ODataOperation, left: _Compiled, right: _Compiled) -> None:
        kinds = {left.type, right.type} - {"null"}
        if len(kinds) > 1 and not ("any" in kinds and kinds <= {"any", "number", "string", "boolean"}):
            raise self._error(place, f"a {left.type} cannot be compared with a {right.type}; strings are in '...'")

    def _is_id(self, expression: Expression) -> bool:
        return isinstance(expression, Path) and self._owner(expression)[1] in (("id",), ("@iot.id",))

    def _equal(self, expression: ODataOperation) -> str:
        first, second = expression.operands
        if self._is_id(second):
            first, second = second, first
        if self._is_id(first):
            return self._same_id(expression, first, second)
        left, right = self._compile(first), self._compile(second)
        self._check_comparable(expression, left, right)
        if left.type == right.type == "null":
            return "true"
        if "null" in (left.type, right.type):
            return f"(!{self._is_known(left if right.type == 'null' else right)})"
        # A constant is never null, so the short form is enough.
        if isinstance(first, ODataLiteral) or isinstance(second, ODataLiteral):
            return f"COALESCE({left.text} = {right.text}, false)"
        left, right = self._once(left), self._once(right)
        # null eq null is true.
        return f"COALESCE({left.text} = {right.text}, !{self._is_known(left)} && !{self._is_known(right)})"

    def _is_known(self, found: _Compiled) -> str:
        return f"COALESCE(ISLITERAL({found.text}), false)"

    def _same_id(self, place: ODataOperation, path: Expression, other: Expression) -> str:
        assert isinstance(path, Path)
        entity = self._owner(path)[0].entity
        if isinstance(other, ODataLiteral) and other.kind == "null":
            return f"(!COALESCE(ISIRI({entity}), false))"
        if not isinstance(other, ODataLiteral) or other.kind not in ("string", "number"):
            raise self._error(place, "an id is compared with a constant, such as id eq 'street~3'")
        text = other.text[1:-1].replace("''", "'") if other.kind == "string" else other.text
        try:
            term = term_of(text, self._base_iri)
        except MalformedRequestError:
            return "false"  # nothing has this id
        return f"COALESCE({entity} = {term}, false)"

    def _number(self, place: Expression, found: _Compiled) -> _Compiled:
        if found.type not in ("number", "any", "null"):
            raise self._error(place, f"a number is expected, and this is a {found.type}")
        return found

    def _arithmetic(self, expression: ODataOperation) -> _Compiled:
        name = expression.operator
        operands = [self._compile(one) for one in expression.operands]
        if name == "negate":
            return _Compiled(f"(-{self._number(expression.operands[0], operands[0]).text})", "number")
        left, right = operands
        kinds = (left.type, right.type)
        of_times: dict[tuple[str, Type, Type], Type] = {
            ("add", "datetime", "duration"): "datetime",
            ("sub", "datetime", "duration"): "datetime",
            ("sub", "datetime", "datetime"): "duration",
            ("add", "duration", "duration"): "duration",
            ("sub", "duration", "duration"): "duration",
        }
        returns = of_times.get((name, *kinds))
        if returns is not None:
            if (name, left.type) == ("add", "datetime"):  # the store subtracts durations from times, and adds none
                return _Compiled(f'({left.text} - ("PT0S"^^<{XSD}dayTimeDuration> - {right.text}))', returns)
            return _Compiled(f"({left.text} {_ARITHMETIC[name]} {right.text})", returns)
        for place, one in zip(expression.operands, operands, strict=True):
            self._number(place, one)
        if name in _ARITHMETIC:
            return _Compiled(f"({left.text} {_ARITHMETIC[name]} {right.text})", "number")
        left, right = self._once(left), self._once(right)
        # The store has an error for 0 divided by a decimal between -1 and 1.
        zero = f"{left.text} = 0 && {right.text} != 0"
        quotient = self._once(_Compiled(f"IF({zero}, {left.text}, {left.text} / {right.text})", "number"))
        integers = f"DATATYPE({left.text}) = {_INTEGER} && DATATYPE({right.text}) = {_INTEGER}"
        whole = f"{_INTEGER}({quotient.text})"
        if name == "div":
            return _Compiled(f"IF({integers}, {whole}, {quotient.text})", "number")
        truncated = f"IF({integers}, {whole}, {_truncation(quotient.text)})"
        return _Compiled(f"({left.text} - {right.text} * {truncated})", "number")

    def _call(self, expression: ODataOperation) -> _Compiled:
        name = expression.operator
        if name in _UNSUPPORTED:
            raise self._error(expression, f"{name} is not supported: {_UNSUPPORTED[name]}")
        function = FUNCTIONS.get(name)
        if function is None:
            raise self._error(expression, f"there is no function {name[:50]!r}; there are {', '.join(FUNCTIONS)}")
        most = len(function.arguments)
        least = most if function.least < 0 else function.least
        if not least <= len(expression.operands) <= most:
            expected = f"{least}" if least == most else f"{least} or {most}"
            raise self._error(expression, f"{name} has {len(expression.operands)} arguments; write {expected}")
        texts = [
            self._argument(name, one, wanted)
            for one, wanted in zip(expression.operands, function.arguments, strict=False)
        ]
        if name == "totaloffsetminutes":
            texts = [self._once(_Compiled(f"TZ({texts[0]})", "string")).text]
        return _Compiled(function.text(*texts), function.returns)

    def _argument(self, name: str, expression: Expression, wanted: Type) -> str:
        found = self._compile(expression)
        fits: Sequence[Type] = (wanted, "any", "null") if wanted in ("string", "number") else (wanted, "null")
        if found.type not in fits:
            raise self._error(expression, f"{name} expects a {wanted}, and this is a {found.type}")
        return self._once(found).text


def _datatype(number: str) -> str:
    """The datatype that the store computes with: its integers have 64 bits, its decimals 18 digits behind the point."""
    whole, point, fraction = number.partition(".")
    if "e" in number.lower() or len(fraction) > 18 or int(whole) >= 2**63:
        return "double"
    return "decimal" if point else "integer"


def _with_seconds(text: str) -> str:
    """A time or a point in time that may lack its seconds, with them."""
    return re.sub(r"((?:^|T)[0-9]{2}:[0-9]{2})(?![0-9:])", r"\1:00", text, count=1)
