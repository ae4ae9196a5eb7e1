"""Gateways with webhooks that are killed again and again: the receivers have the rows of a fresh evaluation, in order,
and what they receive twice has the same id.

6 kills; `WEBHOOK_KILLS=100` in the environment makes more.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.support.deliveries import CarefulReceiver, rows
from tests.support.gateway_process import GatewayProcess, wait_for
from tests.support.receivers import HttpReceiver, Received, Reply

pytestmark = pytest.mark.faults

KILLS = int(os.environ.get("WEBHOOK_KILLS", "6"))
LIFE_UPDATES_MIN = 10
"""Updates between two kills."""
QUERIES = {
    "plan": "SELECT ?s ?v { ?s <http://e/p> ?v }",
    "store": "SELECT ?v (COUNT(?s) AS ?n) { ?s <http://e/p> ?v } GROUP BY ?v HAVING (COUNT(?s) > 1)",
    "limited": "SELECT ?s { ?s <http://e/p> ?v } ORDER BY ?s LIMIT 3",
}
ALIVE_S = 1.5


class Posts:
    """Sends updates, one after the other, while it may. A gateway that is dead is tried again."""

    def __init__(self, gateway: GatewayProcess, random: Random) -> None:
        self._gateway = gateway
        self._random = random
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0

    def __enter__(self) -> Posts:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            s, v = self._random.randrange(8), self._random.randrange(4)
            with suppress(OSError):
                self._gateway.update(
                    f"DELETE WHERE {{ <http://e/{s}> <http://e/p> ?v }} ; "
                    f"INSERT DATA {{ <http://e/{s}> <http://e/p> {v} }}"
                )
                self.sent += 1
            self._ended.wait(0.005)


def test_receivers_have_every_row_across_kills(tmp_path: Path) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    random = Random(seed)
    careful = {name: CarefulReceiver() for name in QUERIES}
    ons = {"enabled": True, "networks": ["127.0.0.0/8"], "ports": [], "backoff_ms": 5, "backoff_s_max": 1}
    gateway = GatewayProcess(tmp_path, webhooks=ons, log={"snapshot_records": 100})
    with HttpReceiver() as receiver:

        def answer(request: Received) -> Reply:
            if random.random() < 0.1:
                return Reply(random.choice((500, 503, None)))
            careful[request.path[1:]].take(request.id, request.body)
            return Reply()  # it is lost if the gateway is killed now

        receiver.answer = answer
        gateway.start()
        for name, query in QUERIES.items():
            body = json.dumps({"query": query, "callback": receiver.url(f"/{name}")}).encode()
            with urllib.request.urlopen(f"{gateway.http_url}/webhooks", body, timeout=120) as answered:
                assert answered.status == 201
        with Posts(gateway, random) as posts:
            for _ in range(KILLS):
                least = posts.sent + LIFE_UPDATES_MIN
                time.sleep(random.uniform(0.1, ALIVE_S))  # lets it live
                wait_for(lambda least=least: posts.sent > least, what="updates of this life")
                gateway.end(signal.SIGKILL)
                gateway.start()
        fresh = {name: rows_of(gateway, query) for name, query in QUERIES.items()}

        def complete() -> bool:
            found = {name: sorted(one.rows.elements()) for name, one in careful.items()}
            return receiver.failed is not None or found == fresh

        try:
            wait_for(complete, what=f"the rows of seed {seed}")
        finally:
            gateway.end(signal.SIGTERM)
    print(posts.sent, {name: (one.repeated, one.resets) for name, one in careful.items()})
    assert careful["plan"].resets == 0, "it was killed after the first result was acknowledged and known"


def rows_of(gateway: GatewayProcess, query: str) -> list[str]:
    url = f"{gateway.http_url}/query"
    request = urllib.request.Request(url, query.encode(), {"Content-Type": "application/sparql-query"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return sorted(rows(json.load(answer)))
