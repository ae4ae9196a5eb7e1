"""Hostile requests to the doors that take JSON or RDF: valid bodies, changed at random places."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, 2**64, "", " ", "\x00", "\ud7ff", "a" * 5000, [], {}, [[]], {"": {}}),
    *("http://127.0.0.1:1/", "http://169.254.169.254/", "file:///etc/passwd", "http://[::ffff:127.0.0.1]/", "//x"),
    *("P1D", "PT0S", "P999999999Y", "-P1D", "SELECT * { ?s ?p ?o }", "ASK {}", "../../etc/passwd", "\u202e", "%00"),
)
_BYTES = b'{}[]",:\\\x00\xff<>@.#/ \r\n'


class HostileDoor:
    """bodies: valid ones, as JSON values; paths: below the gate."""

    def __init__(self, seed: int, paths: Sequence[str], bodies: Sequence[Any], media_types: Sequence[str]) -> None:
        self.random = Random(seed)
        self._paths = paths
        self._bodies = bodies
        self._media_types = media_types

    def request(self) -> bytes:
        """A request that is framed well."""
        random = self.random
        method = random.choice((*["POST"] * 8, "GET", "GET", "DELETE", "PUT"))
        path = random.choice(self._paths)
        if random.random() < 0.1:
            path += random.choice(("/", "x", "%2e%2e", "?a=b", "?" + "a" * 3000, "%ff", "//", ";x"))
        body = b"" if method in ("GET", "DELETE") and random.random() < 0.8 else self._body()
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        if random.random() < 0.9:
            head.append(f"Content-Type: {random.choice(self._media_types)}")
        if random.random() < 0.3:
            head.append(f"Accept: {random.choice(('text/turtle', 'application/ld+json', '*/*;q=x', 'a/b', ''))}")
        return "\r\n".join([*head, "", ""]).encode() + body

    def _body(self) -> bytes:
        random = self.random
        body: Any = json.loads(json.dumps(random.choice(self._bodies)))
        for _ in range(random.randrange(3)):
            body = self._changed(body)
        text = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        if random.random() < 0.3:
            data = bytearray(text)
            for _ in range(random.randrange(1, 6)):
                data[random.randrange(len(data) or 1) : random.randrange(len(data) + 1)] = bytes(
                    random.choice(_BYTES) for _ in range(random.randrange(4))
                )
            text = bytes(data)
        if random.random() < 0.02:
            text = b"[" * random.randrange(1, 20_000)
        return text

    def _changed(self, value: Any) -> Any:
        random = self.random
        if isinstance(value, dict) and value and random.random() < 0.9:
            key = random.choice(list(value))
            choice = random.random()
            if choice < 0.2:
                return {name: member for name, member in value.items() if name != key}
            if choice < 0.3:
                return value | {str(random.choice(_VALUES)): random.choice(_VALUES)}
            return value | {key: self._changed(value[key])}
        if isinstance(value, list) and value and random.random() < 0.7:
            place = random.randrange(len(value))
            return [*value[:place], self._changed(value[place]), *value[place + 1 :]]
        return random.choice(_VALUES)
