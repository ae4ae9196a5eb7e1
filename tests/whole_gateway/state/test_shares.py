"""Each room that clients share at a running gateway: one fills its share of it, and another one works."""

from __future__ import annotations

import http.client
import json
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from websockets.frames import Opcode
from websockets.sync.client import ClientConnection

from tests.support.forks import forks
from tests.support.receivers import HttpReceiver
from tests.support.secure_gateway import JSON, TIMEOUT_S, SecureGateway, ask

TEXT = "SELECT ?o { ?s <http://p> ?o }"
ENDLESS = "SELECT (COUNT(*) AS ?n) { ?a <http://q> ?b . ?c <http://q> ?d . ?e <http://q> ?f . ?g <http://q> ?h }"
FORKED = "ASK { FILTER REGEX('a', 'a') }"
"""A query that is not answered in the loop."""
SPARQL = {"query": "application/sparql-query", "update": "application/sparql-update"}
DELIVERIES = {"enabled": True, "networks": ["127.0.0.0/8"], "ports": [], "deliveries_max": 4, "concurrent_max": 8}
TABLES: dict[str, dict[str, Any]] = {
    "http": {"connections_max": 32, "idle_s": 600},
    "websocket": {"connections_max": 8},
    "delayed": {"pending_max": 6},
    "resume": {"subscriptions_max": 8},
    "query": {"concurrent_max": 4, "time_ms_max": int(10_000 * TIMEOUT_S)},
    "webhooks": DELIVERIES,
    "ngsild": {"enabled": True, "subscriptions": DELIVERIES},
}


@dataclass
class Client:
    """One client of the gateway. held: gives back what it holds."""

    gateway: SecureGateway
    name: str
    held: ExitStack

    def __post_init__(self) -> None:
        secret = self.gateway.client(self.name, read=["*"], write=["*"], subscribe=["*"])
        self.authorization = self.gateway.bearer(self.name, secret)
        self.opened: ClientConnection | None = None

    def connection(self) -> http.client.HTTPSConnection:
        tls = ssl.create_default_context(cafile=self.gateway.authority)
        tls.maximum_version = ssl.TLSVersion.TLSv1_2  # then what can be read behind the handshake is an answer
        opened = http.client.HTTPSConnection("localhost", self.gateway.port, timeout=TIMEOUT_S, context=tls)
        self.held.callback(opened.close)
        return opened

    def request(self, method: str, target: str, body: object = b"", media_type: str = JSON["Content-Type"]) -> str:
        """The error of a request; empty if it succeeded."""
        data = body if isinstance(body, (bytes, str)) else json.dumps(body)
        headers = {"Authorization": self.authorization, "Content-Type": media_type}
        answer = self.gateway.https(method, target, data, headers)
        return "" if answer.status < 300 else str(answer.json["error_description"])

    def sparql(self, operation: str, text: str, parameters: str = "") -> str:
        return self.request("POST", f"/secure/{operation}{parameters}", text, SPARQL[operation])

    def told(self, socket: ClientConnection, message: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """The answer to a message."""
        return ask(
            socket, {name: {**members, "authorization": self.authorization} for name, members in message.items()}
        )

    def socket(self) -> ClientConnection:
        """Its only one, unless it opens more."""
        if self.opened is None:
            self.opened = self.held.enter_context(self.gateway.websocket())
        return self.opened


# --- what takes one more place: the error, empty if there was one ---


def delayed(client: Client) -> str:
    headers = {"Authorization": client.authorization, "Content-Type": SPARQL["update"]}
    answer = client.gateway.https("POST", "/secure/update?delay=PT1H", "CLEAR ALL", headers)
    if answer.status != 202:
        return str(answer.json["error_description"])
    client.held.callback(client.request, "DELETE", f"/secure/delayed/{answer.json['delayed']}")
    return ""


def resumable(client: Client) -> str:
    resume = {"keep": "PT1H"}
    answer = client.told(client.socket(), {"subscribe": {"sparql": TEXT, "alias": "a", "resume": resume}})
    if "notification" not in answer:
        return str(answer["error_description"])
    spuid = answer["notification"]["spuid"]
    client.held.callback(client.told, client.socket(), {"unsubscribe": {"spuid": spuid}})
    return ""


def http_connection(client: Client) -> str:
    opened = client.connection()
    opened.request(
        "POST", "/secure/query", "ASK {}", {"Authorization": client.authorization, "Content-Type": SPARQL["query"]}
    )
    return _error(opened.getresponse())


def websocket_connection(client: Client) -> str:
    opened = client.held.enter_context(client.gateway.websocket())
    error = client.told(opened, {"query": {"sparql": "ASK {}", "alias": "a"}}).get("error_description", "")
    if error:
        opened.close()
    return str(error)


def stream(client: Client) -> str:
    opened = client.connection()
    opened.request(
        "GET", f"/secure/subscribe?query={quote(TEXT)}&keep=PT0S", headers={"Authorization": client.authorization}
    )
    answer = opened.getresponse()
    return "" if answer.status == 200 else _error(answer)


def webhook(client: Client) -> str:
    receiver = client.held.enter_context(HttpReceiver())
    headers = JSON | {"Authorization": client.authorization}
    answer = client.gateway.https("POST", "/webhooks", json.dumps({"query": TEXT, "callback": receiver.url()}), headers)
    if answer.status != 201:
        return str(answer.json["error_description"])
    client.held.callback(client.request, "DELETE", answer.headers["location"])
    return ""


def entity_subscription(client: Client) -> str:
    root, name = "/secure/ngsi-ld/v1/subscriptions", f"urn:x:{client.name}:{time.monotonic_ns()}"
    endpoint = {"endpoint": {"uri": "http://127.0.0.1:9/"}}
    body = {"id": name, "type": "Subscription", "watchedAttributes": ["a"], "notification": endpoint}
    headers = {"Authorization": client.authorization, "Content-Type": "application/json"}
    answer = client.gateway.https("POST", root, json.dumps(body), headers)
    if answer.status != 201:
        return str(answer.json["detail"])
    client.held.callback(client.request, "DELETE", f"{root}/{name}")
    return ""


def query(client: Client) -> str:
    before, opened = forks(), client.connection()
    headers = {"Authorization": client.authorization, "Content-Type": SPARQL["query"]}
    opened.request("POST", "/secure/query", ENDLESS, headers)
    assert isinstance(opened.sock, socket.socket)
    while not forks() - before:
        if select.select([opened.sock], [], [], 0.01)[0]:
            return _error(opened.getresponse())
    return ""


def _error(answer: http.client.HTTPResponse) -> str:
    body = answer.read()
    return "" if answer.status < 300 else str(json.loads(body)["error_description"])


class Room(NamedTuple):
    """A room of all. take: takes a place; most: what one client gets while no other holds any; setting: what its error
    names."""

    take: Callable[[Client], str]
    most: int
    setting: str


ROOMS = [
    Room(delayed, 3, "delayed.pending_max = 6"),
    Room(resumable, 4, "resume.subscriptions_max = 8"),
    Room(http_connection, 16, "connections_max = 32"),
    Room(websocket_connection, 4, "connections_max = 8"),
    Room(stream, 8, "half of http.connections_max, = 16"),
    Room(webhook, 2, "webhooks.deliveries_max = 4"),
    Room(entity_subscription, 2, "ngsild.subscriptions.deliveries_max = 4"),
    Room(query, 2, "query.concurrent_max = 4"),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGateway]:
    with SecureGateway(tmp_path_factory.mktemp("secure"), TABLES) as running:
        triples = " ".join(f"<http://s> <http://q> {number} ." for number in range(300))
        with ExitStack() as held:
            assert Client(running, "writer", held).sparql("update", f"INSERT DATA {{ {triples} }}") == ""
        yield running


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)  # the gateway runs in another thread


