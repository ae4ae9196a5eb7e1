"""Verifies a data folder: every segment, every snapshot, and that they agree.

Nothing is written, and a gateway may use the folder. The checks:

- a sealed segment against its seal (sha256, size, count, first, last) and the seal against the one before it;
- each line against its checksum, its sequence against the one before it, over all segments and epochs;
- a snapshot from end to end;
- that each snapshot, with the records behind it, leads to the next one: quads, graphs, delayed updates, request ids and
applications. They are applied to a dataset in memory as at a start, with the resumable subscriptions, so that a good
result means that the gateway can start.

Not checked: the hash of a predecessor that was removed to free space; bits that zstd does not use, in a snapshot or an
unsealed segment, since no record depends on them.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import msgspec

from lamplighter.engine.change_log import VERSION, Gap, Record, Seal, decode, seal_name, segment_name
from lamplighter.engine.change_log.frames import FrameReader
from lamplighter.engine.core import Engine
from lamplighter.engine.errors import ChangeLogError, ConfigurationError
from lamplighter.engine.terms import Quad
from lamplighter.gateway.clock import Clock
from lamplighter.gateway.history.records import History, Replay
from lamplighter.gateway.log.reader import LogReader, Segment, ends
from lamplighter.gateway.log.retention import Shipped
from lamplighter.gateway.log.snapshots import Place, Snapshot, place_of, read_snapshot, shown
from lamplighter.gateway.state.knowledge import Known, known

Progress = Callable[[str, int, int], None]
"""Called with the next file, the bytes read, and the bytes of all files."""

_TRIES = 100
_SHOWN_MAX = 3
_BACKUP = "make a backup (`lamplighter backup FILE`), for the card may be failing"
_NOT_APPLIED = (
    "the next start sets it aside with what follows, unless it can be applied then, and begins a new epoch with a gap "
    f"record; before, {_BACKUP}"
)
_LOST = f"put back the copy that was shipped, if there is one, and {_BACKUP}"


@dataclass(frozen=True)
class Problem:
    """A problem. place: the position in the file, or the records."""

    path: Path
    place: str
    what: str
    cure: str

    def __str__(self) -> str:
        return f"{self.path}: {self.place}{': ' if self.place else ''}{self.what}; {self.cure}"


@dataclass
class Report:
    """The result. notes: facts that are no problem, such as gap records."""

    gateway: str = ""
    segments: int = 0
    sealed: int = 0
    records: int = 0
    first: Place | None = None
    last: Place | None = None
    snapshots: list[Place] = field(default_factory=list)
    quads: int = 0
    replayed: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Checked:
    """A segment that was read. last: the record behind which the next one has to continue; tail: what is wrong behind
    its good records, "" if nothing is."""

    segment: Segment
    seal: Seal | None
    first: Record | None
    last: Place | None
    tail: str
    bytes: int


def verify(data: Path, clock: Clock, progress: Progress = lambda name, done, total: None) -> Report:
    """Reads everything. clock: of this machine, to detect a restart. Raises ConfigurationError."""
    return _Verification(data, clock, progress).run()


class _Verification:
    def __init__(self, data: Path, clock: Clock, progress: Progress) -> None:
        self._history = History(data, clock)
        self._data = data
        self._clock = clock
        self._progress = progress
        self._report = Report()
        self._done = 0
        self._total = 0

    def run(self) -> Report:
        snapshots = self._history.snapshots()
        segments = self._history.segments()
        replayed = (0, 0) if self._history.complete() or not snapshots else snapshots[0].place
        self._total = (
            sum(_size(segment.path) * (2 if segment.begin > replayed else 1) for segment in segments)
            + sum(_size(snapshot.path) for snapshot in snapshots) * 2
        )
        self._check_identity()
        self._check_log()
        self._check_strays()
        whole = [snapshot for snapshot in snapshots if self._check_snapshot(snapshot)]
        self._report.snapshots = [snapshot.place for snapshot in whole]
        self._check_story(whole)
        self._check_cursor()
        for path in sorted((self._data / "damaged").glob("*")):
            self._report.notes.append(f"{path}: set aside by an earlier start")
        return self._report

    def _problem(self, path: Path, place: str, what: str, cure: str) -> None:
        self._report.problems.append(Problem(path, place, what, cure))

    def _reading(self, path: Path, what: str = "") -> None:
        self._progress(f"{what}{path.parent.name}/{path.name}", self._done, self._total)
        self._done += _size(path)

    # --- single files ---

    def _check_identity(self) -> None:
        path = self._data / "identity"
        try:
            self._report.gateway = path.read_text().removesuffix("\n")
            if path.read_bytes() != f"{self._report.gateway}\n".encode():
                self._problem(path, "", "it is not one line", "write the `gw` of the records into it")
        except (OSError, UnicodeDecodeError) as error:
            self._problem(path, "", f"cannot be read: {error}", "write the `gw` of the records into it")

    def _check_gateway(self, path: Path, record: Record) -> None:
        """Checks once whether the records are of this gateway."""
        if record.gw != self._report.gateway and not any(problem.path.name == "identity" for problem in self._problems):
            self._problem(
                self._data / "identity",
                "",
                f"it says {self._report.gateway!r}, and {path.name} has records of {record.gw!r}",
                "write the `gw` of the records into it, or look where the file came from",
            )

    @property
    def _problems(self) -> list[Problem]:
        return self._report.problems

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
                            before = checked if checked.segment.sealed else before
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
        data = segment.path.read_bytes()
        seal_text = self._seal_text(segment) if segment.sealed else None
        end = ends(self._history.segments()).get(segment.name.epoch)
        records, tail, offset = self._read(data, None if segment.sealed else end)
        while tail and not segment.sealed and (again := segment.path.read_bytes()) != data:  # it is being written
            data = again
            records, tail, offset = self._read(data, end)
        self._reading(segment.path)
        report, name = self._report, segment.name
        report.segments += 1
        report.records += len(records)
        last = None
        for record in records[:1]:
            self._check_gateway(segment.path, record)
            if place_of(record) != segment.begin:
                self._problem(
                    segment.path, "line 1", f"it begins with record {shown(place_of(record))}", "give it its name back"
                )
        for record in records:
            last = place_of(record)
            if record.gap is not None:
                report.notes.append(f"{segment.path}: record {shown(last)}: {_gap_text(record.gap)}")
        if report.first is None and records:
            report.first = place_of(records[0])
        report.last = last or report.last
        seal = None
        if segment.sealed:
            report.sealed += 1
            seal = self._check_seal(
                segment, data, seal_text, records[0].gw if records else self._report.gateway, bool(tail)
            )
            if tail:
                self._problem(segment.path, f"byte {offset}", f"{_behind(last)}: {tail}", _LOST)
            elif last != (name.epoch, name.last) or len(records) != (name.last or 0) - name.first + 1:
                self._problem(segment.path, "", f"{_behind(last)} it ends, not where its name says", _LOST)
        first = records[0] if records else None
        if name.last is not None:
            # Its damage was reported, and the others may be in order.
            last = name.epoch, name.last if end is None else min(name.last, end - 1)
        return _Checked(segment, seal, first, last, f"byte {offset}: {tail}" if tail else "", len(data) - offset)

    @staticmethod
    def _read(data: bytes, end: int | None = None) -> tuple[list[Record], str, int]:
        """The good records, what is wrong behind them, and where. end: the first that is no longer part of the log, if
        a recovery ended the epoch."""
        lines, records = FrameReader(data), list[Record]()
        for line in lines:
            try:
                record = decode(line)
                if records and place_of(record) != (records[-1].epoch, records[-1].seq + 1):
                    raise ValueError(f"record {shown(place_of(record))} follows {shown(place_of(records[-1]))}")
                if end is not None and record.seq >= end:
                    raise ValueError(f"an earlier start set aside what begins with record {shown(place_of(record))}")
            except ValueError as error:
                lines.stop(str(error))
                break
            records.append(record)
        return records, lines.tail.reason, lines.tail.offset

    @staticmethod
    def _seal_text(segment: Segment) -> bytes | None:
        """None if there is none. Raises FileNotFoundError if segment and seal went together."""
        try:
            return (segment.path.parent / seal_name(segment.name)).read_bytes()
        except FileNotFoundError:
            if not segment.path.exists():
                raise
            return None

    def _check_seal(self, segment: Segment, data: bytes, text: bytes | None, gateway: str, told: bool) -> Seal | None:
        path = segment.path.parent / seal_name(segment.name)
        cure = f"the records are in the segment; {_BACKUP}"
        if text is None:
            self._problem(path, "", "the seal of a sealed segment is missing", cure)
            return None
        try:
            seal = msgspec.json.decode(text, type=Seal)
            if text != msgspec.json.encode(seal) + b"\n":
                raise ValueError("it is not as it was written")
        except (ValueError, msgspec.MsgspecError) as error:
            self._problem(path, "", f"the seal cannot be read: {error}", cure)
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
                self._problem(segment.path if member in ("bytes", "sha256") else path, "", what, _LOST)
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
            if before.tail and not before.segment.sealed:
                self._report.notes.append(
                    f"{before.segment.path}: {before.tail}; {before.bytes} bytes are no part of the log, "
                    f"{this.segment.path.name} goes on behind record {shown(before.last)}"
                )
            return True
        later = [segment for segment in self._history.segments() if segment.begin > this.segment.begin]
        if any(_goes_on(before.last, *self._read(segment.path.read_bytes())[0][:1]) for segment in later):
            self._report.notes.append(f"{this.segment.path}: no part of the log any more; it can be removed")
            return False
        if self._still(before.segment):
            self._problem(
                this.segment.path,
                f"record {shown(place_of(first))}",
                f"the records behind {shown(before.last)} are missing{f' ({before.tail})' if before.tail else ''}",
                _LOST,
            )
        return True  # else they were removed to free space

    def _still(self, segment: Segment) -> bool:
        """Whether the records of a segment exist, perhaps under another name."""
        return any(other.begin == segment.begin for other in self._history.segments())

    def _broken(self, this: _Checked, found: str | None) -> None:
        assert this.seal is not None
        path = this.segment.path.parent / seal_name(this.segment.name)
        what = f"the chain is broken: previous is {this.seal.previous}, and the segment before has {found}"
        self._problem(path, "", what, _LOST)

    def _check_strays(self) -> None:
        """Reports unfinished sealings; the next start or the running gateway ends them."""
        used = {segment.path for segment in self._history.segments()}
        for path in sorted(self._history.log.iterdir()):
            if segment_name(path.name) is not None and path not in used and path.exists():
                self._report.notes.append(f"{path}: a sealing was under way, or interrupted; it will be finished")

    # --- snapshots and the log together ---

    def _check_snapshot(self, snapshot: Snapshot) -> bool:
        self._reading(snapshot.path)
        try:
            head, batches = read_snapshot(snapshot.path, snapshot.place)
            for _ in batches:
                pass
        except ChangeLogError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False  # a newer one has replaced it
            self._problem(
                snapshot.path,
                "",
                str(error.__cause__),
                "the next start takes an older one; remove this, and make a backup",
            )
            return False
        self._check_gateway(snapshot.path, head)
        return True

    def _check_story(self, snapshots: list[Snapshot]) -> None:
        """Replays from the oldest known state to the end, and compares with the snapshots on the way. Behind damage,
        which `_check_log` has reported, it begins again with the next snapshot."""
        replay, rest = Replay(self._clock, subscriptions=True), snapshots
        begun = self._history.complete()
        while begun or rest:
            if not begun:
                first, rest = rest[0], rest[1:]
                if not self._begin(replay, first):
                    return
            rest, reader = self._follow(replay, rest)
            if reader is None:
                return
            if not rest or reader.damage is None:
                break
            begun = False
        else:
            what = "it does not go back to the beginning, and there is no snapshot that is whole"
            self._problem(self._history.log, "", what, "restore a backup")
            return
        self._report.quads = replay.engine.quad_count
        for snapshot in rest:
            what = f"the log ends with record {shown(replay.place)}, before this snapshot"
            self._problem(snapshot.path, "", what, _LOST)
        self._judge_end(reader)

    def _follow(self, replay: Replay, rest: list[Snapshot]) -> tuple[list[Snapshot], LogReader | None]:
        """Replays as far as records can be read. Returns the later snapshots, and the reader at its end, None if it did
        not reach it."""
        reader = LogReader(self._history.log, *replay.place, self._clock.boot)
        ahead = deque(segment for segment in reader.segments if segment.begin > replay.place)
        try:
            for record in reader:
                while ahead and ahead[0].begin <= place_of(record):
                    self._reading(ahead.popleft().path, "replay ")
                rest = self._passed(replay, rest, before=place_of(record))
                replay.follow(record)
                self._report.replayed += 1
            replay.engine.flush()
        except ConfigurationError:
            raise
        except ChangeLogError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            self._report.notes.append(
                f"{error.path}: sealed or evicted meanwhile, so nothing is said of what follows {shown(replay.place)}"
            )
            return rest, None
        except Exception as error:
            what = f"this record, or one that was written to the store with it, cannot be applied: {error!r}"
            self._problem(self._history.log, f"record {shown((reader.epoch, reader.sequence))}", what, _NOT_APPLIED)
            return rest, None
        return self._passed(replay, rest, before=(replay.place[0], replay.place[1] + 1)), reader

    def _passed(self, replay: Replay, rest: list[Snapshot], before: Place) -> list[Snapshot]:
        """Compares the state with the snapshots of its place. Returns the others."""
        while rest and rest[0].place < before:
            self._compare(rest[0], replay)
            rest = rest[1:]
        return rest

    def _begin(self, replay: Replay, snapshot: Snapshot) -> bool:
        self._reading(snapshot.path)
        try:
            replay.restore(*read_snapshot(snapshot.path, snapshot.place))
        except ChangeLogError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            self._report.notes.append(f"{snapshot.path}: a newer snapshot has taken its place; run it once more")
            return False
        except Exception as error:
            cure = "the next start takes an older one; remove this, and make a backup"
            self._problem(snapshot.path, "", f"it cannot be applied: {error!r}", cure)
            return False
        return True

    def _judge_end(self, reader: LogReader) -> None:
        """Reports the end of the log as the next start would."""
        place = shown((reader.epoch, reader.sequence))
        for trouble in reader.torn:
            self._report.notes.append(
                f"{trouble.segment.path}: byte {trouble.offset}: unreadable tail of {trouble.bytes} bytes behind "
                f"record {place}: {trouble.reason}; nothing shows that it was acknowledged, the next start cuts it off"
            )
        if reader.damage is not None:
            self._problem(
                reader.damage.aside[0].path,
                f"behind record {place}",
                reader.damage.reason,
                "the next start goes on from there, sets the rest aside and begins a new epoch with a gap record; "
                f"before, {_BACKUP}",
            )

    def _compare(self, snapshot: Snapshot, replay: Replay) -> None:
        self._reading(snapshot.path)
        other = Engine()
        try:
            head, batches = read_snapshot(snapshot.path, snapshot.place)
            graphs = head.graphs.created if head.graphs else ()
            other.restore(batches, graphs, snapshot.sequence)
        except ChangeLogError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return
            raise
        for what in _differences(other, known(head), replay):
            self._problem(
                snapshot.path,
                f"record {shown(snapshot.place)}",
                f"it is not what the records before it lead to: {what}",
                "keep it and the log for whoever looks into it, and make a backup of what is right",
            )

    def _check_cursor(self) -> None:
        path = self._data / "shipped.json"
        try:
            cursor = msgspec.json.decode(path.read_bytes(), type=Shipped)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            self._problem(path, "", f"cannot be read: {error}", "remove it; what it tells of is then shipped again")
            return
        if self._report.last is not None and (cursor.epoch, cursor.last) > self._report.last:
            what = f"it says that {cursor.epoch}/{cursor.last} was shipped, and the log ends before"
            self._problem(path, "", what, "remove it; what it tells of is then shipped again")


def _differences(snapshot: Engine, had: Known, replay: Replay) -> Iterator[str]:
    """The differences between a snapshot and the replay."""
    only = list(islice(_missing(snapshot, replay.engine), _SHOWN_MAX))
    lacks = list(islice(_missing(replay.engine, snapshot), _SHOWN_MAX))
    for quads, verb in ((only, "has"), (lacks, "lacks")):
        if quads:
            yield f"it {verb} {', '.join(quad.to_nquads() for quad in quads)} and perhaps more"
    if set(snapshot.store.graphs()) != set(replay.engine.store.graphs()):
        yield "it has other graphs"
    now = replay.state()
    if [_timer(record) for record, _ in had.delayed.pending] != [_timer(record) for record, _ in now.delayed.pending]:
        yield "it has other delayed updates"
    if had.requests != now.requests:
        yield "it has other request ids"
    if had.applications != now.applications:
        yield f"it has the applications {json.dumps(had.applications)}"


def _missing(these: Engine, those: Engine) -> Iterator[Quad]:
    for batch in these.snapshot():
        for quad, there in zip(batch, those.store.contains(batch), strict=True):
            if not there:
                yield quad


def _timer(record: Record) -> tuple[Place, object]:
    return place_of(record), record.timer


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
    return "before its first record" if place is None else f"behind record {shown(place)}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
