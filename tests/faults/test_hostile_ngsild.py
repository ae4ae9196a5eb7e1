"""Hostile requests to the NGSI-LD door, and subscriptions that follow what they change: each is answered or refused
with Problem Details, none is a fault, nothing of the dataset outside the entities' graph changes, and the gateway does
not grow.

2,000 of them; `HOSTILE_NGSILD=20000` in the environment sends more.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.running_gateway import http, running_gateway, update
from tests.support.small_house import SMALL_HOUSE

pytestmark = pytest.mark.faults

SENT = int(os.environ.get("HOSTILE_NGSILD", "2000"))
AT_ONCE = 6
GROWTH_BYTES_MAX = 60 * 1024 * 1024
"""Of resident memory after the first third."""
WORDS = (
    *("a", "b", "a.observedAt", "a.unitCode", "a[b]", "==", "!=", "<", ">=", "~=", "!~=", ";", "|", "(", ")", ","),
    *("..", "1", "-2.5", "1e999", "true", '"x"', '"', "'", "\\", "2026-11-26T10:00:00Z", "urn:x:1", "http://h/%zz"),
    *(
        "> }",
        "} ; CLEAR ALL #",
        "<http://a>",
        "?e",
        "{",
        "[",
        "]",
        "^",
        "$",
        "*",
        "{9}",
        "(?=",
        "\\1",
        "[[",
        "&&",
        "\x00",
    ),
    *("\n", "💡", "\u202e", "%", "type", "@context", "urn:ngsi-ld:null", "https://uri.etsi.org/ngsi-ld/hasValue"),
)
IDS = ("urn:x:1", "urn:x:2", "http://lamplighter.local/stream/1", "urn:x:%22", "x", "urn:x:> } #")
NAMES = ("a", "b", "location", "name:x", "http://h/a", "urn:a:b", "a b", "@id", "scope", "\x00")
SUBSCRIPTIONS = ("urn:s:1", "urn:s:2", "urn:s:%22", "urn:x:1", "s", "")
URLS = (
    *("http://127.0.0.1/", "http://localhost:80/", "http://[::1]/", "http://0x7f.1/", "http://169.254.169.254/x"),
    *(
        "mqtt://h/",
        "file:///etc/passwd",
        "http://a@h/",
        "http://h:99999/",
        "http://h/\r\nX: y",
        "http://" + "h" * 3_000,
    ),
)
QUADS = "SELECT (COUNT(*) AS ?n) { ?s ?p ?o }"


class Hostile:
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def text(self) -> str:
        random = self._random
        kind = random.randrange(5)
        if kind == 0:
            return random.choice(WORDS[:20]) + "".join(random.choices(WORDS, k=random.randrange(12)))
        if kind == 1:
            depth = random.choice((5, 12, 3_000))
            return "(" * depth + "a" + ")" * random.choice((depth, depth - 1))
        if kind == 2:
            return random.choice((";", "|")).join(["a==1"] * random.choice((3, 30, 900)))
        if kind == 3:
            return f"a~={''.join(random.choices(('a', '(', ')', '|', '*', '+', '{9}', '[', ']', '-', '^', '.'), k=8))}"
        return f"{random.choice('ab')}{random.choice(('==', '!=', '<'))}{random.choice(WORDS)}"

    def value(self, depth: int = 0) -> Any:
        random = self._random
        plain = (0, 10**30, -1.5, 1e300, True, None, "", *WORDS, "2026-11-26T10:00:00Z", "x" * 2_000)
        if depth > 2 or random.random() < 0.4:
            return random.choice(plain)
        members = (
            "type",
            "value",
            "object",
            "observedAt",
            "unitCode",
            "datasetId",
            "@value",
            "@type",
            "coordinates",
            "x",
        )
        found = {name: self.value(depth + 1) for name in random.sample(members, random.randrange(4))}
        if random.random() < 0.7:
            kinds = ("Property", "Relationship", "GeoProperty", "Point", "DateTime", "LanguageProperty", 5)
            found["type"] = random.choice(kinds)
            found[random.choice(("value", "object"))] = self.value(depth + 1)
        return random.choice((found, [found], found))

    def body(self) -> bytes:
        random = self._random
        members = {name: self.value() for name in random.sample(NAMES, random.randrange(4))}
        if random.random() < 0.8:
            members |= {"id": random.choice(IDS), "type": random.choice(("T", ["T", "U"], "a b", 5, []))}
        if random.random() < 0.2:
            members["@context"] = random.choice(("http://h/c", {"a": "http://h/"}, {"a": "b", "b": "a"}, [[[]]], 5))
        text = json.dumps(members).encode()
        return random.choice((text, text, text, text[: len(text) // 2], b"", b"\xff", b"[" * 20_000))

    def subscription(self) -> bytes:
        random = self._random
        selectors = [
            {"type": random.choice(("T", "*", "T,U", "a b", 5)), "id": "urn:x:1"},
            {"type": "T", "idPattern": random.choice(WORDS)},
            {"type": random.choice(WORDS)},
        ]
        pair = {"key": random.choice(("A", "Host", "a\nb", "é")), "value": random.choice(("x", "x\r\nB: y", "", 5))}
        endpoint = {"uri": random.choice(URLS), "accept": random.choice(("application/json", "text/plain"))}
        if random.random() < 0.4:
            endpoint["receiverInfo"] = [pair] * random.choice((1, 1, 2, 50))
        members = {
            "entities": random.sample(selectors, random.randrange(1, 4)) * random.choice((1, 1, 30)),
            "watchedAttributes": random.choices(NAMES[:6], k=random.choice((1, 3, 60, 200))),
            "notificationTrigger": random.sample(("entityCreated", "entityUpdated", "entityDeleted", "x"), 2),
            "q": random.choice((self.text(), "a>1", "a>1;b<2|location")),
            "throttling": random.choice((1, -1, 10**30, "x")),
            "expiresAt": random.choice(("2127-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00", "x", 5)),
            "isActive": random.choice((True, False, "x")),
            "description": random.choice((self.value(), "d")),
            "geoQ": {},
            "jsonldContext": random.choice(("http://h/c", "x")),
        }
        found = {name: members[name] for name in random.sample(list(members), random.choice((0, 1, 1, 2, 4)))}
        if random.random() < 0.9:
            found |= {"type": "Subscription", "notification": {"endpoint": endpoint}}
            found.setdefault("entities", [{"type": "*"}])
        if random.random() < 0.7:
            found["id"] = random.choice(SUBSCRIPTIONS)
        text = json.dumps(found).encode()
        return random.choice((text, text, text, text, text[: len(text) // 2]))

    def subscribing(self) -> tuple[str, str, bytes | None, dict[str, str]]:
        random = self._random
        one = f"/subscriptions/{quote(random.choice(SUBSCRIPTIONS), safe='')}"
        method = random.choice(("POST", "POST", "POST", "PATCH", "PATCH", "DELETE", "GET", "PUT"))
        path = "/subscriptions" if method == "POST" else random.choice((one, one, one, f"{one}/x", "/subscriptions"))
        if method in ("GET", "DELETE"):
            return method, f"{path}?limit={random.choice(('1', '-1', '99999', 'x'))}", None, {}
        return method, path, self.subscription(), {"Content-Type": "application/json"}

    def request(self) -> tuple[str, str, bytes | None, dict[str, str]]:
        random = self._random
        if random.random() < 0.25:
            return self.subscribing()
        headers = {}
        if random.random() < 0.1:
            headers["Link"] = random.choice(
                ("<", "<http://h/c>; rel=x", '<x>; rel="http://www.w3.org/ns/json-ld#context"')
            )
        entity = "/entities/" + quote(random.choice(IDS), safe="")
        path = random.choice(
            ("/entities", "/entities", entity, f"{entity}/attrs", f"{entity}/attrs/{quote(self.name(), '')}")
        )
        if random.random() < 0.5:
            names = ("q", "q", "type", "attrs", "id", "idPattern", "limit", "offset", "count", "options", "georel", "x")
            options = [f"{random.choice(names)}={quote(self.option())}" for _ in range(random.randrange(4))]
            return "GET", f"{path}?{'&'.join([*options, 'local=true'])}", None, headers
        method = random.choice(("POST", "POST", "PATCH", "PATCH", "DELETE", "PUT", "GET"))
        if method in ("GET", "DELETE"):
            return method, path, None, headers
        media_types = ("application/json", "application/json", "application/ld+json", "text/plain")
        return method, path, self.body(), {**headers, "Content-Type": random.choice(media_types)}

    def name(self) -> str:
        return self._random.choice((*NAMES, self.text()[:50]))

    def option(self) -> str:
        random = self._random
        return random.choice(
            (self.text(), self.text(), random.choice(WORDS), "keyValues", "T", "5", "99999999999", "true")
        )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


async def send(at: Addresses, hostile: Hostile, count: int, seen: Counter[int]) -> None:
    root = at.query.removesuffix("/query") + "/ngsi-ld/v1"
    for _ in range(count):
        method, target, body, headers = hostile.request()
        answer = await http(root + target, method, body, headers)
        told = f"{method} {target[:1_000]} {(body or b'')[:500]!r}: {answer.status} {answer.body[:500]!r}"
        seen[answer.status] += 1
        if answer.status < 300:
            continue
        members = json.loads(answer.body)
        assert answer.status < 500 or answer.status == 503, told
        assert members["type"].startswith("https://uri.etsi.org/ngsi-ld/errors/") and members["detail"], told
        assert not members["type"].endswith("InternalError") and members["error"] != "internal", told


async def test_no_request_is_a_fault(tmp_path: Path) -> None:
    seen: Counter[int] = Counter()
    subscriptions = {"enabled": True, "deliveries_max": 5, "backoff_ms": 10, "attempts_max": 5}
    async with running_gateway(tmp_path, ngsild={"enabled": True, "subscriptions": subscriptions}) as at:
        assert (await update(at, SMALL_HOUSE)).status == 200
        before = (await http(at.query, query=QUADS)).json["results"]
        resident = 0
        for part in range(3):
            work = [send(at, Hostile(AT_ONCE * part + one), SENT // 3 // AT_ONCE, seen) for one in range(AT_ONCE)]
            await asyncio.gather(*work)
            if part == 0:
                resident = resident_bytes()
        assert resident_bytes() - resident < GROWTH_BYTES_MAX
        assert (await http(at.query, query=QUADS)).json["results"] == before, "the default graph is not theirs"
    for status in (200, 201, 204, 400, 404, 422):
        assert seen[status], seen
