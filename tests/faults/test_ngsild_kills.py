"""A gateway with NGSI-LD subscriptions that is killed again and again: each change that was acknowledged is notified,
in order, as its commit left it; and what comes twice has the same id.

6 kills; `NGSILD_KILLS=100` in the environment makes more.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.gateway_process import GatewayProcess, wait_for
from tests.support.receivers import HttpReceiver, Received, Reply

pytestmark = pytest.mark.faults

KILLS = int(os.environ.get("NGSILD_KILLS", "6"))
ENTITIES = 4
ALIVE_CHANGES = 60
"""Changes of one life, at most."""


class CarefulSubscriber:
    """Keeps what notifications say of the attribute ``n`` of each entity. Fails for other data with the same id, and
    for an order that is not that of the changes."""

    def __init__(self) -> None:
        self.repeated = 0
        self.resets = 0
        self.seen: dict[str, list[int]] = {}
        self._bodies: dict[str, Any] = {}
        self._one_at_a_time = threading.Lock()

    def take(self, request: Received) -> None:
        with self._one_at_a_time:
            body = request.json
            told = [(one["id"], one["n"]) for one in body["data"]]
            if body["id"] in self._bodies:
                assert self._bodies[body["id"]] == told, f"other data with the id {body['id']}"
                self.repeated += 1
                return
            self._bodies[body["id"]] = told
            self.resets += "webhook-reset" in request.headers
            for entity, number in told:
                numbers = self.seen.setdefault(entity, [])
                assert not numbers or numbers[-1] < number, f"{entity}: {number} behind {numbers[-1]}"
                numbers.append(number)


class Changes:
    """Counts ``n`` of entities up, one change after the other, while it may."""

    def __init__(self, gateway: GatewayProcess, random: Random) -> None:
        self._gateway = gateway
        self._random = random
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: dict[str, list[int]] = {f"urn:x:{one}": [0] for one in range(ENTITIES)}
        self._number = 0
        self.count = 0
        """Of those that were acknowledged."""

    def __enter__(self) -> Changes:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def reached(self, count: int) -> bool:
        return self.count >= count

    def _run(self) -> None:
        while not self._ended.is_set():
            entity = self._random.choice(list(self.acknowledged))
            self._number += 1
            with suppress(OSError, urllib.error.URLError):
                call(self._gateway, "PATCH", f"/entities/{entity}/attrs", {"n": self._number})
                self.acknowledged[entity].append(self._number)
                self.count += 1
            self._ended.wait(0.005)


def call(gateway: GatewayProcess, method: str, target: str, body: Any = None) -> Any:
    content = None if body is None else json.dumps(body).encode()
    url = f"{gateway.http_url}/ngsi-ld/v1{target}"
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = answer.read()
        return json.loads(text) if text else None


def test_every_change_is_notified_across_kills(tmp_path: Path) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    random = Random(seed)
    careful = CarefulSubscriber()
    ons = {"enabled": True, "networks": ["127.0.0.0/8"], "ports": [], "backoff_ms": 5, "backoff_s_max": 1}
    tables = {"ngsild": {"enabled": True}, "ngsild.subscriptions": ons, "log": {"snapshot_records": 100}}
    gateway = GatewayProcess(tmp_path, **tables)
    with HttpReceiver() as receiver:

        def answer(request: Received) -> Reply:
            if random.random() < 0.1:
                return Reply(random.choice((500, 503, None)))
            careful.take(request)
            return Reply()  # it is lost if the gateway is killed now

        receiver.answer = answer
        gateway.start()
        endpoint = {"uri": receiver.url(), "receiverInfo": [{"key": "X-Token", "value": "t"}]}
        body = {"id": "urn:x:s", "type": "Subscription", "entities": [{"type": "T"}], "q": "n>=0"}
        notification = {"format": "keyValues", "endpoint": endpoint}
        call(gateway, "POST", "/subscriptions", body | {"notification": notification})
        for one in range(ENTITIES):
            call(gateway, "POST", "/entities", {"id": f"urn:x:{one}", "type": "T", "n": 0, "more": one})
        receiver.wait(lambda: len(careful.seen) == ENTITIES, "the first notifications")
        with Changes(gateway, random) as changes:
            for _ in range(KILLS):
                enough = changes.count + random.randrange(1, ALIVE_CHANGES)
                wait_for(partial(changes.reached, enough), what="changes")
                gateway.end(signal.SIGKILL)
                gateway.start()
        last = {one["id"]: one["n"] for one in call(gateway, "GET", "/entities?type=T&options=keyValues")}

        def complete() -> bool:
            return receiver.failed is not None or {one: seen[-1] for one, seen in careful.seen.items()} == last

        try:
            wait_for(complete, what=f"the entities of seed {seed}")
            assert call(gateway, "GET", "/subscriptions")[0]["status"] == "active"
        finally:
            gateway.end(signal.SIGTERM)
    sent = sum(map(len, changes.acknowledged.values()))
    print(sent, careful.repeated, careful.resets)
    assert careful.resets == 0
    assert all(one.headers["x-token"] == "t" for one in receiver.posted)
    for entity, numbers in changes.acknowledged.items():
        assert set(numbers) <= set(careful.seen[entity]), "a change that was acknowledged is missing"
