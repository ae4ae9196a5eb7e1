"""Sends a whole text message over a WebSocket of either side.

`Connection.send` of the library enters a context for each message, for fragments and for connections that close. That
is as much work as all the rest of sending a small message.
"""

from __future__ import annotations

from websockets.asyncio.connection import Connection
from websockets.protocol import State


async def send_text(socket: Connection, message: bytes) -> None:
    """Returns when the transport has taken the message and has room for more. message: UTF-8.

    Only for sockets on which no fragmented message is sent. Raises ConnectionClosed, and OSError if the connection
    breaks meanwhile.
    """
    if socket.protocol.state is not State.OPEN or socket.transport.is_closing():
        await socket.send(message, text=True)  # raises when the connection has ended
        return
    socket.protocol.send_text(message)
    socket.send_data()
    if socket.paused:
        await socket.drain()
