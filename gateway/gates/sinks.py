"""The sink of one subscription whose client reads messages of the SE protocol, over WebSocket or Server-Sent Events."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from lamplighter.engine.client.sending import LongMessage
from lamplighter.engine.core import Notification, Subscription
from lamplighter.engine.errors import GatewayError, UnknownSpuidError
from lamplighter.engine.protocol import (
    Results,
    around,
    commit_member,
    committed_message,
    error_message,
    first_message,
    members_message,
    results_message,
    resumed_message,
)
from lamplighter.engine.terms import Bag
from lamplighter.gateway.gates.outbox import Message, Outbox, SequenceCounter
from lamplighter.gateway.loop.subscribers import Sink
from lamplighter.gateway.state.resumption import AttachedSubscription

# Characters of the longest alias that each notification repeats. A longer one is in the first message only.
ALIAS_ECHOED_MAX = 256


class Connection(Protocol):
    """What a sink knows of its client's connection. name: its address, for people."""

    name: str

    def forget(self, spuid: str, sink: ClientSink) -> None:
        """The gateway ended a subscription, or another connection took it."""
        ...


class ClientSink:
    """Writes to the outbox of its connection, with the alias in each message. tell_class: the first message has the SPU
    class; names_commits: each message names the commit that caused it."""

    __slots__ = (
        "_alias",
        "_echoed",
        "_names_commits",
        "_numbering",
        "_outbox",
        "_tell_class",
        "client",
        "connection",
        "identity",
        "over",
        "since",
    )
    kind = "ws"

    def __init__(
        self,
        connection: Connection,
        outbox: Outbox,
        alias: str | None,
        tell_class: bool = False,
        names_commits: bool = False,
    ) -> None:
        self.connection = connection
        self._outbox = outbox
        self._alias = alias
        self._echoed = alias if alias is not None and len(alias) <= ALIAS_ECHOED_MAX else None
        self._tell_class = tell_class
        self._names_commits = names_commits
        self._numbering: SequenceCounter | None = None
        self.client = connection.name
        self.identity: str | None = None
        self.since: datetime | None = None
        self.over = False

    def subscribed(self, subscription: Subscription, keep: str | None = None, reset: str | None = None) -> None:
        results = Results(subscription.first, Bag(subscription.first.variables))
        spu_class = subscription.spu_class if self._tell_class else None
        if keep is None:
            self._numbering = SequenceCounter(subscription.spuid, self._echoed, names_commits=self._names_commits)

        def build(results: Results) -> bytes:
            return first_message(subscription.spuid, results, self._alias, spu_class, keep, reset)

        self._put_results(results, build, None if keep is None else subscription.spuid, 0)

    def _put_results(
        self, results: Results, written: Callable[[Results], bytes], resumable: str | None, sequence: int
    ) -> None:
        """Puts a message with results into the outbox. resumable: the spuid of a resumable subscription."""

        def build_message() -> Message:
            message = LongMessage(around(written, results)) if results.is_long else written(results)
            return message if resumable is None else self.with_id(message, resumable, sequence)

        if results.is_long:
            self._outbox.put_long(results, build_message, first=sequence == 0)
        else:
            self._outbox.put(build_message())

    def resumed(self, spuid: str, attached: AttachedSubscription[Sink]) -> None:
        self._outbox.put(resumed_message(spuid, self._alias, attached.sequence))
        messages = (
            self.with_id(
                members_message(
                    spuid,
                    missed.sequence,
                    missed.members,
                    self._echoed,
                    commit_member(missed.commit) if self._names_commits else None,
                ),
                spuid,
                missed.sequence,
            )
            for missed in attached.missed
        )
        self._outbox.replay(messages, attached.bytes)

    def notify(self, notification: Notification, results: Results) -> None:
        if self._numbering is not None:
            self._outbox.notify(self._numbering, results)
        else:
            kind = committed_message if self._names_commits else results_message

            def build(results: Results) -> bytes:
                return kind(notification.spuid, notification.sequence, results, self._echoed)

            self._put_results(results, build, notification.spuid, notification.sequence)

    def with_id(self, message: Message, spuid: str, sequence: int) -> Message:
        """A notification of a resumable subscription as it is sent. A gate may add what its clients resume by."""
        return message

    def name_no_commits(self) -> None:
        self._names_commits = False
        if self._numbering is not None:
            self._numbering.names_commits = False

    def ended(self, spuid: str, error: GatewayError) -> None:
        self.over = True
        self.connection.forget(spuid, self)
        self._outbox.put(error_message(error, self._alias, spuid))

    def taken_over(self, spuid: str, by: Sink) -> None:
        if by.connection is self.connection:
            self.connection.forget(spuid, self)  # the client knows
        else:
            self.ended(spuid, UnknownSpuidError("the subscription was resumed on another connection"))
