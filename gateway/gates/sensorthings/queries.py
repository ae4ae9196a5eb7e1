"""Paths and options -> SPARQL queries of the SOSA graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lamplighter.engine.sharing import portions
from lamplighter.engine.terms import Term
from lamplighter.gateway.gates.sensorthings.addresses import AddressStep
from lamplighter.gateway.gates.sensorthings.compilation import CompiledOptions
from lamplighter.gateway.gates.sensorthings.entities import EntityProperty, EntityType
from lamplighter.gateway.gates.sensorthings.options import QueryOptions
from lamplighter.gateway.gates.sensorthings.patterns import Node, VariableNames

ENTITY: Final = "e"
PARENT: Final = "i"
# Variables of the answers: an entity, the number of the parent that it was found for, how many there are.
COUNT: Final = "c"

# Related entities of several parents that one query may find, before what each parent has too many of is left out.
ROWS_MAX: Final = 10_000
_PARENTS = "\x01"  # no term has a control character, so this stands for nothing else in a text


@dataclass(frozen=True)
class PathQueries:
    """The queries of a path. page: entities in order, one more than asked for; count: of all; exists: any at all."""

    page: str
    count: str
    exists: str


def path_queries(steps: Sequence[AddressStep], options: QueryOptions, base_iri: str, *, many: bool) -> PathQueries:
    """Raises ExpressionError."""
    above, node, names = _source(steps)
    exists = _existence(above, node)
    pattern, count, keys, columns = _patterns(above, node, names, options, base_iri)
    limit = f"LIMIT {options.top + 1} OFFSET {options.skip}" if many else "LIMIT 1"
    page = f"SELECT DISTINCT {columns} {{ {pattern} }} ORDER BY {keys} {limit}"
    return PathQueries(page, f"SELECT (COUNT(DISTINCT {node.entity}) AS ?{COUNT}) {{ {count} }}", exists)


def _existence(above: str, node: Node) -> str:
    """A query with a row if there is any."""
    return f"SELECT (1 AS ?exists) {{ {above} {node.pattern()} }} LIMIT 1"


def parents_exist(steps: Sequence[AddressStep]) -> str:
    """The query whether the entity before the last step exists."""
    above, node, _ = _source(steps[:-1])
    return _existence(above, node)


@dataclass(frozen=True)
class RelatedQueries:
    """The queries of entities related to several parents, in parts of at most so many bytes."""

    # A page has all related entities, in order for each parent; one for each parent would have too many patterns.

    _page: str
    _count: str

    def pages(self, parents: Sequence[Term], bytes_max: int) -> Iterator[str]:
        return _for_parents(self._page, parents, bytes_max)

    def counts(self, parents: Sequence[Term], bytes_max: int) -> Iterator[str]:
        return _for_parents(self._count, parents, bytes_max)


def related_queries(kind: EntityType, navigation: str, options: QueryOptions, base_iri: str) -> RelatedQueries:
    """kind: of the parents. Raises ExpressionError."""
    names = VariableNames()
    parent = Node(kind, names)
    node = parent.to(navigation)
    above = f"{{ {parent.pattern()} }}" if kind.navigation[navigation].of_source else parent.way(navigation, node)
    values = f"VALUES ({parent.entity} ?{PARENT}) {{ {_PARENTS} }}"
    pattern, count, keys, columns = _patterns(above, node, names, options, base_iri)
    page = (
        f"SELECT DISTINCT ?{PARENT} {columns} {{ {values} {pattern} }} ORDER BY ?{PARENT} {keys} LIMIT {ROWS_MAX + 1}"
    )
    counted = f"(COUNT(DISTINCT {node.entity}) AS ?{COUNT})"
    return RelatedQueries(page, f"SELECT ?{PARENT} {counted} {{ {values} {count} }} GROUP BY ?{PARENT}")


def needed_parts(kind: EntityType, options: QueryOptions) -> Iterator[str]:
    """The parts of an entity that its selected members are made from."""
    for name, one in kind.properties.items():
        if options.selects(name):
            yield from _parts(one)


def _parts(one: EntityProperty) -> Iterator[str]:
    yield from one.parts
    for member in one.members.values():
        yield from _parts(member)


def _source(steps: Sequence[AddressStep]) -> tuple[str, Node, VariableNames]:
    """The last step of a path, and the pattern of those before it."""
    names = VariableNames()
    node = Node(steps[0].kind, names, steps[0].key)
    above = []
    for step in steps[1:]:
        target = node.to(step.name, step.key)
        above.append(f"{{ {node.pattern()} }} {node.way(step.name, target)}")
        node = target
    return " ".join(above), node, names


def _patterns(
    above: str, node: Node, names: VariableNames, options: QueryOptions, base_iri: str
) -> tuple[str, str, str, str]:
    """The pattern of a page and that of the number, the sort keys and the columns."""
    condition = CompiledOptions(node, names, base_iri)
    if options.filter is not None:
        condition.filter(options.filter)
    count = f"{above} {{ {node.pattern()} }} {' '.join(condition.binds)}"
    keys = [f"{'DESC' if key.descending else 'ASC'}({condition.order(key)})" for key in options.order]
    for part in needed_parts(node.kind, options):
        node.needed[part] = None
    columns = " ".join(f"({variable} AS ?{name})" for name, variable in node.columns())
    pattern = f"{above} {{ {node.pattern()} }} {' '.join(condition.binds)}"
    return pattern, count, " ".join([*keys, f"ASC({node.entity})"]), f"({node.entity} AS ?{ENTITY}) {columns}"


def _for_parents(template: str, parents: Sequence[Term], bytes_max: int) -> Iterator[str]:
    rows = [f"({parent} {number})" for number, parent in enumerate(parents)]
    for some in portions(rows, lambda row: len(row.encode()) + 1, bytes_max - len(template.encode())):
        yield template.replace(_PARENTS, " ".join(some))
