"""Sends whole text messages over a WebSocket of either side.

`Connection.send` of the library enters a context for each message, for fragments and for connections that close. That
is as much work as all the rest of sending a small message.
"""

from __future__ import annotations

from websockets.asyncio.connection import Connection
from websockets.protocol import State

AT_ONCE_BYTES_MAX = 16 * 1024


def sent_at_once(socket: Connection, message: bytes) -> bool:
    """Sends a short message if the connection is open and nothing waits to be written; whether it did.

    message: UTF-8. Only for sockets on which no fragmented message is sent.
    """
    transport = socket.transport
    if (
        len(message) > AT_ONCE_BYTES_MAX
        or socket.protocol.state is not State.OPEN
        or transport.is_closing()
        or transport.get_write_buffer_size()
    ):
        return False
    socket.protocol.send_text(message)
    socket.send_data()
    return True


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
