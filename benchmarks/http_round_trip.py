"""Updates over HTTP on loopback, from the first byte sent to the last of the answer, beside 1,004 subscriptions."""

import os
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks import street_lighting as street
from benchmarks.effort import Effort
from benchmarks.gateway_process import Gateway, gateway_process
from benchmarks.measuring import Progress, target
from benchmarks.sockets import Socket

_WARMING = 50
_PART_BYTES = 8 * 1024 * 1024
_RECORD_BYTES = 300


class KeptAlive:
    """One connection that is used again and again, at so little cost that the gateway is what is measured."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def post(self, target: str, media_type: str, body: bytes) -> float:
        """Seconds until the whole answer was there. Raises RuntimeError when it is no success."""
        lines = (
            f"POST {target} HTTP/1.1",
            "Host: localhost",
            f"Content-Type: {media_type}",
            f"Content-Length: {len(body)}",
        )
        request = "\r\n".join([*lines, "", ""]).encode() + body
        begun = time.perf_counter()
        self._socket.sendall(request)
        answer = b""
        while True:
            part = self._socket.recv(65_536)
            if not part:
                raise ConnectionError("the gateway closed the connection")
            answer += part
            head, end, content = answer.partition(b"\r\n\r\n")
            if end and _is_whole(head, content):
                break
        took = time.perf_counter() - begun
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201", b"HTTP/1.1 204")):
            raise RuntimeError(answer.decode())
        return took


def _is_whole(head: bytes, content: bytes) -> bool:
    """Whether an answer has all its content, by its length or by its last chunk."""
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return len(content) >= int(value)
        if name == b"transfer-encoding":
            return content.endswith(b"0\r\n\r\n")
    return True


def http(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """LAMP updates one after the other over one connection; the change log synced before each answer, and not."""
    result: dict[str, Any] = {}
    for durability in ("fsync", "off"):
        with gateway_process(gateway={"durability": durability}) as gateway, closing(KeptAlive(gateway.http)) as client:
            load(client, effort)
            sockets = [Socket(gateway.websocket) for _ in range(2)]
            entries = street.subscription_profile()
            for number, entry in enumerate(entries):
                sockets[number % 2].ask({"subscribe": {"sparql": entry.text}})
            progress(f"{len(entries)} subscriptions, durability {durability}")
            result[durability] = _round_trips(gateway, client, sockets, effort.round_trips)
            for one in sockets:
                one.close()
        progress(f"durability {durability}: p50 {result[durability]['p50 ms']:.2f} ms")
    result["sync ms"] = _sync_ms(out)
    by_default, alone = result["fsync"], result["off"]
    sync = result["sync ms"]
    result["note"] = (
        f"HTTP update on loopback beside {len(entries):,} subscriptions: p50 {by_default['p50 ms']:.2f} ms, "
        f"p99 {by_default['p99 ms']:.2f} ms; without a sync of the change log {alone['p50 ms']:.2f} and "
        f"{alone['p99 ms']:.2f} ms, with {alone['cpu us']:.0f} us of CPU in the gateway. "
        f"A sync of {_RECORD_BYTES} bytes alone takes {sync['p50']:.2f} ms on this disk, p99 {sync['p99']:.2f} ms."
    )
    result["targets"] = [
        target("HTTP update round trip, p50", by_default["p50 ms"], 1, " ms"),
        target("HTTP update round trip, p99", by_default["p99 ms"], 5, " ms"),
    ]
    return result


def load(client: KeptAlive, effort: Effort) -> None:
    document = street.document(bare=effort.bare)
    begin = 0
    while begin < len(document):
        end = document.find(b"\n", begin + _PART_BYTES) + 1 or len(document)
        client.post("/graphs?default", "application/n-triples", document[begin:end])
        begin = end


def _round_trips(gateway: Gateway, client: KeptAlive, sockets: Sequence[Socket], count: int) -> dict[str, float]:
    texts = updates()
    for _ in range(_WARMING):
        client.post("/update", "application/sparql-update", next(texts))
    cpu = gateway.cpu_s()
    took = [client.post("/update", "application/sparql-update", next(texts)) for _ in range(count)]
    cpu = gateway.cpu_s() - cpu
    return {**spread(took), "cpu us": cpu / count * 1e6}


def updates() -> Iterator[bytes]:
    value = 0
    while True:
        value += 1
        for text in street.lamp_profile(str(value % 100)):
            yield text.encode()


def spread(seconds: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=1000, method="inclusive")
    return {"p50 ms": cuts[499] * 1e3, "p99 ms": cuts[989] * 1e3, "most ms": max(seconds) * 1e3}


def _sync_ms(folder: Path) -> dict[str, float]:
    """What the disk takes for an append that is synced, as the change log does it."""
    path = folder / "sync"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    took = []
    try:
        for _ in range(300):
            os.write(file, b"x" * _RECORD_BYTES)
            begun = time.perf_counter()
            os.fdatasync(file)
            took.append(time.perf_counter() - begun)
    finally:
        os.close(file)
        path.unlink()
    found = spread(took)
    return {"p50": found["p50 ms"], "p99": found["p99 ms"]}
