"""Hostile requests to the SensorThings door: each is answered or refused with the members of an error, none is a fault,
and the gateway does not grow.

3,000 of them; `HOSTILE_SENSORTHINGS=20000` in the environment sends more.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from random import Random
from urllib.parse import quote

import pytest

from lamplighter.gateway.addresses import Addresses
from tests.support.running_gateway import http, running_gateway, update
from tests.support.sensorthings_oracle import MANY, ONE, SETS, Requests
from tests.support.small_house import SMALL_HOUSE

pytestmark = pytest.mark.faults

SENT = int(os.environ.get("HOSTILE_SENSORTHINGS", "3000"))
AT_ONCE = 6
GROWTH_BYTES_MAX = 60 * 1024 * 1024
"""Of resident memory after the first third."""
WORDS = (
    *(
        "name",
        "result",
        "Datastream/Thing/name",
        "id",
        "@iot.id",
        "eq",
        "ne",
        "gt",
        "and",
        "or",
        "not",
        "add",
        "mod",
        "div",
    ),
    *(
        "(",
        ")",
        ",",
        ";",
        "'",
        "''",
        "'x'",
        "5",
        "1e999",
        "-",
        "null",
        "true",
        "now()",
        "2026-11-26T10:00:00Z",
        "duration'P1D'",
    ),
    *(
        "contains(",
        "substring(",
        "geo.distance(",
        "$expand=",
        "$filter=",
        "$top=",
        "/",
        "\\",
        '"',
        "}",
        "{",
        "<http://a>",
        "?x",
    ),
    *("\x00", "\n", "💡", "\u202e", "%", "..", "Observations", "Datastreams(", "$value", "$ref", "any(", "cast("),
)
BODIES = (b"", b"{", b"[]", b'{"result": 1}', b"\xff\xfe", b'{"result":' + b"[" * 10_000, b"null")


class Hostile:
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def creates(self) -> bool:
        """Whether the next request creates an Observation."""
        return self._random.random() < 0.1

    def text(self) -> str:
        """Something like an option's text."""
        random = self._random
        kind = random.randrange(6)
        if kind == 0:
            return " ".join(random.choices(WORDS, k=random.randrange(1, 30)))
        if kind == 1:
            depth = random.choice((10, 40, 500, 5_000))
            opening, closing = random.choice((("(", ")"), ("not ", ""), ("-", ""), ("trim(", ")"), ("round(", ")")))
            return f"{opening * depth}result{closing * random.choice((depth, depth - 1))} eq 1"
        if kind == 2:
            operator = random.choice((" and ", " mod ", " add ", " div "))
            return operator.join(["result"] * random.choice((5, 60, 600))) + " eq 1"
        if kind == 3:
            name = random.choice(("Datastreams", "Observations", "Thing"))
            return "/".join([name] * random.choice((2, 5, 7, 300)))
        condition = Requests(random, random.choice(SETS)).condition().text
        return condition if kind == 4 else self._mutated(condition)

    def _mutated(self, text: str) -> str:
        characters = list(text)
        for _ in range(self._random.randrange(1, 4)):
            place = self._random.randrange(len(characters) + 1)
            characters[place : place + self._random.randrange(2)] = self._random.choice(WORDS)
        return "".join(characters)

    def target(self) -> str:
        random = self._random
        kind = random.choice(SETS)
        path = kind
        for _ in range(random.choice((0, 0, 1, 2, 9))):
            step = random.choice([*ONE.get(kind, {}), *MANY.get(kind, {}), "name", "x"])
            path += f"('{random.choice(('platform~1', 'stream~1', 'observation~1', self.text()[:200]))}')/{step}"
        if random.random() < 0.1:
            path = self.text()[:500]
        options = []
        for _ in range(random.choice((0, 1, 1, 2, 3))):
            name = random.choice(
                ("$filter", "$filter", "$orderby", "$expand", "$select", "$top", "$skip", "$count", "x")
            )
            text = self.text()
            if name == "$expand" and random.random() < 0.7:
                ways = [*ONE.get(kind, {}), *MANY.get(kind, {})] or ["x"]
                text = f"{random.choice(ways)}($filter={text};$top={random.choice((0, 1, 'x'))})"
            elif name in ("$top", "$skip"):
                text = random.choice(("0", "1", "1000", "99999999999999", "-1", "x", "²"))
            options.append(f"{quote(name)}={quote(text)}")
        return quote(path, safe="/()'$") + ("?" + "&".join(options) if options else "")

    def method(self) -> tuple[str, bytes | None]:
        if self._random.random() < 0.9:
            return "GET", None
        return self._random.choice(("POST", "PATCH", "PUT", "DELETE")), self._random.choice(BODIES)

    def creation(self) -> tuple[str, bytes]:
        """The target and the body of a creation."""
        random = self._random
        values = (
            1,
            -1.5,
            10**30,
            True,
            None,
            "x" * 1_000,
            [],
            {},
            "2026-11-26T10:00:00Z",
            "2999-01-01T00:00:00Z",
            self.text(),
        )
        names = ("result", "phenomenonTime", "resultTime", "Datastream", "FeatureOfInterest", "validTime", "x")
        members = {name: random.choice(values) for name in random.sample(names, random.randrange(len(names)))}
        if random.random() < 0.7:
            members["result"] = random.choice(values)
        if random.random() < 0.5:
            members["Datastream"] = {"@iot.id": random.choice(("stream~1", "stream~2", 5, None, self.text()[:50]))}
        if random.random() < 0.2:
            rows = [[random.choice(values) for _ in range(random.randrange(3))] for _ in range(random.randrange(4))]
            group = {**members, "components": random.choice((["result"], ["resultTime", "x"], None)), "dataArray": rows}
            return "CreateObservations", json.dumps(random.choice(([group], group, []))).encode()
        target = random.choice(
            ("Observations", "Datastreams('stream~1')/Observations", "Datastreams('stream~2')/Observations")
        )
        body = json.dumps(members).encode()
        return target, body if random.random() < 0.9 else body[: random.randrange(len(body))]


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


async def send(at: Addresses, hostile: Hostile, count: int, seen: Counter[str]) -> None:
    root = at.query.removesuffix("/query") + "/v1.1/"
    for _ in range(count):
        if hostile.creates():
            method, (target, body) = "POST", hostile.creation()
        else:
            target, (method, body) = hostile.target(), hostile.method()
        answer = await http(root + target, method, body, {"Content-Type": "application/json"} if body else None)
        told = f"{method} {target[:2_000]}: {answer.status} {answer.body[:500]!r}"
        seen[str(answer.status)] += 1
        if answer.status < 300:
            continue
        members = json.loads(answer.body)
        assert answer.status < 500 or answer.status == 501, told
        assert members["error"] != "internal" and members["error_description"], told
        assert members["status_code"] == answer.status, told


async def test_no_request_is_a_fault(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    async with running_gateway(tmp_path, sensorthings={"enabled": True}) as at:
        assert (await update(at, SMALL_HOUSE)).status == 200
        resident = 0
        for part in range(3):
            work = [send(at, Hostile(AT_ONCE * part + one), SENT // 3 // AT_ONCE, seen) for one in range(AT_ONCE)]
            await asyncio.gather(*work)
            assert (await http(at.query.removesuffix("/query") + "/v1.1/Things('platform~1')")).status == 200
            if part == 0:
                resident = resident_bytes()
        assert resident_bytes() - resident < GROWTH_BYTES_MAX
    assert seen["200"] > SENT / 20 and seen["201"] > SENT / 200 and seen["400"] > SENT / 20, seen
