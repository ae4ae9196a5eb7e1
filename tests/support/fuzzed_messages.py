"""Hostile MQTT messages: broken payloads of all formats, and topics that try to break out of an IRI."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from random import Random

RULES = """
[[stream]]
topic = "number/{n#}"
payload = "number"
property = "ex:{n}"
unit = "Cel"

[[stream]]
topic = "boolean/{n}"
payload = "boolean"
property = "ex:p"
sensor = "sensor/{n}"

[[stream]]
topic = "text/{n}"
payload = "text"
property = "ex:p"
label = "text of {n}"

[[stream]]
topic = "json/{n}"
property = "ex:p"
payload = "number"
read = [{ member = "a.b[0]" }, { member = "c", payload = "text" }, { member = "t" }]

[[stream]]
topic = "timed/{n}"
payload = "number"
member = "value"
time = "member at"
property = "ex:p"

[[stream]]
topic = "senml/{t}"
payload = "senml"
property = "ex:{n}"

[[stream]]
topic = "csv/{n}"
payload = "number"
column = 1
property = "ex:p"

[[stream]]
topic = "binary/{n}"
payload = "number"
format = "<hd"
field = 1
property = "ex:p"

[[stream]]
topic = "spBv1.0/{group}/{type}/{node}/{device}"
payload = "sparkplug"
property = "ex:{n}"
"""
_HEADS = ("number", "boolean", "text", "json", "timed", "senml", "csv", "binary", "none", "spBv1.0/g/DDATA/n")
_LEVELS = (
    "1",
    "a>b",
    '"> <http://evil> "',
    "x> } ; DROP ALL ; INSERT DATA { <a",
    "\\u003e",
    "\x00",
    "\x7f\x1b[2J",
    "%3E",
    "ä/ö",
    "\u202e",
    "\ufffe",
    "🦊",
    "",
    "{n}",
    "$share",
    " ",
    "n" * 5_000,
    "\udc80",
)
_NUMBERS = ("NaN", "Infinity", "-inf", "1e999", "-1e-999", "1e400000000", "0x10", "1_000", "٣", "+5", "-0", "9" * 400)
_TEXTS = ('"', "'''", "\\", '"""\n', "\x00", "\ud800", "}", "<http://evil>", "\r\n", "🦊", "x" * 2_000, "\\u0000")
_PLAIN: tuple[bytes, ...] = (
    b"",
    b"21.5",
    b"true",
    b"\xff\xfe\x00\x01",
    b"\xef\xbb\xbf21",
    "21,5".encode("utf-16"),
    "grün".encode("latin-1"),
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b'{"a":{"b":[1]},"c":"x","t":' + b"1" * 5_000 + b"}",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"0" * 300_000,
)


def messages(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Topics and payloads. The same seed gives the same messages."""
    chance = Random(seed)
    for _ in range(count):
        levels = [chance.choice(_LEVELS) for _ in range(chance.choice((1, 1, 1, 2, 40)))]
        yield "/".join([chance.choice(_HEADS), *levels]), _payload(chance)


def _payload(chance: Random) -> bytes:
    kind = chance.randrange(10)
    if kind < 3:
        return chance.choice(_PLAIN) if kind else chance.randbytes(chance.randrange(200))
    if kind == 3:
        return chance.choice(_NUMBERS).encode()
    if kind == 4:
        return struct.pack("<hd", chance.randrange(-9, 9), chance.choice((float("nan"), float("inf"), 1e308, 0.5)))
    if kind == 5:
        return chance.choice(_TEXTS).encode("utf-8", "surrogatepass")
    if kind == 6:
        record = {"n": chance.choice(_LEVELS), "v": chance.choice((1, 1e308, None)), "u": chance.choice(_TEXTS)}
        return json.dumps([{"bn": chance.choice(_TEXTS), "bt": 1e300}, record]).encode()
    value = chance.choice(_NUMBERS)
    if kind == 7:
        return f'{{"value": {value}, "at": "{chance.choice(_NUMBERS)}"}}'.encode()
    document = {"a": {"b": [chance.choice(_TEXTS)]}, "c": chance.choice(_TEXTS), "t": 1.5, "value": 2, "at": "9999-99"}
    text = json.dumps(document).encode()
    if kind == 8:
        return text[: chance.randrange(len(text))]
    place = chance.randrange(len(text))
    return text[:place] + chance.randbytes(2) + text[place + 1 :]
