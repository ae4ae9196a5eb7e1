"""Compiling: shapes -> functions over the data graph, and the triggers by predicate.

Each shape becomes one function that appends the violations of a node. The functions of shapes that others refer to are
shared. A node without violations costs the lookups of its values and a call for each constraint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from lamplighter.engine.errors import InvalidShapesError
from lamplighter.engine.shacl.components import CLASS_PATH, Check, Conforms, Values, check_of, instance_of
from lamplighter.engine.shacl.data import DataGraph, Walk
from lamplighter.engine.shacl.model import (
    QUALIFIED_MAX,
    QUALIFIED_MIN,
    ConstraintShape,
    FocusTarget,
    Qualified,
    ShapeConstraint,
    Violation,
)
from lamplighter.engine.shacl.paths import concatenate, inverse, occurrences
from lamplighter.engine.sparql.paths import Path, PathStep
from lamplighter.engine.terms import Term

# Triggers of all shapes. Shapes that refer to others by many paths have many.
TRIGGERS_MAX = 5_000

Found = list[Violation]
# (node, found): appends the violations of a node.
Examine = Callable[[Term, Found], None]


class RootShape:
    """A shape with targets, compiled.

    parts: together they find all violations of a focus node. is_target: whether a node is a focus node. targets: all
    focus nodes, some more than once.
    """

    __slots__ = ("is_target", "parts", "shape", "targets")

    def __init__(
        self,
        shape: ConstraintShape,
        parts: tuple[Examine, ...],
        is_target: Conforms,
        targets: Callable[[], Iterator[Term]],
    ) -> None:
        self.shape = shape
        self.parts = parts
        self.is_target = is_target
        self.targets = targets


class FocusTrigger(NamedTuple):
    """Which focus nodes a quad of a predicate concerns. back: from the quad's subject (object, if at_object) to them,
    None if it is a focus node itself. targets: roots whose focus nodes it makes; roots: others, with the numbers of the
    parts that it concerns."""

    at_object: bool
    back: Walk | None
    targets: tuple[RootShape, ...]
    roots: tuple[tuple[RootShape, tuple[int, ...]], ...]


class CompiledShapes:
    """The functions of some shapes. They walk over data, which the caller closes.

    triggers: by predicate; any: those of every predicate, for sh:closed. Raises InvalidShapesError for too many.
    """

    def __init__(self, shapes: Sequence[ConstraintShape], data: DataGraph) -> None:
        self.data = data
        self._examines: dict[ConstraintShape, Examine] = {}
        self.roots = tuple(self._root(shape) for shape in shapes)
        self.triggers: dict[Term, tuple[FocusTrigger, ...]] = {}
        self.any: tuple[FocusTrigger, ...] = ()
        self._find_triggers()

    def count(self) -> int:
        """How many shapes were compiled, those that others refer to included."""
        return len(self._examines)

    # --- functions ---

    def _root(self, shape: ConstraintShape) -> RootShape:
        examine = self.examine(shape)
        parts = (examine,) if shape.path is not None else tuple(self._parts(shape))
        tests = [self._is_target(target) for target in shape.targets]
        is_target = tests[0] if len(tests) == 1 else lambda node: any(test(node) for test in tests)

        def targets() -> Iterator[Term]:
            for target in shape.targets:
                yield from self._targets(target)

        return RootShape(shape, parts, is_target, targets)

    def examine(self, shape: ConstraintShape) -> Examine:
        """The function of a shape."""
        found = self._examines.get(shape)
        if found is None:
            parts = tuple(self._parts(shape))
            found = self._examines[shape] = parts[0] if len(parts) == 1 else _together(parts)
        return found

    def _parts(self, shape: ConstraintShape) -> Iterator[Examine]:
        """A function for each constraint of a node shape, and for each of its property shapes; one for all constraints
        of a property shape, whose values are looked up once."""
        if shape.path is not None:
            assert shape.route is not None
            yield self._property(shape, shape.path, self.data.walk(shape.route))
            return
        for constraint in shape.constraints:
            for check, component in self._checks(shape, constraint):
                yield _of_node(shape, constraint, component, check, self.data)
            if constraint.name == "closed" and constraint.value is not None:
                closed = self._closed_check(shape, constraint)
                yield lambda node, found, closed=closed: closed(node, node, found)  # type: ignore[misc]
        yield from map(self.examine, shape.properties)

    def _property(self, shape: ConstraintShape, path: Path, walk: Walk) -> Examine:
        meter = self.data.meter
        checks = [
            (constraint, component, check)
            for constraint in shape.constraints
            for check, component in self._checks(shape, constraint)
        ]
        closed = [
            self._closed_check(shape, constraint)
            for constraint in shape.constraints
            if constraint.name == "closed" and constraint.value is not None
        ]
        nested = [self.examine(below) for below in shape.properties]
        units = 10 + 5 * len(checks)

        def examine(focus: Term, found: Found) -> None:
            values = walk(focus)
            meter.left -= units + 5 * len(values)
            if meter.left < 0:
                meter.more()
            for constraint, component, check in checks:
                for value in check(focus, values):
                    found.append(Violation(shape, focus, path, value, constraint, component))
            if closed or nested:
                for value in list(values):
                    for check_closed in closed:
                        check_closed(focus, value, found)
                    for below in nested:
                        below(value, found)

        return examine

    def _checks(self, shape: ConstraintShape, constraint: ShapeConstraint) -> Iterator[tuple[Check, Term]]:
        name, value = constraint
        if name == "closed" or (name == "uniqueLang" and not value):
            return
        if name == "qualifiedValueShape":
            yield from self._qualified_checks(value)
            return
        yield check_of(name, value, self.data, self._conforms), constraint.component

    def _conforms(self, shape: ConstraintShape) -> Conforms:
        examine = self.examine(shape)

        def conforms(node: Term) -> bool:
            found: Found = []
            examine(node, found)
            return not found

        return conforms

    def _qualified_checks(self, qualified: Qualified) -> Iterator[tuple[Check, Term]]:
        conforms = self._conforms(qualified.shape)
        others = [self._conforms(sibling) for sibling in qualified.siblings]

        def count(values: Values) -> int:
            return sum(conforms(value) and not any(other(value) for other in others) for value in values)

        least, most = qualified.least, qualified.most
        if least is not None:
            low: int = least
            yield (lambda focus, values: (None,) if count(values) < low else (), QUALIFIED_MIN)
        if most is not None:
            high: int = most
            yield (lambda focus, values: (None,) if count(values) > high else (), QUALIFIED_MAX)

    def _closed_check(self, shape: ConstraintShape, constraint: ShapeConstraint) -> Callable[[Term, Term, Found], None]:
        """A function of the focus node and of the value node that sh:closed is about."""
        allowed, data = constraint.value, self.data
        data.hold_everything()

        def examine(focus: Term, node: Term, found: Found) -> None:
            for predicate, value in list(data.triples_of(node)):
                if predicate not in allowed:
                    path = PathStep(predicate)
                    found.append(Violation(shape, focus, path, value, constraint, constraint.component))

        return examine

    # --- targets ---

    def _is_target(self, target: FocusTarget) -> Conforms:
        kind, term = target
        if kind == "node":
            return lambda node: node == term
        if kind == "class":
            return instance_of(term, self.data)
        walk = self.data.walk(_target_path(target))
        return lambda node: bool(walk(node))

    def _targets(self, target: FocusTarget) -> Iterable[Term]:
        kind, term = target
        if kind == "node":
            return (term,)
        if kind == "class":
            return list(self.data.back(CLASS_PATH)(term))
        return list(dict.fromkeys(pair[kind == "objects"] for pair in self.data.pairs(term)))

    # --- triggers ---

    def _find_triggers(self) -> None:
        grouped: dict[Term | None, dict[tuple[bool, Path | None], dict[RootShape, set[int | None]]]] = {}
        count = 0
        for root in self.roots:
            for predicate, at_object, prefix, number in _triggers(root.shape):
                count += 1
                if count > TRIGGERS_MAX:
                    raise InvalidShapesError(
                        f"shape {root.shape.name}: with it, the shapes depend on properties in more than "
                        f"{TRIGGERS_MAX} ways; use fewer shapes, or fewer references between them"
                    )
                roots = grouped.setdefault(predicate, {}).setdefault((at_object, prefix), {})
                roots.setdefault(root, set()).add(number)
        for predicate, found in grouped.items():
            made = tuple(
                FocusTrigger(
                    at_object,
                    None if prefix is None else self.data.walk(inverse(prefix)),
                    tuple(root for root, numbers in roots.items() if None in numbers),
                    tuple(
                        (root, tuple(sorted(number for number in numbers if number is not None)))
                        for root, numbers in roots.items()
                        if numbers != {None}
                    ),
                )
                for (at_object, prefix), roots in found.items()
            )
            if predicate is None:
                self.any = made
            else:
                self.triggers[predicate] = made


def _together(parts: Sequence[Examine]) -> Examine:
    def examine(node: Term, found: Found) -> None:
        for part in parts:
            part(node, found)

    return examine


def _of_node(
    shape: ConstraintShape, constraint: ShapeConstraint, component: Term, check: Check, data: DataGraph
) -> Examine:
    """The function of a constraint of a node shape. The only value node is the focus node."""
    meter = data.meter

    def examine(focus: Term, found: Found) -> None:
        meter.left -= 10
        if meter.left < 0:
            meter.more()
        for value in check(focus, (focus,)):
            found.append(Violation(shape, focus, None, value, constraint, component))

    return examine


# A predicate, None for any; whether the quad is followed backwards; the path from the focus node to it; the part.
Dependency = tuple[Term | None, bool, Path | None, int | None]


def _target_path(target: FocusTarget) -> Path:
    """From a focus node along what makes it one."""
    step = PathStep(target.term)
    return CLASS_PATH if target.kind == "class" else inverse(step) if target.kind == "objects" else step


def _triggers(root: ConstraintShape) -> Iterator[Dependency]:
    """On which quads the violations of a root's focus nodes depend."""
    for target in root.targets:
        if target.kind != "node":
            for predicate, at_object, prefix in occurrences(_target_path(target), None):
                yield predicate, at_object, prefix, None
    if root.path is not None:
        yield from _shape_triggers(root, None, 0, set())
        return
    number = 0
    for constraint in root.constraints:
        size = _size(constraint)
        for part in range(number, number + size):
            yield from _constraint_triggers(constraint, None, None, part, set())
        number += size
    for part, shape in enumerate(root.properties, number):
        yield from _shape_triggers(shape, None, part, set())


