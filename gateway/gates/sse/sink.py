"""The sink of one stream: the data of each event is a message of the SE protocol, as over WebSocket
(`docs/protocol.md`)."""

from __future__ import annotations

from lamplighter.gateway.gates.event_streams import StreamEvent, event_id
from lamplighter.gateway.gates.sinks import ClientSink


class EventSink(ClientSink):
    """Adds to the notifications of a resumable subscription what their client resumes by."""

    __slots__ = ()
    kind = "http"

    def with_id(self, message: bytes, spuid: str, sequence: int) -> bytes:
        return StreamEvent(b"id: %b\ndata: %b\n\n" % (event_id(spuid, sequence), message))
