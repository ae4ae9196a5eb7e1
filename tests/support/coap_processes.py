"""A gateway and a CoAP adapter as processes of their own, to be killed and started again."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.fork_server import ADAPTER, ForkedProcess
from tests.support.gateway_process import GatewayProcess
from tests.support.places import ROOT

SETTINGS = {
    "networks": ["127.0.0.0/8"],
    "ack_timeout_s": 5,
    "retransmissions_max": 0,
    "retry_min_s": 0.1,
    "retry_max_s": 0.5,
}
SERVER = "[coap.server]\nport = 0\n"


class AdapterProcess:
    """`lamplighter.gateway.service.adapter_process KIND` beside a gateway. config: its settings; None: those of
    `SETTINGS`."""

    def __init__(self, gateway: GatewayProcess, kind: str = "coap", config: Path | None = None) -> None:
        self.config = gateway.folder / "coap.toml" if config is None else config
        if config is None:
            settings = "".join(f"{key} = {json.dumps(value)}\n" for key, value in SETTINGS.items())
            self.config.write_text(f"[websocket]\nport = {gateway.websocket_port}\n[coap]\n{settings}{SERVER}")
        self._kind = kind
        self.process: ForkedProcess | None = None

    def start(self) -> None:
        self.process = ForkedProcess([self._kind, "--config", str(self.config)], module=ADAPTER, cwd=ROOT)

    def end(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(120)
        self.process = None

    def reload(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)


@contextmanager
def site(folder: Path, rules: str) -> Iterator[tuple[GatewayProcess, AdapterProcess]]:
    """A gateway and a CoAP adapter, each a process."""
    (folder / "mapping").mkdir(parents=True)
    (folder / "mapping" / "coap.toml").write_text(rules)
    with GatewayProcess(folder, coap={"enabled": False}) as gateway:
        adapter = AdapterProcess(gateway)
        adapter.start()
        try:
            yield gateway, adapter
        finally:
            if adapter.process is not None:
                adapter.end(signal.SIGKILL)
