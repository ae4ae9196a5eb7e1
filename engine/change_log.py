"""Change log: record <-> line of bytes (design section 5).

NDJSON, one line per record, terms in N-Quads syntax. The last member of each line is the CRC-32C of all
bytes before it, so a line that was cut short or damaged is known for what it is. Pure: files are
`gateway.log_writer`'s business, and the shipper reads segments with this module alone.
"""

from __future__ import annotations

import google_crc32c
import msgspec

from engine.delta import QuadDelta
from engine.errors import ConfigurationError
from engine.terms import Quad, Term

VERSION = 1
_CRC = b',"crc":"'
_TAIL = len(_CRC) + 8 + 2  # the member, eight hexadecimal digits, the closing quote and brace


class Cause(msgspec.Struct, frozen=True):
    """Why a record came about.

    kind: ``http``, ``ws``, ``mqtt``, ``timer``, ``application``...; id: which one of that kind; seq: the
    record that it reacts to, for timers and applications.
    """

    kind: str
    id: str
    seq: int | None = None


class Graphs(msgspec.Struct, frozen=True, omit_defaults=True):
    """Named graphs that came into being or ceased to be."""

    created: tuple[Term, ...] = ()
    dropped: tuple[Term, ...] = ()


class Timer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A delayed update (design section 6): delay_us after the record's boot time, or at a wall-clock time."""

    id: str
    update: str
    delay_us: int | None = None
    at: str | None = None


class Gap(msgspec.Struct, frozen=True):
    """History that was lost: the epoch before, its last sequence that is known, and where the rest was set aside."""

    epoch: int
    seq: int
    reason: str
    aside: str


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the change log. (gw, epoch, seq) is unique for ever; seq has no gaps within an epoch.

    type: commit, timer, cancel or gap. ts: wall clock, UTC; trusted: whether that clock was synchronised;
    boot, boottime_us: CLOCK_BOOTTIME, which no one steps. d, a, k: quads deleted, added, kept.
    """

    v: int
    type: str
    gw: str
    epoch: int
    seq: int
    ts: str
    trusted: bool
    boot: str
    boottime_us: int
    cause: Cause | None = None
    request: str | None = None
    graphs: Graphs | None = None
    d: tuple[Quad, ...] = ()
    a: tuple[Quad, ...] = ()
    k: tuple[Quad, ...] = ()
    timer: Timer | None = None
    cancel: str | None = None
    gap: Gap | None = None

    @property
    def delta(self) -> QuadDelta:
        graphs = self.graphs or Graphs()
        return QuadDelta(self.d, self.a, self.k, graphs.created, graphs.dropped)


def encode(record: Record) -> bytes:
    """The record's line, with its newline."""
    body = msgspec.json.encode(record)[:-1]
    return b'%s%s%08x"}\n' % (body, _CRC, google_crc32c.value(body))


def decode(line: bytes) -> Record:
    """The record in a line without its newline.

    Raises ValueError that says what is wrong with it, ConfigurationError for a record of a newer program.
    """
    body, tail = line[:-_TAIL], line[-_TAIL:]
    if not tail.startswith(_CRC) or not tail.endswith(b'"}'):
        raise ValueError("the line has no checksum at its end")
    if tail[len(_CRC) : -2] != b"%08x" % google_crc32c.value(body):
        raise ValueError("the checksum does not match")
    try:
        record = msgspec.json.decode(body + b"}", type=Record)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a record: {error}") from error
    if record.v != VERSION:
        # Nothing is wrong with it, so nothing may be cut off or set aside.
        raise ConfigurationError(
            f"the change log has a record of version {record.v}, and this program reads version {VERSION}; "
            "it was written by a newer program: run that one"
        )
    return record
