"""Entities of the dataset, as the caller may read it, and their JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lamplighter.adapters.mapping.units import ucum
from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.sharing import portions
from lamplighter.engine.terms import Term, is_iri, is_literal, lexical
from lamplighter.gateway.gates.http.sparql import select
from lamplighter.gateway.gates.ngsild.contexts import ContextNames
from lamplighter.gateway.gates.ngsild.graphs import KIND_TERMS, RDF_TYPE, STREAM_TYPE, EntityGraphs
from lamplighter.gateway.gates.ngsild.information import Attribute, Form, Kind, attribute_json
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller

BYTES_MAX: Final = 16 * 1024 * 1024  # of the answer to one query
ANSWER_ATTRIBUTES_MAX: Final = 50_000  # of one answer
AT_ONCE: Final = 100  # entities that one query reads, at most


@dataclass
class NgsiEntity:
    """types: their IRIs, in order; attributes: by IRI."""

    types: set[Term] = field(default_factory=set)
    attributes: dict[Term, Attribute] = field(default_factory=dict)


class NgsiReading:
    def __init__(self, runner: Runner, graphs: EntityGraphs, caller: Caller) -> None:
        self._runner = runner
        self._graphs = graphs
        self._caller = caller

    async def rows(self, text: str) -> list[dict[str, Term]]:
        """The solutions of a SELECT query. Raises GatewayError."""
        return list((await select(self._runner, self._caller, text, BYTES_MAX)).bindings())

    async def entities(self, ids: Sequence[Term]) -> dict[Term, NgsiEntity]:
        """The entities by their ids; those that do not exist are left out. Raises LimitExceededError."""
        found: dict[Term, NgsiEntity] = {one: NgsiEntity() for one in ids}
        count = 0
        # A query may name as many as its text, which has each of them several times, has room for.
        empty = self._graphs.parts(())
        room = (self._runner.settings.limits.query_bytes_max - len(empty.encode())) // empty.count("VALUES")
        for some in portions(ids, lambda one: len(one.encode()) + 1, room, AT_ONCE):
            read = await self.rows(self._graphs.parts(some))
            count += len(read)
            if count > ANSWER_ATTRIBUTES_MAX:
                raise LimitExceededError(
                    f"the answer would have more than {ANSWER_ATTRIBUTES_MAX} attributes; use limit"
                )
            for row in sorted(read, key=lambda row: row["v"]):
                _take(found[row["e"]], row)
        return {one: entity for one, entity in found.items() if entity.types}

    async def attribute_kinds(self, entity: Term) -> tuple[dict[Term, Kind | None], bool]:
        """The attributes of a kept entity with their kinds, its type among them; and whether it is a stream."""
        read = await self.rows(self._graphs.attributes_query(entity))
        stream = any(row.get("kind") == STREAM_TYPE for row in read)
        return {row["p"]: KIND_TERMS.get(row.get("kind", "")) for row in read if row.get("kind") != STREAM_TYPE}, stream


def _take(entity: NgsiEntity, row: Mapping[str, Term]) -> None:
    """Of several values of one attribute, which NGSI-LD itself never writes, the first in their order is shown."""
    name, value = row["p"], row["v"]
    if name == RDF_TYPE:
        if is_iri(value):
            entity.types.add(value)
        return
    entity.attributes.setdefault(name, attribute_of(KIND_TERMS[row["kind"]], row))


def attribute_of(kind: Kind, row: Mapping[str, Term]) -> Attribute:
    """An attribute from a row with ?v, and ?t ?unit ?code if it has them."""
    unit = None
    if "unit" in row:
        unit = ucum(lexical(row["unit"])) or lexical(row["unit"])
    elif "code" in row:
        unit = lexical(row["code"])
    time = row.get("t")
    return Attribute(kind, row["v"], time if time is not None and is_literal(time) else None, unit)


def entity_json(
    entity: Term, found: NgsiEntity, attributes: Collection[Term], form: Form, names: ContextNames
) -> dict[str, Any]:
    """The JSON of an entity. attributes: those that are shown; none: all."""
    types = sorted(names.compact(lexical(one)) for one in found.types)
    members: dict[str, Any] = {"id": lexical(entity), "type": types[0] if len(types) == 1 else types}
    for name in sorted(found.attributes):
        if not attributes or name in attributes:
            members[names.compact(lexical(name))] = attribute_json(found.attributes[name], form)
    return members
