"""The listen backlog of a running gateway."""

from __future__ import annotations

import os
import socket
import struct
import urllib.parse
from pathlib import Path

from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.gates.listeners import BACKLOG


def backlogs() -> dict[int, int]:
    """How many connections may wait at each TCP port that this process listens on."""
    found = {}
    for file in Path("/proc/self/fd").iterdir():
        try:
            one = socket.socket(fileno=os.dup(int(file.name)))
        except OSError:  # no socket, or the file of the listing itself
            continue
        with one:
            if one.family == socket.AF_INET and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                information = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
                found[one.getsockname()[1]] = struct.unpack_from("=I", information, 28)[0]  # its `tcpi_sacked`, here
    return found


async def test_what_is_served_lets_as_many_connections_wait_as_was_said(gateway: Addresses) -> None:
    ports = {urllib.parse.urlsplit(address).port or 0 for address in (gateway.query, gateway.subscribe)}
    assert len(ports) == 2
    assert {backlogs()[port] for port in ports} == {BACKLOG}
