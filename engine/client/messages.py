"""Messages over a client's WebSocket, and the state of its requests and subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Protocol, runtime_checkable

from lamplighter.engine.errors import GatewayError, check_list, check_type
from lamplighter.engine.tables import changes, html_table
from lamplighter.engine.terms import Bag, Quad

# Notifications that wait for their consumer. With more, the client reconnects and gets a new first result.
NOTIFICATIONS_MAX = 10_000


@runtime_checkable
class Tokens(Protocol):
    """A source of bearer tokens; `engine.client.OAuth` is one."""

    async def token(self) -> str:
        """A valid token. Raises RefusedError, UpstreamError."""
        ...

    def expired(self, token: str) -> None:
        """Reports that a gateway has rejected a token, so that `token` returns another one."""
        ...


@dataclass(frozen=True)
class UpdateDelta:
    """What an update changed, of the graphs that its client may read: the quads that were not there before, and those
    that are not there any more."""

    added: tuple[Quad, ...]
    removed: tuple[Quad, ...]

    @classmethod
    def of(cls, member: Any) -> UpdateDelta:
        """The delta of the member ``delta`` of an answer. Raises ValueError."""
        try:
            return cls(_quads(member["addedResults"]), _quads(member["removedResults"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a delta: {error!r}") from error


def _quads(results: Mapping[str, Any]) -> tuple[Quad, ...]:
    """The quads of results with the variables subject, predicate, object and graph."""
    rows = Bag.from_json(results).bindings()
    return tuple(Quad(row["subject"], row["predicate"], row["object"], row.get("graph")) for row in rows)


@dataclass(frozen=True)
class UpdateAnswer:
    """The answer to an update.

    sequence: of the commit, or of a delayed update's record; None if the client may not know it, because it may not
    read every graph. delayed: the id of a delayed update. delta: what it changed, if that was asked for; None for a
    delayed update, for a large delta, and if the update had been executed before, and only its answer was lost.
    """

    sequence: int | None
    delayed: str | None = None
    delta: UpdateDelta | None = None


@dataclass(frozen=True)
class Notification:
    """A notification.

    With sequence 0, added is the whole result, and replaces all earlier notifications. It comes first, and again after
    an interruption if the subscription could not be resumed. Later ones have the change since the previous one.
    spu_class: how the gateway follows the subscription; with sequence 0, from gateways that tell it. commit: epoch and
    sequence of the change-log record that caused it, if they were requested and the client may read every graph; None
    with sequence 0, and in a notification that is sent again after an interruption.
    """

    spuid: str
    sequence: int
    added: Bag
    removed: Bag
    spu_class: str | None = None
    commit: tuple[int, int] | None = None

    def _repr_html_(self) -> str:
        """A table for notebooks, of bounded size: added rows with +, removed rows with -."""
        title = f"notification {self.sequence} of {self.spuid}"
        count = len(self.added) + len(self.removed)
        return html_table(title, ("", *self.added.variables), changes(self.added, self.removed), count)

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Notification:
        """The notification of a message; either result may be an empty object (protocol 2.3). Raises ValueError."""
        try:
            added, removed = body["addedResults"], body["removedResults"]
            commit = body.get("commit")
            nothing = {"head": (added or removed or {"head": {"vars": []}})["head"], "results": {"bindings": []}}
            return cls(
                body["spuid"],
                body["sequence"],
                Bag.from_json(added or nothing),
                Bag.from_json(removed or nothing),
                body.get("class"),
                None if commit is None else (commit["epoch"], commit["seq"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a notification: {error!r}") from error


@dataclass
class PendingMessage:
    """A message with pending answers, one for each alias. body: its members, or a list of members; answers: the first
    that has come, by alias; answered: done when all have, or with the error that ends all."""

    kind: str
    body: dict[str, Any] | list[dict[str, Any]]
    aliases: Sequence[str]
    answered: asyncio.Future[None]
    answers: dict[str, Any] = field(default_factory=dict)


@dataclass
class ClientSubscription:
    """A subscription of this client.

    resumable: whether the gateway keeps it. sequence: of the last queued notification. behind: whether the queue was
    full; notifications are then ignored until the queue is empty and the subscription has been resumed. renewed:
    whether a new token was tried after the last refusal. left: whether the gateway keeps it when its consumer ends.
    """

    alias: str
    sparql: str
    keep: str | None = None
    graphs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tell_commit: bool = False
    queue: asyncio.Queue[Notification | GatewayError] = field(default_factory=lambda: asyncio.Queue(NOTIFICATIONS_MAX))
    spuid: str | None = None
    resumable: bool = False
    sequence: int = 0
    behind: bool = False
    renewed: bool = False
    left: bool = False

    @property
    def body(self) -> dict[str, Any]:
        """The members of the message that begins or resumes it."""
        body: dict[str, Any] = {"sparql": self.sparql, "alias": self.alias, "class": True, **self.graphs}
        if self.tell_commit:
            body["commit"] = True
        if self.keep is not None:
            body["resume"] = {"keep": self.keep}
            if self.resumable:
                body["resume"] |= {"spuid": self.spuid, "sequence": self.sequence}
        return body

    @property
    def ready(self) -> bool:
        """Whether the queue has room for notifications."""
        return not self.behind or self.queue.empty()

    def enqueue(self, notification: Notification | GatewayError) -> bool:
        """Queues a notification or an error. Returns False if the queue is full.

        A full queue is emptied, unless the gateway can send its notifications again.
        """
        try:
            self.queue.put_nowait(notification)
        except asyncio.QueueFull:
            if not self.resumable or isinstance(notification, GatewayError):
                while not self.queue.empty():
                    self.queue.get_nowait()
            return False
        return True

    def end(self, error: GatewayError) -> None:
        """Queues the error that ends it, also if the queue is full."""
        if not self.enqueue(error):
            self.enqueue(error)  # the first call has emptied the full queue


def graph_members(default_graphs: Sequence[str], named_graphs: Sequence[str]) -> dict[str, Sequence[str]]:
    """The graph parameters of the protocol that are not empty (SEPA protocol 2.2). Raises ArgumentTypeError."""
    for name, names in (("default_graphs", default_graphs), ("named_graphs", named_graphs)):
        if names is not None:
            check_list(name, names, str)
    given = {"default-graph-uri": default_graphs, "named-graph-uri": named_graphs}
    return {name: list(graphs) for name, graphs in given.items() if graphs}


def check_trust(tokens: object, ca: object) -> None:
    """Raises ArgumentTypeError for what is no source of tokens, or no name of a file."""
    check_type("tokens", tokens, Tokens, NoneType)
    check_type("ca", ca, str, Path, NoneType)
