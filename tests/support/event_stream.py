"""A reader of Server-Sent Events (HTML Living Standard, section 9.2.6), which shares no code with the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.support.running_gateway import TIMEOUT_S
from tests.support.slow_sockets import slow_socket


@dataclass
class Event:
    """An event as a browser would dispatch it. id: the last one of the stream."""

    name: str
    id: str
    data: str

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.data))

    @property
    def notification(self) -> dict[str, Any]:
        assert "notification" in self.json, self.data
        return dict(self.json["notification"])


class EventStream:
    """An open stream. headers: names in lower case; comments: how many lines were comments."""

    def __init__(self, status: int, headers: Mapping[str, str], reader: asyncio.StreamReader) -> None:
        self.status = status
        self.headers = headers
        self.comments = 0
        self._reader = reader
        self._text = b""
        self._id = ""

    async def _line(self) -> str | None:
        """The next line of the body, which is sent in chunks; None at its end."""
        while b"\n" not in self._text:
            size = int((await self._reader.readline()) or b"0", 16)
            part = await self._reader.readexactly(size)
            await self._reader.readline()
            if not size:
                return None
            self._text += part
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()

    async def next(self, limit_s: float | None = TIMEOUT_S) -> Event | None:
        """The next event; None at the end of the stream."""
        name, data = "", []
        async with asyncio.timeout(limit_s):
            while (line := await self._line()) is not None:
                field, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if not line:
                    if data:
                        return Event(name or "message", self._id, "\n".join(data))
                elif not field:
                    self.comments += 1
                elif field == "data":
                    data.append(value)
                elif field == "event":
                    name = value
                elif field == "id":
                    self._id = value
        return None

    async def event(self) -> Event:
        found = await self.next()
        assert found is not None, "the stream has ended"
        return found


@asynccontextmanager
async def event_stream(
    url: str, parameters: Mapping[str, str], headers: Mapping[str, str] | None = None, *, slow: bool = False
) -> AsyncIterator[EventStream]:
    """Asks for a stream, which ends with the body. slow: the client's machine takes in very little."""
    place = urlsplit(url)
    assert place.hostname is not None and place.port is not None
    if slow:
        reader, writer = await asyncio.open_connection(sock=await slow_socket(place.port))
    else:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        lines = [f"GET {place.path}?{urlencode(parameters)} HTTP/1.1", f"Host: {place.netloc}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        async with asyncio.timeout(TIMEOUT_S):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
        told = dict(line.split(": ", 1) for line in head[1:] if line)
        yield EventStream(int(head[0].split()[1]), {name.lower(): value for name, value in told.items()}, reader)
    finally:
        writer.transport.abort()
