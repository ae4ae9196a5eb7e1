"""Change log: record <-> line of bytes, and the names of its files (docs/change-log.md).

The format is NDJSON, one line for each record, with terms in N-Quads syntax. The last member of each line is the
CRC-32C of all bytes before it, so truncated and damaged lines are detected. This module does no I/O:
`gateway.log.writer` writes the files, and the shipper reads them with this module and `engine.change_log.frames`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, chain
from typing import Annotated, Literal, NamedTuple

import google_crc32c
import msgspec

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.slices import LONG, Slices, sliced
from lamplighter.engine.term_bounds import STATEMENT_BYTES_MAX, check_stored
from lamplighter.engine.terms import STORED_DEPTH_MAX, Quad, Term

VERSION = 1

Missed = Literal["run", "skip"]

# The largest number in a record. JSON readers of all languages agree up to it; in microseconds it is 285 years.
INTEGER_MAX = 2**53
Count = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)]

# Bytes of the longest line that is written; a collector reads no longer ones.
RECORD_BYTES_MAX = 256 * 1024 * 1024
# Bytes of a line without its quads.
RECORD_REST_BYTES_MAX = 16 * 1024 * 1024

# Between the requests of which an update is made.
JOINT = ";\n"

_CRC = b',"crc":"'
_TAIL = len(_CRC) + 8 + 2  # the member, eight hexadecimal digits, the closing quote and brace


class Cause(msgspec.Struct, frozen=True):
    """The origin of a record.

    kind: ``http``, ``ws``, ``mqtt``, ``timer``, ``application``...; id: the client, timer or application; seq: for
    timers and applications, the record to which it reacts.
    """

    kind: str
    id: str
    seq: Count | None = None


class GraphChanges(msgspec.Struct, frozen=True, omit_defaults=True):
    """Named graphs that a commit creates and drops."""

    created: tuple[Term, ...] = ()
    dropped: tuple[Term, ...] = ()


class Timer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A delayed update, due delay_us after the record's boot time, or at a wall-clock time.

    missed: ``run`` or ``skip``, for an update that becomes due while the gateway is off. client: the client whose
    permissions apply when it is due, None for the gateway itself. parts: how many characters each of the requests has
    that the update is made of, with `JOINT` between them, if there are several; each has the limits of a request.
    """

    id: str
    update: str
    delay_us: Count | None = None
    at: str | None = None
    missed: Missed = "run"
    client: str | None = None
    parts: tuple[Count, ...] = ()

    @property
    def texts(self) -> list[str]:
        """The requests that the update is made of."""
        if not self.parts:
            return [self.update]
        ends = list(accumulate(self.parts, lambda end, length: end + len(JOINT) + length))
        return [self.update[end - length : end] for end, length in zip(ends, self.parts, strict=True)]


class Gap(msgspec.Struct, frozen=True, omit_defaults=True):
    """Lost records: first to last of an epoch, or all from first on if last is None.

    aside: the file in `damaged/` that contains the unreadable bytes.
    """

    epoch: Count
    first: Count
    reason: str
    last: Count | None = None
    aside: str | None = None


