"""Reads what gateways send ahead of their segments, within bounds. The objects are written by gateways: any content may
be in them, and what is wrong with those of one gateway does not stop the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple

import msgspec

from lamplighter.cloud_sync.answers import AHEAD
from lamplighter.cloud_sync.destinations import Destination
from lamplighter.cloud_sync.early_notifications import RESULTS_BYTES_MAX, EarlyNotification
from lamplighter.engine.errors import GatewayError, PayloadError
from lamplighter.engine.tables import count_text

# Objects of one gateway that are read in one pass.
OBJECTS_MAX = 200
OBJECT_BYTES_MAX = 64 * 1024 * 1024
# Of the objects of one gateway in one pass; the last one may exceed it.
PASS_BYTES_MAX = 64 * 1024 * 1024
LINE_BYTES_MAX = RESULTS_BYTES_MAX + 1
# Records of change logs have smaller numbers.
EPOCH_MAX, SEQUENCE_MAX = 2**31 - 1, 2**53
# The collector takes no other records.
YEAR_MIN, YEAR_MAX = 1970, 2199
# Rows multiplied by variables, of one notification.
CELLS_MAX = 1_000_000
_NAME = re.compile(r"([0-9]{12})\.ndjson")


class EarlyNotificationLine(NamedTuple):
    """A line of an object, checked. before: the number of the last object that was read whole; object: the number of
    its own; place: object and line, for messages."""

    before: int
    object: int
    place: str
    told: EarlyNotification


class EarlyNotificationObjects:
    """The next objects of each gateway. say: receives a line for each kind of fault, not one for each object."""

    def __init__(self, source: Destination, say: Callable[[str], None]) -> None:
        self._source = source
        self._say = say
        self._faults: dict[str, str] = {}
        self._first, self._refused = "", 0

    def notifications(
        self, gateway: str, before: int, done: Callable[[int], None]
    ) -> Generator[EarlyNotificationLine, None, None]:
        """The lines of the objects behind a number, in their order.

        done: is called with the number of each object that need not be read again, also of one without a sound line.
        Ends early at a fault of the storage, which is said once. The caller may end it at any line.
        """
        try:
            yield from self._lines(gateway, before, done)
            self._faults.pop(gateway, None)
        except (GatewayError, OSError) as error:
            if self._faults.get(gateway) != str(error):
                self._faults[gateway] = str(error)
                self._say(f"rows of gateway {gateway}: {error}; they are read again")
        finally:
            self._tell()

    def refuse(self, place: str, reason: str) -> None:
        """Notes a line that is left out."""
        self._first = self._first or f"{place}: {reason}"
        self._refused += 1

    def _tell(self) -> None:
        if self._refused:
            others = f" (and {count_text(self._refused - 1, 'other')})" if self._refused > 1 else ""
            self._say(
                f"{self._first}{others}; it is left out. Check who writes there; Spark finds what is in the segments"
            )
            self._first, self._refused = "", 0

    def _lines(
        self, gateway: str, before: int, done: Callable[[int], None]
    ) -> Generator[EarlyNotificationLine, None, None]:
        folder = f"{AHEAD}/{gateway}"
        size = 0
        for entry in self._source.entries(folder, f"{before:012d}.ndjson" if before else "", OBJECTS_MAX):
            name = _NAME.fullmatch(entry.name)
            if name is None:
                continue
            if size > PASS_BYTES_MAX:
                return
            number, place = int(name[1]), f"{self._source.url}/{folder}/{entry.name}"
            try:
                data = self._content(f"{folder}/{entry.name}")
                if data is None:
                    return  # it has gone since the listing; it is passed over only when it is listed no more
                size += len(data)
                for row, line in enumerate(data.splitlines(), 1):
                    try:
                        told = _decode_line(line, gateway)
                    except PayloadError as error:
                        self.refuse(f"{place} line {row}", str(error))
                        continue
                    yield EarlyNotificationLine(before, number, f"{place} line {row}", told)
            except PayloadError as error:
                self.refuse(place, str(error))
            before = number
            done(number)

    def _content(self, name: str) -> bytes | None:
        data = self._source.get(name, OBJECT_BYTES_MAX + 1)
        if data is not None and len(data) > OBJECT_BYTES_MAX:
            raise PayloadError(f"it has more than {OBJECT_BYTES_MAX} bytes")
        return data


def is_small(results: Mapping[str, object]) -> bool:
    """Whether results take bounded memory as rows: few names make many empty cells."""
    head, body = results.get("head"), results.get("results")
    names = head.get("vars") if isinstance(head, dict) else None
    bindings = body.get("bindings") if isinstance(body, dict) else None
    if not isinstance(names, list) or not isinstance(bindings, list):
        return False
    return len(names) * len(bindings) <= CELLS_MAX


def _decode_line(line: bytes, gateway: str) -> EarlyNotification:
    """The notification in a line. Raises PayloadError with the reason."""
    if len(line) > LINE_BYTES_MAX:
        raise PayloadError(f"it has more than {LINE_BYTES_MAX} bytes")
    try:
        told = msgspec.json.decode(line, type=EarlyNotification)
    except (ValueError, RecursionError) as error:  # those of msgspec too
        raise PayloadError(f"not a notification: {error}") from error
    if told.gateway != gateway:
        raise PayloadError(f"it names the gateway {told.gateway[:100]!a}")
    epoch, sequence = told.commit or (1, 1)
    if not (1 <= epoch <= EPOCH_MAX and 1 <= sequence <= SEQUENCE_MAX):
        raise PayloadError(f"no record has the place {str(epoch)[:30]}/{str(sequence)[:30]}")
    if told.at is not None and not YEAR_MIN <= told.at.year <= YEAR_MAX:
        raise PayloadError(f"its time {told.at.isoformat()} is out of range")
    return told
