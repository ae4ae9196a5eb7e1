"""The CoAP server: readings that devices POST, observers of a query, and endpoints of the resource directory.

Gateway and adapter are processes of their own. The devices are sockets on 127.0.3.x in this process; each waits for the
answer before its next request. Memory is what only the process itself has (Anonymous).
"""

import json
import re
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiocoap
from aiocoap.numbers.types import Type

from benchmarks.effort import Effort
from benchmarks.gateway_process import Gateway, adapter_process, cpu_s, free_port, gateway_on_known_ports
from benchmarks.measuring import Progress

ANSWER_S, WAIT_S = 5.0, 120.0
SOURCES, WARM_UP_S = 100, 3.0
OBSERVERS_OF_SOURCE, ENDPOINTS_OF_SOURCE, LINKS = 20, 20, 10
READINGS = 20
_RULE = """[[stream]]
path = "readings/{source}"
payload = "senml"
sensor = "sensor/{source}/{n}"
property = "http://bench.example/value"
"""
_QUERY = "SELECT ?value { <http://bench.example/s> <http://bench.example/p> ?value }"


class PostingDevice:
    """One socket. token: of the request that waits for its answer, sent at `sent`."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((host, 0))
        self.socket.connect(("127.0.0.1", port))
        self.socket.settimeout(ANSWER_S)
        self.token, self.sent, self._number = b"", 0.0, 0

    def send(self, message: aiocoap.Message) -> None:
        self._number += 1
        self.token = message.token = b"%d" % self._number
        message.mtype, message.mid = Type.CON, self._number & 0xFFFF
        self.sent = time.perf_counter()
        self.socket.send(message.encode())

    def take(self) -> aiocoap.Message | None:
        """A message that has arrived, acknowledged; None for an acknowledgement. Raises OSError if there is none."""
        message = aiocoap.Message.decode(self.socket.recv(4_096))
        if message.mtype is Type.CON:
            self.socket.send(b"\x60\x00" + message.mid.to_bytes(2))
        return message if message.code.is_response() else None

    def ask(self, message: aiocoap.Message) -> aiocoap.Message:
        """The answer; the request is repeated with the Echo value that is asked for, and if nothing comes."""
        while True:
            self.send(message)
            try:
                while (answer := self.take()) is None or answer.token != self.token:
                    pass
            except TimeoutError:
                continue
            if answer.code is not aiocoap.UNAUTHORIZED or not answer.opt.echo:
                return answer
            message.opt.echo = answer.opt.echo


def coap_server(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    """Readings a second, and the memory of observers and registrations."""
    found: dict[str, Any] = {}
    for name, readings in (("single", 1), ("pack", READINGS)):
        with _served() as (gateway, adapter, port):
            found |= {f"{name} {key}": value for key, value in _posts(effort, gateway, adapter, port, readings).items()}
        progress(f"packs of {readings}: {found[f'{name} readings per s']:,.0f} readings/s")
    with _served() as (_, adapter, port):
        found |= _observers(effort.coap_observers, adapter, port)
    progress(f"{found['observers']:,} observers: {found['observer KiB']:.1f} KiB each")
    with _served() as (_, adapter, port):
        found |= _registrations(effort.coap_endpoints, adapter, port)
    progress(f"{found['endpoints']:,} endpoints: {found['endpoint KiB']:.1f} KiB each")
    return {**found, "note": _note(found), "targets": []}


def _note(found: dict[str, Any]) -> str:
    posts = "; ".join(_posts_note(found, name, count) for name, count in (("single", 1), ("pack", READINGS)))
    return (
        f"CoAP server, {SOURCES} sources: {posts}. {found['observers']:,} observers of one query take "
        f"{found['observer KiB']:.1f} KiB each. "
        f"{found['endpoints']:,} registered endpoints with {LINKS} links take {found['endpoint KiB']:.1f} KiB each, "
        f"and a registration {found['registration ms']:.1f} ms of CPU in the adapter."
    )


def _posts_note(found: dict[str, Any], name: str, count: int) -> str:
    adapter, gateway, p50, p99 = (found[f"{name} {key}"] for key in ("adapter us", "gateway us", "p50 ms", "p99 ms"))
    return (
        f"packs of {count}: {found[f'{name} readings per s']:,.0f} readings/s, {adapter:,.0f} us of CPU for a POST in "
        f"the adapter, {gateway:,.0f} us in the gateway, p50 {p50:.0f} ms, p99 {p99:.0f} ms"
    )


@contextmanager
def _served() -> Iterator[tuple[Gateway, int, int]]:
    """A gateway, the process id of its adapter, and the port of its CoAP server, once it answers."""
    port = free_port(socket.SOCK_DGRAM)
    profile = {"host": "127.0.0.1", "queries": {"VALUE": {"sparql": _QUERY}}, "updates": {}}
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, file, text in (("mapping", "bench.toml", _RULE), ("apps", "bench.jsap", json.dumps(profile))):
            (folder / name).mkdir()
            (folder / name / file).write_text(text)
        tables = {"coap.server": {"port": port}}
        with gateway_on_known_ports(folder, **tables) as gateway, adapter_process(folder, "coap") as adapter:
            with _devices(port, 1) as (device,):
                deadline = time.monotonic() + WAIT_S
                while not _answers(device):
                    assert time.monotonic() < deadline, (folder / "adapter.log").read_text()
                    time.sleep(0.1)
            yield gateway, adapter.pid, port


def _answers(device: PostingDevice) -> bool:
    """Whether the directory is ready, which is last."""
    try:
        device.send(_request(aiocoap.GET, "rd-lookup/ep"))
        return (answer := device.take()) is not None and bool(answer.code.is_successful())
    except OSError:  # no port yet
        return False


@contextmanager
def _devices(port: int, count: int) -> Iterator[list[PostingDevice]]:
    with ExitStack() as stack:
        found = [PostingDevice(f"127.0.3.{number + 1}", port) for number in range(count)]
        for device in found:
            stack.callback(device.socket.close)
        yield found


def _request(code: Any, path: str, payload: bytes = b"", **options: Any) -> aiocoap.Message:
    message = aiocoap.Message(code=code, payload=payload)
    message.opt.uri_path = tuple(path.split("/"))
    for name, value in options.items():
        setattr(message.opt, name, value)
    return message


def _posts(effort: Effort, gateway: Gateway, adapter: int, port: int, readings: int) -> dict[str, float]:
    """POSTs for some seconds, after all streams exist."""
    with _devices(port, SOURCES) as devices, selectors.DefaultSelector() as selector:
        for number, device in enumerate(devices):
            device.socket.setblocking(False)
            selector.register(device.socket, selectors.EVENT_READ, number)
        value, times = 0, list[float]()

        def post(number: int) -> None:
            nonlocal value
            value += 1
            pack = [{"n": f"n{one}", "v": value} for one in range(readings)]
            body = json.dumps(pack, separators=(",", ":")).encode()
            devices[number].send(_request(aiocoap.POST, f"readings/{number}", body, content_format=110))

        def run(seconds: float) -> float:
            times.clear()
            began = time.perf_counter()
            # One answer at least, however slow the machine is.
            while (now := time.perf_counter()) < began + seconds or not times:
                for key, _ in selector.select(0.1):
                    device = devices[key.data]
                    answer = device.take()
                    if answer is not None and answer.token == device.token:
                        assert answer.code is aiocoap.CHANGED, answer
                        times.append(time.perf_counter() - device.sent)
                        post(key.data)
                for number, device in enumerate(devices):
                    if now > device.sent + ANSWER_S:  # lost
                        post(number)
            return time.perf_counter() - began

        for number in range(SOURCES):
            post(number)
        run(WARM_UP_S)
        before = cpu_s(adapter), gateway.cpu_s()
        took = run(effort.coap_posts_s)
        used = cpu_s(adapter) - before[0], gateway.cpu_s() - before[1]
        times.sort()
        return {
            "readings per s": readings * len(times) / took,
            "adapter us": used[0] / len(times) * 1e6,
            "gateway us": used[1] / len(times) * 1e6,
            "p50 ms": times[len(times) // 2] * 1e3,
            "p99 ms": times[int(len(times) * 0.99)] * 1e3,
        }


def _observers(count: int, adapter: int, port: int) -> dict[str, float]:
    with _devices(port, -(-count // OBSERVERS_OF_SOURCE)) as devices:
        devices[0].ask(_request(aiocoap.GET, "queries/VALUE"))
        before = _anonymous_bytes(adapter)
        for number in range(count):
            answer = devices[number // OBSERVERS_OF_SOURCE].ask(_request(aiocoap.GET, "queries/VALUE", observe=0))
            assert answer.opt.observe is not None, answer
        memory = _anonymous_bytes(adapter) - before
        return {"observers": count, "observer KiB": memory / count / 1024}


def _registrations(count: int, adapter: int, port: int) -> dict[str, float]:
    links = ",".join(f'</sensors/{n}>;rt="temperature-c";if="core.s";ct=0' for n in range(LINKS)).encode()
    with _devices(port, -(-count // ENDPOINTS_OF_SOURCE)) as devices:
        before, cpu = _anonymous_bytes(adapter), cpu_s(adapter)
        for number in range(count):
            register = _request(aiocoap.POST, "rd", links, content_format=40, uri_query=(f"ep=endpoint-{number}",))
            answer = devices[number // ENDPOINTS_OF_SOURCE].ask(register)
            assert answer.code is aiocoap.CREATED, answer
        memory, used = _anonymous_bytes(adapter) - before, cpu_s(adapter) - cpu
        return {"endpoints": count, "endpoint KiB": memory / count / 1024, "registration ms": used / count * 1e3}


def _anonymous_bytes(pid: int) -> int:
    found = re.search(r"Anonymous:\s*(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text())
    assert found is not None
    return int(found[1]) * 1024