def _size(constraint: ShapeConstraint) -> int:
    """How many parts of a node shape a constraint makes. Those of property shapes do not occur there."""
    return int(not (constraint.name == "closed" and constraint.value is None))


Seen = set[tuple[ConstraintShape, Path | None]]


def _shape_triggers(shape: ConstraintShape, prefix: Path | None, part: int, seen: Seen) -> Iterator[Dependency]:
    if (shape, prefix) in seen:
        return
    seen.add((shape, prefix))
    values = prefix
    if shape.route is not None:
        for found in occurrences(shape.route, prefix):
            yield *found, part
        values = concatenate(prefix, shape.route)
    for constraint in shape.constraints:
        yield from _constraint_triggers(constraint, prefix, values, part, seen)
    for nested in shape.properties:
        yield from _shape_triggers(nested, values, part, seen)


def _constraint_triggers(
    constraint: ShapeConstraint, focus: Path | None, values: Path | None, part: int, seen: Seen
) -> Iterator[Dependency]:
    """focus, values: the paths to the nodes that the constraint is about."""
    name, value = constraint
    if name == "class":
        for found in occurrences(CLASS_PATH, values):
            yield *found, part
    elif name in ("equals", "disjoint", "lessThan", "lessThanOrEquals"):
        yield value, False, focus, part
    elif name == "closed" and value is not None:
        yield None, False, values, part
    elif name == "qualifiedValueShape":
        for shape in (value.shape, *value.siblings):
            yield from _shape_triggers(shape, values, part, seen)
    elif name in ("node", "not", "and", "or", "xone"):
        for shape in value:
            yield from _shape_triggers(shape, values, part, seen)
