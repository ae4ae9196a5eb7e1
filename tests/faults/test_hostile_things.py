"""Hostile requests to the Web of Things: no fault, no growth, and no description that the schema refuses.

2,000 of them; `HOSTILE_THINGS=20000` in the environment sends more.
"""

from __future__ import annotations

import json
import os
import secrets
import urllib.request
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest

from benchmarks.gateway_process import Gateway, gateway_process
from lamplighter.adapters.model.latest import LatestModel
from tests.support.hostile import Hostile, RawSocket
from tests.support.thing_descriptions import (
    HALL_IRI,
    TOPIC,
    adoption,
    hall,
    reading_updates,
    schema_faults,
)

pytestmark = pytest.mark.faults

SENT = int(os.environ.get("HOSTILE_THINGS", "2000"))
AT_ONCE = 20
GROWTH_BYTES_MAX = 50 * 1024 * 1024
"""Of resident memory from the first third of the requests on."""
LOG = "gateway.log"
CONTEXT = "https://www.w3.org/2022/wot/td/v1.1"
METHODS = ("GET", "GET", "GET", "HEAD", "PUT", "POST", "POST", "DELETE", "PATCH")
NAMES = (
    "temperature",
    "motion",
    "light",
    "level",
    "effect",
    "none",
    "a/b",
    "",
    ".",
    "..",
    "%",
    "\u202e",
    "💡",
    "' }",
    "?x",
)
HEADERS = (
    "Accept: text/event-stream",
    "Accept: application/xml",
    "Accept: \xff",
    "Content-Type: application/td+json",
    "Content-Type: text/html",
    "Content-Type: application/json; charset=utf-16",
    "If-None-Match: *",
    'If-None-Match: "a", W/"b"',
    "Last-Event-ID: 0",
)
"""But no Last-Event-ID or path that begins a stream: its answer does not end."""
HREFS = (
    "mqtt://127.0.0.1/a",
    "mqtt://127.0.0.1:99999/a",
    "mqtt://[/a",
    "mqtt://127.0.0.1/a/#",
    "mqtt://127.0.0.1/{a}",
    "coap://192.0.2.1/a",
    "coap://192.0.2.1:5684/a?b=c",
    "coap://u@192.0.2.1/a",
    "coap://[::1]/../a",
    "coap://192.0.2.1/%2e%2e",
    "http://127.0.0.1/",
    "file:///etc/passwd",
    "//a",
    "",
    "\0",
    "a" * 2_000,
)


