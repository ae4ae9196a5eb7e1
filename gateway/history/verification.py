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

import json
import os
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lamplighter.engine.change_log import Record
from lamplighter.engine.client.files import json_document, read_file, read_text
from lamplighter.engine.errors import ChangeLogError, ConfigurationError
from lamplighter.engine.tables import count_text
from lamplighter.engine.terms import Quad
from lamplighter.gateway.clock import Clock
from lamplighter.gateway.history.findings import LOST, MAKE_A_BACKUP, DataProblem, Findings, Progress, Report, size
from lamplighter.gateway.history.log_check import LogCheck
from lamplighter.gateway.history.records import History, Replay
from lamplighter.gateway.log.damage import ACCEPTED, read_acceptance
from lamplighter.gateway.log.reader import LogReader
from lamplighter.gateway.log.retention import Shipped
from lamplighter.gateway.log.snapshots import Place, Snapshot, label, place_of, read_snapshot
from lamplighter.gateway.state.knowledge import SnapshotState, snapshot_state

if TYPE_CHECKING:
    from lamplighter.engine.core import Engine

_SHOWN_MAX = 3
_REMOVE_IT = "remove it; its records are then shipped again"
_NOT_APPLIED = (
    "the next start sets it aside with what follows, unless it can be applied then, and begins a new epoch with a gap "
    f"record; before, {MAKE_A_BACKUP}"
)


def verify(data: Path, clock: Clock, progress: Progress = lambda name, done, total: None) -> Report:
    """Reads everything. clock: of this machine, to detect a restart. Raises ConfigurationError."""
    return _Verification(data, clock, progress).run()


def acceptable(problem: DataProblem, data: Path) -> tuple[str, str, str]:
    """The path below the data folder, the place and the problem: what an acceptance names. Further damage to the file
    is another problem."""
    return os.path.relpath(problem.path, data), problem.place, problem.what


