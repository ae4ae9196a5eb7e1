"""Which broker, topic and rule a stream belongs to: those that it was first read from."""

from __future__ import annotations

from collections.abc import Callable, Set

from lamplighter.adapters.model.readings import Reading, Stream
from lamplighter.engine.terms import Term

# Of all streams, on average; those of usual names have 800. Long topics make no more than so many streams.
STREAM_CHARS_MEAN = 2_000


class StreamOwners:
    """The streams of one run, at most `streams_max`, however their readings come. kind: of the adapter, such as "mqtt";
    warn: takes topic and reason of a reading that is refused."""

    def __init__(self, streams_max: int, warn: Callable[[str, str], None], *, kind: str) -> None:
        self.streams_max = streams_max
        self._warn, self._kind = warn, kind
        self._owners: dict[Term, tuple[str, Stream]] = {}
        self._chars = 0

    def may_write(self, broker: str, reading: Reading) -> bool:
        """Whether the reading is of the owner of its stream. broker: its name; "" for CoAP."""
        stream = reading.stream
        owner = self._owners.get(stream.iri)
        most = self.streams_max
        if owner is None and len(self._owners) < most and self._chars < STREAM_CHARS_MEAN * most:
            self._owners[stream.iri] = owner = broker, stream
            self._chars += stream.chars()
        if owner is None:
            self._warn("*", f"more than {most} streams ({self._kind}.streams_max)")
            return False
        name, owning = owner
        if owning is stream and name == broker:
            return True
        if owning != stream:
            self._warn(stream.topic, f"its stream {stream.iri} belongs to topic {owning.topic} by {owning.rule}")
        elif name != broker:
            self._warn(stream.topic, f"its stream {stream.iri} is read from broker {name!r}, not from {broker!r}")
        return owning == stream and name == broker

    def streams(self, broker: str) -> list[Stream]:
        """Those that were read from a broker."""
        return [stream for name, stream in self._owners.values() if name == broker]

    def forget(self, rules: Set[str]) -> set[Term]:
        """Forgets the streams of rules, and returns them."""
        found = {iri for iri, (_, stream) in self._owners.items() if stream.rule in rules}
        for iri in found:
            _, stream = self._owners.pop(iri)
            self._chars -= stream.chars()
        return found
