"""Readings over a real mosquitto: published at QoS 1, committed durably by the gateway, and notified.

The gateway and the MQTT adapter are processes of their own. The publisher writes packets that were encoded before.
"""

import asyncio
import shutil
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.effort import Effort
from benchmarks.gateway_process import Gateway, adapter_process, cpu_s, free_port, gateway_on_known_ports
from benchmarks.measuring import Progress, target
from lamplighter.engine.client import EngineClient

STREAMS = 100
IN_FLIGHT_MAX = 2_000
"""Messages that the publisher sends ahead of their PUBACK."""
LOADS = {"load": 0.7, "half": 0.5}
"""Shares of full speed at which the publisher measures latency; at full speed it is the length of the queue."""
START_S, SETTLE_S_MAX = 60.0, 300.0
MARKER = "marker"
_RULE = """[[stream]]
topic = "bench/{n}"
payload = "number"
property = "http://bench.example/value"
sensor = "sensor/{n}"
"""
_QUERY = (
    "SELECT ?value { ?observation <http://www.w3.org/ns/sosa/madeBySensor> <http://lamplighter.local/sensor/marker> ; "
    "<http://www.w3.org/ns/sosa/hasSimpleResult> ?value }"
)


def _packet(kind: int, body: bytes) -> bytes:
    """A packet with its length (MQTT 3.1.1, 2.2.3)."""
    size, length = len(body), b""
    while True:
        size, low = divmod(size, 128)
        length += bytes([low | 128 if size else low])
        if not size:
            return bytes([kind]) + length + body


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


class Publisher:
    """One connection that publishes numbers at QoS 1. sent: the time at which a marker was written, by its value."""

    def __init__(self, port: int) -> None:
        self.sent: dict[int, float] = {}
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(_packet(0x10, _text("MQTT") + b"\x04\x02\x00\x00" + _text("bench-publisher")))
        assert self._socket.recv(4)[3] == 0, "the broker refuses the publisher"
        self._ids = 0
        self._unacknowledged = 0

    def close(self) -> None:
        self._socket.close()

    def publish(self, messages: Sequence[tuple[str, int]], per_s: float = 0.0) -> None:
        """Publishes values under the topics, per_s of them a second (0: at full speed), and waits for all PUBACKs."""
        packets = []
        for name, value in messages:
            self._ids = self._ids % 65_535 + 1
            body = _text(f"bench/{name}") + self._ids.to_bytes(2, "big") + str(value).encode()
            packets.append((_packet(0x32, body), value if name == MARKER else None))
        begun = time.perf_counter()
        chunk = 50 if not per_s else max(1, int(per_s / 200))
        for start in range(0, len(packets), chunk):
            if per_s:
                time.sleep(max(0.0, begun + start / per_s - time.perf_counter()))
            part = packets[start : start + chunk]
            now = time.perf_counter()
            self.sent |= {value: now for _, value in part if value is not None}
            self._socket.sendall(b"".join(packet for packet, _ in part))
            self._unacknowledged += len(part)
            self._read(IN_FLIGHT_MAX)
        self._read(0)

    def _read(self, most: int) -> None:
        """Reads PUBACKs until at most so many are missing."""
        rest = b""
        while self._unacknowledged > most or rest:
            rest += self._socket.recv(65_536)
            self._unacknowledged -= len(rest) // 4
            rest = rest[len(rest) // 4 * 4 :]


class Watcher:
    """A subscriber of the marker's sensor, in a thread. seen: when a value was notified."""

    def __init__(self, url: str) -> None:
        self.seen: dict[int, float] = {}
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(url,), daemon=True)
        self._thread.start()
        assert self._ready.wait(START_S), "the gateway does not subscribe"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _run(self, url: str) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._watch(url))

    async def _watch(self, url: str) -> None:
        self._loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._task = task
        async with EngineClient(url) as client:
            async for notification in client.subscribe(_QUERY):
                now = time.perf_counter()
                self._ready.set()
                for (value,) in notification.added:
                    self.seen[int(str(value).split('"')[1])] = now

    def wait(self, value: int) -> float:
        """When the value was notified."""
        end = time.monotonic() + SETTLE_S_MAX
        while value not in self.seen:
            assert time.monotonic() < end, "the last reading was not notified"
            time.sleep(0.001)
        return self.seen[value]


