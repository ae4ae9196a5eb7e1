"""Graph patterns of one entity and of those that a path leads to from it.

A `Node` is one entity in a query: a variable or an IRI, and the parts of its description that the query needs. Its
text is made last, when all paths of the request are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

from lamplighter.engine.terms import Term, is_iri
from lamplighter.gateway.gates.sensorthings.entities import ENTITY_SETS, EntityType, Navigation

_TOKEN = re.compile(r"%(?:v([a-z]*)|([abe]))")


class VariableNames:
    """Variables of one query: each asked for once."""

    def __init__(self) -> None:
        self._numbers = count()

    def new(self) -> str:
        return f"?n{next(self._numbers)}_"


class Node:
    """An entity in a query. entity: a variable or an IRI; needed: names of its parts."""

    def __init__(self, kind: EntityType, names: VariableNames, entity: str | None = None) -> None:
        self.kind = kind
        self._names = names
        self.prefix = names.new()
        self.entity = f"{self.prefix}e" if entity is None else entity
        self.needed: dict[str, None] = {}
        self._given: dict[str, str] = {}
        self._children: dict[str, Node] = {}

    def variable(self, name: str) -> str:
        """What the token ``%vNAME`` stands for."""
        return self._given.get(name) or self.prefix + name

    def text(self, template: str) -> str:
        """A pattern or expression with its tokens replaced."""
        return _TOKEN.sub(lambda found: self.entity if found[2] else self.variable(found[1]), template)

    def child(self, step: str) -> Node:
        """The entities that a navigation leads to, as an optional part of the query."""
        if step not in self._children:
            self._children[step] = self.to(step)
        return self._children[step]

    def to(self, step: str, entity: Term | None = None) -> Node:
        """The entities that a navigation leads to, for `joined`. entity: the one that is meant, of several."""
        way = self.kind.navigation[step]
        kind = ENTITY_SETS[way.target]
        if way.of_source:
            if way.of_source in self.kind.parts:
                self.needed[way.of_source] = None
            return Node(kind, self._names, self.variable(way.of_source))
        found = Node(kind, self._names, entity)
        if way.of_target:
            found._given[way.of_target] = self.entity
            if way.of_target in kind.parts:
                found.needed[way.of_target] = None
        return found

    def join(self, step: str, other: Node) -> str:
        """The pattern of a navigation to a node that `to` returned, and of that node."""
        return f"{self.way(step, other)} {other.pattern()}"

    def way(self, step: str, other: Node) -> str:
        """The pattern of a navigation without those of its ends."""
        way = self.kind.navigation[step]
        if not way.pattern:
            return "" if way.of_source or way.of_target else "FILTER(false)"
        prefix = self._names.new()

        def part(found: re.Match[str]) -> str:
            if found[2]:
                return self.entity if found[2] == "a" else other.entity
            return prefix + found[1]

        return _TOKEN.sub(part, way.pattern)

    def pattern(self) -> str:
        """The pattern of the entity with the needed parts, and of what `child` was asked for."""
        parts = " ".join(self._part(name) for name in self.needed)
        own = f"{self.text(self.kind.core)} {parts}"
        rest = " ".join(f"OPTIONAL {{ {self.join(step, child)} }}" for step, child in self._children.items())
        if not is_iri(self.entity):
            rest = f"FILTER(ISIRI({self.entity})) {rest}"
        if not self.kind.in_graphs:
            return f"{own} {rest}"
        # What follows is in both branches: the store evaluates a join with a union in an OPTIONAL 100 times slower.
        return f"{{ {own} {rest} }} UNION {{ GRAPH {self.prefix}g {{ {own} }} {rest} }}"

    def _part(self, name: str) -> str:
        """A needed part. One that leads to a given entity is required."""
        text = self.text(self.kind.parts[name])
        return text if name in self._given else f"OPTIONAL {{ {text} }}"

    def columns(self) -> Iterator[tuple[str, str]]:
        """The variables of the needed parts: name and variable."""
        for part in ("", *self.needed):
            for name in self.kind.variables.get(part, ()):
                yield name, self.variable(name)


def single(kind: EntityType, step: str) -> bool:
    """Whether a navigation leads to at most one entity."""
    way: Navigation = kind.navigation[step]
    return not way.many
