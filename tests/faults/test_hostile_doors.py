"""Hostile requests to webhooks and to the inbox: each is answered, none is a fault, and nothing grows.

2,000 to each; `HOSTILE_DOORS=20000` in the environment sends more.
"""

from __future__ import annotations

import json
import os
import secrets
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gateway_process import gateway_process
from tests.support.hostile import RawSocket
from tests.support.hostile_doors import HostileDoor
from tests.support.receivers import HttpReceiver

pytestmark = pytest.mark.faults

SENT = int(os.environ.get("HOSTILE_DOORS", "2000"))
GROWTH_BYTES_MAX = 30 * 1024 * 1024
QUERY = "SELECT ?v { ?s <http://e/p> ?v }"
RDF = ("application/ld+json", "text/turtle", "application/json", "text/html", "application/n-triples")
NOTIFICATION: dict[str, Any] = {
    "@context": "https://www.w3.org/ns/activitystreams",
    "id": "http://e/n",
    "type": ["Announce", "http://e/T"],
    "object": {"id": "http://e/o", "name": "a", "items": [{"@value": "1", "@type": "http://e/d"}]},
}
TURTLE = '@prefix e: <http://e/> . <> a e:T ; e:p [ e:q ( 1 2 ) , "a"@en ] .'


def webhook_bodies(receiver: HttpReceiver) -> list[Any]:
    one = {"query": QUERY, "callback": receiver.url(), "lease": "P1D", "alias": "a"}
    named = {"application": "a", "name": "Q", "forced_bindings": {"x": "y"}, "callback": receiver.url()}
    return [one, one | {"default-graph-uri": ["http://e/g"]}, named, {"lease": "P1D"}, {"waiting": "drop"}]


def check(status: int, headers: dict[str, str], body: bytes) -> None:
    if status >= 400 and body:
        members = json.loads(body)
        assert set(members) == {"error", "status_code", "error_description"}, members
        assert members["status_code"] == status
        assert members["error"] != "internal", members


@pytest.mark.parametrize("door", ["webhooks", "ldn"])
def test_hostile_requests(tmp_path: Path, door: str) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    log = tmp_path / "gateway.log"
    table = {"enabled": True, "networks": ["127.0.0.0/8"], "ports": [], "deliveries_max": 5, "timeout_s": 1}
    seen: Counter[int] = Counter()
    with HttpReceiver() as receiver, gateway_process(tmp_path, log, **{door: table}) as gateway:
        if door == "webhooks":
            hostile = HostileDoor(
                seed, ("/webhooks",) * 5 + ("/webhooks/x",), webhook_bodies(receiver), ("application/json",)
            )
        else:
            paths = ("/inbox/",) * 5 + ("/ldn",) * 3 + ("/inbox/x", "/ldn/x", "/ldn/constraints")
            bodies = [NOTIFICATION, TURTLE, {"query": QUERY, "target": receiver.url()}]
            hostile = HostileDoor(seed, paths, bodies, RDF)
        resident = 0
        one: RawSocket | None = None
        for number in range(SENT):
            one = one or RawSocket(gateway.http[1])
            request = hostile.request()
            one.send(request)
            status, headers, body = one.answer()
            seen[status] += 1
            check(status, headers, body)
            if headers.get("connection") == "close":
                one.__exit__()
                one = None
            if number == SENT // 3:
                resident = gateway.figures()["engine"]["resident_bytes"]
        if one is not None:
            one.__exit__()
        figures = gateway.figures()
        assert figures["engine"]["resident_bytes"] - resident < GROWTH_BYTES_MAX
        with urllib.request.urlopen(gateway.urls["health"], timeout=60) as answer:
            assert json.load(answer)["status"] in ("ok", "degraded")
    print(seen)
    assert seen[500] == 0
    assert len(seen) >= 4
    assert "Traceback" not in log.read_text()
