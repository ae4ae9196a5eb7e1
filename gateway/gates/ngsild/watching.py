"""A subscription as a SPARQL query, and the rows that a commit changes as changes of entities (5.8.6).

A row is an attribute of an entity with its value, or an entity, or one of its types; ``?ok`` says whether the entity
fulfils ``q``. So the rows that entered and left tell what was created, updated and deleted by a commit, and whether the
entity matched, as it was then. Variables differ between the branches, since a plan follows no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.terms import XSD, Bag, Term, iri, literal
from lamplighter.gateway.gates.ngsild.conditions import expression, terms
from lamplighter.gateway.gates.ngsild.graphs import KIND_TERMS, RESULT, STREAM_TYPE, EntityGraphs
from lamplighter.gateway.gates.ngsild.information import Attribute
from lamplighter.gateway.gates.ngsild.reading import attribute_of
from lamplighter.gateway.gates.ngsild.subscriptions import EntitySelector, EntitySubscription

PATTERNS_MAX: Final = 32  # triple patterns of a query that a plan follows (`engine.matching.analysis`)
# Watched attributes that are patterns with a predicate each; more are found by a pattern for all predicates.
_NAMED_MAX: Final = 3
_EXISTENCE: Final = frozenset({"entityCreated", "entityDeleted", "attributeDeleted"})
_TRUE: Final = literal("true", datatype=XSD + "boolean")
_STREAM: Final = "s"  # suffix of the variables of streams; those of other attributes have numbers


@dataclass
class EntityChange:
    """What a commit has done to an entity. attributes: those that it changed, before and after; types: of an entity
    that was deleted; matches: whether it fulfils ``q`` afterwards, or did before if nothing of it is left."""

    attributes: dict[Term, tuple[Attribute | None, Attribute | None]] = field(default_factory=dict)
    types: set[Term] = field(default_factory=set)
    created: bool = False
    deleted: bool = False
    matches: bool = True

    def triggers(self) -> Iterator[str]:
        if self.created:
            yield "entityCreated"
        if self.deleted:
            yield "entityDeleted"
        for before, after in self.attributes.values():
            yield "attributeCreated" if before is None else "attributeDeleted" if after is None else "attributeUpdated"


class Watching:
    def __init__(self, subscription: EntitySubscription, graphs: EntityGraphs) -> None:
        self._wanted = subscription
        self._graphs = graphs
        self._existence = bool(subscription.triggers & _EXISTENCE)
        watched = subscription.watched
        self._named_attributes: tuple[Term, ...] = watched if 0 < len(watched) <= _NAMED_MAX else ()
        # A branch for each attribute finds a change by its predicate at once; with too many, one branch looks at all
        # and filters.
        if self._cost() > PATTERNS_MAX:
            self._named_attributes = ()

    @property
    def _streams(self) -> list[EntitySelector] | None:
        """The selectors that may select streams; None if no stream can change so that it is told."""
        if self._wanted.watched and RESULT not in self._wanted.watched and not self._existence:
            return None
        found = [one for one in self._wanted.selectors if not one.types or STREAM_TYPE in one.types]
        return None if self._wanted.selectors and not found else found

    def query(self) -> str:
        """Raises LimitExceededError where no plan would follow it."""
        cost = self._cost()
        if cost > PATTERNS_MAX:
            raise LimitExceededError(
                f"the subscription needs {cost} patterns, and {PATTERNS_MAX} are the most; write fewer terms in q, or "
                "fewer selectors in entities"
            )
        branches = list(self._branches())
        matches = "true"
        if self._wanted.condition is not None:
            matches = expression(self._wanted.condition, self._graphs, followed=True)
        return f"SELECT * {{ {{ {' } UNION { '.join(branches)} }} BIND({matches} AS ?ok) }}"

    def _branches(self) -> Iterator[str]:
        graphs, watched, selectors = self._graphs, self._wanted.watched, self._wanted.selectors
        kind = _kind(selectors)
        for number, attribute in enumerate(self._named_attributes):
            found, condition = _selection(graphs, selectors, f"n{number}")
            yield f"{found} {graphs.value_pattern(attribute, str(number), kind)} {condition}"
        if not self._named_attributes:
            found, condition = _selection(graphs, selectors, "n0")
            listed = f"FILTER(?a IN ({', '.join(watched)}))" if watched else ""
            yield f"{found} {graphs.value_pattern('?a', '0', kind)} {listed} {condition}"
        if self._existence:
            found, condition = _selection(graphs, selectors, "z")
            # Whether the entity is there at all, and its types: two rows that enter and leave with it.
            yield f"SELECT DISTINCT ?e {{ {found} {graphs.type_pattern('?z', kind=kind)} {condition} }}"
            found, condition = _selection(graphs, selectors, "y")
            yield f"{found} {graphs.type_pattern('?y', kind=kind)} {condition}"
        streams = self._streams
        if streams is not None:
            if not watched or RESULT in watched:
                yield f"{graphs.followed_stream(_STREAM)} {_id_condition(streams)}"
            if self._existence:
                yield f"?e a {STREAM_TYPE} {_id_condition(streams)} BIND({STREAM_TYPE} AS ?y)"

    def _cost(self) -> int:
        typed = sum(1 for one in self._wanted.selectors if one.types)
        cost = max(1, len(self._named_attributes)) * (7 + typed)
        if self._existence:
            cost += 2 * (1 + typed)
        if self._streams is not None:
            cost += 6 + self._existence
        if self._wanted.condition is not None:
            for term in terms(self._wanted.condition):
                found = self._graphs.values(iri(term.attribute), term.member, followed=True)
                cost += sum(2 if one.startswith("GRAPH") else 4 for one in found)
        return cost

    def changes(self, added: Sequence[dict[str, Term]], removed: Sequence[dict[str, Term]]) -> dict[Term, EntityChange]:
        """By entity, in the order of their ids. added, removed: the rows that entered and left."""
        found: dict[Term, EntityChange] = {}
        after, before = self._parts(added), self._parts(removed)
        for entity in sorted(after.keys() | before.keys()):
            new, old = after.get(entity, _Parts()), before.get(entity, _Parts())
            change = EntityChange(matches=(new if entity in after else old).matches)
            change.created, change.deleted = new.exists and not old.exists, old.exists and not new.exists
            change.types = old.types
            for name in sorted(new.attributes.keys() | old.attributes.keys()):
                values = old.attributes.get(name, set()), new.attributes.get(name, set())
                # The type or another attribute of the row may have changed, and not the value.
                if values[0] != values[1]:
                    change.attributes[name] = _first(values[0]), _first(values[1])
            found[entity] = change
        return found

    def _parts(self, rows: Sequence[dict[str, Term]]) -> dict[Term, _Parts]:
        found: dict[Term, _Parts] = {}
        for row in rows:
            parts = found.setdefault(row["e"], _Parts())
            # All rows of an entity have the same.
            parts.matches = row.get("ok") == _TRUE
            attribute = self._attribute(row)
            if attribute is not None:
                parts.attributes.setdefault(attribute[0], set()).add(attribute[1])
            elif "y" in row:
                parts.types.add(row["y"])
                parts.exists = parts.exists or row["y"] == STREAM_TYPE
            else:
                parts.exists = True
        return found

    def _attribute(self, row: dict[str, Term]) -> tuple[Term, Attribute] | None:
        """The attribute that a row tells of, if it does."""
        for suffix in (*map(str, range(max(1, len(self._named_attributes)))), _STREAM):
            if f"v{suffix}" not in row:
                continue
            plain = {name: row[name + suffix] for name in ("v", "t", "unit", "code") if name + suffix in row}
            if suffix == _STREAM:
                return RESULT, attribute_of("Property", plain)
            kind = KIND_TERMS[row[f"k{suffix}"]]
            return self._named_attributes[int(suffix)] if self._named_attributes else row["a"], attribute_of(
                kind, plain
            )
        return None


@dataclass
class _Parts:
    attributes: dict[Term, set[Attribute]] = field(default_factory=dict)
    types: set[Term] = field(default_factory=set)
    exists: bool = False
    matches: bool = True


def changed_rows(members: bytes) -> tuple[list[dict[str, Term]], list[dict[str, Term]]]:
    """The rows that entered and left. members: the text of the results of a notification."""
    told: dict[str, Any] = msgspec.json.decode(b"{%b}" % members)
    added, removed = (list(Bag.from_json(told[name]).bindings()) for name in ("addedResults", "removedResults"))
    return added, removed


def _first(values: set[Attribute]) -> Attribute | None:
    """Of several values of one attribute, the one that a reader sees."""
    return min(values, key=lambda one: one.value, default=None)


def _selection(graphs: EntityGraphs, selectors: Sequence[EntitySelector], suffix: str) -> tuple[str, str]:
    """What selects kept entities: values that stand in front, and a condition. suffix: of its variables."""
    found = ""
    if selectors and all(one.id for one in selectors):
        found = f"VALUES ?e {{ {' '.join(dict.fromkeys(iri(one.id) for one in selectors))} }}"
    tests = []
    for number, one in enumerate(selectors):
        parts = _id_tests(one)
        if one.types and _kind(selectors) is None:
            parts.append(f"EXISTS {{ {graphs.type_pattern(f'?{suffix}x{number}', one.types)} }}")
        tests.append(parts)
    return found, _any(tests)


def _kind(selectors: Sequence[EntitySelector]) -> Term | None:
    """The only type that is selected, if there is only one."""
    one = selectors[0] if len(selectors) == 1 else EntitySelector()
    return one.types[0] if len(one.types) == 1 else None


def _id_condition(selectors: Sequence[EntitySelector]) -> str:
    """A condition on a stream, whose type is known."""
    return _any([_id_tests(one) for one in selectors])


def _id_tests(selector: EntitySelector) -> list[str]:
    if selector.id:
        return [f"?e = {iri(selector.id)}"]
    return [f"REGEX(STR(?e), {literal(selector.pattern)})"] if selector.pattern else []


def _any(tests: Sequence[Sequence[str]]) -> str:
    if not tests or not all(tests):
        return ""
    return f"FILTER(({') || ('.join(' && '.join(parts) for parts in tests)}))"
