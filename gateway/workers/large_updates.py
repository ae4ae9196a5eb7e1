"""Long texts of updates, which would block the loop: a fork parses them and returns the operations of the request.

Lexing, checking and canonical terms take 30 us a quad and depend only on the text. So a fork does that before the
update has its turn, within limits (`gateway.workers.ad_hoc`). Later requests of its lane wait; others continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import BinaryIO

import msgspec

from lamplighter.engine.errors import StoreError
from lamplighter.engine.sparql.requests import GraphOperation, QuadData
from lamplighter.engine.terms import Quad, Term
from lamplighter.engine.updating.by_store import Modification, Resolved
from lamplighter.engine.updating.updates import operations_of
from lamplighter.gateway.sharing import ClientTurns
from lamplighter.gateway.workers.ad_hoc import Reader
from lamplighter.gateway.workers.fresh_nodes import FreshNodes

# Texts that are parsed at the same time; more wait, as many as the queue takes.
AT_ONCE_MAX = 2
_LINE_QUADS = 2000


class _Quads(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Some quads of quad data. first: whether they begin an operation."""

    first: bool
    delete: bool
    quads: list[Quad]
    graphs: list[Term]


_Line = _Quads | Modification | GraphOperation
_decode = msgspec.json.Decoder(_Line).decode


class LargeUpdateParser:
    """Parses texts. reader: starts the forks."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._turns = ClientTurns(AT_ONCE_MAX)

    async def operations(self, texts: Sequence[str], client: str) -> list[Resolved]:
        """The operations of texts (`operations_of`). client: whose turn it takes. Raises RequestError, StoreError."""
        async with self._turns.of(client):
            lines = self._reader.parse(partial(_parse, texts)).chunks()
            found: list[Resolved] = []
            fresh = FreshNodes()
            rest: list[bytes] = []
            async for chunk in lines:
                first, *others = chunk.split(b"\n")
                rest.append(first)
                # A chunk ends anywhere; a line is decoded when its end is there.
                for begun in others:
                    _take(found, b"".join(rest), fresh)
                    rest = [begun]
                await asyncio.sleep(0)  # available data is read without waiting
            # The output ends with a newline. If it does not, the child was killed between two lines.
            if rest != [b""]:
                raise StoreError("the update could not be parsed: the parser process ended")
            return found


def _take(found: list[Resolved], line: bytes, fresh: FreshNodes) -> None:
    match _decode(line):
        case _Quads(first, delete, quads, graphs):
            if first:
                found.append(QuadData(delete, [], graphs))
            data = found[-1]
            assert isinstance(data, QuadData) and isinstance(data.quads, list)
            data.quads.extend(Quad(fresh.term(s), p, fresh.term(o), g) for s, p, o, g in quads)
        case operation:
            found.append(operation)


# --- in the child -----------------------------------------------------------------------------------


def _parse(texts: Sequence[str], out: BinaryIO) -> None:
    operations = operations_of(texts)
    out.write(b"+")
    for line in _lines(operations):
        out.write(msgspec.json.encode(line) + b"\n")


def _lines(operations: list[Resolved]) -> Iterator[_Line]:
    for operation in operations:
        match operation:
            case QuadData(delete, quads, graphs):
                # Without quads: an operation may have none, and still names graphs.
                yield _Quads(True, delete, [], list(graphs))
                for start in range(0, len(quads), _LINE_QUADS):
                    yield _Quads(False, delete, list(quads[start : start + _LINE_QUADS]), [])
            case _:
                yield operation
