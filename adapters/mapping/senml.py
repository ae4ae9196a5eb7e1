"""SenML (RFC 8428) in JSON and CBOR -> resolved records, and a value -> a pack of one record.

Base name, time, unit, value and sum hold from their record on. Times below 2**28 are relative to the arrival (section
4.5.3).
"""

from __future__ import annotations

import decimal
import json
import re
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec

from lamplighter.adapters.mapping import cbor, times
from lamplighter.adapters.mapping.payloads import Found, Number
from lamplighter.engine.errors import PayloadError

RECORDS_MAX = 1_024
NAME_CHARS_MAX = 256
_RELATIVE_BELOW = 2**28
_VERSION = 10

_LABELS = {
    -1: "bver", -2: "bn", -3: "bt", -4: "bu", -5: "bv", -6: "bs",
    0: "n", 1: "u", 2: "v", 3: "vs", 4: "vb", 5: "s", 6: "t", 7: "ut", 8: "vd",
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9:./_-]*")
_JSON = msgspec.json.Decoder(float_hook=Number)
_EXACT = decimal.Context(prec=200, Emax=10_000, Emin=-10_000)


def records(data: bytes, received: datetime) -> list[tuple[str, str, Found, str | None, datetime | None]]:
    """Name, own name without the base, value, unit and time of each record that has a value or a sum.

    A payload that begins with ``[`` or white space is JSON, another one is CBOR. Records with a data value (vd) are
    left out. Raises PayloadError.
    """
    pack = _json(data) if data[:1] in (b"[", b" ", b"\n", b"\r", b"\t") else cbor.decode(data)
    if not isinstance(pack, list) or len(pack) > RECORDS_MAX:
        raise PayloadError(f"payload is not a SenML pack of at most {RECORDS_MAX} records")
    base: dict[str, Any] = {}
    found: list[tuple[str, str, Found, str | None, datetime | None]] = []
    for entry in pack:
        record = _with_labels(entry)
        base |= {key: value for key, value in record.items() if key in ("bn", "bt", "bu", "bv", "bs", "bver")}
        resolved = _resolve(base, record, received)
        if resolved is not None:
            found.append(resolved)
    return found


def encode(name: str, value: Found, form: str) -> bytes:
    """A pack of one record. name: empty: the record has none. form: "senml+json" or "senml+cbor". Raises
    PayloadError."""
    number = isinstance(value, Number)
    label = "vb" if isinstance(value, bool) else "vs" if isinstance(value, str) and not number else "v"
    if form == "senml+cbor":
        keys = {text: key for key, text in _LABELS.items()}
        return cbor.encode([{**({keys["n"]: name} if name else {}), keys[label]: value}])
    names = f'"n": {_text(name)}, ' if name else ""
    return f'[{{{names}"{label}": {value if number else _text(value)}}}]'.encode()


def _text(value: Found) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json(data: bytes) -> Any:
    try:
        return _JSON.decode(data)
    except (ValueError, RecursionError) as error:
        raise PayloadError("payload is not JSON") from error


def _with_labels(entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise PayloadError("a SenML record is not an object")
    record = {_LABELS.get(key, "") if isinstance(key, int) else key: value for key, value in entry.items()}
    if any(key.endswith("_") for key in record):
        raise PayloadError("a SenML record has a field that must be understood and is unknown")
    return record


def _resolve(
    base: dict[str, Any], record: dict[str, Any], received: datetime
) -> tuple[str, str, Found, str | None, datetime | None] | None:
    if _number(base.get("bver", _VERSION)) > _VERSION:
        raise PayloadError("the SenML version is newer than RFC 8428")
    value = _value(base, record)
    if value is None:
        return None
    own = record.get("n", "")
    base_name = base.get("bn", "")
    if not isinstance(own, str) or not isinstance(base_name, str):
        raise PayloadError("a SenML name is not a text")
    name = base_name + own
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
        raise PayloadError("a SenML name is missing, too long or has other characters than RFC 8428 allows")
    unit = record.get("u", base.get("bu"))
    if unit is not None and not isinstance(unit, str):
        raise PayloadError("a SenML unit is not a text")
    return name, own, value, unit, time_of(base, record, received)


def _value(base: dict[str, Any], record: dict[str, Any]) -> Found | None:
    present = [key for key in ("v", "vs", "vb", "vd") if record.get(key) is not None]
    if len(present) > 1:
        raise PayloadError("a SenML record has several values")
    kind = present[0] if present else None
    if kind == "vs":
        if not isinstance(record["vs"], str) or isinstance(record["vs"], Number):
            raise PayloadError("a SenML text value is not a text")
        return str(record["vs"])
    if kind == "vb":
        if not isinstance(record["vb"], bool):
            raise PayloadError("a SenML boolean value is not a boolean")
        return record["vb"]
    if kind == "v":
        return _sum(record["v"], base.get("bv"))
    if kind is None and record.get("s") is not None:
        return _sum(record["s"], base.get("bs"))
    return None


def _sum(value: Any, base: Any) -> Found:
    if base is None:
        _number(value)
        return value  # type: ignore[no-any-return]
    return Number(format(_EXACT.add(_number(value), _number(base)), "f"))


def _number(value: Any) -> Decimal:
    if (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, Number) and len(value) <= 64):
        try:
            number = Decimal(value)
        except decimal.InvalidOperation as error:
            raise PayloadError("a SenML number is out of range") from error
    else:
        raise PayloadError("a SenML number is missing, too long or not a number")
    if abs(number.adjusted()) > 64:
        raise PayloadError("a SenML number is out of range")
    return number


def time_of(base: dict[str, Any], record: dict[str, Any], received: datetime) -> datetime | None:
    """The time of a record with `t`, of a base with `bt`; None if both are missing or out of range. Raises
    PayloadError."""
    if "t" not in record and "bt" not in base:
        return None
    time = _EXACT.add(_number(record.get("t", 0)), _number(base.get("bt", 0)))
    if time >= _RELATIVE_BELOW:
        return times.seconds(time)
    try:
        return received + timedelta(microseconds=int(time * 1_000_000))
    except OverflowError:
        return None
