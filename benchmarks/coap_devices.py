"""Devices with plain sockets on 127.0.2.x and further, in a process of their own, for `benchmarks.coap`.

Each has one resource, whatever the path: GET answers its state, with Observe as a registration; PUT sets it. The state
goes to the observer by a confirmable notification.
"""

import multiprocessing
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

CON, ACK = 0, 2
GET, PUT, CHANGED, CONTENT = 1, 3, 0x44, 0x45
OBSERVE = 6
TICK_S = 0.002


class MeasuredDevice:
    """One socket. observer: address and token of the last registration; puts: when a state was set, and to what."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind((host, port))
        self.state = b"0"
        self.puts: list[tuple[float, str]] = []
        self.observer: tuple[Any, bytes] | None = None
        self._number = 1

    def read(self) -> None:
        """Takes what has arrived."""
        while True:
            try:
                data, source = self.socket.recvfrom(2048)
            except BlockingIOError:
                return
            if data[0] >> 4 & 3 == CON:
                self._answer(data, source)

    def change(self, state: bytes) -> None:
        self.state = state
        if self.observer is None:
            return
        self._number += 1
        target, token = self.observer
        head = bytes([0x40 | len(token), CONTENT]) + (self._number & 0xFFFF).to_bytes(2, "big") + token
        self.socket.sendto(head + _observe(self._number) + b"\xff" + state, target)

    def _answer(self, data: bytes, source: Any) -> None:
        length = data[0] & 15
        token = data[4 : 4 + length]
        observes, payload = _read(data, 4 + length)
        head = bytes([0x60 | length]), data[2:4] + token
        if data[1] == PUT:
            self.puts.append((time.perf_counter(), payload.decode()))
            self.socket.sendto(head[0] + bytes([CHANGED]) + head[1], source)
            self.change(payload)
        elif data[1] == GET:
            option = b""
            if observes:
                self._number += 1
                self.observer, option = (source, token), _observe(self._number)
            self.socket.sendto(head[0] + bytes([CONTENT]) + head[1] + option + b"\xff" + self.state, source)


def _observe(number: int) -> bytes:
    return bytes([OBSERVE << 4 | 3]) + (number & 0xFFFFFF).to_bytes(3, "big")


def _read(data: bytes, at: int) -> tuple[bool, bytes]:
    """Whether a request has Observe 0, and its payload. Its options are those that the adapter sends."""
    number, observes = 0, False
    while at < len(data) and data[at] != 0xFF:
        delta, length = data[at] >> 4, data[at] & 15
        at += 1
        if delta >= 13:
            delta, at = (data[at] + 13, at + 1) if delta == 13 else (int.from_bytes(data[at : at + 2]) + 269, at + 2)
        if length >= 13:
            length, at = data[at] + 13, at + 1
        number += delta
        observes |= number == OBSERVE and not data[at : at + length].strip(b"\0")
        at += length
    return observes, data[at + 1 :]


def _serve(count: int, port: int, commands: Connection) -> None:
    """Commands: ("change", per_s): each device changes its state so often, 0: never. ("puts",): answers and forgets the
    PUTs. ("states",): answers the states, the observed devices, and how many notifications were sent."""
    selector = selectors.DefaultSelector()
    devices = [MeasuredDevice(address(number), port) for number in range(count)]
    for device in devices:
        selector.register(device.socket, selectors.EVENT_READ, device)
    selector.register(commands, selectors.EVENT_READ)
    commands.send(count)
    per_s, began, changed, value = 0.0, 0.0, 0, 0
    while True:
        for key, _ in selector.select(TICK_S if per_s else None):
            if key.data is not None:
                key.data.read()
                continue
            name, *arguments = commands.recv()
            if name == "change":
                [per_s], began, changed = arguments, time.perf_counter(), 0
            elif name == "puts":
                commands.send([device.puts for device in devices])
                for device in devices:
                    device.puts = []
            else:
                observed = sum(device.observer is not None for device in devices)
                commands.send(([device.state.decode() for device in devices], observed, changed))
        if per_s:
            due = int((time.perf_counter() - began) * per_s * count)
            while changed < due:
                value += 1
                devices[changed % count].change(b"%d" % value)
                changed += 1


def address(number: int) -> str:
    return f"127.0.{2 + number // 200}.{1 + number % 200}"


@contextmanager
def devices(count: int, port: int) -> Iterator[Connection]:
    """Running devices; takes the commands of `_serve`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(count, port, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield ours
    finally:
        process.kill()
        process.join()
        ours.close()
