"""What goes over a client's WebSocket, and what is known of each request and subscription that is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lamplighter.engine.errors import GatewayError
from lamplighter.engine.tables import changes, html_table
from lamplighter.engine.terms import Bag

NOTIFICATIONS_MAX = 10_000
"""Notifications waiting for their consumer; beyond it the connection is made anew with a fresh first result."""


class Tokens(Protocol):
    """Where bearer tokens come from; `engine.client.OAuth` is one."""

    async def token(self) -> str:
        """One that is valid now. Raises RefusedError, UpstreamError."""
        ...

    def expired(self, token: str) -> None:
        """A gateway says that this one is not valid any more: `token` is to give another one."""
        ...


@dataclass(frozen=True)
class UpdateAnswer:
    """sequence: of the commit, or of the record that a delayed update was kept in, None where the gateway does not tell
    it, as to a client that may not read every graph; delayed: the id of a delayed update."""

    sequence: int | None
    delayed: str | None = None


@dataclass(frozen=True)
class Notification:
    """Sequence 0 holds the whole result in ``added`` and replaces what was known before; it comes first
    and again after each interruption that could not be bridged. Later ones hold the change since the one before.

    spu_class: how the gateway keeps the subscription true, with sequence 0, if the gateway tells.
    """

    spuid: str
    sequence: int
    added: Bag
    removed: Bag
    spu_class: str | None = None

    def _repr_html_(self) -> str:
        """A table for notebooks, of bounded size: added rows with +, removed rows with -."""
        title = f"notification {self.sequence} of {self.spuid}"
        count = len(self.added) + len(self.removed)
        return html_table(title, ("", *self.added.variables), changes(self.added, self.removed), count)

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Notification:
        """Reads one. Of two members with results one may be an empty object (SEPA protocol 2.3). Raises ValueError."""
        try:
            added, removed = body["addedResults"], body["removedResults"]
            nothing = {"head": (added or removed or {"head": {"vars": []}})["head"], "results": {"bindings": []}}
            return cls(
                body["spuid"],
                body["sequence"],
                Bag.from_json(added or nothing),
                Bag.from_json(removed or nothing),
                body.get("class"),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a notification: {error!r}") from error


@dataclass
class Pending:
    """A message that waits for its answers, one for each alias. body: its members, or a list of such."""

    kind: str
    body: dict[str, Any] | list[dict[str, Any]]
    answers: dict[str, asyncio.Future[Any]]


@dataclass
class Subscription:
    """resumable: the gateway keeps it. sequence: of the last notification that was put into the queue. behind: the
    queue was full, so what comes is left until the consumer has made room and the gateway was asked for it again.
    renewed: a fresh token was tried after the last refusal."""

    alias: str
    sparql: str
    keep: str | None = None
    graphs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    queue: asyncio.Queue[Notification | GatewayError] = field(default_factory=lambda: asyncio.Queue(NOTIFICATIONS_MAX))
    spuid: str | None = None
    resumable: bool = False
    sequence: int = 0
    behind: bool = False
    renewed: bool = False

    @property
    def body(self) -> dict[str, Any]:
        """What begins it, or goes on with it."""
        body: dict[str, Any] = {"sparql": self.sparql, "alias": self.alias, "class": True, **self.graphs}
        if self.keep is not None:
            body["resume"] = {"keep": self.keep}
            if self.resumable:
                body["resume"] |= {"spuid": self.spuid, "sequence": self.sequence}
        return body

    @property
    def ready(self) -> bool:
        """Whether there is room for what the gateway will send."""
        return not self.behind or self.queue.empty()

    def put(self, notification: Notification | GatewayError) -> bool:
        """False when the queue is full. Then it is emptied, unless the gateway can tell the rest later."""
        try:
            self.queue.put_nowait(notification)
        except asyncio.QueueFull:
            if not self.resumable or isinstance(notification, GatewayError):
                while not self.queue.empty():
                    self.queue.get_nowait()
            return False
        return True


def graph_members(default_graphs: Sequence[str], named_graphs: Sequence[str]) -> dict[str, Sequence[str]]:
    """The protocol's graph parameters, those that are given (SEPA protocol 2.2)."""
    given = {"default-graph-uri": default_graphs, "named-graph-uri": named_graphs}
    return {name: list(graphs) for name, graphs in given.items() if graphs}
