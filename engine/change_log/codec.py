"""Change log: record <-> line of bytes, and the names of its files (design section 5).

NDJSON, one line per record, terms in N-Quads syntax. The last member of each line is the CRC-32C of all
bytes before it, so a line that was cut short or damaged is known for what it is. Pure: files are
`gateway.log.writer`'s business, and the shipper reads segments with this module and `engine.change_log.frames` alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
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

INTEGER_MAX = 2**53
"""Of every number in a record: JSON readers of all languages agree up to there, and in microseconds it is 285 years."""
Count = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)]

RECORD_BYTES_MAX = 256 * 1024 * 1024
"""A longer line is not written: a collector would not read it."""
RECORD_REST_BYTES_MAX = 16 * 1024 * 1024
"""The same of what is in it besides quads."""

_CRC = b',"crc":"'
_TAIL = len(_CRC) + 8 + 2  # the member, eight hexadecimal digits, the closing quote and brace


class Cause(msgspec.Struct, frozen=True):
    """Why a record came about.

    kind: ``http``, ``ws``, ``mqtt``, ``timer``, ``application``...; id: which one of that kind; seq: the
    record that it reacts to, for timers and applications.
    """

    kind: str
    id: str
    seq: Count | None = None


class GraphChanges(msgspec.Struct, frozen=True, omit_defaults=True):
    """Named graphs that came into being or ceased to be."""

    created: tuple[Term, ...] = ()
    dropped: tuple[Term, ...] = ()


class Timer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A delayed update (design section 6): delay_us after the record's boot time, or at a wall-clock time.

    missed: what to do if it was due while the gateway was off, ``run`` or ``skip``; client: whose permissions count
    when it is due, where clients have names, None for the gateway's own.
    """

    id: str
    update: str
    delay_us: Count | None = None
    at: str | None = None
    missed: Missed = "run"
    client: str | None = None


class Gap(msgspec.Struct, frozen=True, omit_defaults=True):
    """History that is not in the log any more: records first to last of an epoch, all later ones where last is None.

    aside: the file in `damaged/` that has what could not be read.
    """

    epoch: Count
    first: Count
    reason: str
    last: Count | None = None
    aside: str | None = None


class Followed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A resumable subscription, from its ``subscribe`` record on until the ``unsubscribe`` record.

    keep_us: how long it waits for a client that is away; identity: whom it belongs to, where clients have one; visible:
    the graphs that it was permitted to see, null among them for the default graph, None for every graph.
    """

    spuid: str
    sparql: str
    keep_us: Count
    default_graphs: tuple[Term, ...] | None = None
    named_graphs: tuple[Term, ...] | None = None
    identity: str | None = None
    visible: tuple[Term | None, ...] | None = None


class SnapshotPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a line of a snapshot is: number 0 begins it, the last one closes it; between them are the quads, in `a`.

    state: the rest of what the gateway knew at that record, in the gateway's own form, on line 0, where the graphs
    of the dataset stand as created; quads: how many there are in all, on the last line.
    """

    number: Count
    last: bool = False
    state: msgspec.Raw = msgspec.Raw(b"null")
    quads: Count | None = None


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the change log. (gw, epoch, seq) is unique for ever; seq has no gaps within an epoch.

    type: commit, timer, cancel, subscribe, unsubscribe, gap or snapshot. ts: wall clock, UTC; trusted: whether that
    clock was synchronised; boot, boottime_us: CLOCK_BOOTTIME, which no one steps. client: who asked for it, where
    clients have names; each has request ids of its own. d, a, k: quads deleted, added, kept. synced: the last sequence
    that was known to be durable when this was written, now and then.
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

    @property
    def delta(self) -> QuadDelta:
        graphs = self.graphs or GraphChanges()
        return QuadDelta(self.d, self.a, self.k, graphs.created, graphs.dropped)


def encode(record: Record, slices: Slices = Slices()) -> bytes:  # noqa: B008 - it has no state
    """The record's line, with its newline."""
    if len(record.d) + len(record.a) + len(record.k) > LONG:
        members = {name: _encoded(getattr(record, name), slices) for name in ("d", "a", "k") if getattr(record, name)}
        record = msgspec.structs.replace(record, **members)
    body = _encode(record)[:-1]
    return b'%s%s%08x"}\n' % (body, _CRC, google_crc32c.value(body))


def _encoded(quads: Sequence[Quad], slices: Slices) -> msgspec.Raw:
    """Quads as JSON."""
    return msgspec.Raw(b"[%s]" % b",".join([_encode(some)[1:-1] for some in sliced(quads, slices)]))


def check(line: bytes) -> bytes:
    """The record in a line without its newline, as JSON but for the last brace; raises ValueError if it is damaged."""
    body, tail = line[:-_TAIL], line[-_TAIL:]
    if not tail.startswith(_CRC) or not tail.endswith(b'"}'):
        raise ValueError("a line has no checksum at its end")
    if tail[len(_CRC) : -2] != b"%08x" % google_crc32c.value(body):
        raise ValueError("the checksum of a line does not match")
    return body


def decode(line: bytes) -> Record:
    """The record in a line without its newline, with quads that a store can read.

    Raises ValueError that says what is wrong with it, ConfigurationError for a record of a newer program.
    """
    try:
        record = _decode(check(line) + b"}")
    except msgspec.DecodeError as error:
        raise ValueError(f"not a record: {error}") from error
    if record.v != VERSION:
        # Nothing is wrong with it, so nothing may be cut off or set aside.
        raise ConfigurationError(
            f"the change log has a record of version {record.v}, and this program reads version {VERSION}; "
            "it was written by a newer program: run that one"
        )
    # Only such lines can have terms that are too long or too deep: JSON may write a bracket as an escape.
    if len(line) > STATEMENT_BYTES_MAX or line.count(b"<<") > STORED_DEPTH_MAX or b"\\u" in line:
        check_stored(chain(record.d, record.a, record.k))
    return record


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


# --- files --------------------------------------------------------------------------------------------

SUFFIX = ".ndjson.zst"
_NAME = re.compile(r"([0-9]{1,9})-([0-9]{12})(?:-([0-9]{12}))?\.ndjson\.zst")


class SegmentName(NamedTuple):
    """What a segment's name says. last: its last sequence, None for one that is being written or not sealed yet."""

    epoch: int
    first: int
    last: int | None = None

    def __str__(self) -> str:
        last = "" if self.last is None else f"-{self.last:012d}"
        return f"{self.epoch}-{self.first:012d}{last}{SUFFIX}"


def segment_name(text: str) -> SegmentName | None:
    """The name of a segment, None for whatever else people put beside them."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    epoch, first, last = found.groups()
    return SegmentName(int(epoch), int(first), None if last is None else int(last))


class Seal(msgspec.Struct, frozen=True):
    """What stands beside a sealed segment, in `<stem>.json`: the file is whole if its sha256 is this one.

    count: its records; bytes: its size; previous: the sha256 of the segment sealed before it, None for the first.
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


def seal_name(name: SegmentName) -> str:
    """The name of the file with a sealed segment's seal."""
    return str(name).removesuffix(SUFFIX) + ".json"