class _Verification:
    def __init__(self, data: Path, clock: Clock, progress: Progress) -> None:
        self._history = History(data, clock)
        self._data = data
        self._clock = clock
        self._findings = Findings(data, progress)
        self._report = self._findings.report

    def run(self) -> Report:
        snapshots = self._history.snapshots()
        segments = self._history.segments()
        # Sealed segments behind it are read twice, by the check and by the replay; snapshots too.
        replayed = (0, 0) if self._history.complete() or not snapshots else snapshots[0].place
        self._findings.total = (
            sum(size(segment.path) * (2 if segment.begin > replayed else 1) for segment in segments)
            + sum(size(snapshot.path) for snapshot in snapshots) * 2
        )
        self._check_identity()
        if self._report.gateway and not segments and not snapshots:
            cure = "restore a backup (`lamplighter restore`), or remove identity to begin anew under another name"
            self._findings.problem(self._data / "log", "", "the folder has a gateway's name, and its log is gone", cure)
        LogCheck(self._history, self._findings).run()
        whole = [snapshot for snapshot in snapshots if self._check_snapshot(snapshot)]
        self._report.snapshots = [snapshot.place for snapshot in whole]
        self._check_story(whole)
        self._check_cursor()
        for path in sorted((self._data / "damaged").glob("*")):
            self._report.notes.append(f"{path}: set aside by an earlier start")
        self._set_accepted_apart()
        return self._report

    def _set_accepted_apart(self) -> None:
        try:
            acceptance = read_acceptance(self._data)
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            what = f"cannot be read, so that what was accepted is listed again: {error}"
            self._report.notes.append(f"{self._data / ACCEPTED}: {what}")
            return
        accepted = {(one.path, one.place, one.what): one for one in acceptance.problems} if acceptance else {}
        found, self._report.problems = self._report.problems, []
        for problem in found:
            known = accepted.get(acceptable(problem, self._data))
            if known is None or not problem.is_lasting:
                self._report.problems.append(problem)
            else:
                self._report.accepted_problems.append(known)

    # --- single files ---

    def _check_identity(self) -> None:
        path = self._data / "identity"
        try:
            self._report.gateway = read_text(path, follow=False).removesuffix("\n")
            if read_file(path, follow=False) != f"{self._report.gateway}\n".encode():
                self._findings.problem(path, "", "it is not one line", "write the `gw` of the records into it")
        except (OSError, UnicodeDecodeError) as error:
            self._findings.problem(path, "", f"cannot be read: {error}", "write the `gw` of the records into it")

    # --- snapshots and the log together ---

    def _check_snapshot(self, snapshot: Snapshot) -> bool:
        self._findings.reading(snapshot.path)
        try:
            head, batches = read_snapshot(snapshot.path, snapshot.place)
            for _ in batches:
                pass
        except ChangeLogError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False  # a newer one has replaced it
            self._findings.problem(
                snapshot.path,
                "",
                str(error.__cause__),
                "the next start takes an older one; remove this, and make a backup",
            )
            return False
        self._findings.check_gateway(snapshot.path, head)
        return True

    def _check_story(self, snapshots: list[Snapshot]) -> None:
        """Replays from the oldest known state to the end, and compares with the snapshots on the way."""
        # Behind damage, which `LogCheck` has reported, it begins again with the next snapshot.
        replay, rest = Replay(self._clock, subscriptions=True), snapshots
        # Else the oldest snapshot is the beginning, and cannot be compared with anything.
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
            self._findings.problem(self._history.log, "", what, "restore a backup")
            return
        self._report.quads = replay.engine.quad_count
        for snapshot in rest:
            what = f"the log ends with record {label(replay.place)}, before this snapshot"
            self._findings.problem(snapshot.path, "", what, LOST)
        self._judge_end(reader)

    def _follow(self, replay: Replay, rest: list[Snapshot]) -> tuple[list[Snapshot], LogReader | None]:
        """Replays what can be read. Returns the later snapshots and the reader at its end, None short of it."""
        reader = LogReader(self._history.log, *replay.place, self._clock.boot)
        ahead = deque(segment for segment in reader.segments if segment.begin > replay.place)
        try:
            for record in reader:
                while ahead and ahead[0].begin <= place_of(record):
                    self._findings.reading(ahead.popleft().path, "replay ")
                rest = self._compare_snapshots(replay, rest, before=place_of(record))
                replay.follow(record)
                self._report.replayed += 1
            # What the native store refuses shows only when it is written.
            replay.engine.store.flush()
        except ConfigurationError:
            raise
        except ChangeLogError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            self._report.notes.append(
                f"{error.path}: sealed or evicted meanwhile, so nothing is said of what follows {label(replay.place)}"
            )
            return rest, None
        except Exception as error:
            what = f"this record, or one that was written to the store with it, cannot be applied: {error!r}"
            self._findings.problem(
                self._history.log, f"record {label((reader.epoch, reader.sequence))}", what, _NOT_APPLIED
            )
            return rest, None
        return self._compare_snapshots(replay, rest, before=(replay.place[0], replay.place[1] + 1)), reader

    def _compare_snapshots(self, replay: Replay, rest: list[Snapshot], before: Place) -> list[Snapshot]:
        """Compares the state with the snapshots of its place. Returns the others."""
        while rest and rest[0].place < before:
            self._compare(rest[0], replay)
            rest = rest[1:]
        return rest

    def _begin(self, replay: Replay, snapshot: Snapshot) -> bool:
        self._findings.reading(snapshot.path)
        try:
            replay.restore(*read_snapshot(snapshot.path, snapshot.place))
        except ChangeLogError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            self._report.notes.append(f"{snapshot.path}: a newer snapshot has replaced it; run the command again")
            return False
        except Exception as error:
            cure = "the next start takes an older one; remove this, and make a backup"
            self._findings.problem(snapshot.path, "", f"it cannot be applied: {error!r}", cure)
            return False
        return True

    def _judge_end(self, reader: LogReader) -> None:
        """Reports the end of the log as the next start would."""
        place = label((reader.epoch, reader.sequence))
        for trouble in reader.torn:
            self._report.notes.append(
                f"{trouble.segment.path}: byte {trouble.offset}: unreadable tail of "
                f"{count_text(trouble.bytes, 'byte')} behind record {place}: {trouble.reason}; nothing shows that it "
                "was acknowledged, the next start cuts it off"
            )
        if reader.damage is not None:
            self._findings.problem(
                reader.damage.aside[0].path,
                f"behind record {place}",
                reader.damage.reason,
                "the next start goes on from there, sets the rest aside and begins a new epoch with a gap record; "
                f"before, {MAKE_A_BACKUP}",
            )

    def _compare(self, snapshot: Snapshot, replay: Replay) -> None:
        from lamplighter.engine.core import Engine  # as a replay does

        self._findings.reading(snapshot.path)
        other = Engine()
        try:
            head, batches = read_snapshot(snapshot.path, snapshot.place)
            graphs = head.graphs.created if head.graphs else ()
            other.restore(batches, graphs, snapshot.sequence)
        except ChangeLogError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return
            raise
        for what in _differences(other, snapshot_state(head), replay):
            self._findings.problem(
                snapshot.path,
                f"record {label(snapshot.place)}",
                f"it is not what the records before it lead to: {what}",
                "keep it and the log for an analysis, and make a backup",
            )

    def _check_cursor(self) -> None:
        path = self._data / "shipped.json"
        try:
            cursor = json_document(read_file(path, follow=False), Shipped)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            self._findings.problem(path, "", f"cannot be read: {error}", _REMOVE_IT)
            return
        # The shipper would then leave out records that are written with these numbers later.
        if self._report.last is not None and (cursor.epoch, cursor.last) > self._report.last:
            what = f"it says that {cursor.epoch}/{cursor.last} was shipped, and the log ends before"
            self._findings.problem(path, "", what, _REMOVE_IT)


def _differences(snapshot: Engine, had: SnapshotState, replay: Replay) -> Iterator[str]:
    # Some of them: all could be millions.
    only = list(islice(_missing(snapshot, replay.engine), _SHOWN_MAX))
    lacks = list(islice(_missing(replay.engine, snapshot), _SHOWN_MAX))
    for quads, verb in ((only, "has"), (lacks, "lacks")):
        if quads:
            yield f"it {verb} {', '.join(quad.to_nquads() for quad in quads)} and perhaps more"
    if set(snapshot.store.graphs()) != set(replay.engine.store.graphs()):
        yield "it has other graphs"
    now = replay.knowledge.state()
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
