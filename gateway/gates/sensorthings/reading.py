"""Answers to read requests: runs the queries with the caller's permissions, and makes the JSON of the entities."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from lamplighter.engine.errors import LimitExceededError, UnknownResourceError
from lamplighter.engine.terms import Term, iri, is_iri, lexical
from lamplighter.gateway.gates.http.sparql import select
from lamplighter.gateway.gates.sensorthings.addresses import Address, AddressStep
from lamplighter.gateway.gates.sensorthings.entities import DATASTREAMS, ENTITY_SETS, OBSERVATIONS, EntityType, Row
from lamplighter.gateway.gates.sensorthings.ids import id_of
from lamplighter.gateway.gates.sensorthings.options import QueryOptions
from lamplighter.gateway.gates.sensorthings.patterns import single
from lamplighter.gateway.gates.sensorthings.queries import (
    COUNT,
    ENTITY,
    PARENT,
    ROWS_MAX,
    parents_exist,
    path_queries,
    related_queries,
)
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller

ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024  # of the answer to one query
SLICE: Final = 200  # entities that are written before other tasks have a turn
ENTITIES_MAX: Final = 5_000  # of one answer, the expanded ones included
_IN_URL = "$',()/:;=@!~*"


@dataclass(frozen=True)
class FoundEntity:
    """An entity of an answer: its IRI, the variables of its parts, and the number of its parent."""

    value: str
    row: Row
    parent: int


class EntityReading:
    """One request. root: the URL of the service root."""

    def __init__(self, runner: Runner, base_iri: str, root: str, caller: Caller) -> None:
        self._runner = runner
        self._base_iri = base_iri
        self._root = root
        self._caller = caller
        self._entities = 0

    async def collection(self, address: Address, options: QueryOptions) -> dict[str, Any]:
        """Raises UnknownResourceError where the entity above it does not exist."""
        found, count = await self._page(address, options)
        kind = address.kind
        shown = found[: options.top]
        answer: dict[str, Any] = {}
        if count is not None:
            answer["@iot.count"] = count
        if address.form:
            answer["value"] = [{"@iot.selfLink": self.link(kind, one.value)} for one in shown]
        elif options.data_array:
            answer["value"] = self._data_array(shown, options)
        else:
            answer["value"] = await self._entities_json(kind, shown, options)
        if len(found) > options.top > 0:
            answer["@iot.nextLink"] = self._next(self._path(address), options)
        return answer

    async def entity(self, address: Address, options: QueryOptions) -> dict[str, Any]:
        """One entity. Raises UnknownResourceError."""
        found = await self._one(address, options)
        if address.form == "$ref":
            return {"@iot.selfLink": self.link(address.kind, found.value)}
        return (await self._entities_json(address.kind, [found], options))[0]

    async def member(self, address: Address) -> Any:
        """The value of a property. Raises UnknownResourceError."""
        options = QueryOptions(select=(address.member,))
        found = await self._one(address, options)
        return address.kind.members(found.value, found.row).get(address.member)

    async def exists(self, steps: Sequence[AddressStep]) -> bool:
        return await self._ask(path_queries(steps, QueryOptions(), self._base_iri, many=False).exists)

    def link(self, kind: EntityType, value: str) -> str:
        return f"{self._root}/{kind.set}('{id_of(value, self._base_iri)}')"

    # --- queries ---

    async def _one(self, address: Address, options: QueryOptions) -> FoundEntity:
        query = path_queries(address.steps, options, self._base_iri, many=False).page
        found = _entities_of(await self._rows(query))
        if not found:
            raise UnknownResourceError(f"there is no {address.kind.name} at {self._path(address)}")
        return found[0]

    async def _page(self, address: Address, options: QueryOptions) -> tuple[list[FoundEntity], int | None]:
        queries = path_queries(address.steps, options, self._base_iri, many=True)
        found = _entities_of(await self._rows(queries.page)) if options.top or not options.count else []
        self._count(len(found))
        if not found and len(address.steps) > 1 and not await self._ask(parents_exist(address.steps)):
            above = Address(address.steps[:-1], many=False)
            raise UnknownResourceError(f"there is no {above.kind.name} at {self._path(above)}")
        count = None
        if options.count:
            [row] = await self._rows(queries.count)
            count = int(lexical(row[COUNT]))
        return found, count

    async def _related_entities(
        self, kind: EntityType, navigation: str, parents: Sequence[str], options: QueryOptions
    ) -> tuple[list[list[FoundEntity]], list[int]]:
        """The related entities of each parent, after `$skip`, one more than asked for, and how many there are."""
        if len(parents) == 1 and kind.navigation[navigation].many:
            steps = (
                AddressStep(kind.set, kind, iri(parents[0])),
                AddressStep(navigation, _target(kind, navigation), None),
            )
            alone, count = await self._page(Address(steps, many=True), options)
            return [alone], [count or 0]
        terms = [iri(value) for value in parents]
        queries = related_queries(kind, navigation, options, self._base_iri)
        bytes_max = self._runner.settings.limits.query_bytes_max
        found: list[list[FoundEntity]] = [[] for _ in parents]
        for text in queries.pages(terms, bytes_max):
            read = _entities_of(await self._rows(text))
            if len(read) > ROWS_MAX:
                raise LimitExceededError(
                    f"$expand: the {len(parents)} entities of the page have more than {ROWS_MAX} {navigation}; "
                    "ask for fewer with $top"
                )
            for one in read:
                found[one.parent].append(one)
        if kind.navigation[navigation].many:
            found = [every[options.skip : options.skip + options.top + 1] for every in found]
        self._count(sum(map(len, found)))
        counts = [0] * len(parents)
        if options.count:
            for text in queries.counts(terms, bytes_max):
                for binding in await self._rows(text):
                    counts[int(lexical(binding[PARENT]))] = int(lexical(binding[COUNT]))
        return found, counts

    def _count(self, more: int) -> None:
        self._entities += more
        if self._entities > ENTITIES_MAX:
            raise LimitExceededError(
                f"the answer would have more than {ENTITIES_MAX} entities; write $top, also inside of $expand"
            )

    async def _rows(self, text: str) -> list[dict[str, Term]]:
        return list((await select(self._runner, self._caller, text, ANSWER_BYTES_MAX)).bindings())

    async def _ask(self, text: str) -> bool:
        return bool(await self._rows(text))

    # --- JSON ---

    async def _entities_json(
        self, kind: EntityType, found: Sequence[FoundEntity], options: QueryOptions
    ) -> list[dict[str, Any]]:
        written = []
        for number, one in enumerate(found):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            written.append(self.members(kind, one, options))
        if found:
            for name, inner in options.expand.items():
                await self._expand(kind, name, inner, found, written)
        return written

    def members(self, kind: EntityType, one: FoundEntity, options: QueryOptions) -> dict[str, Any]:
        """The JSON of one entity without what is to be expanded."""
        link = self.link(kind, one.value)
        members: dict[str, Any] = {}
        if options.selects("@iot.id"):
            members["@iot.id"] = id_of(one.value, self._base_iri)
        if options.selects("@iot.selfLink"):
            members["@iot.selfLink"] = link
        for name, value in kind.members(one.value, one.row).items():
            if options.selects(name):
                members[name] = value
        for name in kind.navigation:
            if options.selects(name) and name not in options.expand:
                members[f"{name}@iot.navigationLink"] = f"{link}/{name}"
        return members

    async def _expand(
        self,
        kind: EntityType,
        name: str,
        options: QueryOptions,
        parents: Sequence[FoundEntity],
        written: Sequence[dict[str, Any]],
    ) -> None:
        related, counts = await self._related_entities(kind, name, [one.value for one in parents], options)
        target = _target(kind, name)
        most = 1 if single(kind, name) else options.top
        shown = [found[:most] for found in related]
        children = iter(await self._entities_json(target, [one for found in shown for one in found], options))
        for parent, found, more, count, members in zip(parents, shown, related, counts, written, strict=True):
            own = [next(children) for _ in found]
            if single(kind, name):
                members[name] = own[0] if own else None
                continue
            if options.count:
                members[f"{name}@iot.count"] = count
            members[name] = own
            if len(more) > options.top > 0:
                path = f"{self.link(kind, parent.value)}/{name}".removeprefix(f"{self._root}/")
                members[f"{name}@iot.nextLink"] = self._next(path, options)

    def _data_array(self, found: Sequence[FoundEntity], options: QueryOptions) -> list[dict[str, Any]]:
        """The observations as rows, by Datastream (SensorThings 1.1, 12.2)."""
        names = options.select or ("@iot.id", "phenomenonTime", "result", "resultTime", "parameters")
        groups: dict[str, list[list[Any]]] = {}
        for one in found:
            members = self.members(OBSERVATIONS, one, options)
            group = groups.setdefault(lexical(one.row["stream"]), [])
            group.append([members.get(name) for name in names])
        components = ["id" if name == "@iot.id" else name for name in names]
        return [
            {
                "Datastream@iot.navigationLink": self.link(DATASTREAMS, stream),
                "components": components,
                "dataArray@iot.count": len(group),
                "dataArray": group,
            }
            for stream, group in groups.items()
        ]

    def _path(self, address: Address) -> str:
        parts = []
        for step in address.steps:
            key = "" if step.key is None else f"('{id_of(lexical(step.key), self._base_iri)}')"
            parts.append(f"{step.name}{key}")
        return "/".join(parts + ([address.form] if address.form else []))

    def _next(self, path: str, options: QueryOptions) -> str:
        return f"{self._root}/{path}?{urlencode(options.further(), safe=_IN_URL, quote_via=quote)}"


def _target(kind: EntityType, navigation: str) -> EntityType:
    return ENTITY_SETS[kind.navigation[navigation].target]


def _entities_of(solutions: Sequence[dict[str, Term]]) -> list[FoundEntity]:
    """The entities of an answer, each once for its parent, whatever several values the dataset has of one part."""
    seen: dict[tuple[int, str], FoundEntity] = {}
    for row in solutions:
        entity = row.get(ENTITY)
        if entity is None or not is_iri(entity):
            continue
        parent = int(lexical(row[PARENT])) if PARENT in row else 0
        value = lexical(entity)
        seen.setdefault((parent, value), FoundEntity(value, row, parent))
    return list(seen.values())
