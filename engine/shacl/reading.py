"""Reading: the triples of a shapes graph -> shapes. What is not supported is refused with the names of both.

All of SHACL Core is supported. SHACL-SPARQL, SHACL-JS and the advanced features are not: their constraints are queries
and programs, whose cost for one update has no bound. A shape that refers to itself is refused, as the standard leaves
its meaning open (SHACL, 3.4.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

from lamplighter.engine.errors import InvalidShapesError
from lamplighter.engine.matching.expressions import FALSE, TRUE
from lamplighter.engine.shacl.model import (
    CLASS,
    FIRST,
    NIL,
    ON_VIOLATION,
    REST,
    SUB_CLASS,
    TYPE,
    ConstraintShape,
    FocusTarget,
    Qualified,
    ShapeConstraint,
    Triple,
    local,
    sh,
)
from lamplighter.engine.shacl.paths import normal, size_of
from lamplighter.engine.shacl.patterns import is_pattern
from lamplighter.engine.sparql.paths import Path, PathAlternative, PathInverse, PathRepeated, PathSequence, PathStep
from lamplighter.engine.terms import XSD, Term, is_blank, is_iri, is_literal, lexical

# Triples of a shapes graph.
TRIPLES_MAX = 100_000
# Members of a list.
LIST_MAX = 10_000
# Shapes within shapes, and paths within paths.
NESTING_MAX = 30
# Steps of a path.
STEPS_MAX = 50
# Blank nodes below each other: shapes within lists within shapes.
_DEPTH_MAX = 4 * NESTING_MAX
# Characters of a regular expression.
PATTERN_MAX = 1_000

_TARGETS = {
    sh("targetClass"): "class",
    sh("targetNode"): "node",
    sh("targetSubjectsOf"): "subjects",
    sh("targetObjectsOf"): "objects",
}
_SILENT = frozenset(
    map(sh, ("path", "severity", "message", "deactivated", "name", "description", "order", "group", "defaultValue"))
)
# Parameters that are read with another one.
_WITH_OTHERS = frozenset(
    map(sh, ("flags", "ignoredProperties", "qualifiedMinCount", "qualifiedMaxCount", "qualifiedValueShapesDisjoint"))
)
_PROPERTY_ONLY = frozenset(
    ("minCount", "maxCount", "uniqueLang", "lessThan", "lessThanOrEquals", "qualifiedValueShape")
)
_SHAPE_TYPES = (sh("NodeShape"), sh("PropertyShape"))
_NODE_KINDS = ("IRI", "BlankNode", "Literal", "BlankNodeOrIRI", "BlankNodeOrLiteral", "IRIOrLiteral")
_KINDS = f"one of {', '.join(f'sh:{kind}' for kind in _NODE_KINDS)}"
_UNSUPPORTED = {
    sh("sparql"): "SPARQL-based constraints",
    sh("js"): "JavaScript constraints",
    sh("rule"): "rules",
    sh("target"): "targets by a query",
    sh("expression"): "expression constraints",
    sh("parameter"): "constraint components of your own",
    sh("validator"): "constraint components of your own",
    sh("nodeValidator"): "constraint components of your own",
    sh("propertyValidator"): "constraint components of your own",
}


def read_shapes(triples: Iterable[Triple]) -> tuple[ConstraintShape, ...]:
    """The shapes that have targets, in the order of their names.

    triples: of the shapes graph, in the store's terms. Raises InvalidShapesError, which names shape and construct. All
    shapes are checked, those without targets too.
    """
    return _ShapesReader(triples).shapes()


class _ShapesReader:
    """Reads the shapes of one graph, each once."""

    def __init__(self, triples: Iterable[Triple]) -> None:
        self._by_subject: dict[Term, dict[Term, list[Term]]] = {}
        self._by_object: dict[Term, list[tuple[Term, Term]]] = {}
        for number, (s, p, o) in enumerate(dict.fromkeys(triples)):
            if number >= TRIPLES_MAX:
                raise InvalidShapesError(f"the shapes have more than {TRIPLES_MAX} triples; use fewer shapes")
            self._by_subject.setdefault(s, {}).setdefault(p, []).append(o)
            self._by_object.setdefault(o, []).append((s, p))
        self._read: dict[Term, ConstraintShape] = {}
        self._open: list[Term] = []
        self._names: dict[Term, Term] = {}

    def shapes(self) -> tuple[ConstraintShape, ...]:
        for node, members in self._by_subject.items():
            for predicate, construct in _UNSUPPORTED.items():
                if predicate in members:
                    raise self._wrong(node, f"sh:{local(predicate)}: {construct} are not supported; remove it")
        named = sorted(node for node, members in self._by_subject.items() if self._is_shape(members))
        for node in sorted(named, key=is_blank):
            self.shape(node)
        return tuple(sorted((shape for shape in self._read.values() if shape.targets), key=lambda shape: shape.name))

    def _is_shape(self, members: dict[Term, list[Term]]) -> bool:
        return any(kind in members.get(TYPE, ()) for kind in _SHAPE_TYPES) or any(
            target in members for target in _TARGETS
        )

    # --- shapes ---

    def shape(self, node: Term, *, needs_path: bool | None = None) -> ConstraintShape:
        """The shape of a node. needs_path: whether only a property shape can stand there, or only a node shape."""
        found = self._read.get(node)
        if found is None:
            if node in self._open:
                raise self._wrong(node, "it refers to itself, which is not supported; write the levels out")
            if len(self._open) > NESTING_MAX:
                raise self._wrong(self._open[0], f"shapes are nested more than {NESTING_MAX} deep; use fewer levels")
            if is_literal(node):
                raise self._wrong(self._open[-1], f"the literal {node} stands in the place of a shape")
            self._open.append(node)
            try:
                found = self._new_shape(node)
            finally:
                self._open.pop()
            self._read[node] = found
        if needs_path and found.path is None:
            raise self._wrong(node, "sh:property needs a property shape; give it a sh:path")
        if needs_path is False and found.path is not None:
            raise self._wrong(node, "sh:node needs a node shape, without a sh:path")
        return found

    def _new_shape(self, node: Term) -> ConstraintShape:
        members = self._by_subject.get(node, {})
        named = [one for one in self._open if not is_blank(one)]
        shape = ConstraintShape(self._name(node), named[-1] if named else self._name(node))
        paths = members.get(sh("path"), [])
        if len(paths) > 1:
            raise self._wrong(node, "sh:path: it has several; make a property shape for each")
        if paths:
            shape.path = self._path(node, paths[0], 0)
            if size_of(shape.path) > STEPS_MAX:
                raise self._wrong(node, f"sh:path has more than {STEPS_MAX} steps")
            shape.route = normal(shape.path)
        if shape.path is None and sh("PropertyShape") in members.get(TYPE, ()):
            raise self._wrong(node, "a property shape needs a sh:path")
        shape.targets = tuple(self._targets(node, members))
        shape.severity = self._one(node, "severity", is_iri, "an IRI such as sh:Warning") or sh("Violation")
        shape.messages = tuple(sorted(filter(is_literal, members.get(sh("message"), ()))))
        shape.rejects = self._mode(node, members)
        known = [
            (name, value)
            for name in sorted(map(local, members))
            if sh(name) in members and sh(name) not in _SILENT and sh(name) not in _TARGETS
            for value in members[sh(name)]
        ]
        if self._one(node, "deactivated", _is_boolean, "true or false") == TRUE:
            return shape
        constraints: list[ShapeConstraint] = []
        for name, value in known:
            if name == "property":
                continue
            if sh(name) in _WITH_OTHERS:
                continue
            if name not in _PARAMETERS:
                raise self._wrong(node, f"sh:{name} is no parameter of SHACL Core; correct or remove it")
            if name in _PROPERTY_ONLY and shape.path is None:
                raise self._wrong(node, f"sh:{name} needs a sh:path; write it in a property shape")
            constraints.append(ShapeConstraint(name, _PARAMETERS[name](self, node, value)))
        shape.constraints = tuple(constraints)
        shape.properties = tuple(
            self.shape(value, needs_path=True) for value in sorted(members.get(sh("property"), ()), key=self._order)
        )
        return shape

    def _order(self, node: Term) -> Term:
        return self._name(node)

    def _targets(self, node: Term, members: dict[Term, list[Term]]) -> Iterator[FocusTarget]:
        for predicate, kind in _TARGETS.items():
            for term in sorted(members.get(predicate, ())):
                if kind != "node" and not is_iri(term):
                    raise self._wrong(node, f"sh:{local(predicate)} needs an IRI, and not {term}")
                yield FocusTarget(kind, term)  # type: ignore[arg-type]  # the values of the table
        if is_iri(node) and self._is_shape(members) and self._is_class(members):
            yield FocusTarget("class", node)

    def _is_class(self, members: dict[Term, list[Term]]) -> bool:
        """Whether a shape is a class too, and so its own target (SHACL, 2.1.3.3)."""
        waiting, seen = list(members.get(TYPE, ())), set()
        while waiting:
            kind = waiting.pop()
            if kind == CLASS:
                return True
            if kind not in seen:
                seen.add(kind)
                waiting += self._by_subject.get(kind, {}).get(SUB_CLASS, [])
        return False

    def _mode(self, node: Term, members: dict[Term, list[Term]]) -> bool | None:
        found = members.get(ON_VIOLATION, [])
        if not found:
            return None
        if len(found) > 1 or found[0] not in ('"reject"', '"mark"'):
            raise self._wrong(node, 'gateway:onViolation is "reject" or "mark"')
        return found[0] == '"reject"'

    # --- values of parameters ---

    def _one(self, node: Term, name: str, accepts: Callable[[Term], bool], wanted: str) -> Term | None:
        """The value of a parameter that may occur once, None if it is absent."""
        found = self._by_subject.get(node, {}).get(sh(name), [])
        if not found:
            return None
        if len(found) > 1:
            raise self._wrong(node, f"sh:{name} stands there {len(found)} times; keep one")
        return self.expect(node, name, found[0], accepts, wanted)

    def expect(self, node: Term, name: str, value: Term, accepts: Callable[[Term], bool], wanted: str) -> Term:
        """The value, if it is what a parameter needs."""
        if not accepts(value):
            raise self._wrong(node, f"sh:{name} needs {wanted}, and not {value}")
        return value

    def count(self, node: Term, name: str, value: Term) -> int:
        """A number of values or characters."""
        ending = f'"^^<{XSD}integer>'
        text = value[1 : -len(ending)] if value.endswith(ending) else ""
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise self._wrong(node, f"sh:{name} needs an integer from 0, and not {value}")
        return int(text)

    def members(self, node: Term, name: str, head: Term) -> list[Term]:
        """The members of a list."""
        found: list[Term] = []
        seen: set[Term] = set()
        while head != NIL:
            cell = self._by_subject.get(head, {})
            first, rest = cell.get(FIRST, []), cell.get(REST, [])
            if len(first) != 1 or len(rest) != 1 or head in seen:
                raise self._wrong(node, f"sh:{name} needs a list that ends and has no branches")
            if len(found) >= LIST_MAX:
                raise self._wrong(node, f"sh:{name} has more than {LIST_MAX} members")
            seen.add(head)
            found.append(first[0])
            head = rest[0]
        return found

    def shape_list(self, node: Term, name: str, head: Term) -> tuple[ConstraintShape, ...]:
        found = self.members(node, name, head)
        if not found:
            raise self._wrong(node, f"sh:{name} needs a list of shapes that is not empty")
        return tuple(map(self.shape, found))

    def pattern(self, node: Term, value: Term) -> tuple[str, str]:
        self.expect(node, "pattern", value, is_literal, "a text")
        flags = self._one(node, "flags", is_literal, "a text") or '""'
        pattern = lexical(value)
        if len(pattern) > PATTERN_MAX or not is_pattern(pattern, lexical(flags)):
            raise self._wrong(
                node,
                f"sh:pattern {value} with the flags {flags} is no regular expression of at most {PATTERN_MAX} "
                "characters that SPARQL's REGEX accepts; it has no back-references and no look-around",
            )
        return pattern, lexical(flags)

    def closed_properties(self, node: Term, value: Term) -> frozenset[Term] | None:
        """The properties that sh:closed allows, None if it is false."""
        self.expect(node, "closed", value, _is_boolean, "true or false")
        if value == FALSE:
            return None
        ignored = self._by_subject[node].get(sh("ignoredProperties"), [])
        allowed = [member for head in ignored for member in self.members(node, "ignoredProperties", head)]
        for nested in self._by_subject[node].get(sh("property"), ()):
            allowed += [path for path in self._by_subject.get(nested, {}).get(sh("path"), ()) if is_iri(path)]
        return frozenset(allowed)

    def qualified_shape(self, node: Term, value: Term) -> Qualified:
        members = self._by_subject[node]
        counts = [
            self.count(node, name, found) if (found := self._one(node, name, is_literal, "a number")) else None
            for name in ("qualifiedMinCount", "qualifiedMaxCount")
        ]
        if counts == [None, None]:
            raise self._wrong(node, "sh:qualifiedValueShape needs sh:qualifiedMinCount or sh:qualifiedMaxCount")
        siblings: dict[Term, None] = {}
        if TRUE in members.get(sh("qualifiedValueShapesDisjoint"), ()):
            for parent, predicate in self._by_object.get(node, ()):
                beside = self._by_subject[parent].get(sh("property"), ()) if predicate == sh("property") else ()
                for other in beside:
                    siblings.update(dict.fromkeys(self._by_subject.get(other, {}).get(sh("qualifiedValueShape"), ())))
            siblings.pop(value, None)
        return Qualified(self.shape(value), tuple(map(self.shape, siblings)), counts[0], counts[1])

    # --- paths ---

    def _path(self, node: Term, term: Term, depth: int) -> Path:
        """The path that a term describes (SHACL, 2.3.1)."""
        if is_iri(term):
            if term == NIL:
                raise self._wrong(node, "sh:path: a sequence of no steps")
            return PathStep(term)
        cell = self._by_subject.get(term, {})
        if depth > NESTING_MAX or not cell:
            raise self._wrong(node, f"sh:path: {term} is no path, or it is nested more than {NESTING_MAX} deep")
        if FIRST in cell:
            return PathSequence(self._parts(node, "path", term, depth))
        kinds = [predicate for predicate in cell if predicate in _PATHS]
        if len(kinds) != 1 or len(cell[kinds[0]]) != 1:
            raise self._wrong(node, "sh:path: a blank node needs a list, or one of sh:inversePath and the like")
        name, value = local(kinds[0]), cell[kinds[0]][0]
        if name == "alternativePath":
            return PathAlternative(self._parts(node, name, value, depth))
        inner = self._path(node, value, depth + 1)
        if name == "inversePath":
            return PathInverse(inner)
        return PathRepeated(inner, name != "oneOrMorePath", name != "zeroOrOnePath")

    def _parts(self, node: Term, name: str, head: Term, depth: int) -> tuple[Path, ...]:
        parts = tuple(self._path(node, part, depth + 1) for part in self.members(node, name, head))
        if len(parts) < 2:
            raise self._wrong(node, f"sh:{name} needs a list of at least two paths")
        return parts

    # --- names ---

    def _name(self, node: Term) -> Term:
        """The IRI of a shape; for a blank node, one that follows from what it says and from the shape around it."""
        found = self._names.get(node)
        if found is None:
            text = self._text(node, 0, [0]) if is_blank(node) else node
            above = self._open[-2] if len(self._open) > 1 and self._open[-1] == node else (self._open or [""])[-1]
            place = self._names.get(above, above)
            digest = blake2b(f"{place} {text}".encode(), digest_size=16).hexdigest()
            found = self._names[node] = f"<urn:lamplighter:shape:{digest}>" if is_blank(node) else node
        return found

    def _text(self, node: Term, depth: int, count: list[int]) -> str:
        """What the triples below a blank node say, without labels. count: of the nodes so far."""
        count[0] += 1
        if depth > _DEPTH_MAX or count[0] > LIST_MAX:
            raise self._wrong(node, f"it has more than {LIST_MAX} blank nodes, or contains itself")
        cell = self._by_subject.get(node, {})
        if FIRST in cell:
            members = self.members(node, "path or another list", node)
            return f"({' '.join(self._text(one, depth + 1, count) if is_blank(one) else one for one in members)})"
        parts = []
        for predicate, objects in sorted(cell.items()):
            texts = [self._text(o, depth + 1, count) if is_blank(o) else o for o in objects]
            parts.append(f"{predicate} {' '.join(sorted(texts))}")
        return f"[{' ; '.join(parts)}]"

    def _wrong(self, node: Term, problem: str) -> InvalidShapesError:
        names = [one for one in (*self._open, node) if not is_blank(one)]
        place = names[-1] if names else "a shape without a name"
        paths = [path for path in self._by_subject.get(node, {}).get(sh("path"), ()) if is_iri(path)]
        where = "" if not is_blank(node) else f", property shape of {paths[0]}" if paths else ", in a blank node"
        return InvalidShapesError(f"shape {place}{where}: {problem}")


_PATHS = frozenset(map(sh, ("inversePath", "alternativePath", "zeroOrMorePath", "oneOrMorePath", "zeroOrOnePath")))


def _is_boolean(term: Term) -> bool:
    return term in (TRUE, FALSE)


def _iri_of(name: str) -> Callable[[_ShapesReader, Term, Term], Any]:
    return lambda reader, node, value: reader.expect(node, name, value, is_iri, "an IRI")


def _count_of(name: str) -> Callable[[_ShapesReader, Term, Term], Any]:
    return lambda reader, node, value: reader.count(node, name, value)


def _literal_of(name: str) -> Callable[[_ShapesReader, Term, Term], Any]:
    return lambda reader, node, value: reader.expect(node, name, value, is_literal, "a literal")


def _shapes_of(name: str) -> Callable[[_ShapesReader, Term, Term], Any]:
    return lambda reader, node, value: reader.shape_list(node, name, value)


def _one_shape(reader: _ShapesReader, node: Term, value: Term) -> Sequence[ConstraintShape]:
    return (reader.shape(value),)


def _node_shape(reader: _ShapesReader, node: Term, value: Term) -> Sequence[ConstraintShape]:
    return (reader.shape(value, needs_path=False),)


def _node_kind(reader: _ShapesReader, node: Term, value: Term) -> str:
    return local(reader.expect(node, "nodeKind", value, lambda term: local(term) in _NODE_KINDS, _KINDS))


def _languages(reader: _ShapesReader, node: Term, value: Term) -> tuple[str, ...]:
    found = reader.members(node, "languageIn", value)
    return tuple(
        lexical(reader.expect(node, "languageIn", tag, is_literal, "a list of language tags")).lower() for tag in found
    )


# What each parameter makes of its value.
_PARAMETERS: dict[str, Callable[[_ShapesReader, Term, Term], Any]] = {
    **{name: _iri_of(name) for name in ("class", "datatype", "equals", "disjoint", "lessThan", "lessThanOrEquals")},
    **{name: _count_of(name) for name in ("minCount", "maxCount", "minLength", "maxLength")},
    **{name: _literal_of(name) for name in ("minExclusive", "minInclusive", "maxExclusive", "maxInclusive")},
    **{name: _shapes_of(name) for name in ("and", "or", "xone")},
    "not": _one_shape,
    "node": _node_shape,
    "nodeKind": _node_kind,
    "pattern": lambda reader, node, value: reader.pattern(node, value),
    "languageIn": _languages,
    "in": lambda reader, node, value: frozenset(reader.members(node, "in", value)),
    "hasValue": lambda reader, node, value: value,
    "uniqueLang": lambda reader, node, value: (
        reader.expect(node, "uniqueLang", value, _is_boolean, "true or false") == TRUE
    ),
    "closed": lambda reader, node, value: reader.closed_properties(node, value),
    "qualifiedValueShape": lambda reader, node, value: reader.qualified_shape(node, value),
}
