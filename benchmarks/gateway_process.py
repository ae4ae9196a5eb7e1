"""A real gateway in a process of its own, for what measures it from outside."""

import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent


class Gateway:
    """A running `lamplighter run`. urls: what it printed, by name."""

    def __init__(self, process: subprocess.Popen[str], urls: Mapping[str, str]) -> None:
        self.process = process
        self.urls = urls

    @property
    def http(self) -> tuple[str, int]:
        return _address(self.urls["update"])

    @property
    def websocket(self) -> tuple[str, int]:
        return _address(self.urls["subscribe"])

    def figures(self) -> dict[str, Any]:
        """What `GET /figures` answers."""
        host, port = self.http
        with urllib.request.urlopen(f"http://{host}:{port}/figures", timeout=30) as answer:
            return dict(json.load(answer))

    def resident_bytes_max(self) -> int:
        """The most memory that was resident until now."""
        found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    def cpu_s(self) -> float:
        """Processor time of all its threads until now."""
        return cpu_s(self.process.pid)


def cpu_s(pid: int) -> float:
    """Processor time of all threads of a process until now."""
    return sum(int((one / "schedstat").read_text().split()[0]) for one in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def _address(url: str) -> tuple[str, int]:
    place = urlsplit(url)
    assert place.hostname and place.port
    return place.hostname, place.port


@contextmanager
def gateway_process(
    folder: Path | None = None,
    log: Path | None = None,
    *arguments: str,
    module: str = "lamplighter.gateway",
    **tables: Mapping[str, object],
) -> Iterator[Gateway]:
    """A gateway on free ports, until left.

    folder: of its settings and, in data/, of what it keeps; without, an empty one that is removed afterwards. log:
    takes its log lines, which go to standard error otherwise. arguments: of the command, besides. module: what is run.
    tables: those of lamplighter.toml that differ from the defaults; the change log is synced as by default.
    """
    document: dict[str, dict[str, object]] = {"http": {"port": 0}, "websocket": {"port": 0}}
    for name, table in tables.items():
        document[name] = {**document.get(name, {}), **table}
    with TemporaryDirectory() as temporary:
        config = (folder or Path(temporary)) / "lamplighter.toml"
        lines = []
        for name, table in document.items():
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
        config.write_text("\n".join(lines) + "\n")
        with nullcontext() if log is None else log.open("a") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", module, "run", *arguments, "--config", str(config)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        try:
            yield Gateway(process, _urls(process))
        finally:
            process.terminate()
            process.communicate()


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    with socket.socket(type=kind) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def gateway_on_known_ports(folder: Path, *arguments: str, **tables: Mapping[str, object]) -> Iterator[Gateway]:
    """A gateway on ports that its configuration names, so that an adapter finds it."""
    ports = {name: {"port": free_port()} for name in ("http", "websocket")}
    with gateway_process(folder, folder / "gateway.log", *arguments, **ports, **tables) as gateway:
        yield gateway


@contextmanager
def adapter_process(folder: Path, kind: str) -> Iterator[subprocess.Popen[bytes]]:
    """An adapter beside a gateway of `gateway_on_known_ports`. kind: "mqtt" or "coap"."""
    with (folder / "adapter.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "lamplighter.gateway", kind, "--config", str(folder / "lamplighter.toml")],
            cwd=ROOT,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _urls(process: subprocess.Popen[str]) -> dict[str, str]:
    """What the gateway prints once it serves."""
    assert process.stdout is not None
    urls: dict[str, str] = {}
    while "health" not in urls:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the gateway did not start")
        name, _, url = line.strip().partition(" ")
        if url.strip().startswith(("http", "ws")):
            urls[name] = url.strip()
    return urls