class Receiver(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the gateway delivers the notifications of a subscription, instead of to a client that connects.

    kind: ``webhook``, ``ldn`` or ``ngsild``; id: of the delivery, which stays when its subscription begins anew; url:
    of the receiver; until: when the lease ends, empty if it does not; alias: what the notifications carry; document:
    what else its door knows of it, as JSON.
    """

    kind: str
    id: str
    url: str
    until: str = ""
    alias: str | None = None
    document: str = ""


class Followed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A resumable subscription, from its ``subscribe`` record to its ``unsubscribe`` record.

    keep_us: how long it is kept while its client is disconnected. identity: its owner, if clients have identities.
    visible: the graphs that it may read, with null for the default graph; None for all graphs.
    planned: whether a plan follows it, so that its result follows from the dataset even if it has LIMIT, or aggregates
    whose value may depend on the order of solutions. A second record of a spuid says that it does not any more.
    instant: with which its comparisons with the clock began; empty if it has none.
    delivery: its receiver, if it has one; then its client is the gateway itself. A further record of a spuid renews the
    lease. A record of another spuid with the same delivery replaces the subscription.
    """

    spuid: str
    sparql: str
    keep_us: Count
    default_graphs: tuple[Term, ...] | None = None
    named_graphs: tuple[Term, ...] | None = None
    identity: str | None = None
    visible: tuple[Term | None, ...] | None = None
    planned: bool = False
    instant: str = ""
    delivery: Receiver | None = None


class SnapshotPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a snapshot. Line 0 begins it, the last line ends it; the lines between have the quads in `a`.

    state: on line 0, the state of the gateway besides the dataset, in the gateway's own form; that line also has the
    graphs of the dataset as created. quads: on the last line, the number of all quads.
    """

    number: Count
    last: bool = False
    state: msgspec.Raw = msgspec.Raw(b"null")
    quads: Count | None = None


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the change log. (gw, epoch, seq) is globally unique; seq has no gaps within an epoch.

    type: commit, timer, cancel, subscribe, unsubscribe, gap or snapshot. ts: wall-clock time in UTC; trusted: whether
    that clock was synchronised. boot, boottime_us: boot id and CLOCK_BOOTTIME, which is never stepped. client: the
    requesting client, if clients have names; request: its request id. instant: of comparisons with the clock in
    subscriptions, where it does not follow from the times of records. d, a, k: quads deleted, added, kept. synced: on
    some records, the last sequence that was known to be durable when the record was written. epoch_id: on the first
    record of a segment, the random id of its epoch: two epochs with the same number are two if it differs.
    """

    v: int
    type: str
    gw: str
    epoch: Count
    seq: Count
    ts: str
    trusted: bool
    boot: str
    boottime_us: Count
    cause: Cause | None = None
    request: str | None = None
    client: str | None = None
    instant: str = ""
    graphs: GraphChanges | None = None
    d: tuple[Quad, ...] = ()
    a: tuple[Quad, ...] = ()
    k: tuple[Quad, ...] = ()
    timer: Timer | None = None
    cancel: str | None = None
    gap: Gap | None = None
    subscribe: Followed | None = None
    unsubscribe: str | None = None
    snapshot: SnapshotPart | None = None
    synced: Count | None = None
    epoch_id: str = ""

    @property
    def delta(self) -> QuadDelta:
        graphs = self.graphs or GraphChanges()
        return QuadDelta(self.d, self.a, self.k, graphs.created, graphs.dropped)


def encode(record: Record, slices: Slices = Slices()) -> bytes:  # noqa: B008 - it has no state
    """The line of a record, with its newline."""
    if len(record.d) + len(record.a) + len(record.k) > LONG:
        members = {
            name: _encode_quads(getattr(record, name), slices) for name in ("d", "a", "k") if getattr(record, name)
        }
        record = msgspec.structs.replace(record, **members)
        slices.pause()
    body = _encode(record)[:-1]
    return b'%s%s%08x"}\n' % (body, _CRC, google_crc32c.value(body))


def _encode_quads(quads: Sequence[Quad], slices: Slices) -> msgspec.Raw:
    """Quads as JSON."""
    return msgspec.Raw(b"[%s]" % b",".join([_encode(some)[1:-1] for some in sliced(quads, slices)]))


def check(line: bytes) -> bytes:
    """The JSON of a record without its last brace, given its line without the newline. Raises ValueError if damaged."""
    body, tail = line[:-_TAIL], line[-_TAIL:]
    if not tail.startswith(_CRC) or not tail.endswith(b'"}'):
        raise ValueError("a line has no checksum at its end")
    if tail[len(_CRC) : -2] != b"%08x" % google_crc32c.value(body):
        raise ValueError("the checksum of a line does not match")
    return body


def decode(line: bytes) -> Record:
    """The record of a line without its newline. The store can read its quads.

    Raises ValueError with the reason for a damaged line, ConfigurationError for a record of a newer version.
    """
    try:
        record = _decode(check(line) + b"}")
    except msgspec.DecodeError as error:
        raise ValueError(f"not a record: {error}") from error
    if record.v != VERSION:
        # The record is intact, so recovery must not truncate or set aside the log.
        raise ConfigurationError(
            f"the change log has a record of version {record.v}, and this program reads version {VERSION}; "
            "it was written by a newer program: run that one"
        )
    # Only such lines can have terms that are too long or too deep. JSON may escape a bracket.
    if len(line) > STATEMENT_BYTES_MAX or line.count(b"<<") > STORED_DEPTH_MAX or b"\\u" in line:
        check_stored(chain(record.d, record.a, record.k))
    return record


class _Head(msgspec.Struct):
    v: int
    gw: str
    epoch: Count
    seq: Count


def place(line: bytes) -> tuple[str, int, int]:
    """(gw, epoch, seq) of a line that passed `check`. Reads the begin of the line only, in microseconds. Raises as
    `decode`.
    """
    # To `decode` a record of 720,000 quads takes 0.8 s, and no other thread runs meanwhile.
    found = line.find(_BEHIND_PLACE, 0, _PLACE_BYTES)
    if found >= 0:
        with suppress(msgspec.DecodeError):
            head = _decode_head(line[:found] + b"}")
            if head.v == VERSION:
                return head.gw, head.epoch, head.seq
    record = decode(line)
    return record.gw, record.epoch, record.seq


_BEHIND_PLACE = b',"ts":'
_PLACE_BYTES = 4096
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode
_decode_head = msgspec.json.Decoder(_Head).decode


# --- files --------------------------------------------------------------------------------------------

SUFFIX = ".ndjson.zst"
_NAME = re.compile(r"([0-9]{1,9})-([0-9]{12})(?:-([0-9]{12}))?\.ndjson\.zst")


class SegmentName(NamedTuple):
    """The name of a segment. last: its last sequence, None for an unsealed segment."""

    epoch: int
    first: int
    last: int | None = None

    def __str__(self) -> str:
        last = "" if self.last is None else f"-{self.last:012d}"
        return f"{self.epoch}-{self.first:012d}{last}{SUFFIX}"


def segment_name(text: str) -> SegmentName | None:
    """The parsed name of a segment, None for other files."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    epoch, first, last = found.groups()
    return SegmentName(int(epoch), int(first), None if last is None else int(last))


class Seal(msgspec.Struct, frozen=True):
    """The seal of a segment, in `<stem>.json` beside it. The segment is intact if its SHA-256 is sha256.

    count: its records; bytes: its size; previous: the SHA-256 of the segment sealed before it, None for the first.
    """

    v: int
    gw: str
    epoch: int
    first: int
    last: int
    count: int
    bytes: int
    sha256: str
    previous: str | None


# In the data folder: lets the next start of the gateway begin a new epoch.
EPOCH_REQUEST = "new-epoch.json"


class EpochRequest(msgspec.Struct, frozen=True):
    """epoch: the one that ends; a later one is left alone. reason: of the gap record that begins the new one."""

    epoch: int
    reason: str


def seal_name(name: SegmentName) -> str:
    """The file name of a sealed segment's seal."""
    return str(name).removesuffix(SUFFIX) + ".json"
