"""Hostile requests for Server-Sent Events: each is answered, and a well-behaved stream misses nothing beside them.

4,000 of them; `HOSTILE_STREAMS=20000` in the environment sends more.
"""

from __future__ import annotations

import json
import os
import secrets
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from urllib.parse import quote, quote_from_bytes

import pytest

from benchmarks.gateway_process import Gateway, gateway_process
from tests.support.gateway_process import wait_for
from tests.support.hostile import Hostile, RawSocket

pytestmark = pytest.mark.faults

REQUESTS = int(os.environ.get("HOSTILE_STREAMS", "4000"))
UPDATES = 100
QUERY = "SELECT ?s ?o { ?s <http://well> ?o }"
NAMES = (
    "query",
    "keep",
    "alias",
    "class",
    "commit",
    "last-event-id",
    "default-graph-uri",
    "named-graph-uri",
    "$x",
    "q",
)
TEXTS = (
    "ASK { ?s ?p 1 }",
    "SELECT * { ?s ?p ?o }",
    "SELECT (COUNT(*) AS ?n) { ?s ?p ?o }",
    "SELECT ?s { ?s <http://well>+ ?o }",
    "CONSTRUCT WHERE { ?s <http://well> ?o }",
    "SELECT * { ?s ?p ?o . ?a ?b ?c . ?d ?e ?f }",
    "SELECT (NOW() AS ?n) {}",
)
KEEPS = ("PT0S", "PT0S", "PT1S", "PT5M", "P9999Y", "-PT1S", "PT", "0", "")
GROWTH_BYTES_MAX = 50 * 1024 * 1024


def target(hostile: Hostile, known: list[str]) -> str:
    """A path with parameters that are wrong in some way, or not at all. known: ids of events."""
    random = hostile.random
    below = random.choice(("", "", "", "", "/", "/smart-lighting/PRESENCE", "/smart-lighting/X", "/%2e%2e/%00"))
    text = random.choice(TEXTS) if random.random() < 0.5 else hostile.sparql("query")
    parameters = [] if random.random() < 0.05 else ["query=" + quote(text, errors="surrogatepass")]
    for name in random.sample(NAMES, random.choice((0, 0, 1, 2, 3))):
        text = random.choice(
            (*KEEPS, "true", "http://g", "a" * 1000, "\0", "é", *known[-1:], known[0] if known else "x/1")
        )
        if random.random() < 0.1:
            text = hostile.mutated(text)
        parameters.append(f"{name}={quote(text, errors='surrogatepass')}")
    if "keep" not in "".join(parameters) and random.random() < 0.7:
        parameters.append("keep=PT0S")
    if random.random() < 0.03:
        parameters.append(quote_from_bytes(random.randbytes(20)))
    return f"/subscribe{below}?{'&'.join(parameters)}"


def request(hostile: Hostile, known: list[str]) -> bytes:
    random = hostile.random
    method = random.choice(("GET",) * 9 + ("POST", "HEAD", "PUT"))
    lines = [f"{method} {target(hostile, known)} HTTP/1.1", "Host: localhost", "Content-Length: 0"]
    if random.random() < 0.3:
        last = random.choice(
            (*known[-3:], "x", "7", "\xff", "a" * 5000, "0" * 36 + "/1", f"{known[0] if known else ''}9")
        )
        lines.append(f"Last-Event-ID: {last}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", errors="replace")


def told(socket: RawSocket) -> Iterator[dict[str, object]]:
    """The messages of a stream."""
    while True:
        size = int(socket._until(b"\r\n"), 16)
        lines = socket._exactly(size).decode().splitlines()
        socket._exactly(2)
        yield from (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))


def opened(gateway: Gateway, sent: bytes) -> tuple[RawSocket, int, dict[str, str], bytes]:
    socket = RawSocket(gateway.http[1])
    socket.send(sent)
    head_only = sent.startswith(b"HEAD")
    first = socket._until(b"\r\n\r\n").decode("latin-1")
    status = int(first.split()[1])
    headers = dict(line.lower().split(": ", 1) for line in first.split("\r\n")[1:] if line)
    size = 0 if head_only or status == 200 else int(headers.get("content-length", 0))
    return socket, status, headers, socket._exactly(size)


def test_hostile_requests_end_no_stream_and_leave_nothing_behind(tmp_path: Path) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    hostile, random = Hostile(seed), Random(seed)
    answers, known = Counter[int](), list[str]()
    tables = {
        "gateway": {"durability": "off", "clock_trusted": "always"},
        "limits": {"evaluation_ms_max": 100},
        "quotas": {"connections_max": 250},
    }
    with gateway_process(tmp_path, tmp_path / "gateway.log", **tables) as gateway:
        good, status, _, _ = opened(
            gateway, f"GET /subscribe?query={quote(QUERY)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        assert status == 200
        messages = told(good)
        assert "notification" in next(messages)
        waiting: list[RawSocket] = []
        for number in range(REQUESTS):
            socket, status, headers, body = opened(gateway, request(hostile, known))
            answers[status] += 1
            if status == 200:
                waiting.append(socket)
                if headers["content-type"].startswith("text/event-stream") and random.random() < 0.2:
                    part = socket._exactly(int(socket._until(b"\r\n"), 16)).decode()
                    known += [line.removeprefix("id: ") for line in part.splitlines() if line.startswith("id: ")]
            else:
                assert status != 500, body
                if body:
                    assert set(json.loads(body)) == {"error", "status_code", "error_description"}
                socket.__exit__()
            while len(waiting) > 40:
                waiting.pop(random.randrange(len(waiting))).__exit__()
            if number % (REQUESTS // UPDATES) == 0:
                text = f"INSERT DATA {{ <http://s{number}> <http://well> {number} }}"
                update = urllib.request.Request(
                    gateway.urls["update"], text.encode(), {"Content-Type": "application/sparql-update"}
                )
                with urllib.request.urlopen(update, timeout=60) as answer:
                    assert answer.status == 200
                found = dict(next(messages))["notification"]
                assert f"http://s{number}" in json.dumps(found)
            if number == REQUESTS // 3:
                warm = gateway.figures()["engine"]
        for one in (*waiting, good):
            one.__exit__()
        end = gateway.figures()["engine"]
        print(answers, len(known), warm["resident_bytes"], end["resident_bytes"])
        assert end["status"] == "ok", end["problems"]
        most = warm["resident_bytes"] + GROWTH_BYTES_MAX
        # The gateway may not have noticed yet that the last streams ended, or given back what their results took.
        wait_for(lambda: gateway.figures()["engine"]["resident_bytes"] <= most, what="memory that is given back")
        assert answers[200] > REQUESTS // 50
        assert known
    assert gateway.process.returncode == 0
    assert "Traceback" not in (tmp_path / "gateway.log").read_text()