def unused(gateway: SecureGateway) -> bool:
    """Whether nobody holds anything, as far as the gateway has seen that connections were closed."""
    return not any(gateway.local("GET", "/health").json["quotas"].values()) and not forks()


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.take.__name__)
def test_one_client_fills_its_share_and_another_one_works(gateway: SecureGateway, room: Room) -> None:
    until(lambda: unused(gateway))
    with ExitStack() as held, ExitStack() as others:
        flood = Client(gateway, f"flood-{room.take.__name__}", held)
        other = Client(gateway, f"other-{room.take.__name__}", others)
        until(lambda: unused(gateway))
        for _ in range(room.most):
            assert room.take(flood) == ""
        for _ in range(3):
            assert room.setting in room.take(flood)
        assert other.sparql("update", "INSERT DATA { <http://s> <http://p> 1 }") == ""
        assert other.sparql("query", FORKED) == ""
        assert "notification" in other.told(other.socket(), {"subscribe": {"sparql": TEXT, "alias": "b"}})
        assert room.take(other) == "", "there is a place for it"
        if room.take is not http_connection:
            assert flood.sparql("update", "INSERT DATA { <http://s> <http://p> 2 }") == "", "it loses nothing else"
        held.close()
        flood.held, flood.opened = others, None
        until(lambda: room.take(flood) == "")  # what it gave back is free


def unread(client: Client, size: int) -> ClientConnection:
    """A connection of a client with the beginning of a message, which stays unread."""
    opened = client.held.enter_context(client.gateway.websocket())
    assert "answer" in client.told(opened, {"query": {"sparql": "ASK {}", "alias": "a"}})
    part = 2**20
    for number in range(size // part):
        head = bytes([Opcode.TEXT if number == 0 else Opcode.CONT, 0x80 | 127])
        opened.socket.sendall(head + part.to_bytes(8, "big") + bytes(4) + b" " * part)  # a mask of zeros
    return opened


def test_the_client_with_most_unread_data_loses_a_connection(tmp_path: Path) -> None:
    """It has several connections, none of which has as much as the only one of the other client."""
    tables = {"websocket": {"unread_bytes_max": 32 * 2**20}}
    with SecureGateway(tmp_path, tables) as running, ExitStack() as held:
        flood, other = Client(running, "flood", held), Client(running, "other", held)
        several = [unread(flood, 7 * 2**20) for _ in range(3)]
        one = unread(other, 10 * 2**20)
        several.append(unread(flood, 4 * 2**20))
        until(lambda: any(opened.protocol.close_rcvd for opened in (one, *several)))
        closed = [opened.protocol.close_rcvd for opened in several if opened.protocol.close_rcvd]
        assert [close.reason.partition(" ")[0] for close in closed] == ["websocket.unread_bytes_max"]
        assert one.protocol.close_rcvd is None, "the other client keeps its connection"
