"""Mutations of payloads: of their bytes, and of the values within JSON documents."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

GARBAGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 255, 0.5, 1e308, 10**70, "", " ", "x", "ON", "off ", "true", "7", "1e5", "9" * 80,
    "\x00", "\ud800", "+", "#", "a/b", "{}", [], {}, [1], ["a"], [[]], {"a": 1}, {"a": {"b": []}},
)  # fmt: skip
BLANK: tuple[Any, ...] = (None, "", [], {}, [[]])
"""Values that say nothing."""
Place = tuple[Any, Any]
"""An object or list, and the key or position in it."""


def places(document: Any) -> Iterator[Place]:
    """All values within a document."""
    for key in document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ():
        yield document, key
        yield from places(document[key])


def mutated_document(document: Any, chance: Random, *, of_other_type: bool = False) -> tuple[Any, object, str]:
    """A copy with a value that is missing or empty, has another key or is another one; the key, and "missing",
    "renamed" or "replaced".

    of_other_type: a value is not replaced by one of its own type.
    """
    changed = copy.deepcopy(document)
    found = list(places(changed))
    if not found:
        return chance.choice(GARBAGE), "", "replaced"
    inside, key = chance.choice(found)
    kind = chance.randrange(4)
    if kind == 0:
        del inside[key]
        how = "missing"
    elif kind == 1 and isinstance(inside, dict):
        inside[f"{key}x"] = value = inside.pop(key)
        how = "missing" if value in BLANK else "renamed"
    else:
        how = "replaced"
        usual = type(inside[key])
        others = [one for one in GARBAGE if not of_other_type or not isinstance(one, usual)]
        if of_other_type and usual in (int, float, bool):
            others = [one for one in others if not isinstance(one, bool | int | float)]
        inside[key] = chance.choice(others)
        if inside[key] in BLANK:
            how = "missing"
    return changed, key, how


def mutated_bytes(payload: bytes, chance: Random) -> bytes:
    at = chance.randrange(len(payload) + 1)
    kind = chance.randrange(5)
    if kind == 0:
        return payload[:at]
    if kind == 1:
        return payload[:at] + chance.randbytes(chance.randrange(1, 4)) + payload[at + 1 :]
    if kind == 2:
        return payload[:at] + payload[chance.randrange(at + 1) :]
    if kind == 3:
        return payload[:at] + chance.choice((b"\xff", b"\x00", b'"', b"}", b"[", b",", b"-", b"e", b"9")) + payload[at:]
    return chance.randbytes(chance.randrange(40))


def mutated(payload: bytes, chance: Random) -> bytes:
    """A payload that is broken, or whose document is another one."""
    try:
        document = json.loads(payload)
    except ValueError:
        document = None
    if document is None or chance.random() < 0.3:
        return mutated_bytes(payload, chance)
    for _ in range(chance.choice((1, 1, 2, 4))):
        document, _, _ = mutated_document(document, chance)
    return json.dumps(document).encode("utf-8", "surrogatepass")
