"""A gateway with its adapters as a process of its own, to be killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.brokers import free_port
from tests.support.places import ROOT

START_TIMEOUT_S = 60.0


class GatewayProcess:
    """`lamplighter run --all` over a folder with its settings, mapping and applications.

    broker_port: None for none; coap: whether the adapter of CoAP runs.
    """

    def __init__(self, folder: Path, *, broker_port: int | None, off_after: str, coap: bool = True) -> None:
        self.http_port, self.websocket_port = free_port(), free_port()
        self.folder = folder
        for name in ("mapping", "apps"):
            (folder / name).mkdir(parents=True)
        (folder / "mapping" / "street.toml").write_text((ROOT / "mapping" / "street.toml").read_text())
        application = json.loads((ROOT / "apps" / "smart-lighting.jsap").read_text())
        application["updates"]["SWITCH_OFF"]["delay"] = off_after
        (folder / "apps" / "smart-lighting.jsap").write_text(json.dumps(application))
        (folder / "lamplighter.toml").write_text(
            f"[http]\nport = {self.http_port}\n[websocket]\nport = {self.websocket_port}\n"
            f'[coap]\nenabled = {str(coap).lower()}\nnetworks = ["127.0.0.0/8"]\n'
            + (f'[mqtt]\nhost = "127.0.0.1"\nport = {broker_port}\n' if broker_port else "")
        )
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> GatewayProcess:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self.end(signal.SIGTERM)

    def start(self) -> None:
        """Returns when the gateway says that it is ready."""
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "lamplighter.gateway",
                "run",
                "--all",
                "--config",
                str(self.folder / "lamplighter.toml"),
            ],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert "ready" in line, f"the gateway did not start: {line}"

    def end(self, number: signal.Signals) -> int:
        """Sends a signal and waits; the exit code."""
        assert self._process and self._process.stdout
        self._process.send_signal(number)
        code = self._process.wait(60)
        self._process.stdout.close()
        self._process = None
        return code

    def update(self, sparql: str, **parameters: str) -> dict[str, Any]:
        return self._call("update", {**parameters, "update": sparql})

    def rows(self, sparql: str) -> list[dict[str, str]]:
        """The result of a SELECT query, values only."""
        bindings = self._call("query", {"query": sparql})["results"]["bindings"]
        return [{name: member["value"] for name, member in row.items()} for row in bindings]

    def delayed(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/delayed", timeout=60) as answer:
            return list(json.load(answer)["delayed"])

    def _call(self, path: str, fields: dict[str, str]) -> dict[str, Any]:
        body = urllib.parse.urlencode(fields).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/{path}", body, timeout=60) as answer:
            return dict(json.load(answer))


def wait_for(condition: Callable[[], bool], *, timeout_s: float = 30.0, what: str = "the condition") -> float:
    """Waits until the condition holds; the wall-clock time at which it did. Fails the test when it never does."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return time.time()
        time.sleep(0.02)  # polling another process, which has no other way to tell
    raise AssertionError(f"{what} did not come true within {timeout_s} s")
