"""Notifications of the fleet's subscriptions, on their way to the destination ahead of the segments.

They wait in the folder ``ahead`` of the data folder, an NDJSON file for each round, and become the objects
``ahead/<gateway>/<number>.ndjson``. They are at-least-once: subscription, version, incarnation and sequence together
identify a notification.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from lamplighter.cloud_sync.answers import AHEAD
from lamplighter.cloud_sync.destinations import Destination
from lamplighter.cloud_sync.files import open_plain, write_whole
from lamplighter.engine.change_log import place, segment_name
from lamplighter.engine.change_log.frames import FrameReader
from lamplighter.engine.errors import UpstreamError

# A notification with longer results is shipped without them. Its rows follow in the segments.
RESULTS_BYTES_MAX = 4 * 1024 * 1024
# With more bytes in the folder, no further notifications are taken from the gateway, which retains them.
OUTBOX_BYTES_MAX = 16 * 1024 * 1024
NAMES_MAX = 1000
_FILE = re.compile(r"([0-9]{12})\.ndjson")


class EarlyNotification(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of an object: a notification of one of the fleet's subscriptions.

    incarnation: differs after the gateway had to begin the subscription again, with sequence 0. sequence: 0 for the
    first result, which replaces all earlier ones. commit: epoch and sequence of the change-log record, if the client
    may know it. added, removed: SPARQL 1.1 Query Results JSON. cut: whether they were too long. ended: why the gateway
    has ended the subscription; then there is no further notification. at, trusted: the time of the record, and whether
    the clock was synchronised, if the log still has the record.
    """

    v: int
    gateway: str
    subscription: str
    version: int
    incarnation: str
    sequence: int
    commit: tuple[int, int] | None = None
    added: dict[str, Any] = {}
    removed: dict[str, Any] = {}
    cut: bool = False
    ended: str = ""
    at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    trusted: bool | None = None


def line(notification: EarlyNotification) -> bytes:
    """The notification as a line, without its results if they are too long."""
    data = msgspec.json.encode(notification)
    if len(data) > RESULTS_BYTES_MAX:
        data = msgspec.json.encode(msgspec.structs.replace(notification, added={}, removed={}, cut=True))
    return data + b"\n"


class RecordTime(msgspec.Struct, frozen=True):
    """ts: RFC 3339 time of a record; trusted: whether the clock was synchronised."""

    ts: str
    trusted: bool


_decode_time = msgspec.json.Decoder(RecordTime).decode


def with_time(line: bytes, time: RecordTime) -> bytes:
    """The line of a notification without a time, with one."""
    # The results may be large, so the line is not decoded.
    return b"%s,%s\n" % (line.rstrip(b"\n")[:-1], msgspec.json.encode({"at": time.ts, "trusted": time.trusted})[1:])


def record_times(data: Path, places: Collection[tuple[int, int]]) -> dict[tuple[int, int], RecordTime]:
    """The times of records, by epoch and sequence, as far as the log of a data folder has them. Raises OSError."""
    segments = ((segment_name(path.name), path) for path in (data / "log").iterdir()) if places else ()
    found: dict[tuple[int, int], RecordTime] = {}
    for name, path in segments:
        if name is None:
            continue
        begin, end = (name.epoch, name.first), (name.epoch, name.last or sys.maxsize)
        wanted = {one for one in places if begin <= one <= end}
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as opened:
            lines = FrameReader(opened.enter_context(open_plain(path)).read()) if wanted else ()
            for line in lines:
                if (there := place(line)[1:]) in wanted:
                    found[there] = _decode_time(line)
                    wanted.discard(there)
                    if not wanted:
                        break
    return found


class EarlyNotificationOutbox:
    """The folder ``ahead`` of a data folder."""

    def __init__(self, data: Path, to: Destination, gateway: str) -> None:
        self._folder = data / "ahead"
        self._to = to
        self._gateway = gateway

    def waiting(self) -> list[Path]:
        """The files that wait, oldest first. Raises OSError."""
        if not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.iterdir() if _FILE.fullmatch(path.name))

    def room(self) -> int:
        """Bytes that it takes at the moment; 0 or less if it is full. Raises OSError."""
        return OUTBOX_BYTES_MAX - sum(path.stat().st_size for path in self.waiting())

    def add(self, lines: Sequence[bytes], number: int) -> int:
        """Writes the lines durably to a file with this number, or with a higher one. Returns the number behind it.

        Raises OSError.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        waiting = self.waiting()
        if waiting:
            number = max(number, int(waiting[-1].stem) + 1)
        write_whole(self._folder / f"{number:012d}.ndjson", b"".join(lines))
        return number + 1

    def ship(self) -> int:
        """Sends the files in order, and removes them. Returns their number. Raises UpstreamError, OSError."""
        waiting = self.waiting()
        for path in waiting:
            with open_plain(path) as file:
                self._send(int(path.stem), file.read())
            path.unlink()
        return len(waiting)

    def _send(self, number: int, data: bytes) -> None:
        """Under the first free name. A name is taken if the data folder was restored, or if it was sent before."""
        for tried in range(number, number + NAMES_MAX):
            name = f"{AHEAD}/{self._gateway}/{tried:012d}.ndjson"
            if self._to.create(name, [data]):
                return
            with self._to.open(name) as chunks:
                if chunks is None:  # it was taken, and is free now; the next round sends it
                    raise UpstreamError(f"{self._to.url}/{name}: the object has gone; check who else writes there")
                if b"".join(chunks) == data:
                    return
        raise UpstreamError(
            f"{self._to.url}/{AHEAD}/{self._gateway}: {NAMES_MAX} names from {number:012d} on have other content; "
            "check whether another gateway has the same identity, and who else writes there"
        )
