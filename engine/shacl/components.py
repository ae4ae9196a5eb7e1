"""The constraint components of SHACL Core (SHACL, 4): one function for each, which finds the values that violate it.

A function is called with a focus node and its value nodes, and returns the values that violate the constraint, None in
place of one where no value is at fault. Components that refer to other shapes ask whether a node conforms to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any

from lamplighter.engine.matching.values import comparable, order_key
from lamplighter.engine.shacl.data import DataGraph, Walk
from lamplighter.engine.shacl.datatypes import checked_by, datatype_of, language_of
from lamplighter.engine.shacl.model import SUB_CLASS, TYPE, ConstraintShape
from lamplighter.engine.shacl.patterns import matching
from lamplighter.engine.sparql.paths import PathRepeated, PathSequence, PathStep
from lamplighter.engine.terms import XSD, Term, is_blank, is_iri, is_literal, lexical

Values = Collection[Term]
Check = Callable[[Term, Values], Iterable[Term | None]]
Conforms = Callable[[Term], bool]

# From an instance to its classes (SHACL, 1.1: SHACL instance).
CLASS_PATH = PathSequence((PathStep(TYPE), PathRepeated(PathStep(SUB_CLASS), True, True)))
_NONE: tuple[None, ...] = (None,)
_CACHED = 4096


def check_of(name: str, value: Any, data: DataGraph, conforms: Callable[[ConstraintShape], Conforms]) -> Check:
    """The function of a constraint. name, value: as in `ShapeConstraint`; conforms: the functions of other shapes."""
    if name in _TESTS:
        return _each(_TESTS[name](value, data))
    if name in _LOGICAL:
        return _logical(name, [conforms(shape) for shape in value])
    return _CHECKS[name](value, data)


def _each(test: Conforms) -> Check:
    def check(focus: Term, values: Values) -> Iterable[Term | None]:
        return [value for value in values if not test(value)]

    return check


# --- of each value node ---


def instance_of(wanted: Term, data: DataGraph) -> Conforms:
    """Whether a node is an instance of a class, or of a class below it."""
    types, classes = data.walk(PathStep(TYPE)), data.walk(CLASS_PATH)
    subclasses = data.tables(SUB_CLASS)

    def test(node: Term) -> bool:
        found = types(node)
        if wanted in found:
            return True
        return bool(found and (subclasses.default.sp or subclasses.named)) and wanted in classes(node)

    return test


def _datatype(wanted: Term, data: DataGraph) -> Conforms:
    checked = checked_by(wanted)
    remembered = lru_cache(_CACHED)(checked)
    return lambda term: remembered(term) if len(term) <= 64 else checked(term)


def _node_kind(wanted: str, data: DataGraph) -> Conforms:
    kinds = {"IRI": is_iri, "BlankNode": is_blank, "Literal": is_literal}
    tests = [test for kind, test in kinds.items() if kind in wanted]
    return tests[0] if len(tests) == 1 else lambda term: any(test(term) for test in tests)


def compare(one: Term, other: Term) -> int | None:
    """The sign of one minus the other, None if SPARQL's ``<`` does not compare them."""
    a, b = order_key(one), order_key(other)
    if not comparable(a, b) or not (_comparable(one) and _comparable(other)) or _has_zone(one) != _has_zone(other):
        return None
    return (a > b) - (a < b)


def _comparable(term: Term) -> bool:
    """Whether a literal has a value that compares: one of a type that SPARQL orders, with a valid text."""
    datatype = datatype_of(term)
    if datatype is None or term.startswith('"NaN"^^'):
        return False
    return datatype[1:-1].removeprefix(XSD) in _ORDERED and _valid(datatype)(term)


def _has_zone(term: Term) -> bool:
    """Whether a time has a zone. Times with and without one do not compare (XML Schema 1.1, D.2.1)."""
    datatype = datatype_of(term)
    if datatype is None or datatype[1:-1].removeprefix(XSD) not in ("dateTime", "date", "time"):
        return False
    text = lexical(term)
    return text.endswith("Z") or (text[-6:-5] in ("+", "-") and text[-3:-2] == ":")


_ORDERED = (
    "integer", "decimal", "float", "double", "string", "boolean", "dateTime", "date", "time", "dayTimeDuration",
    "yearMonthDuration",
)  # fmt: skip
_valid = lru_cache(256)(checked_by)


