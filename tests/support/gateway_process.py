"""A gateway as a process of its own, to be killed and started again: a fork (`tests.support.fork_server`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from tests.support.brokers import free_port
from tests.support.commands import command_line
from tests.support.fork_server import LAMPLIGHTER, ForkedProcess
from tests.support.places import ROOT

PING_S = 600
"""A test whose clients are many or busy answers pings late on a slow machine. Tests of the pings say otherwise."""


class GatewayProcess:
    """`lamplighter run` over a folder. Its ports are free ones, and stay the same over restarts.

    arguments: of the command, besides; tables: those of lamplighter.toml that differ from the defaults. module: whose
    `main` it runs.
    """

    module = LAMPLIGHTER

    def __init__(self, folder: Path, *arguments: str, **tables: Mapping[str, object]) -> None:
        self.folder = folder
        self.http_port, self.websocket_port = free_port(), free_port()
        self.config = folder / "lamplighter.toml"
        self._arguments = ["run", *arguments, "--config", str(self.config)]
        self._process: ForkedProcess | subprocess.Popen[str] | None = None
        defaults: dict[str, Mapping[str, object]] = {
            "http": {"port": self.http_port},
            "websocket": {"port": self.websocket_port, "ping_s": PING_S},
            "coap.server": {"port": 0},
        }
        lines = []
        for name, table in {**defaults, **tables}.items():
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
        folder.mkdir(parents=True, exist_ok=True)
        self.config.write_text("\n".join(lines) + "\n")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self.end(signal.SIGTERM)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def http_url(self) -> str:
        """Where the HTTP gate serves, without a path."""
        return f"http://127.0.0.1:{self.http_port}"

    def start(self) -> None:
        """Returns when the gateway says that it is ready."""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if "LD_PRELOAD" in environment:  # for the dynamic linker, which a fork does not come by
            line = command_line(*self._arguments)
            self._process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
        else:
            self._process = ForkedProcess(
                self._arguments, module=self.module, stdout=subprocess.PIPE, cwd=ROOT, env=environment
            )
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert "ready" in line, f"the gateway did not start: {line}"

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self, number: signal.Signals) -> int:
        """Sends a signal and waits; the exit code."""
        assert self._process and self._process.stdout
        self._process.send_signal(number)
        code = self._process.wait(120)
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
        with urllib.request.urlopen(f"{self.http_url}/delayed", timeout=120) as answer:
            return list(json.load(answer)["delayed"])

    def _call(self, path: str, fields: dict[str, str]) -> dict[str, Any]:
        body = urllib.parse.urlencode(fields).encode()
        with urllib.request.urlopen(f"{self.http_url}/{path}", body, timeout=120) as answer:
            return dict(json.load(answer))


def street_gateway(folder: Path, *, broker_port: int, off_after: str) -> GatewayProcess:
    """A gateway with its adapters, the mapping of the street and its application. off_after: when the lamp goes off."""
    for name in ("mapping", "apps"):
        (folder / name).mkdir(parents=True)
    (folder / "mapping" / "street.toml").write_text((ROOT / "mapping" / "street.toml").read_text())
    application = json.loads((ROOT / "apps" / "smart-lighting.jsap").read_text())
    application["updates"]["SWITCH_OFF"]["delay"] = off_after
    (folder / "apps" / "smart-lighting.jsap").write_text(json.dumps(application))
    coap, mqtt = {"networks": ["127.0.0.0/8"]}, {"host": "127.0.0.1", "port": broker_port}
    return GatewayProcess(folder, "--all", coap=coap, mqtt=mqtt)


def mqtt_gateway(folder: Path, broker_port: int, **mqtt: object) -> GatewayProcess:
    """A gateway with its adapters, at a broker of this machine. mqtt: further settings of the MQTT adapter."""
    return GatewayProcess(folder, "--all", mqtt={"host": "127.0.0.1", "port": broker_port} | mqtt)


def wait_for(condition: Callable[[], bool], *, timeout_s: float = 120.0, what: str = "the condition") -> float:
    """Waits until the condition holds; the wall-clock time at which it did. Fails the test when it never does."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return time.time()
        time.sleep(0.02)  # polling another process, which has no other way to tell
    raise AssertionError(f"{what} did not come true within {timeout_s} s")
