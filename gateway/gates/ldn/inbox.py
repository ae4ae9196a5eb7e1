"""The inbox in the dataset: a graph for itself, which lists the notifications, and a graph for each of them.

The permission for the inbox's own graph decides who may send to it and read it. The graphs of the notifications are
new ones, which only clients that may read every graph can query.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import pyoxigraph as ox

from lamplighter.engine.change_log import Cause
from lamplighter.engine.client.inboxes import LDP
from lamplighter.engine.errors import AccessDeniedError, UnknownGraphError, UnknownResourceError
from lamplighter.engine.terms import Quad, Term, literal
from lamplighter.gateway.clock import iso
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.workers.ad_hoc import GRAPH_FORMATS, Answer, ReadyAnswer

_CREATED, _CREATOR = "http://purl.org/dc/terms/created", "http://purl.org/dc/terms/creator"
_DATE_TIME = "http://www.w3.org/2001/XMLSchema#dateTime"
_RESULTS = "application/sparql-results+json"
_TRIPLES = "application/n-triples"


class Notice(NamedTuple):
    """A notification. iri: of its graph; creator: the client that sent it, "" if clients have no names."""

    iri: str
    creator: str


class LdnInbox:
    """base_iri: of the gateway; the graphs have names below it, whatever URL clients reach it by."""

    def __init__(self, runner: Runner, base_iri: str, notices_max: int) -> None:
        self._runner = runner
        self.iri = f"{base_iri}inbox/"
        self._notices_max = notices_max
        self._changing = asyncio.Lock()

    @property
    def graph(self) -> Term:
        return f"<{self.iri}>"

    def iri_of(self, name: str) -> str:
        """The IRI of a notification, whose name ends its URL. Raises UnknownResourceError for what is no name."""
        if not _is_name(name):
            raise UnknownResourceError("there is no such notification in the inbox")
        return self.iri + name

    def new(self) -> str:
        return f"{self.iri}{uuid.uuid4()}"

    async def notices(self) -> list[Notice]:
        """The oldest first. What clients have listed that is no notification is left out: its graph is theirs."""
        text = (
            f"SELECT ?n ?c {{ GRAPH {self.graph} {{ {self.graph} <{LDP}contains> ?n . ?n <{_CREATED}> ?t "
            f"OPTIONAL {{ ?n <{_CREATOR}> ?c }} }} }} ORDER BY ?t ?n"
        )
        answer = await self._runner.queries.query(self._runner.queries.outline(text), _RESULTS)
        rows: list[Mapping[str, Any]] = msgspec.json.decode(await _content(answer))["results"]["bindings"]
        found = {row["n"]["value"]: row.get("c", {}).get("value", "") for row in rows if row["n"]["type"] == "uri"}
        return [
            Notice(iri, creator)
            for iri, creator in found.items()
            if iri.startswith(self.iri) and _is_name(iri.removeprefix(self.iri))
        ]

    async def add(self, iri: str, quads: Sequence[Quad], caller: Caller, cause: Cause) -> None:
        """Adds a notification, in one commit with the removal of others where there is no room. Raises
        AccessDeniedError for a client that may not write it any more: its body may have taken long."""
        async with self._changing:
            known = await self.notices()
            removed = _too_many(known, caller.name, self._notices_max)
            about = [
                f"{self.graph} <{LDP}contains> <{iri}>",
                f"<{iri}> <{_CREATED}> {literal(iso(datetime.now(UTC)), datatype=_DATE_TIME)}",
                *([f"<{iri}> <{_CREATOR}> {literal(caller.name)}"] if caller.name else []),
            ]
            triples = " . ".join(f"{quad.s} {quad.p} {quad.o}" for quad in quads)
            insert = f"INSERT DATA {{ GRAPH {self.graph} {{ {' . '.join(about)} }} GRAPH <{iri}> {{ {triples} }} }}"
            text = " ; ".join([*(self._removal(one.iri) for one in removed), insert])
            self._runner.access(caller).write.check([self.graph], "write")
            await self._runner.updates.update(UpdateCall(text, cause))

    async def content(self, iri: str, media_type: str, seen_at: str) -> bytes:
        """A notification as RDF. seen_at: the URL that stands for the IRI of the inbox. Raises UnknownResourceError."""
        try:
            answer = await self._runner.queries.graph(f"<{iri}>", _TRIPLES, ANYBODY)
        except UnknownGraphError as error:
            raise UnknownResourceError("there is no such notification in the inbox") from error
        triples = ox.parse(await _content(answer), format=ox.RdfFormat.N_TRIPLES)
        return serialize((self._at(one.triple, seen_at) for one in triples), media_type)

    async def remove(self, iri: str, caller: Caller, cause: Cause) -> None:
        """Raises AccessDeniedError, UnknownResourceError."""
        async with self._changing:
            creator = next((one.creator for one in await self.notices() if one.iri == iri), None)
            if not caller.operator:
                access = self._runner.access(caller)
                if creator is None or creator != caller.name:
                    access.read.check([self.graph], "read")  # else it does not learn what there is
                    if creator is not None:
                        raise AccessDeniedError("only its sender and an operator may delete a notification")
                else:
                    access.write.check([self.graph], "write")
            if creator is None:
                raise UnknownResourceError("there is no such notification in the inbox")
            await self._runner.updates.update(UpdateCall(self._removal(iri), cause))

    def _removal(self, iri: str) -> str:
        return (
            f"DROP SILENT GRAPH <{iri}> ; DELETE WHERE {{ GRAPH {self.graph} {{ <{iri}> ?p ?o }} }} ; "
            f"DELETE DATA {{ GRAPH {self.graph} {{ {self.graph} <{LDP}contains> <{iri}> }} }}"
        )

    def _at(self, triple: ox.Triple, at: str) -> ox.Triple:
        def translate(term: Any) -> Any:
            if isinstance(term, ox.NamedNode) and term.value.startswith(self.iri):
                return ox.NamedNode(at + term.value.removeprefix(self.iri))
            return term

        return ox.Triple(translate(triple.subject), triple.predicate, translate(triple.object))


def _too_many(known: Sequence[Notice], creator: str, most: int) -> list[Notice]:
    """Those that make room for another one: the oldest of the client with most. known: the oldest first."""
    left, removed = list(known), []
    while left and len(left) >= most:
        counts = Counter([creator, *(one.creator for one in left)])
        oldest = max(left, key=lambda one: counts[one.creator])  # the first of several
        left.remove(oldest)
        removed.append(oldest)
    return removed


def _is_name(name: str) -> bool:
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False


def serialize(triples: Any, media_type: str) -> bytes:
    """Triples in one of `GRAPH_FORMATS`."""
    text = ox.serialize(triples, format=GRAPH_FORMATS[media_type])
    assert text is not None, "without an output file the text is returned"
    return text


async def _content(answer: Answer | ReadyAnswer) -> bytes:
    if isinstance(answer, ReadyAnswer):
        return answer.content
    return b"".join([chunk async for chunk in answer.chunks()])
