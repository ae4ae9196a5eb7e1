"""RDF documents of clients: checked, parsed within limits, and returned as quads.

A small document costs little and is parsed at once. A fork of the gateway parses a larger one, within limits of time
and memory that the kernel enforces (`gateway.workers.ad_hoc`). The number of forks and of waiting documents is bounded.
Prefixes can make the statements of a document much longer than the document; their size is bounded too.

expat reads XML first. It refuses what is not well-formed, and detects a DOCTYPE, whose entities grow without bound, and
nested elements, for which the native parser takes quadratic time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import BinaryIO

import pyoxigraph as ox

from lamplighter.engine.errors import (
    LimitExceededError,
    QueueFullError,
    RequestSyntaxError,
    StoreError,
)
from lamplighter.engine.terms import Quad, Term
from lamplighter.engine.updating.documents import check_depth, without_mark
from lamplighter.gateway.sharing import ClientTurns, TotalBudget
from lamplighter.gateway.workers.ad_hoc import GRAPH_FORMATS, Reader
from lamplighter.gateway.workers.fresh_nodes import FreshNodes

# A larger document is parsed by a fork.
SMALL_BYTES = 16 * 1024
# Forks that parse at the same time.
AT_ONCE_MAX = 2
# Documents that wait for a fork; more are refused.
WAITING_MAX = 16
# Bytes of the statements of a document, as N-Triples.
STATEMENTS_BYTES_MAX = 128 * 1024 * 1024
# Triples that are made canonical at once.
_BATCH = 5000


class RdfBodies:
    """Parses documents. reader: starts the forks."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._turns = ClientTurns(AT_ONCE_MAX)
        self._room = TotalBudget(lambda: WAITING_MAX, "the number of large documents that may wait to be parsed")

    async def quads(
        self, body: bytes, media_type: str, graph: Term | None, base: str, client: str = ""
    ) -> tuple[Quad, ...]:
        """The quads of a document, in a graph, in the store's canonical terms and with fresh blank nodes.

        media_type: one of `GRAPH_FORMATS`; base: for relative IRIs; client: whose turn it takes. A quad may occur
        several times. Raises RequestSyntaxError, UnsupportedRequestError for XML with a DOCTYPE, LimitExceededError,
        QueueFullError when too many wait, StoreError when no fork can be started.
        """
        body = without_mark(body)
        if len(body) <= SMALL_BYTES:
            return tuple(_quads(b"".join(_statements(body, media_type, base)), graph, FreshNodes()))
        if why := self._room.refusal(client):
            raise QueueFullError(f"{why}; try again later")
        with self._room.hold(client):
            async with self._turns.of(client):
                found: list[Quad] = []
                fresh = FreshNodes()
                async for lines in self._lines(body, media_type, base):
                    found += _quads(lines, graph, fresh)
                    await asyncio.sleep(0)  # available data is read without waiting
                return tuple(found)

    async def _lines(self, body: bytes, media_type: str, base: str) -> AsyncIterator[bytes]:
        """N-Triples from a fork, whole lines at a time."""

        def parse(out: BinaryIO) -> None:
            parts = list(_statements(body, media_type, base))  # to the end: the last line may have an error
            out.write(b"+")
            out.writelines(parts)

        try:
            answer = self._reader.parse(parse)
        except OSError as error:
            raise StoreError(f"there is no process to parse the document in: {error.strerror}") from error
        rest: list[bytes] = []
        async for chunk in answer.chunks():
            whole, newline, begun = chunk.rpartition(b"\n")
            if newline:
                yield b"".join([*rest, whole, newline])
                rest = [begun]
            else:
                rest.append(chunk)


def _statements(body: bytes, media_type: str, base: str) -> Iterator[bytes]:
    """A document as N-Triples, canonical and with fresh blank nodes. Raises as `RdfBodies.quads`."""
    syntax = GRAPH_FORMATS[media_type]
    check_depth(body, syntax)
    size = 0
    try:
        parsed = ox.parse(body, format=syntax, base_iri=base, without_named_graphs=True, rename_blank_nodes=True)
        while batch := list(islice(parsed, _BATCH)):
            # A store spells each term in its canonical form.
            canonical = ox.Store()
            canonical.extend(batch)
            data = ox.serialize(canonical, format=ox.RdfFormat.N_TRIPLES)
            assert data is not None, "without an output file the text is returned"
            size += len(data)
            if size > STATEMENTS_BYTES_MAX:
                raise LimitExceededError(
                    f"the document stands for more than {STATEMENTS_BYTES_MAX} bytes of N-Triples; send it in parts"
                )
            yield data
    except SyntaxError as error:
        raise RequestSyntaxError(error.msg or str(error), error.lineno, error.offset) from error


def _quads(lines: bytes, graph: Term | None, fresh: FreshNodes) -> list[Quad]:
    """The quads of lines of N-Triples as the store writes them."""
    quads = []
    for line in lines.decode().split("\n")[:-1]:  # literals contain other line ends, such as U+2028, unescaped
        s, p, rest = line.split(" ", 2)
        o = rest[:-2]
        quads.append(Quad(fresh.term(s), p, fresh.term(o) if o[0] in "_<" else o, graph))
    return quads
