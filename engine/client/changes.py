"""Follows the change feed of a gateway (docs/change-feed.md): a dataset, and then each of its changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

import httpx
import msgspec

from lamplighter.engine.errors import RefusedError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.pacing import back_off_s
from lamplighter.engine.terms import Quad, Term

logger = EventLogger(__name__)

NDJSON: Final = "application/x-ndjson"
LINE_BYTES_MAX: Final = 256 * 1024 * 1024
_WAIT_S = 25.0
_BACK_OFF_S = (0.1, 5.0)
# The code of an answer to a position that cannot be continued.
_RESET = "reset"
_BEGINNING = "the follower begins"

# (path, parameters, Accept) -> an accepted answer.
Get = Callable[[str, Mapping[str, str], str], AbstractAsyncContextManager[httpx.Response]]


@dataclass(frozen=True)
class DatasetChange:
    """A change of a dataset, or a part of a dataset that replaces it. Terms are in N-Triples syntax.

    position: where to continue after this change; None within a dataset, whose last part has it. reset: why everything
    that came before is to be dropped, None where it is not; this change is then the first part of the whole dataset.
    removed, dropped: quads and graphs that are gone, in this order; created, added: those that are new. ts: time of the
    commit, or of the dataset with its last part.
    """

    position: str | None
    reset: str | None = None
    removed: tuple[Quad, ...] = ()
    added: tuple[Quad, ...] = ()
    created: tuple[Term, ...] = ()
    dropped: tuple[Term, ...] = ()
    ts: str | None = None


class _Graphs(msgspec.Struct, frozen=True):
    created: tuple[Term, ...] = ()
    dropped: tuple[Term, ...] = ()


class _Line(msgspec.Struct, frozen=True):
    position: str | None = None
    ts: str | None = None
    graphs: _Graphs = _Graphs()
    d: tuple[Quad, ...] = ()
    a: tuple[Quad, ...] = ()


async def follow(get: Get, after: str | None, timeout_s: float) -> AsyncIterator[DatasetChange]:
    """As `SparqlEndpoint.follow_changes`. timeout_s: within which an answer has to begin."""
    position, reset, failures = after, _BEGINNING, 0
    wait = f"{min(_WAIT_S, timeout_s / 2):.3f}"
    while True:
        try:
            if position is None:
                async with get("/changes/snapshot", {}, NDJSON) as answer:
                    told: str | None = reset
                    async for line in _lines(answer):
                        yield _change(line, told)
                        told, position = None, line.position
                if position is None:
                    raise UpstreamError("a dataset broke off")
            async with get("/changes", {"after": position, "wait": wait}, NDJSON) as answer:
                behind = answer.headers.get("lamplighter-position")
                async for line in _lines(answer):
                    yield _change(line, None)
                    position = line.position
            position = behind or position
        except RefusedError as error:
            if error.code == _RESET:
                logger.info("changes reset", reason=error)
                position, reset = None, str(error)
            elif not error.retriable:
                raise
        except UpstreamError as error:
            logger.debug("changes interrupted", reason=error)
        else:
            failures = 0
            continue
        failures += 1
        await asyncio.sleep(back_off_s(failures, *_BACK_OFF_S))


async def _lines(answer: httpx.Response) -> AsyncIterator[_Line]:
    """Raises UpstreamError where an answer breaks off, or cannot be read."""
    if answer.headers.get("content-type", "").partition(";")[0] != NDJSON:
        raise RefusedError("http", answer.status_code, f"{answer.url} is no change feed")
    rest = bytearray()
    try:
        async for chunk in answer.aiter_bytes():
            *whole, last = chunk.split(b"\n")
            for end in whole:
                yield _decode(bytes(rest) + end)
                rest.clear()
            rest += last
            if len(rest) > LINE_BYTES_MAX:
                raise RefusedError("limit_exceeded", 403, f"a change has more than {LINE_BYTES_MAX} bytes")
    except httpx.HTTPError as error:
        raise UpstreamError(f"the answer from {answer.url} broke off: {error or type(error).__name__}") from error
    except msgspec.MsgspecError as error:
        raise UpstreamError(f"the answer from {answer.url} cannot be read: {error}") from error


def _change(line: _Line, reset: str | None) -> DatasetChange:
    return DatasetChange(line.position, reset, line.d, line.a, line.graphs.created, line.graphs.dropped, line.ts)


_decode: Callable[[bytes], Any] = msgspec.json.Decoder(_Line).decode
