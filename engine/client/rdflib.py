"""An RDFLib graph that follows a query at a gateway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from contextlib import aclosing
from typing import Self

from lamplighter.engine.client.connection import EngineClient
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.rdflib import FollowingGraph


class LiveGraph(FollowingGraph):
    """A graph that follows a query at a gateway: ``async with LiveGraph(client, "CONSTRUCT ...") as graph``.

    sparql: a CONSTRUCT, or a SELECT of three variables. Entering waits for the first result. The graph changes with
    each notification, between two steps of the program, and keeps its last content after the end. An interrupted
    connection leaves it as it was until the subscription begins again. keep, default_graphs, named_graphs: as for
    `EngineClient.subscribe`. Entering and `changed` raise its errors.
    """

    def __init__(
        self,
        client: EngineClient,
        sparql: str,
        *,
        keep: str | None = None,
        default_graphs: Sequence[str] = (),
        named_graphs: Sequence[str] = (),
    ) -> None:
        super().__init__(sparql)
        self._notifications = client.subscribe(
            self._select, keep=keep, default_graphs=default_graphs, named_graphs=named_graphs
        )
        self._next = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow())
        try:
            await self.changed()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._task is not None
        self._closed = True
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def changed(self) -> None:
        """Waits for the next notification; the graph has followed it then. Raises UpstreamError if it was closed."""
        if self._reason is None and not self._closed:
            await self._next.wait()
        if self._reason is not None:
            raise self._reason
        if self._closed:
            raise UpstreamError("the graph was closed")

    async def _follow(self) -> None:
        try:
            async with aclosing(self._notifications) as notifications:
                async for notification in notifications:
                    if notification.sequence == 0:
                        self._replace(notification.added)
                    else:
                        self._change(notification.added, notification.removed)
                    self._wake()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._stop(error)
        finally:
            self._wake()

    def _wake(self) -> None:
        """Wakes whoever waits for the next notification."""
        self._next.set()
        self._next = asyncio.Event()