def _bound_component(accepts: Callable[[int], bool]) -> Callable[[Term, DataGraph], Conforms]:
    def make_test(bound: Term, data: DataGraph) -> Conforms:
        def test(value: Term) -> bool:
            sign = compare(value, bound)
            return sign is not None and accepts(sign)

        return test

    return make_test


def _length(accepts: Callable[[int, int], bool]) -> Callable[[int, DataGraph], Conforms]:
    return lambda bound, data: lambda value: not is_blank(value) and accepts(len(lexical(value)), bound)


def _language_in(ranges: Sequence[str], data: DataGraph) -> Conforms:
    def test(value: Term) -> bool:
        language = language_of(value).lower()
        return any(
            language and (wanted == "*" or language == wanted or language.startswith(f"{wanted}-")) for wanted in ranges
        )

    return test


_TESTS: dict[str, Callable[[Any, DataGraph], Conforms]] = {
    "class": instance_of,
    "datatype": _datatype,
    "nodeKind": _node_kind,
    "minExclusive": _bound_component(lambda sign: sign > 0),
    "minInclusive": _bound_component(lambda sign: sign >= 0),
    "maxExclusive": _bound_component(lambda sign: sign < 0),
    "maxInclusive": _bound_component(lambda sign: sign <= 0),
    "minLength": _length(lambda length, bound: length >= bound),
    "maxLength": _length(lambda length, bound: length <= bound),
    "pattern": lambda value, data: matching(value[0], value[1], data.meter),
    "languageIn": _language_in,
    "in": lambda members, data: lambda value: value in members,
}


# --- of the value nodes together ---


def _min_count(least: int, data: DataGraph) -> Check:
    return lambda focus, values: _NONE if len(values) < least else ()


def _max_count(most: int, data: DataGraph) -> Check:
    return lambda focus, values: _NONE if len(values) > most else ()


def _has_value(wanted: Term, data: DataGraph) -> Check:
    return lambda focus, values: () if wanted in values else _NONE


def _unique_lang(wanted: bool, data: DataGraph) -> Check:
    def check(focus: Term, values: Values) -> Iterable[Term | None]:
        counts = Counter(language.lower() for language in map(language_of, values) if language)
        return _NONE if any(count > 1 for count in counts.values()) else ()

    return check


def _equals(predicate: Term, data: DataGraph) -> Check:
    walk = data.walk(PathStep(predicate))

    def check(focus: Term, values: Values) -> Iterable[Term | None]:
        others = walk(focus)
        return [*(v for v in values if v not in others), *(other for other in others if other not in values)]

    return check


def _disjoint(predicate: Term, data: DataGraph) -> Check:
    walk = data.walk(PathStep(predicate))

    def check(focus: Term, values: Values) -> Iterable[Term | None]:
        others = walk(focus)
        return [value for value in values if value in others]

    return check


def _less(accepts: Callable[[int], bool]) -> Callable[[Term, DataGraph], Check]:
    def make_check(predicate: Term, data: DataGraph) -> Check:
        walk: Walk = data.walk(PathStep(predicate))

        def check(focus: Term, values: Values) -> Iterable[Term | None]:
            others = walk(focus)
            data.meter.take(10 * len(values) * len(others))
            signs = ((value, compare(value, other)) for value in values for other in others)
            return [value for value, sign in signs if sign is None or not accepts(sign)]

        return check

    return make_check


_CHECKS: dict[str, Callable[[Any, DataGraph], Check]] = {
    "minCount": _min_count,
    "maxCount": _max_count,
    "hasValue": _has_value,
    "uniqueLang": _unique_lang,
    "equals": _equals,
    "disjoint": _disjoint,
    "lessThan": _less(lambda sign: sign < 0),
    "lessThanOrEquals": _less(lambda sign: sign <= 0),
}


# --- of other shapes ---


def _logical(name: str, shapes: Sequence[Conforms]) -> Check:
    accepts = _LOGICAL[name]
    return _each(lambda value: accepts(conforms(value) for conforms in shapes))


# sh:node and sh:not have one shape in their value.
_LOGICAL: dict[str, Callable[[Iterable[bool]], bool]] = {
    "node": all,
    "and": all,
    "or": any,
    "xone": lambda found: sum(found) == 1,
    "not": lambda found: not any(found),
}
