"""How far a reader walks who follows one request through the code: calls, files and changes of room, as a table.

A real gateway notes which functions of the product it calls. Between two requests it is idle, so that what it calls
from the first function of one to that of the next is the walk of the former; of twenty walks the median counts.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

from tests.support.brokers import mosquitto
from tests.support.gateway_process import GatewayProcess, wait_for
from tests.support.walked_gateway import CALLS

WARMED_UP, WALKS_COUNT = 60, 20
TOLERANCE = 0.05


class Walk(NamedTuple):
    """changes: how often the next call is in another room, that is folder."""

    calls: float
    files: float
    changes: float


WALKS = {
    "an update over HTTP": Walk(94, 32, 38),
    # 22 files before a list of many members was looked for, whose joins the store orders for seconds (`bounded_joins`).
    "a query of one row": Walk(92, 24, 32),
    # 53 files before a commit was shown to what is kept of query results (`RecentChanges.note`).
    "a message over MQTT": Walk(162, 56, 65),
}
"""A change that makes one longer by more than 5 % raises the numbers, and says why. One that makes one shorter by as
much lowers them."""


def walk_of(calls: list[tuple[str, str]]) -> Walk:
    files = [file for file, _ in calls]
    rooms = [str(Path(file).parent) for file in files]
    return Walk(len(calls), len(set(files)), sum(before != after for before, after in pairwise(rooms)))


def walks(calls: list[tuple[str, str]], first: str) -> list[list[tuple[str, str]]]:
    """The calls from each one of the function `first` to the next. What comes behind the last one may not be whole."""
    starts = [at for at, (_, name) in enumerate(calls) if name == first]
    return [calls[start:end] for start, end in pairwise(starts)]


class WalkedGateway(GatewayProcess):
    module = "tests.support.walked_gateway"

    def calls_of(self, requests: Callable[[], None]) -> list[tuple[str, str]]:
        """What the event loop calls while requests are served."""
        self.send_signal(signal.SIGUSR1)
        requests()
        path = self.folder / CALLS
        self.send_signal(signal.SIGUSR1)
        wait_for(path.exists, what="the list of calls")
        return [(file, name) for file, name in json.loads(path.read_text())]


@contextmanager
def posting(gateway: GatewayProcess) -> Iterator[Callable[[str, str], None]]:
    """Sends a text to a path, on a connection that is kept, and in one packet."""
    with socket.create_connection(("127.0.0.1", gateway.http_port), timeout=120) as connection:

        def post(path: str, text: str) -> None:
            head = f"POST /{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/sparql-{path}\r\n"
            connection.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())
            with http.client.HTTPResponse(connection) as answer:
                answer.begin()
                assert (answer.status, bool(answer.read())) == (200, True)

        yield post


def check(name: str, first: str, calls: list[tuple[str, str]]) -> None:
    """Compares the walks with the table."""
    found = [walk_of(one) for one in walks(calls, first)]
    assert len(found) >= WALKS_COUNT, f"{first} is not where {name} begins"
    measured = Walk(*(median(numbers) for numbers in zip(*found, strict=True)))
    far = [
        f"{kind}: {now:g} where the table has {before:g}"
        for kind, now, before in zip(Walk._fields, measured, WALKS[name], strict=True)
        if abs(now - before) > TOLERANCE * before
    ]
    middle = min(walks(calls, first), key=lambda one: abs(len(one) - measured.calls))
    assert not far, f"{name}: {'; '.join(far)}\n" + "\n".join(" ".join(place) for place in middle)


def numbered(send: Callable[[int], None], first: int, count: int) -> None:
    for number in range(first, first + count):
        send(number)


@pytest.mark.parametrize(("name", "path"), [("an update over HTTP", "update"), ("a query of one row", "query")])
def test_requests_over_http(tmp_path: Path, name: str, path: str) -> None:
    with WalkedGateway(tmp_path) as gateway, posting(gateway) as post:

        def insert(number: int) -> None:
            post("update", f"INSERT DATA {{ <urn:walk:s{number}> <urn:walk:p> {number} }}")

        def query(number: int) -> None:
            post("query", f"SELECT ?o {{ <urn:walk:s{number}> <urn:walk:p> ?o }}")

        send = insert if path == "update" else query
        if send is query:
            numbered(insert, 0, WARMED_UP + WALKS_COUNT + 1)
        numbered(send, 0, WARMED_UP)
        calls = gateway.calls_of(lambda: numbered(send, WARMED_UP, WALKS_COUNT + 1))
    check(name, "HttpConnection.data_received", calls)


def test_messages_over_mqtt(tmp_path: Path) -> None:
    (tmp_path / "mapping").mkdir()
    (tmp_path / "mapping" / "walk.toml").write_text(
        '[[stream]]\ntopic = "walk/value"\npayload = "number"\nproperty = "urn:walk:temperature"\n'
    )
    with mosquitto() as broker:
        # The sample of all topics would get the message, too.
        settings = {"host": "127.0.0.1", "port": broker.port, "client_id": "walked", "unread_s": 0}

        def acknowledged() -> int:
            return sum("PUBACK from walked" in line for line in broker.log)

        def publish(number: int) -> None:
            before = acknowledged()
            broker.publish(("walk/value", str(number)))
            wait_for(lambda: acknowledged() > before, what="the acknowledgement")

        with WalkedGateway(tmp_path, "--all", mqtt=settings) as gateway:
            wait_for(lambda: any("SUBACK to walked" in line for line in broker.log), what="the subscription")
            numbered(publish, 0, WARMED_UP)
            calls = gateway.calls_of(lambda: numbered(publish, WARMED_UP, WALKS_COUNT + 1))
    check("a message over MQTT", "PahoConnection._read", calls)


def test_the_check_itself_notices_a_longer_walk() -> None:
    one = [("gateway/a.py", "first"), *[("engine/b.py", "next")] * 100]
    assert [walk_of(found) for found in walks([*one, *one, *one], "first")] == [Walk(101, 2, 1)] * 2
    name = next(iter(WALKS))
    with pytest.raises(AssertionError, match=r"calls: 101 where the table has 94.*files: 2 where"):
        check(name, "first", [*one * (WALKS_COUNT + 1), one[0]])
