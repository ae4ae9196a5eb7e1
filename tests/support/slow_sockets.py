"""Connections of clients whose machines take in very little that they do not read."""

from __future__ import annotations

import asyncio
import socket

_RECEIVED = 4096
"""Bytes that the client's machine keeps, or as few as it can."""
_SEGMENT = 536
"""The sender's machine keeps some segments too, and those of the loopback have 64 KiB."""


async def slow_socket(port: int) -> socket.socket:
    """A connection to that port of this machine: a megabyte is more than both ends keep."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    return connection
