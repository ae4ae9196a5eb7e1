"""The proof that a log continues its own history, and the request for a new epoch if it does not.

``<gateway>/lineage/<epoch>.json`` at the destination names the last segment of an epoch that was shipped, and its hash.
A log that has that segment, or had it and has removed it, continues its history. One that has other records at that
place, or ends before it, is that of a card or a machine that was put back to an older state, or of a copy. So is one
whose epoch has the same number and another random id: two copies may begin an epoch 2, each without the other one.

A counter in the data folder would prove nothing: an image has it too. Only the destination has seen both.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from lamplighter.cloud_sync.destinations import Destination
from lamplighter.cloud_sync.files import open_plain, write_whole
from lamplighter.cloud_sync.status import Place, Sealed, sealed_segments
from lamplighter.engine.change_log import (
    EPOCH_REQUEST,
    RECORD_BYTES_MAX,
    VERSION,
    EpochRequest,
    check,
    place,
    segment_name,
)
from lamplighter.engine.change_log.frames import FrameReader, frame_lines
from lamplighter.engine.errors import UpstreamError


class LineageHead(msgspec.Struct, frozen=True):
    """The last segment of an epoch that was shipped. epoch_id: of the epoch, if its records name it."""

    v: int
    epoch: int
    last: int
    sha256: str
    epoch_id: str = ""


class _NamedEpoch(msgspec.Struct):
    """What is read of the first record of a segment."""

    epoch_id: str = ""


_named_epoch = msgspec.json.Decoder(_NamedEpoch).decode


class Lineage:
    """The proof of one log. Raises UpstreamError, OSError."""

    def __init__(self, to: Destination, gateway: str, data: Path) -> None:
        self._to = to
        self._gateway = gateway
        self._data = data
        # The epoch that is of another history.
        self._forked = 0

    def fork(self) -> str:
        """Why the log does not continue what was shipped of its epoch; then the gateway is asked to begin a new one.
        "" if it does."""
        log = sealed_segments(self._data)
        epoch = log[-1].name.epoch if log else 0
        name = self._name(epoch)
        content = self._to.get(name) if log else None
        if content is None:
            return ""
        try:
            head = msgspec.json.decode(content, type=LineageHead)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UpstreamError(f"{self._to.url}/{name}: damaged: {error}; remove it") from error
        why = _foreign(head, log)
        if not why:
            return ""
        self._forked = epoch
        told = f"{why}: this gateway was put back to an older state, or copied"
        request_new_epoch(self._data, epoch, told)
        return told

    def put_head(self, place: Place) -> None:
        """Tells the destination the last segment that was sent, unless its epoch is of another history."""
        segment = next((one for one in sealed_segments(self._data) if one.end == place), None)
        seal = None if segment is None else segment.seal()
        if segment is not None and seal is not None and place[0] != self._forked:
            head = LineageHead(VERSION, *place, seal[0].sha256, _epoch_id(segment.path))
            self._to.put(self._name(place[0]), msgspec.json.encode(head) + b"\n")

    def _name(self, epoch: int) -> str:
        return f"{self._gateway}/lineage/{epoch}.json"


def _foreign(head: LineageHead, log: Sequence[Sealed]) -> str:
    """Why a head is of another history than a log; "" if the log has its segment, or had it and has removed it."""
    if head.epoch_id and _epoch_id(log[-1].path) not in ("", head.epoch_id):
        return f"the destination has records of another epoch {head.epoch}"
    own = next((one for one in log if one.end == (head.epoch, head.last)), None)
    if own is not None:
        found = own.seal()
        if found is None or found[0].sha256 == head.sha256:
            return ""
        return f"the destination has a segment up to {head.epoch}/{head.last} with other content"
    if (log[0].name.epoch, log[0].name.first) > (head.epoch, head.last):
        return ""
    return f"the destination has records up to {head.epoch}/{head.last}, which this log does not have"


def newest_epoch_id(data: Path, epoch: int) -> str:
    """The random id of an epoch, from the last segment of the log; "" if it does not name it. Raises OSError."""
    named = ((segment_name(path.name), path) for path in (data / "log").iterdir())
    having = [(name.first, path) for name, path in named if name is not None and name.epoch == epoch]
    return _epoch_id(max(having)[1]) if having else ""


def _epoch_id(segment: Path) -> str:
    """The random id of a segment's epoch; "" if its first record does not name it, or cannot be read."""
    name = segment_name(segment.name)
    with contextlib.suppress(FileNotFoundError, ValueError, msgspec.DecodeError), open_plain(segment) as file:
        sealed = name is not None and name.last is not None
        for line in frame_lines(file, RECORD_BYTES_MAX) if sealed else FrameReader(file.read()):
            return _named_epoch(check(line) + b"}").epoch_id
    return ""


def newest_epoch(data: Path) -> int:
    """The epoch of a data folder's log. Raises OSError."""
    names = (segment_name(path.name) for path in (data / "log").iterdir())
    return max((name.epoch for name in names if name is not None), default=1)


def request_new_epoch(data: Path, epoch: int, reason: str) -> None:
    """Lets the next start of the gateway end this epoch, if it is still in it. Raises OSError."""
    write_whole(data / EPOCH_REQUEST, msgspec.json.encode(EpochRequest(epoch, reason)) + b"\n")


def record_hash(data: Path, epoch: int, sequence: int) -> str:
    """The SHA-256 of a record's line in the log; "" if the log has it no more. Raises OSError."""
    named = ((path, segment_name(path.name)) for path in (data / "log").iterdir())
    having = [
        (name.first, path)
        for path, name in named
        if name is not None and name.epoch == epoch and name.first <= sequence <= (name.last or sequence)
    ]
    if not having:
        return ""
    with open_plain(max(having)[1]) as file:
        for line in FrameReader(file.read()):
            if place(line)[1:] == (epoch, sequence):
                return hashlib.sha256(line).hexdigest()
    return ""
