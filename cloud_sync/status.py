"""The shipper's progress files in the data folder.

The gateway's retention reads ``shipped.json``. The loss of ``sync.json`` does no harm: the next run compares the
objects at the destination instead of sending them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lamplighter.cloud_sync.files import open_plain, write_whole
from lamplighter.engine.change_log import Seal, SegmentName, seal_name, segment_name
from lamplighter.engine.client.files import json_document, read_file
from lamplighter.engine.client.state_files import file_content
from lamplighter.engine.errors import UpstreamError

# Epoch and sequence.
Place = tuple[int, int]

STATUS = "sync.json"
SHIPPED = "shipped.json"
SEAL_BYTES_MAX = 64 * 1024


class SentSnapshot(msgspec.Struct, frozen=True):
    """The last snapshot sent. stem: its name at the destination; at: seconds since 1970; landed: whether the collector
    has confirmed it."""

    epoch: int
    seq: int
    stem: str
    sha256: str
    at: float
    landed: bool = False

    @property
    def place(self) -> Place:
        return self.epoch, self.seq


class Status(msgspec.Struct, frozen=True):
    """`sync.json`. Times are seconds since 1970.

    sent: the last record at the destination. confirmed: the last record whose landing is confirmed, with all before it.
    wanted: the first place whose snapshot replaces records that were removed before they were sent. lag_records,
    lag_bytes, oldest_at: sealed segments without confirmation, and when the oldest was sealed. refused: segments in the
    collector's quarantine. problem, problem_at: the last problem that needs attention but does not stop the shipper.
    """

    destination: str = ""
    at: float = 0.0
    sent: Place = (0, 0)
    confirmed: Place = (0, 0)
    wanted: Place = (0, 0)
    snapshot: SentSnapshot | None = None
    lag_segments: int = 0
    lag_records: int = 0
    lag_bytes: int = 0
    oldest_at: float | None = None
    sent_segments: int = 0
    sent_bytes: int = 0
    refused: int = 0
    problem: str = ""
    problem_at: float | None = None
    last_success: float | None = None
    last_error: str = ""
    last_error_at: float | None = None


class _Shipped(msgspec.Struct, frozen=True):
    epoch: int
    last: int


def read_status(data: Path) -> Status:
    """The content of `sync.json`, or defaults if it cannot be read. `confirmed` comes from `shipped.json`."""
    status = Status()
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        status = json_document(read_file(data / STATUS, follow=False), Status)
    confirmed = (0, 0)
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        shipped = json_document(read_file(data / SHIPPED, follow=False), _Shipped)
        confirmed = shipped.epoch, shipped.last
    return msgspec.structs.replace(status, confirmed=confirmed, sent=max(status.sent, confirmed))


def write_status(data: Path, status: Status) -> None:
    """Raises OSError."""
    write_whole(data / STATUS, file_content(data / STATUS, status))


def write_shipped(data: Path, place: Place) -> None:
    """Allows the gateway to remove all records up to this place. Raises OSError."""
    write_whole(data / SHIPPED, file_content(data / SHIPPED, _Shipped(*place)))


def rewind(data: Path, first: Place) -> Status:
    """Lets the shipper send the records from a place on once more, and the gateway keep them until they are confirmed
    again. Returns the new status.

    The shipper must not run (`shipper.alone`). Raises OSError.
    """
    before, status = (first[0], first[1] - 1), read_status(data)
    status = msgspec.structs.replace(
        status, sent=min(status.sent, before), confirmed=min(status.confirmed, before), wanted=(0, 0), snapshot=None
    )
    write_shipped(data, status.confirmed)  # first: from now on the gateway keeps them
    status = with_lag(status, data)
    write_status(data, status)
    return status


@dataclass(frozen=True)
class Sealed:
    """A sealed segment in the data folder. The gateway may remove it at any time."""

    path: Path
    name: SegmentName

    @property
    def end(self) -> Place:
        assert self.name.last is not None
        return self.name.epoch, self.name.last

    @property
    def stem(self) -> str:
        return seal_name(self.name).removesuffix(".json")

    def seal(self) -> tuple[Seal, bytes] | None:
        """The seal, decoded and as bytes; None if it is missing or cannot be read."""
        with (
            contextlib.suppress(OSError, UpstreamError, msgspec.MsgspecError),
            open_plain(self.path.parent / seal_name(self.name)) as file,
        ):
            content = file.read(SEAL_BYTES_MAX)
            return msgspec.json.decode(content, type=Seal), content
        return None


def sealed_segments(data: Path, after: Place = (0, 0)) -> list[Sealed]:
    """Sealed segments that end after a record, oldest first, up to the first unsealed one. Raises OSError.

    The gateway seals in order.
    """
    # If it could not seal one, later segments must wait, or they would arrive before it.
    sealed, unsealed = _segments(data)
    return [one for one in sealed if one.end > after and (unsealed is None or one.name[:2] < unsealed.name[:2])]


def blocking(data: Path) -> Path | None:
    """An unsealed segment before a sealed one, which keeps later segments from being shipped. Raises OSError."""
    sealed, unsealed = _segments(data)
    return unsealed.path if unsealed and sealed and sealed[-1].name[:2] > unsealed.name[:2] else None


def _segments(data: Path) -> tuple[list[Sealed], Sealed | None]:
    """Sealed segments, and the first unsealed one. A segment with both names counts as sealed."""
    named = ((path, segment_name(path.name)) for path in (data / "log").iterdir())
    found = sorted((Sealed(path, name) for path, name in named if name), key=lambda segment: segment.name[:2])
    sealed = [segment for segment in found if segment.name.last is not None]
    begun = {segment.name[:2] for segment in sealed}
    return sealed, next((one for one in found if one.name.last is None and one.name[:2] not in begun), None)


def with_lag(status: Status, data: Path) -> Status:
    """The status with the current lag. Raises OSError."""
    records = size = count = 0
    oldest: float | None = None
    for segment in sealed_segments(data, status.confirmed):
        with contextlib.suppress(FileNotFoundError):
            file = segment.path.stat()
            oldest = file.st_mtime if oldest is None else oldest
            size += file.st_size
            records += segment.end[1] - segment.name.first + 1
            count += 1
    return msgspec.structs.replace(status, lag_segments=count, lag_records=records, lag_bytes=size, oldest_at=oldest)


def age(seconds: float) -> str:
    """A duration as text, in the largest unit of which it has at least two."""
    for size, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"