@contextmanager
def broker(folder: Path) -> Iterator[int]:
    """A running mosquitto; its port."""
    port = free_port()
    config = folder / "mosquitto.conf"
    lines = ("allow_anonymous true", "max_queued_messages 0", "max_inflight_messages 1000", "set_tcp_nodelay true")
    config.write_text("\n".join([f"listener {port} 127.0.0.1", *lines]) + "\n")
    process = subprocess.Popen(["mosquitto", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _until_connected(port)
        yield port
    finally:
        process.terminate()
        process.wait()


def _until_connected(port: int) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.05)
    raise RuntimeError("mosquitto does not start")


def _messages(count: int, first: int) -> list[tuple[str, int]]:
    """Readings of all streams in turn; each hundredth is the marker's, and so is the last one."""
    names = [str(number) for number in range(STREAMS - 1)] + [MARKER]
    found = [(names[number % STREAMS], first + number) for number in range(count)]
    found[-1] = MARKER, first + count - 1
    return found


def _ceiling(port: int, count: int) -> float:
    """Readings per second that `mosquitto_sub` alone receives at QoS 1."""
    command = ["mosquitto_sub", "-p", str(port), "-q", "1", "-t", "bench/#", "-i", "bench-ceiling", "-C", str(count)]
    receiver = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    time.sleep(1.0)  # it does not say when it has subscribed
    publisher = Publisher(port)
    begun = time.perf_counter()
    publisher.publish(_messages(count, 0))
    receiver.wait(SETTLE_S_MAX)
    publisher.close()
    return count / (time.perf_counter() - begun)


def _latencies_ms(publisher: Publisher, watcher: Watcher, first: int, last: int) -> list[float]:
    numbers = [number for number in publisher.sent if first <= number <= last and number in watcher.seen]
    return sorted((watcher.seen[number] - publisher.sent[number]) * 1000 for number in numbers)


def _p99(values: Sequence[float]) -> float:
    return values[min(len(values) - 1, int(len(values) * 0.99))]


def mqtt(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """Speed, latency and cost of readings, and 10,000 sensors that appear at once."""
    if shutil.which("mosquitto") is None or shutil.which("mosquitto_sub") is None:
        return {"unavailable": "mosquitto and mosquitto_sub are not installed"}
    with TemporaryDirectory() as temporary, broker(Path(temporary)) as port:
        folder = Path(temporary)
        (folder / "mapping").mkdir()
        (folder / "mapping" / "bench.toml").write_text(_RULE)
        ceiling = _ceiling(port, effort.mqtt_readings)
        progress(f"mosquitto_sub alone: {ceiling:,.0f} readings/s")
        table = {"host": "127.0.0.1", "port": port, "client_id": "bench", "streams_max": 1_000_000}
        with gateway_on_known_ports(folder, mqtt=table) as gateway, adapter_process(folder, "mqtt") as adapter:
            publisher, watcher = Publisher(port), Watcher(gateway.urls["subscribe"])
            _until_subscribed(publisher, watcher)
            measured = _measured(effort, gateway, adapter.pid, publisher, watcher, progress)
            publisher.close()
            watcher.close()
    return {
        "ceiling per s": ceiling,
        **measured,
        "note": _note(ceiling, measured),
        "targets": [
            target("MQTT readings", measured["per s"], 12_000, "/s", at_least=True),
            target("MQTT beside mosquitto_sub", measured["per s"] / ceiling, 0.6, "", at_least=True),
            target("MQTT CPU of a reading", measured["gateway cpu us"] + measured["adapter cpu us"], 130, "us"),
            target("MQTT p99 under load", measured["load p99 ms"], 100, "ms"),
            target("MQTT p99 at half load", measured["half p99 ms"], 50, "ms"),
            target("MQTT p99 at 100/s", measured["slow p99 ms"], 30, "ms"),
            target("MQTT CPU at 100/s", measured["slow cpu %"], 10, "% of a core"),
            target("MQTT new sensors settle", measured["settle s"], 30, "s"),
        ],
    }


def _until_subscribed(publisher: Publisher, watcher: Watcher) -> None:
    """Publishes until the first reading is notified."""
    end = time.monotonic() + START_S
    number = -1
    while not any(value < 0 for value in watcher.seen):
        assert time.monotonic() < end, "the adapter does not read"
        publisher.publish([(MARKER, number)])
        number -= 1
        time.sleep(0.1)


def _measured(
    effort: Effort, gateway: Gateway, adapter: int, publisher: Publisher, watcher: Watcher, progress: Progress
) -> dict[str, Any]:
    count, first = effort.mqtt_readings, 1
    publisher.publish(_messages(STREAMS * 10, first))
    watcher.wait(first + STREAMS * 10 - 1)
    first += STREAMS * 10

    cpu = gateway.cpu_s(), cpu_s(adapter)
    begun = time.perf_counter()
    publisher.publish(_messages(count, first))
    took = watcher.wait(first + count - 1) - begun
    gateway_cpu, adapter_cpu = gateway.cpu_s() - cpu[0], cpu_s(adapter) - cpu[1]
    per_s = count / took
    progress(f"full speed: {per_s:,.0f} readings/s")
    first += count

    loaded: dict[str, float] = {}
    for name, share in LOADS.items():
        publisher.publish(_messages(count, first), per_s * share)
        watcher.wait(first + count - 1)
        found = _latencies_ms(publisher, watcher, first, first + count - 1)
        loaded |= {f"{name} per s": per_s * share, f"{name} p50 ms": statistics.median(found)}
        loaded[f"{name} p99 ms"] = _p99(found)
        progress(f"{per_s * share:,.0f} readings/s: p99 {_p99(found):.1f} ms")
        first += count

    cpu = gateway.cpu_s(), cpu_s(adapter)
    slow = [(MARKER, first + number) for number in range(effort.mqtt_slow_readings)]
    begun = time.perf_counter()
    publisher.publish(slow, 100)
    watcher.wait(slow[-1][1])
    slow_cpu = (gateway.cpu_s() - cpu[0] + cpu_s(adapter) - cpu[1]) / (time.perf_counter() - begun)
    latencies = _latencies_ms(publisher, watcher, first, slow[-1][1])
    progress(f"100 readings/s: p99 {_p99(latencies):.1f} ms, {slow_cpu:.1%} of a core")
    first += len(slow)

    begun = time.perf_counter()
    publisher.publish([(f"new-{number}", number) for number in range(effort.mqtt_sensors)] + [(MARKER, first)])
    settle_s = watcher.wait(first) - begun
    progress(f"{effort.mqtt_sensors:,} new sensors: {settle_s:.1f} s")
    return {
        "per s": per_s,
        "gateway cpu us": gateway_cpu / count * 1e6,
        "adapter cpu us": adapter_cpu / count * 1e6,
        **loaded,
        "slow p50 ms": statistics.median(latencies),
        "slow p99 ms": _p99(latencies),
        "slow cpu %": slow_cpu * 100,
        "sensors": effort.mqtt_sensors,
        "settle s": settle_s,
    }


def _note(ceiling: float, found: dict[str, Any]) -> str:
    return (
        f"MQTT: {found['per s']:,.0f} readings/s, mosquitto_sub alone {ceiling:,.0f}; a reading costs "
        f"{found['adapter cpu us']:.0f} us in the adapter and {found['gateway cpu us']:.0f} us in the gateway. "
        f"At {found['load per s']:,.0f}/s: p50 {found['load p50 ms']:.1f} ms, p99 {found['load p99 ms']:.1f} ms; "
        f"at {found['half per s']:,.0f}/s: p50 {found['half p50 ms']:.1f} ms, p99 {found['half p99 ms']:.1f} ms. "
        f"At 100/s: p50 {found['slow p50 ms']:.1f} ms, p99 {found['slow p99 ms']:.1f} ms, "
        f"{found['slow cpu %']:.1f} % of a core. {found['sensors']:,} new sensors: {found['settle s']:.1f} s."
    )