class HostileThings:
    """Writes requests."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._hostile = Hostile(seed)

    def request(self) -> tuple[str, bytes]:
        """Its method, and all of its bytes. No answer to it is a stream."""
        random = self.random
        method = random.choice(METHODS)
        body = self.body() if method in ("PUT", "POST", "PATCH") or random.random() < 0.05 else b""
        lines = [f"{method} {self.target(method)} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += random.sample(HEADERS, random.choice((0, 0, 1, 2)))
        return method, "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body

    def target(self, method: str) -> str:
        random = self.random
        choice = random.random()
        if choice < 0.05:
            return "/.well-known/wot"
        if choice < (0.6 if method == "POST" else 0.2):
            return f"/things{self.parameters()}" if random.random() < 0.7 else "/things"
        if choice < 0.3:
            text = self._hostile.sparql("query") if random.random() < 0.7 else "ASK {}"
            return f"/search/sparql?query={quote(text.encode(errors='replace'))}"[:60_000]
        parts = [HALL_IRI if random.random() < 0.6 else self.text()]
        if random.random() < 0.8:
            parts += [random.choice(("properties", "actions", "events", "")), random.choice(NAMES)]
        if random.random() < 0.1:
            parts.append(random.choice(("observ", "x")) if method == "GET" else "observe")
        segments = [quote(part.encode(errors="replace"), safe="/" if random.random() < 0.1 else "") for part in parts]
        target = "/things/" + "/".join(segments)
        if random.random() < 0.1:
            place = random.randrange(len(target))
            target = target[:place] + random.choice(("%ff", "%00", "%", "//", "%2F", "%C3")) + target[place:]
            if target.endswith("observe"):
                target += "x"
        return target + (self.parameters() if random.random() < 0.1 else "")

    def parameters(self) -> str:
        random = self.random
        names = ("offset", "limit", "format", "sort_by", "keep", "last-event-id", "x")
        values = ("0", "1", "-1", "9" * 30, "collection", "array", "", "%00", "%ff", "1e3", "%D9%A3")
        return "?" + "&".join(f"{random.choice(names)}={random.choice(values)}" for _ in range(random.randrange(4)))

    def text(self) -> str:
        return str(self.random.choice((*NAMES, "urn:a", f"{HALL_IRI}/", "http://[", "a" * 5_000, "urn:a> ?p ?o } #")))

    def value(self) -> Any:
        return self.random.choice((self._hostile.value(), self.text()))

    def body(self) -> bytes:
        random = self.random
        choice = random.random()
        if choice < 0.1:
            return random.choice((b"", b"{", b"\xff", b"[" * random.choice((100, 100_000)), b'{"a":' * 50_000, b"nul"))
        if choice < 0.12:
            return b'"' + b"a" * random.choice((20_000, 200_000)) + b'"'
        document = self.value() if choice < 0.3 else self.description()
        data = json.dumps(document).encode()
        if random.random() < 0.1:
            place = random.randrange(len(data))
            data = data[:place] + random.randbytes(2) + data[place + 1 :]
        return data

    def description(self) -> Any:
        """A Thing Description in which something may be wrong."""
        random = self.random
        if random.random() < 0.3:
            return self.good()
        found: dict[str, Any] = {
            "@context": random.choice((CONTEXT, [CONTEXT, {"a": "urn:b"}], "https://evil.example/", 5)),
            "title": random.choice(("lamp", self.text())),
            "securityDefinitions": {"a": {"scheme": random.choice(("nosec", "psk", 5))}},
            "security": random.choice(("a", ["a"], "b")),
            "properties": {self.text(): self.affordance() for _ in range(random.choice((0, 1, 3, 120)))},
            "actions": {self.text(): self.affordance() for _ in range(random.choice((0, 1)))},
        }
        if random.random() < 0.5:
            found["id"] = random.choice((f"urn:hostile:{random.randrange(20)}", self.text()))
        if random.random() < 0.3:
            found["base"] = random.choice(HREFS)
        if random.random() < 0.3:
            found[random.choice(list(found))] = self.value()
        return found

    def good(self) -> Any:
        """One that is adopted, whatever its texts are."""
        random = self.random
        forms = [{"href": href} for href in random.sample(HREFS, 2)] + [{"href": "mqtt://127.0.0.1/a"}]
        one = {"type": random.choice(("number", "string")), "title": self.text(), "unit": self.text(), "forms": forms}
        return {
            "@context": CONTEXT,
            "id": f"urn:hostile:{random.randrange(20)}",
            "title": "lamp",
            "securityDefinitions": {"a": {"scheme": "nosec"}},
            "security": "a",
            "properties": {random.choice((self.text(), "b")): one, "c": one},
        }

    def affordance(self) -> Any:
        random = self.random
        if random.random() < 0.05:
            return self.value()
        kind = random.choice(("number", "boolean", "string", "object", "array", 5))
        found: dict[str, Any] = {
            "type": kind,
            "forms": [
                {
                    "href": random.choice(HREFS),
                    "contentType": random.choice(("application/json", "text/plain", "x", 5)),
                    **({"op": self.value()} if random.random() < 0.1 else {}),
                }
                for _ in range(random.choice((0, 1, 1, 2)))
            ],
            "input": random.choice(({"type": "string", "enum": [self.text(), 5]}, {"type": "number"}, 5)),
        }
        if kind == "object":
            found["properties"] = {self.text(): {"type": random.choice(("number", "object"))}}
        for name in ("unit", "title", "@type", "minimum", "enum", "readOnly", "cov:method"):
            if random.random() < 0.1:
                found[name] = self.value()
        return found


def test_hostile_requests_break_nothing(tmp_path: Path) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    answers = Counter[int]()
    tables: dict[str, dict[str, Any]] = {
        "gateway": {"durability": "off", "clock_trusted": "always"},
        "limits": {"evaluation_ms_max": 100},
        "query": {"time_ms_max": 2_000},
        "mqtt": {"host": "127.0.0.1"},
        "wot": {"enabled": True},
    }
    with gateway_process(tmp_path, tmp_path / LOG, **tables) as gateway:
        for text in [adoption(hall()), *reading_updates(hall(), TOPIC, '{"temperature": 3}', LatestModel())]:
            update(gateway, text)
        hostile, resident = HostileThings(seed), 0
        for _ in range(3):
            send(gateway, hostile, SENT // 3, answers)
            resident = resident or gateway.figures()["engine"]["resident_bytes"]
        end = gateway.figures()["engine"]
        print(answers, resident, end["resident_bytes"])
        assert [one for one in end["problems"] if "lamplighter-mqtt" not in one] == []
        assert end["resident_bytes"] <= resident + GROWTH_BYTES_MAX
        assert answers[200] and answers[201] and answers[404] and answers[400]
        descriptions = [json.loads(fetched(gateway, ".well-known/wot"))]
        descriptions += json.loads(fetched(gateway, "things?limit=1000"))
        assert len(descriptions) > 2
        assert schema_faults(descriptions) == [[]] * len(descriptions)
    assert gateway.process.returncode == 0
    log = (tmp_path / LOG).read_text()
    assert "request failed" not in log and "Traceback" not in log, log[-4000:]


def send(gateway: Gateway, hostile: HostileThings, count: int, answers: Counter[int]) -> None:
    """Each request has an answer of its kind. A connection goes on unless an answer says that it does not."""
    while count > 0:
        with RawSocket(gateway.http[1]) as connection:
            for _ in range(min(count, AT_ONCE)):
                count -= 1
                method, request = hostile.request()
                connection.send(request)
                status, headers, body = connection.answer(head_only=method == "HEAD")
                answers[status] += 1
                assert status < 500 or status == 501, (request, body)
                if status >= 400 and method != "HEAD" and body:
                    members = json.loads(body)
                    assert members["status_code"] == status and members["error"] and members["error_description"]
                    assert members["error"] != "internal"
                if headers.get("connection") == "close":
                    break


def update(gateway: Gateway, text: str) -> None:
    headers = {"Content-Type": "application/sparql-update"}
    with urllib.request.urlopen(urllib.request.Request(gateway.urls["update"], text.encode(), headers)) as answer:
        assert answer.status == 200


def fetched(gateway: Gateway, path: str) -> bytes:
    host, port = gateway.http
    with urllib.request.urlopen(f"http://{host}:{port}/{path}", timeout=120) as answer:
        return bytes(answer.read())
