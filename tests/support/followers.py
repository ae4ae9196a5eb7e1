"""Clients that follow one query at a gateway that may die at any time, each by another interface."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiocoap
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from lamplighter.engine.client import EngineClient
from lamplighter.engine.terms import lexical
from tests.support.brokers import Mosquitto, subscribed
from tests.support.event_stream import event_stream
from tests.support.receivers import HttpReceiver, Received, Reply

AGAIN_S = 0.1
"""Pause before a client connects again; polling a process that is being started."""

UNHEARD_S = 2.0
"""After so long without a notification, a device registers again. Its server may have been restarted."""

Rows = frozenset[tuple[str, ...]]
"""The values of some rows, in the order of the variables. The query gives no row twice."""
Change = tuple[Rows, Rows]
"""The rows that a notification adds and removes."""


@dataclass(frozen=True)
class Place:
    """Where a gateway is reached. query, name: what is followed, and its name in the profile of an application."""

    http: str
    websocket: str
    coap: str
    broker: Mosquitto
    query: str
    name: str


class Follower:
    """What a client has received.

    changes: each once, the first result as the first; repeated: how many came again, with the same id. states: of an
    interface that sends whole results. new: rows that entered, of one that tells nothing else.
    """

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.repeated = 0
        self.states: list[Rows] = []
        self.new: list[tuple[str, ...]] = []
        self._ids: dict[str, Change] = {}

    def take(self, name: str, change: Change) -> None:
        """A change with an id, which may come again."""
        if name in self._ids:
            assert self._ids[name] == change, f"another change with the id {name}"
            self.repeated += 1
            return
        self._ids[name] = change
        self.changes.append(change)

    @property
    def rows(self) -> Rows:
        """The rows as the client knows them."""
        if self.states:
            return self.states[-1]
        if self.new:
            return frozenset(dict(self.new).items())
        rows: Rows = frozenset()
        for added, removed in self.changes:
            assert removed <= rows, "a row is removed that is not there"
            assert not added & rows, "a row is added that is there"
            rows = rows - removed | added
        return rows


def rows_of(results: dict[str, Any]) -> Rows:
    """Of SPARQL results in JSON."""
    names = results["head"]["vars"]
    return frozenset(tuple(row[name]["value"] for name in names) for row in results["results"]["bindings"])


async def by_websocket(follower: Follower, at: Place) -> None:
    """The client library."""
    async with EngineClient(at.websocket) as client:
        async for notification in client.subscribe(at.query, keep="PT10M"):
            assert notification.sequence == len(follower.changes)
            added, removed = (
                frozenset(tuple(map(lexical, row)) for row in bag.rows)  # type: ignore[arg-type]  # all are bound
                for bag in (notification.added, notification.removed)
            )
            follower.changes.append((added, removed))


async def by_events(follower: Follower, at: Place) -> None:
    """As a browser does it: the id of the last event goes with each further request."""
    last = ""
    while True:
        headers = {"Last-Event-ID": last} if last else {}
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):
            async with event_stream(f"{at.http}/subscribe", {"query": at.query}, headers) as stream:
                while (event := await stream.next(None)) is not None:
                    if "resumed" in event.json:
                        continue
                    notification = event.notification
                    assert "reset" not in notification, notification["reset"]
                    assert notification["sequence"] == len(follower.changes)
                    follower.changes.append(
                        (rows_of(notification["addedResults"]), rows_of(notification["removedResults"]))
                    )
                    last = event.id
        await asyncio.sleep(AGAIN_S)


async def by_coap(follower: Follower, at: Place) -> None:
    """A device that observes the query of a profile (RFC 7641), repeats the Echo value that the server asks for
    (RFC 9175), and registers again when it hears of no result."""
    context = await aiocoap.Context.create_client_context()
    echo: bytes | None = None
    try:
        while True:
            message = aiocoap.Message(
                code=aiocoap.GET, uri=f"{at.coap}/queries/{at.name}", observe=0, accept=50, echo=echo
            )
            request = context.request(message)
            with contextlib.suppress(aiocoap.error.Error, OSError, TimeoutError, StopAsyncIteration):
                first = await asyncio.wait_for(request.response, 10 * UNHEARD_S)
                echo = first.opt.echo
                if first.code.is_successful():
                    follower.states.append(rows_of(json.loads(first.payload)))
                    assert request.observation is not None
                    notifications = aiter(request.observation)
                    while True:
                        told = await asyncio.wait_for(anext(notifications), UNHEARD_S)
                        follower.states.append(rows_of(json.loads(told.payload)))
            await asyncio.sleep(AGAIN_S)
    finally:
        await context.shutdown()


async def by_webhook(follower: Follower, at: Place) -> None:
    """A server that acknowledges what it has taken."""

    def take(request: Received) -> Reply:
        told = request.json["notification"]
        assert "reset" not in told, told["reset"]
        follower.take(request.id, (rows_of(told["addedResults"]), rows_of(told["removedResults"])))
        return Reply()

    await _received(take, at, "/webhooks", lambda url: {"query": at.query, "callback": url})


async def by_inbox(follower: Follower, at: Place) -> None:
    """The inbox of another server (LDN)."""

    def rows(results: dict[str, Any]) -> Rows:
        names = results["resultVariable"]
        solutions = [{one["variable"]: one["value"] for one in row["binding"]} for row in results["solution"]]
        return frozenset(
            tuple(str(row[name].get("id", row[name].get("@value"))) for name in names) for row in solutions
        )

    def take(request: Received) -> Reply:
        told = request.json
        assert "reset" not in told, told["reset"]
        follower.take(told["id"], (rows(told["added"]), rows(told["removed"])))
        return Reply(201)

    await _received(take, at, "/ldn", lambda url: {"query": at.query, "inbox": url})


async def _received(
    take: Callable[[Received], Reply], at: Place, path: str, registration: Callable[[str], dict[str, str]]
) -> None:
    with HttpReceiver() as receiver:
        receiver.answer = take
        body = json.dumps(registration(receiver.url())).encode()
        with await asyncio.to_thread(urllib.request.urlopen, f"{at.http}{path}", body, timeout=120) as answer:
            assert answer.status == 201
        await asyncio.get_running_loop().create_future()


async def by_mqtt(follower: Follower, at: Place) -> None:
    """A client of the broker, to which the gateway publishes Observations (SensorThings). One that comes again is the
    same Observation of the same Datastream."""

    def on_message(_client: mqtt.Client, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        stream = message.topic.partition("'")[2].partition("'")[0].replace("~", "/")
        row = f"http://lamplighter.local/{stream}", str(json.loads(message.payload)["result"])
        if row in follower.new:
            follower.repeated += 1
        else:
            follower.new.append(row)

    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.on_message = on_message
    with subscribed(client, at.broker, "v1.1/+/Observations"):
        await asyncio.get_running_loop().create_future()


FOLLOWERS = {
    "WebSocket": by_websocket,
    "Server-Sent Events": by_events,
    "CoAP": by_coap,
    "webhook": by_webhook,
    "LDN": by_inbox,
    "SensorThings over MQTT": by_mqtt,
}


@asynccontextmanager
async def following(run: Callable[[Follower, Place], Awaitable[None]], at: Place) -> AsyncIterator[Follower]:
    """A client that follows a query until left. Its errors are those of the body."""
    follower = Follower()
    task = asyncio.ensure_future(run(follower, at))
    try:
        yield follower
    finally:
        if task.done():
            task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
