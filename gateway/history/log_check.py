"""Verifies the segments of a change log, their seals, and that each goes on where the one before it ends."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lamplighter.engine.change_log import VERSION, Gap, Record, Seal, decode, seal_name, segment_name
from lamplighter.engine.change_log.frames import FrameReader
from lamplighter.engine.client.files import read_file
from lamplighter.engine.tables import count_text
from lamplighter.gateway.history.findings import LOST, UNSEALED, Findings
from lamplighter.gateway.history.records import History
from lamplighter.gateway.log.reader import LOG_FILE_BYTES_MAX, Segment, ends
from lamplighter.gateway.log.snapshots import Place, label, place_of

_TRIES = 100


@dataclass(frozen=True)
class _Checked:
    """A segment. last: the record behind which the next one continues; tail: what is wrong behind, or ""."""

    segment: Segment
    seal: Seal | None
    first: Record | None
    last: Place | None
    tail: str
    bytes: int


class LogCheck:
    """One pass over the segments. A gateway may write, seal and remove them meanwhile."""

    def __init__(self, history: History, findings: Findings) -> None:
        self._history = history
        self._findings = findings
        self._report = findings.report

    def run(self) -> None:
        self._check_log()
        self._check_strays()

    def _check_log(self) -> None:
        before: _Checked | None = None
        reached = (0, 0)
        tries = 0
        while True:
            try:
                for segment in self._history.segments():
                    if segment.begin > reached:
                        checked = self._check_segment(segment)
                        if checked.first is None:
                            before = checked if checked.segment.is_sealed else before
                        elif self._check_order(before, checked, checked.first):
                            before = checked
                        reached, tries = segment.begin, 0
                return
            except FileNotFoundError:  # sealed, or removed to free space
                tries += 1
                if tries > _TRIES:
                    raise

    def _check_segment(self, segment: Segment) -> _Checked:
        """Checks a segment by itself, except the tail of an unsealed one."""
        data = _content(segment.path)
        seal_text = self._seal_text(segment) if segment.is_sealed else None
        end = ends(self._history.segments()).get(segment.name.epoch)
        records, tail, offset = self._good_records(data, None if segment.is_sealed else end)
        while tail and not segment.is_sealed and (again := _content(segment.path)) != data:  # it is being written
            data = again
            records, tail, offset = self._good_records(data, end)
        self._findings.reading(segment.path)
        report, name = self._report, segment.name
        report.segments += 1
        report.records += len(records)
        last = None
        for record in records[:1]:
            self._findings.check_gateway(segment.path, record)
            if place_of(record) != segment.begin:
                self._findings.problem(
                    segment.path, "line 1", f"it begins with record {label(place_of(record))}", "rename it as before"
                )
        for record in records:
            last = place_of(record)
            if record.gap is not None:
                report.notes.append(f"{segment.path}: record {label(last)}: {_gap_text(record.gap)}")
        if report.first is None and records:
            report.first = place_of(records[0])
        report.last = last or report.last
        seal = None
        if segment.is_sealed:
            report.sealed += 1
            seal = self._check_seal(
                segment, data, seal_text, records[0].gw if records else self._report.gateway, bool(tail)
            )
            if tail:
                self._findings.problem(segment.path, f"byte {offset}", f"{_behind(last)}: {tail}", LOST)
            elif last != (name.epoch, name.last) or len(records) != (name.last or 0) - name.first + 1:
                self._findings.problem(segment.path, "", f"{_behind(last)} it ends, not where its name says", LOST)
        first = records[0] if records else None
        if name.last is not None:
            # Its damage was reported, and the others may be in order.
            last = name.epoch, name.last if end is None else min(name.last, end - 1)
        return _Checked(segment, seal, first, last, f"byte {offset}: {tail}" if tail else "", len(data) - offset)

    @staticmethod
    def _good_records(data: bytes, end: int | None = None) -> tuple[list[Record], str, int]:
        """The good records, what is wrong behind them, and where. end: the first behind the end of the epoch."""
        lines, records = FrameReader(data), list[Record]()
        for line in lines:
            try:
                record = decode(line)
                if records and place_of(record) != (records[-1].epoch, records[-1].seq + 1):
                    raise ValueError(f"record {label(place_of(record))} follows {label(place_of(records[-1]))}")
                if end is not None and record.seq >= end:
                    raise ValueError(f"an earlier start set aside what begins with record {label(place_of(record))}")
            except ValueError as error:
                lines.stop(str(error))
                break
            records.append(record)
        return records, lines.tail.reason, lines.tail.offset

    @staticmethod
    def _seal_text(segment: Segment) -> bytes | None:
        """None if there is none. Raises FileNotFoundError if segment and seal went together."""
        try:
            return read_file(segment.path.parent / seal_name(segment.name), follow=False)
        except FileNotFoundError:
            if not segment.path.exists():
                raise
            return None

    def _check_seal(self, segment: Segment, data: bytes, text: bytes | None, gateway: str, told: bool) -> Seal | None:
        path = segment.path.parent / seal_name(segment.name)
        if text is None:
            self._findings.problem(path, "", "the seal of a sealed segment is missing", UNSEALED)
            return None
        try:
            seal = msgspec.json.decode(text, type=Seal)
            if text != msgspec.json.encode(seal) + b"\n":
                raise ValueError("it is not as it was written")
        except (ValueError, msgspec.MsgspecError) as error:
            self._findings.problem(path, "", f"the seal cannot be read: {error}", UNSEALED)
            return None
        name, found_sha256 = segment.name, hashlib.sha256(data).hexdigest()
        for member, said, found in (
            ("v", seal.v, VERSION),
            ("gw", seal.gw, gateway),
            ("epoch", seal.epoch, name.epoch),
            ("first", seal.first, name.first),
            ("last", seal.last, name.last),
            ("count", seal.count, seal.last - seal.first + 1),
            *(() if told else (("bytes", seal.bytes, len(data)), ("sha256", seal.sha256, found_sha256))),
        ):
            if said != found:
                what = f"{member} is {said} in the seal, and {found} in truth"
                self._findings.problem(segment.path if member in ("bytes", "sha256") else path, "", what, LOST)
        return seal

    def _check_order(self, before: _Checked | None, this: _Checked, first: Record) -> bool:
        """Checks a segment against the one before it. False if it is no longer part of the log."""
        if before is None:
            if this.segment.begin == (1, 1) and this.seal is not None and this.seal.previous is not None:
                self._broken(this, None)
            return True
        if before.seal is not None and this.seal is not None and this.seal.previous != before.seal.sha256:
            self._broken(this, before.seal.sha256)
        assert before.last is not None
        if _goes_on(before.last, first):
            if before.tail and not before.segment.is_sealed:
                self._report.notes.append(
                    f"{before.segment.path}: {before.tail}; the log leaves out {count_text(before.bytes, 'byte')}, "
                    f"{this.segment.path.name} goes on behind record {label(before.last)}"
                )
            return True
        later = [segment for segment in self._history.segments() if segment.begin > this.segment.begin]
        if any(_goes_on(before.last, *self._good_records(_content(segment.path))[0][:1]) for segment in later):
            self._report.notes.append(f"{this.segment.path}: no longer part of the log; it can be removed")
            return False
        if self._still(before.segment):
            self._findings.problem(
                this.segment.path,
                f"record {label(place_of(first))}",
                f"the records behind {label(before.last)} are missing{f' ({before.tail})' if before.tail else ''}",
                LOST,
            )
        return True  # else they were removed to free space

    def _still(self, segment: Segment) -> bool:
        """Whether the records of a segment exist, perhaps under another name."""
        return any(other.begin == segment.begin for other in self._history.segments())

    def _broken(self, this: _Checked, found: str | None) -> None:
        assert this.seal is not None
        path = this.segment.path.parent / seal_name(this.segment.name)
        what = f"the chain is broken: previous is {this.seal.previous}, and the segment before has {found}"
        self._findings.problem(path, "", what, LOST)

    def _check_strays(self) -> None:
        """Reports unfinished sealings; the next start or the running gateway ends them."""
        used = {segment.path for segment in self._history.segments()}
        for path in sorted(self._history.log.iterdir()):
            if segment_name(path.name) is not None and path not in used and path.exists():
                self._report.notes.append(f"{path}: a sealing was under way, or interrupted; it will be finished")


def _goes_on(last: Place, first: Record | None = None) -> bool:
    """Whether a record follows the one at a place, in its epoch or with the gap record of the next one."""
    if first is None:
        return False
    gap = first.gap
    next_ = last[0], last[1] + 1
    return place_of(first) == next_ or (
        gap is not None and gap.last is None and first.seq == 1 and (gap.epoch, gap.first) == next_
    )


def _gap_text(gap: Gap) -> str:
    last = "on" if gap.last is None else f"to {gap.epoch}/{gap.last}"
    return f"the records from {gap.epoch}/{gap.first} {last} are lost: {gap.reason}"


def _behind(place: Place | None) -> str:
    return "before its first record" if place is None else f"behind record {label(place)}"


def _content(path: Path) -> bytes:
    """The bytes of a segment. Raises OSError."""
    return read_file(path, LOG_FILE_BYTES_MAX, follow=False)
