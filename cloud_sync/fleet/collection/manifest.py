"""The collector's ledger (SQLite): what has landed, what is in quarantine, what gateways report as lost."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from lamplighter.cloud_sync.fleet.collection.landing_numbers import LandingNumbers
from lamplighter.cloud_sync.fleet.collection.ledger import (
    Arrivals,
    Landed,
    LogHistory,
    Object,
    Quarantined,
    open_ledger,
    transaction,
)
from lamplighter.cloud_sync.fleet.collection.missing import MissingRecords, Said, gaps_of_gateway
from lamplighter.cloud_sync.fleet.collection.segment_check import (
    EPOCH_MAX,
    SEQUENCE_MAX,
    CheckedSegment,
    CheckedSnapshot,
    Range,
    sealed_range,
)
from lamplighter.cloud_sync.fleet.lake.folder import gateway_of
from lamplighter.engine.change_log import Gap, Seal


class Manifest:
    """The manifest of a lake. One collector writes; other processes can read at the same time. It is one class because
    all queries share one connection and its transactions. landings: the numbers of the landed files."""

    def __init__(self, lake: Path, *, write: bool = False) -> None:
        self._db = open_ledger(lake, write=write)
        self.landings = LandingNumbers(self._db)

    def close(self) -> None:
        self._db.close()

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """Makes the statements of the block atomic, and durable at its end."""
        return transaction(self._db)

    # --- objects of the source ---

    def objects(self, folder: str, after: str = "", last: str | None = None) -> dict[str, Object]:
        """The known objects of a folder of the source, by stem. after: as in a listing; last: its last name."""
        begin = f"{folder}/{after.partition('.')[0]}"
        end = f"{folder}0" if last is None else f"{folder}/{last}"  # "0" follows "/" in ASCII
        rows = self._db.execute(
            "SELECT path, version, sha256, outcome, reason, at, answered FROM objects WHERE path >= ? AND path < ?",
            (begin, end),
        )
        return {
            path.removeprefix(f"{folder}/"): Object(*rest)
            for path, *rest in rows
            if "/" not in path.removeprefix(f"{folder}/")
        }

    def put_object(self, path: str, found: Object) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)",
            (path, found.version, found.sha256, found.outcome, found.reason, found.at, found.answered),
        )

    def unanswered_objects(self) -> list[tuple[str, Object]]:
        rows = self._db.execute(
            "SELECT path, version, sha256, outcome, reason, at, answered FROM objects WHERE answered = 0"
        )
        return [(path, Object(*rest)) for path, *rest in rows]

    def version(self, path: str) -> str:
        """The version of a known object."""
        (version,) = self._db.execute("SELECT version FROM objects WHERE path = ?", (path,)).fetchone()
        return str(version)

    def set_answered(self, paths: Iterable[str]) -> None:
        self._db.executemany("UPDATE objects SET answered = 1 WHERE path = ?", [(path,) for path in paths])

    def settled_listing(self, folder: str) -> tuple[str, float]:
        """(the name up to which all objects of a folder are settled, the time of its last full listing)."""
        row = self._db.execute("SELECT settled, full_at FROM listed WHERE folder = ?", (folder,)).fetchone()
        return row or ("", 0.0)

    def set_settled(self, folder: str, settled: str, full_at: float) -> None:
        self._db.execute("INSERT OR REPLACE INTO listed VALUES (?, ?, ?)", (folder, settled, full_at))

    def page(self, folder: str) -> str:
        """The name after which the next page of a large folder begins; "" for its start."""
        row = self._db.execute("SELECT after FROM pages WHERE folder = ?", (folder,)).fetchone()
        return "" if row is None else str(row[0])

    def set_page(self, folder: str, after: str) -> None:
        if after:
            self._db.execute("INSERT OR REPLACE INTO pages VALUES (?, ?)", (folder, after))
        else:
            self._db.execute("DELETE FROM pages WHERE folder = ?", (folder,))

    # --- segments and snapshots ---

    def landed_with(self, gw: str, epoch: int, first: int, last: int) -> list[Landed]:
        """The landed files that have one of these records, ascending."""
        rows = self._db.execute(
            "SELECT gw, epoch, first, last, source, at, ts FROM segments WHERE gw = ? AND epoch = ? AND first <= ? "
            # Only the last file before the range can reach into it.
            "AND first >= coalesce((SELECT max(first) FROM segments WHERE gw = ? AND epoch = ? AND first <= ?), 0) "
            "AND last >= ? ORDER BY first",
            (gw, epoch, last, gw, epoch, first, first),
        )
        return [Landed(*row) for row in rows]

    def all_landed(self, gw: str | None = None) -> Iterator[Landed]:
        """All landed files, sorted by gateway, epoch and sequence."""
        rows = self._db.execute(
            "SELECT gw, epoch, first, last, source, at, ts FROM segments WHERE ? IS NULL OR gw = ? "
            "ORDER BY gw, epoch, first",
            (gw, gw),
        )
        return (Landed(*row) for row in rows)

    def gateways(self) -> list[str]:
        """The gateways of which something has arrived."""
        rows = self._db.execute(
            "SELECT DISTINCT gw FROM segments UNION SELECT DISTINCT gw FROM snapshots "
            "UNION SELECT DISTINCT substr(path, 1, instr(path, '/') - 1) FROM quarantined ORDER BY 1"
        )
        return [gw for (gw,) in rows]

    def arrivals(self) -> list[Arrivals]:
        """The progress of each gateway."""
        found = []
        for gw in self.gateways():
            files, records, at = self._db.execute(
                "SELECT count(*), coalesce(sum(last - first + 1), 0), max(at) FROM segments WHERE gw = ?", (gw,)
            ).fetchone()
            newest = self._db.execute(
                "SELECT epoch, last, ts FROM segments WHERE gw = ? ORDER BY epoch DESC, first DESC LIMIT 1", (gw,)
            ).fetchone()
            snapshot = self._db.execute(
                "SELECT epoch, seq FROM snapshots WHERE gw = ? ORDER BY epoch DESC, seq DESC LIMIT 1", (gw,)
            ).fetchone()
            gaps = self.gaps(gw)
            missing = sum(gap.last - gap.first + 1 for gap in gaps if gap.last is not None and not gap.said)
            lost = sum(gap.last - gap.first + 1 for gap in gaps if gap.last is not None and gap.said)
            kept = len(self.quarantined_objects(gw))
            epoch, last, ts = newest or (None, None, None)
            of = self.history(gw)
            forked = "" if of.parent is None else f"{of.parent.name} at {of.epoch}/{of.seq}"
            found.append(Arrivals(gw, files, records, at, epoch, last, ts, snapshot, missing, lost, kept, forked))
        return found

    # --- histories ---

    def newest_place(self, name: str) -> tuple[int, int] | None:
        """Epoch and sequence of the last landed record of a history; None if nothing has landed."""
        return self._db.execute(  # type: ignore[no-any-return]
            "SELECT epoch, last FROM segments WHERE gw = ? ORDER BY epoch DESC, first DESC LIMIT 1", (name,)
        ).fetchone()

    def end_of_epoch(self, history: LogHistory, epoch: int) -> int | None:
        """The first sequence of an epoch that a history does not have any more, as the begin of its next one says; None
        if it has not said so."""
        before = EPOCH_MAX + 1, 0
        while True:
            (found,) = self._db.execute(
                "SELECT min(first) FROM lost "
                "WHERE gw = ? AND epoch = ? AND last IS NULL AND (by_epoch, by_seq) < (?, ?)",
                (history.name, epoch, *before),
            ).fetchone()
            if found is not None or history.parent is None:
                return found  # type: ignore[no-any-return]
            before, history = min(before, (history.epoch, history.seq + 1)), history.parent

    def epoch_id(self, history: LogHistory, epoch: int) -> str:
        """The random id of an epoch of a history; "" if no landed segment names it."""
        while history.parent is not None and (epoch, 1) <= (history.epoch, history.seq):
            history = history.parent
        found = self._db.execute(
            "SELECT id FROM epoch_ids WHERE gw = ? AND epoch = ?", (history.name, epoch)
        ).fetchone()
        return "" if found is None else str(found[0])

    def claim(self, file: str, gw: str, gaps: Iterable[Gap]) -> None:
        """Notes the losses that a segment in quarantine reports. Call it in a transaction."""
        for gap in gaps:
            self._db.execute(
                "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?)", (gw, file, gap.epoch, gap.first, gap.last)
            )

    def claims(self, gw: str) -> list[Gap]:
        """The losses that a gateway has reported, also those in segments that wait in quarantine."""
        rows = self._db.execute(
            "SELECT epoch, first, last FROM lost WHERE gw = ? UNION SELECT epoch, first, last FROM claims WHERE gw = ?",
            (gw, gw),
        )
        return [Gap(epoch, first, "", last) for epoch, first, last in rows]

    def histories(self, gw: str) -> list[LogHistory]:
        """The histories of a gateway, oldest first."""
        found = {1: LogHistory(gw)}
        with contextlib.suppress(sqlite3.OperationalError):  # the table is absent
            for number, parent, epoch, seq in self._db.execute(
                "SELECT number, parent, epoch, seq FROM histories WHERE gw = ? ORDER BY number", (gw,)
            ):
                found[number] = LogHistory(gw, number, found[parent], epoch, seq)
        return list(found.values())

    def history(self, name: str) -> LogHistory:
        """The history with a name in the lake."""
        return next(one for one in self.histories(gateway_of(name)) if one.name == name)

    def fork(self, history: LogHistory, at: str) -> None:
        """Begins a history that has a parent. Call it in a transaction."""
        assert history.parent is not None
        row = history.gateway, history.number, history.parent.number, history.epoch, history.seq, at
        self._db.execute("INSERT INTO histories VALUES (?, ?, ?, ?, ?, ?)", row)

    def landed_in(self, history: LogHistory, epoch: int, first: int, last: int) -> list[tuple[Landed, Range]]:
        """The landed files of a history and of those that it forked from, up to the forks, that have one of these
        records, ascending; with the range that belongs to the history."""
        found = [(one, one.range) for one in self.landed_with(history.name, epoch, first, last)]
        while history.parent is not None:
            end = last if epoch < history.epoch else history.seq if epoch == history.epoch else 0
            last, history = min(last, end), history.parent
            if last >= first:
                shared = self.landed_with(history.name, epoch, first, last)
                found += [(one, (one.first, min(one.last, last))) for one in shared]
        return sorted(found, key=lambda pair: pair[1])

    def is_linked(self, history: LogHistory, seal: Seal) -> bool:
        """Whether the segment that a seal names as the previous one has landed in a history, and ends before it; or one
        has landed that names this one."""
        if self._db.execute(
            "SELECT 1 FROM seals WHERE gw = ? AND epoch = ? AND first = ? AND previous = ?",
            (history.name, seal.epoch, seal.last + 1, seal.sha256),
        ).fetchone():
            return True
        if seal.previous is None:
            return False
        before = seal.epoch, seal.first  # records from here on are not those of the history
        while True:
            rows = self._db.execute(
                "SELECT epoch, last FROM seals WHERE gw = ? AND epoch = ? AND last = ? AND sha256 = ?",
                (history.name, seal.epoch, seal.first - 1, seal.previous),
            ).fetchall()
            if seal.first == 1:
                rows = self._db.execute(
                    "SELECT epoch, last FROM seals WHERE gw = ? AND epoch < ? AND sha256 = ?",
                    (history.name, seal.epoch, seal.previous),
                ).fetchall()
            if any(place < before for place in rows):
                return True
            if history.parent is None:
                return False
            before, history = min(before, (history.epoch, history.seq + 1)), history.parent

    def has_next(self, history: LogHistory, sha256: str) -> bool:
        """Whether a segment has landed in a history that names this one as the one before it."""
        found = self._db.execute("SELECT 1 FROM seals WHERE gw = ? AND previous = ?", (history.name, sha256)).fetchone()
        return found is not None

    def broken_chain(self, checked: CheckedSegment, history: LogHistory) -> str:
        """Why a segment does not fit between the landed ones of a history; "" if it fits.

        A seal may name no predecessor although there must have been one: its records were cut in another way, or the
        shipper made the seal.
        """
        # Its neighbours cannot know its hash.
        seal = checked.seal
        gw = history.name
        before = self._chain_hashes(gw, seal.epoch, last=seal.first - 1)
        if before and seal.previous is not None and seal.previous not in {sha256 for sha256, _ in before}:
            return (
                f"its seal names {seal.previous} as the previous segment, but the landed one is "
                f"{', '.join(sorted(sha256 for sha256, _ in before))}"
            )
        if seal.previous is None and (seal.epoch, seal.first) != (1, 1):
            return ""
        after = {previous for _, previous in self._chain_hashes(gw, seal.epoch, first=seal.last + 1) if previous}
        if after and seal.sha256 not in after and not self._chain_hashes(gw, seal.epoch, last=seal.last):
            return f"the next segment has landed, and its seal names {', '.join(sorted(after))} as the previous one"
        return ""

    def _chain_hashes(
        self, gw: str, epoch: int, *, first: int | None = None, last: int | None = None
    ) -> list[tuple[str, str | None]]:
        """(hash, predecessor's hash) of segments that begin or end there and name their predecessor, or have none."""
        column, value = ("last", last) if first is None else ("first", first)
        return self._db.execute(
            f"SELECT sha256, previous FROM seals WHERE gw = ? AND epoch = ? AND {column} = ? "
            "AND (previous IS NOT NULL OR (epoch = 1 AND first = 1))",
            (gw, epoch, value),
        ).fetchall()

    def take_in(
        self, checked: CheckedSegment, history: LogHistory, ranges: Iterable[Range], source: str, at: str
    ) -> None:
        """Records that a segment lands in a history with these ranges. Call it in a transaction."""
        seal, gw = checked.seal, history.name
        self._db.execute(
            "INSERT OR IGNORE INTO seals VALUES (?, ?, ?, ?, ?, ?)",
            (gw, seal.epoch, seal.first, seal.last, seal.sha256, seal.previous),
        )
        if checked.epoch_id and not self.epoch_id(history, seal.epoch):
            self._db.execute("INSERT OR IGNORE INTO epoch_ids VALUES (?, ?, ?)", (gw, seal.epoch, checked.epoch_id))
        for first, last in ranges:
            self._db.execute(
                "INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)",
                (gw, seal.epoch, first, last, source, at, checked.ts),
            )
            self.landings.add(gw, seal.epoch, first)
        for by_epoch, by_seq, gap in checked.gaps:
            self._db.execute(
                "INSERT OR IGNORE INTO lost VALUES (?, ?, ?, ?, ?, ?, ?)",
                (gw, by_epoch, by_seq, gap.epoch, gap.first, gap.last, gap.reason),
            )

    def snapshot(self, gw: str, epoch: int, seq: int) -> str | None:
        """The hash of a landed snapshot; None if it has not landed."""
        row = self._db.execute(
            "SELECT sha256 FROM snapshots WHERE gw = ? AND epoch = ? AND seq = ?", (gw, epoch, seq)
        ).fetchone()
        return None if row is None else row[0]

    def take_snapshot_in(self, checked: CheckedSnapshot, history: LogHistory, source: str, at: str) -> None:
        seal = checked.seal
        self._db.execute(
            "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (history.name, seal.epoch, seal.seq, seal.sha256, seal.bytes, seal.quads, source, at),
        )

    def _epochs(self, history: LogHistory | None) -> list[int]:
        """The epochs with landed records of a history and of those that it forked from."""
        found: set[int] = set()
        while history is not None:
            rows = self._db.execute("SELECT DISTINCT epoch FROM segments WHERE gw = ?", (history.name,))
            found |= {epoch for (epoch,) in rows}
            history = history.parent
        return sorted(found)

    # --- quarantine ---

    def quarantine(self, found: Quarantined) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO quarantined VALUES (?, ?, ?, ?, ?, ?, ?)",
            (found.file, found.path, found.sha256, found.kind, found.reason, found.at, found.seal),
        )

    def quarantined_objects(self, gw: str | None = None, kind: str | None = None) -> list[Quarantined]:
        # The key begins with the gateway; "0" follows "/" in ASCII.
        begin, end = ("", "\U0010ffff") if gw is None else (f"{gw}/", f"{gw}0")
        rows = self._db.execute(
            "SELECT file, path, sha256, kind, reason, at, seal FROM quarantined "
            "WHERE file >= ? AND file < ? AND (? IS NULL OR kind = ?) ORDER BY at, file",
            (begin, end, kind, kind),
        )
        return [Quarantined(*row) for row in rows]

    def quarantined_hash(self, file: str) -> str | None:
        row = self._db.execute("SELECT sha256 FROM quarantined WHERE file = ?", (file,)).fetchone()
        return None if row is None else row[0]

    def release(self, file: str) -> None:
        self._db.execute("DELETE FROM quarantined WHERE file = ?", (file,))
        self._db.execute("DELETE FROM claims WHERE file = ?", (file,))

    # --- planned moves ---

    def plan_moves(self, moves: Mapping[str, str]) -> None:
        """moves: source -> target, relative to the lake."""
        self._db.executemany("INSERT OR REPLACE INTO moves VALUES (?, ?)", moves.items())

    def moves(self) -> list[tuple[str, str]]:
        """(source, target), relative to the lake: moves that are not done, or not marked as done."""
        return list(self._db.execute("SELECT source, target FROM moves"))

    def forget_moves(self, sources: Iterable[str]) -> None:
        self._db.executemany("DELETE FROM moves WHERE source = ?", [(source,) for source in sources])

    # --- gaps ---

    def gaps(self, gw: str | None = None) -> list[MissingRecords]:
        """Records that have not landed, of one gateway or of all.

        They are before and between landed records, or after them if the gateway or a quarantined seal names the end of
        the epoch.
        """
        found: list[MissingRecords] = []
        for gateway in self.gateways() if gw is None else [gw]:
            found += self._gaps(gateway)
        return found

    def _gaps(self, gw: str) -> Iterator[MissingRecords]:
        lost: dict[int, list[Said]] = {}
        for epoch, first, last, reason in self._db.execute(
            "SELECT epoch, first, last, reason FROM lost WHERE gw = ? ORDER BY epoch, first", (gw,)
        ):
            lost.setdefault(epoch, []).append((first, last, reason))
        landed: dict[int, list[Range]] = {}
        of = self.history(gw)
        for epoch in self._epochs(of):
            landed[epoch] = [part for _, part in self.landed_in(of, epoch, 1, SEQUENCE_MAX)]
        kept: dict[int, list[Range]] = {}
        for seal in filter(None, (sealed_range(one.seal, gw) for one in self.quarantined_objects(gw))):
            kept.setdefault(seal.epoch, []).append((seal.first, seal.last))
        yield from gaps_of_gateway(gw, landed, lost, kept)
