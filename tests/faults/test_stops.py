"""A gateway is stopped or killed in the middle of a long update: nothing acknowledged is lost, and nothing is there in
part."""

from __future__ import annotations

import http.client
import json
import re
import secrets
import signal
import time
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from benchmarks.gateway_process import ROOT, Gateway, gateway_process

pytestmark = pytest.mark.faults

STOP_S_MAX = int(
    re.findall(r"^TimeoutStopSec=(\d+)$", (ROOT / "systemd/lamplighter-gateway.service").read_text(), re.M)[0]
)
ROWS = 250
TIMEOUT_S = 120.0
PARTS = [f"<urn:large{number}> <urn:large> {number}" for number in range(95_000)]
"""4 MB."""
LARGE = {
    "data": "INSERT DATA { " + " . ".join(PARTS) + " }",
    "where": "INSERT { ?a <urn:large> ?c } WHERE { ?a <urn:q> ?b . ?c <urn:q> ?d }",
}
QUADS = {"data": len(PARTS), "where": ROWS * ROWS}


def ask(gateway: Gateway, kind: str, text: str) -> Any:
    headers = {"Content-Type": f"application/sparql-{kind}", "Accept": "application/json"}
    with urlopen(Request(gateway.urls[kind], text.encode(), headers), timeout=TIMEOUT_S) as answer:
        return json.load(answer)


class Updates:
    """A long update, and small ones beside it. acknowledged: the number of small ones that were."""

    def __init__(self, gateway: Gateway, text: str) -> None:
        self.outcome: object = None
        self.acknowledged = 0
        self._gateway = gateway
        self._text = text
        self._threads = [Thread(target=self._small), Thread(target=self._long)]
        for thread in self._threads:
            thread.start()

    def _long(self) -> None:
        try:
            self.outcome = ask(self._gateway, "update", self._text)
        except (OSError, http.client.HTTPException) as error:
            self.outcome = error

    def _small(self) -> None:
        try:
            while True:
                ask(self._gateway, "update", f"INSERT DATA {{ <urn:s> <urn:small> {self.acknowledged + 1} }}")
                self.acknowledged += 1
        except (OSError, http.client.HTTPException):
            pass  # it was stopped

    def join(self) -> None:
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()


@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_long_update_is_whole_or_not_there(tmp_path: Path, number: signal.Signals, kind: str) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    log, limits = tmp_path / "gateway.log", {"evaluation_ms_max": 20_000}
    with gateway_process(tmp_path, log, limits=limits) as gateway:
        rows = " . ".join(f"<urn:q{row}> <urn:q> {row}" for row in range(ROWS))
        ask(gateway, "update", f"INSERT DATA {{ {rows} }}")
        updates = Updates(gateway, LARGE[kind])
        time.sleep(Random(seed).uniform(0.05, 1.5))  # the moment is what is varied
        begun = time.monotonic()
        gateway.process.send_signal(number)
        gateway.process.wait(2 * STOP_S_MAX)
        stopped_s = time.monotonic() - begun
        updates.join()
    print(f"stopped after {stopped_s:.1f} s, {updates.acknowledged} acknowledged, {updates.outcome!r}")
    assert stopped_s < STOP_S_MAX
    assert gateway.process.returncode == (0 if number is signal.SIGTERM else -number)
    # An error would say that nothing was changed, which is not known.
    assert not isinstance(updates.outcome, HTTPError)
    with gateway_process(tmp_path, log, gateway={"clock_trusted": "always"}) as gateway:
        assert gateway.figures()["engine"]["status"] == "ok"
        count = "SELECT (COUNT(*) AS ?n) { ?s <urn:%s> ?o }"
        found = {
            name: int(ask(gateway, "query", count % name)["results"]["bindings"][0]["n"]["value"])
            for name in ("large", "small")
        }
    assert found["large"] in ((QUADS[kind],) if isinstance(updates.outcome, dict) else (0, QUADS[kind]))
    assert found["small"] in (updates.acknowledged, updates.acknowledged + 1)
