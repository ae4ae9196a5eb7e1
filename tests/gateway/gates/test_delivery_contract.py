"""What all ways to deliver notifications keep: order, a bound, a share of each client, resumption, a reason for a loss.

Held connections have an `Outbox`; deliveries that are tried again have a `DeliveryWorker`; observations over MQTT have
a queue of their own before the broker. Each is driven through its own sink, in a runner that has recovered.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from lamplighter.engine.access import FULL
from lamplighter.engine.change_log import Receiver
from lamplighter.engine.protocol import Resume
from lamplighter.engine.terms import iri
from lamplighter.gateway.gates.deliveries.registry import DeliveryRegistry, new_id
from lamplighter.gateway.gates.deliveries.worker import TOO_MUCH, DeliveryWorker
from lamplighter.gateway.gates.ldn import LinkedDataNotifications
from lamplighter.gateway.gates.ngsild.contexts import DEFAULT, PLAIN, KnownContexts
from lamplighter.gateway.gates.ngsild.graphs import EntityGraphs
from lamplighter.gateway.gates.ngsild.information import attributes
from lamplighter.gateway.gates.ngsild.notifying import EntityNotifications
from lamplighter.gateway.gates.ngsild.subscriptions import kept_members, subscription
from lamplighter.gateway.gates.ngsild.watching import Watching
from lamplighter.gateway.gates.ngsild.writing import EntityUpdates
from lamplighter.gateway.gates.outbox import Outbox
from lamplighter.gateway.gates.sensorthings import notices
from lamplighter.gateway.gates.sensorthings.notices import NoticeSink
from lamplighter.gateway.gates.sinks import ClientSink
from lamplighter.gateway.gates.sse.api import EventSink
from lamplighter.gateway.gates.webhooks import Webhooks
from lamplighter.gateway.gates.wot.observing import ValueSink
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings import Settings
from tests.support.event_loops import until
from tests.support.gateway_parts import idle, recovered_runner, update
from tests.support.receivers import HttpReceiver, Received, Reply

VALUES = "SELECT ?value ?time { <http://e/s> <http://e/p> ?value }"
ENTITY = iri("urn:x:1")
BOUND = 12_000
SETTINGS: dict[str, Any] = {
    **{name: {"enabled": True, "networks": ["127.0.0.0/8"], "ports": []} for name in ("webhooks", "ldn")},
    "ngsild": {"enabled": True, "subscriptions": {"enabled": True, "networks": ["127.0.0.0/8"], "ports": []}},
    "resume": {"outbox_bytes_max": BOUND, "bytes_max": 4 * BOUND},
}


def client(name: str) -> Caller:
    return Caller(name, FULL, operator=False, registered=True)


class Message(NamedTuple):
    """A notification as it arrived. reset: the reason why the subscription began anew."""

    sequence: int
    reset: str


class Peer(ABC):
    """A client with one subscription. first: the sequence of the first message that it is sent."""

    first = 0

    def __init__(self, runner: Runner, data: Path, caller: Caller) -> None:
        self.runner = runner
        self.data = data
        self.caller = caller

    async def put(self, number: int) -> None:
        """A commit that the subscription is told, of hundreds of bytes."""
        value = f"{number}{'x' * 600}"
        await update(self.runner, f"INSERT DATA {{ <http://e/s> <http://e/p> '{value}' }}")

    @abstractmethod
    async def subscribe(self) -> None: ...

    @abstractmethod
    async def receive(self) -> list[Message]:
        """All that there is to receive: the client reads again, if it did not."""

    @abstractmethod
    async def stall(self) -> None:
        """The client reads nothing from now on."""

    @abstractmethod
    async def come_back(self) -> None:
        """The client goes away, and names the last message that it has when it is there again."""

    @property
    @abstractmethod
    def waiting_bytes(self) -> int: ...

    @property
    @abstractmethod
    def loss(self) -> str:
        """The reason for a loss, or the setting whose limit was exceeded; empty where nothing was lost."""

    async def close(self) -> None:  # noqa: B027 - a connection needs none
        """Ends what the client began."""


class HeldPeer(Peer):
    """A connection with an outbox."""

    def __init__(self, runner: Runner, data: Path, caller: Caller) -> None:
        super().__init__(runner, data, caller)
        self.name = caller.name
        self.last: Resume | None = None
        self.spuid = ""
        self.connect()

    def connect(self) -> None:
        self.outbox = Outbox(BOUND, replay_bytes_max=4 * BOUND)
        self.runner.figures.shares.join(self.caller.name, self.outbox, lambda: BOUND)
        self.sink = self.new_sink()

    @abstractmethod
    def new_sink(self) -> Any: ...

    @abstractmethod
    def read(self, message: bytes) -> Message | None: ...

    def forget(self, spuid: str, sink: Any) -> None: ...

    async def subscribe(self) -> None:
        resume = self.last or Resume("PT5M")
        self.spuid = await self.runner.subscribe(VALUES, self.sink, None, None, resume=resume, caller=self.caller)

    async def receive(self) -> list[Message]:
        messages = []
        while len(self.outbox):
            read = asyncio.ensure_future(self.outbox.get())
            for _ in range(3):
                await asyncio.sleep(0)
            if not read.done():
                read.cancel()
                break
            if (message := self.read(read.result())) is not None:
                messages.append(message)
                self.last = Resume("PT5M", self.spuid, message.sequence)
        return messages

    async def stall(self) -> None: ...

    async def come_back(self) -> None:
        self.runner.figures.shares.leave(self.outbox)
        self.outbox.close()
        self.runner.disconnect(self.sink, [self.spuid])
        await idle(self.runner)
        self.connect()
        await self.subscribe()

    @property
    def waiting_bytes(self) -> int:
        return self.outbox.waiting_bytes

    @property
    def loss(self) -> str:
        return self.outbox.exceeded


class WebSocketPeer(HeldPeer):
    def new_sink(self) -> Any:
        return ClientSink(self, self.outbox, None)

    def read(self, message: bytes) -> Message | None:
        members = json.loads(message)
        members = members.get("notification", members)
        return Message(members["sequence"], members.get("reset", "")) if "addedResults" in members else None


class EventPeer(HeldPeer):
    def new_sink(self) -> Any:
        return EventSink(self, self.outbox, None)

    def read(self, message: bytes) -> Message | None:
        found = re.search(rb"^id: [^/]*/(\d+)$", message, re.MULTILINE)
        return Message(int(found[1]), "") if found else None


class ObservingPeer(EventPeer):
    def new_sink(self) -> Any:
        return ValueSink(self)  # type: ignore[arg-type] - it uses name, outbox and ended of a stream


class RetryPeer(Peer):
    """A receiver over HTTP."""

    def __init__(self, runner: Runner, data: Path, caller: Caller) -> None:
        super().__init__(runner, data, caller)
        self.receiver = HttpReceiver().__enter__()
        self.go_on = threading.Event()
        self.go_on.set()
        self.receiver.answer = self._answer
        self.seen = 0
        self.worker: DeliveryWorker | None = None
        self.registry = self.new_registry()
        self.task = asyncio.create_task(self.registry.run())

    def _answer(self, request: Received) -> Reply:
        return Reply() if self.go_on.is_set() else Reply(503, {"Retry-After": "0"})

    @abstractmethod
    def new_registry(self) -> DeliveryRegistry: ...

    def query(self) -> str:
        return VALUES

    def document(self, identifier: str) -> str:
        return ""

    async def subscribe(self) -> None:
        await self.registry.recovered.wait()
        identifier = new_id()
        receiver = Receiver(
            self.registry.kind.kind, identifier, self.receiver.url(), "", None, self.document(identifier)
        )
        self.worker = await self.registry.begin(self.query(), None, None, receiver, self.caller)

    async def receive(self) -> list[Message]:
        assert self.worker is not None
        self.go_on.set()
        if self.worker.failures:
            self.worker.decide("resend")
        await idle(self.runner)
        worker = self.worker
        await until(lambda: not worker.waiting and not worker._stale and not worker.failures)
        requests = [request for request in self.receiver.posted if request.headers["idempotency-key"]]
        answered, seen = requests[self.seen :], set[str]()
        self.seen = len(requests)
        messages = []
        for request in answered:
            name = request.headers["idempotency-key"]
            if name not in seen:  # an attempt that was refused is repeated under the same name
                seen.add(name)
                messages.append(Message(int(name.split("/")[1]), self.reset(request)))
        return messages

    def reset(self, request: Received) -> str:
        return str(request.json.get("reset", request.json.get("notification", {}).get("reset", "")))

    async def stall(self) -> None:
        self.go_on.clear()

    async def come_back(self) -> None:
        """The gateway is the client: its task ends, and begins with what its file has."""
        assert self.worker is not None
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        self.registry = self.new_registry()
        self.task = asyncio.create_task(self.registry.run())
        await self.registry.recovered.wait()
        self.worker = self.registry.one(self.worker.id, self.caller)

    @property
    def waiting_bytes(self) -> int:
        assert self.worker is not None
        return self.worker.bytes

    @property
    def loss(self) -> str:
        assert self.worker is not None
        return TOO_MUCH if self.worker._stale else ""

    async def close(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        self.receiver.__exit__(None, None, None)


class WebhookPeer(RetryPeer):
    def new_registry(self) -> DeliveryRegistry:
        return Webhooks(self.runner, self.runner.settings, self.data, (), "http://gateway/").deliveries


class InboxPeer(RetryPeer):
    def new_registry(self) -> DeliveryRegistry:
        return LinkedDataNotifications(self.runner, self.runner.settings, self.data, (), "http://gateway/").deliveries


class EntityPeer(RetryPeer):
    """A subscription of NGSI-LD, which is not told what there is when it begins."""

    first = 1

    def new_registry(self) -> DeliveryRegistry:
        self.graphs = EntityGraphs(self.runner.settings.gateway.base_iri)
        contexts = KnownContexts({}, self.data)
        self.kind = EntityNotifications(self.runner, self.runner.settings, self.data, self.graphs, contexts)
        return self.kind.deliveries

    @property
    def wanted(self) -> Any:
        members = {"entities": [{"type": "T"}], "notification": {"endpoint": {"uri": self.receiver.url()}}}
        return subscription(kept_members(members, PLAIN), PLAIN)

    def query(self) -> str:
        return Watching(self.wanted, self.graphs).query()

    def document(self, identifier: str) -> str:
        return self.kind.document(identifier, self.wanted, [], [])

    async def subscribe(self) -> None:
        await update(self.runner, EntityUpdates(self.graphs, ENTITY).create([DEFAULT + "T"], {}))
        await super().subscribe()

    async def put(self, number: int) -> None:
        found = attributes({"a": f"{number}{'x' * 20}"}, PLAIN)
        await update(self.runner, EntityUpdates(self.graphs, ENTITY).put(found, []))

    def reset(self, request: Received) -> str:
        return request.headers.get("webhook-reset", "")


class ObservationPeer(HeldPeer):
    """The queue before the broker; it is bounded in rows, and what does not fit waits in the subscription."""

    def connect(self) -> None:
        self.sink = NoticeSink()

    def new_sink(self) -> Any: ...

    def read(self, message: bytes) -> Message | None: ...

    async def put(self, number: int) -> None:
        text = f"INSERT DATA {{ <http://e/s> <http://e/p> '{number}{'x' * 600}' }}"
        await update(self.runner, text)

    async def subscribe(self) -> None:
        query = "SELECT (?s AS ?stream) ?value { ?s <http://e/p> ?value }"
        resume = self.last or Resume("PT5M")
        self.spuid = await self.runner.subscribe(query, self.sink, None, None, resume=resume, caller=self.caller)

    async def receive(self) -> list[Message]:
        messages = []
        while self.sink.notices:
            messages.append(Message(self.sink.take().sequence, ""))
            self.last = Resume("PT5M", self.spuid, messages[-1].sequence)
        return messages

    async def come_back(self) -> None:
        self.runner.disconnect(self.sink, [self.spuid])
        await idle(self.runner)
        self.connect()
        await self.subscribe()

    @property
    def waiting_bytes(self) -> int:
        return sum(len(term) for notice in self.sink.notices for row in notice.rows for term in row.values())

    @property
    def loss(self) -> str:
        return "behind" if self.sink.behind else ""


HELD = [WebSocketPeer, EventPeer, ObservingPeer]
RETRIED = [WebhookPeer, InboxPeer, EntityPeer]
ALL = [*HELD, *RETRIED, ObservationPeer]


@asynccontextmanager
async def peers(kind: type[Peer], data: Path, *names: str) -> AsyncIterator[list[Peer]]:
    settings = msgspec.convert(SETTINGS, Settings)
    async with recovered_runner(data, settings=settings) as runner:
        made = [kind(runner, data, client(name)) for name in names]
        try:
            for peer in made:
                await peer.subscribe()
            yield made
        finally:
            for peer in made:
                await peer.close()


@pytest.mark.parametrize("kind", ALL)
async def test_notifications_come_in_order_without_gaps(kind: type[Peer], tmp_path: Path) -> None:
    async with peers(kind, tmp_path, "anna") as [peer]:
        messages = await peer.receive()
        for number in range(6):
            await peer.put(number)
        await idle(peer.runner)
        messages += await peer.receive()
        assert [message.sequence for message in messages] == list(range(peer.first, 7))
        assert peer.loss == ""


@pytest.mark.parametrize("kind", ALL)
async def test_what_waits_is_bounded_and_a_loss_is_told(
    kind: type[Peer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "ROWS_MAX", 10)
    async with peers(kind, tmp_path, "anna") as [peer]:
        await peer.receive()
        await peer.stall()
        for number in range(40):
            await peer.put(number)
            await idle(peer.runner)
            assert peer.waiting_bytes <= 2 * BOUND
            if peer.loss:
                break
        assert peer.loss in ("websocket.outbox_bytes_max", TOO_MUCH, "behind")


@pytest.mark.parametrize("kind", ALL)
async def test_a_client_that_comes_back_has_what_it_missed(kind: type[Peer], tmp_path: Path) -> None:
    async with peers(kind, tmp_path, "anna") as [peer]:
        for number in range(3):
            await peer.put(number)
        await idle(peer.runner)
        before = await peer.receive()
        await peer.stall()
        for number in range(3, 6):
            await peer.put(number)
        await idle(peer.runner)
        await peer.come_back()
        await idle(peer.runner)
        after = await peer.receive()
        assert [message.sequence for message in (*before, *after)] == list(range(peer.first, 7))
        assert not any(message.reset for message in after)


@pytest.mark.parametrize("kind", RETRIED)
async def test_a_receiver_that_missed_too_much_is_told_why_it_begins_anew(kind: type[Peer], tmp_path: Path) -> None:
    async with peers(kind, tmp_path, "anna") as [peer]:
        await peer.put(0)
        await idle(peer.runner)
        await peer.receive()
        await peer.stall()
        for number in range(1, 40):
            await peer.put(number)
        await idle(peer.runner)
        messages: list[Message] = []
        while not messages:  # it may not have begun to begin anew
            messages = await peer.receive()
            await asyncio.sleep(0.01)
        assert messages[-1].sequence == 0 or [one for one in messages if one.sequence == 0 and one.reset], messages


@pytest.mark.parametrize("kind", HELD)
async def test_the_connections_of_a_client_have_one_share(kind: type[Peer], tmp_path: Path) -> None:
    async with peers(kind, tmp_path, "flood", "flood", "other") as [first, second, other]:
        for peer in (first, second, other):
            await peer.receive()
        for number in range(40):
            await first.put(number)
            await idle(first.runner)
            assert first.waiting_bytes + second.waiting_bytes <= BOUND
            await other.receive()
            if first.loss or second.loss:
                break
        assert {first.loss, second.loss} == {"quotas.outbox_bytes_max", ""}
        assert other.loss == ""


@pytest.mark.parametrize("kind", RETRIED)
async def test_a_client_with_many_slow_receivers_takes_no_place_of_another(kind: type[Peer], tmp_path: Path) -> None:
    async with peers(kind, tmp_path, "flood", "other") as [flood, other]:
        await flood.receive()
        await other.receive()
        await flood.stall()
        for number in range(5):
            await flood.put(number)
        await idle(flood.runner)
        assert [message.sequence for message in await other.receive()] == list(range(1, 6))
        assert other.loss == ""
