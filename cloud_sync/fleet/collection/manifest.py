"""The collector's memory: what has landed, what is in quarantine, what the gateways say is lost (SQLite).

It decides; files follow. A file is made under `incoming/` and synced, the transaction that takes it in says where it
goes, and only then is it moved. A collector that was killed in between finds the moves that are left to be done.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from lamplighter.cloud_sync.fleet.collection.missing import Gap, Said, gaps_of_gateway
from lamplighter.cloud_sync.fleet.collection.segment_check import CheckedSegment, CheckedSnapshot, Range, sealed_range
from lamplighter.engine.errors import ConfigurationError

FILE = "manifest.sqlite"
VERSION = 1

_TABLES = """
CREATE TABLE objects (
  path TEXT PRIMARY KEY, version TEXT NOT NULL, sha256 TEXT NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL,
  at TEXT NOT NULL, answered INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX unanswered ON objects (path) WHERE answered = 0;
CREATE TABLE segments (
  gw TEXT NOT NULL, epoch INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, source TEXT NOT NULL,
  at TEXT NOT NULL, ts TEXT NOT NULL, PRIMARY KEY (gw, epoch, first)
) WITHOUT ROWID;
CREATE TABLE seals (
  gw TEXT NOT NULL, epoch INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, sha256 TEXT NOT NULL,
  previous TEXT, PRIMARY KEY (gw, epoch, first, last, sha256)
) WITHOUT ROWID;
CREATE INDEX seals_by_last ON seals (gw, epoch, last);
CREATE TABLE lost (
  gw TEXT NOT NULL, by_epoch INTEGER NOT NULL, by_seq INTEGER NOT NULL, epoch INTEGER NOT NULL, first INTEGER NOT NULL,
  last INTEGER, reason TEXT NOT NULL, PRIMARY KEY (gw, by_epoch, by_seq)
) WITHOUT ROWID;
CREATE TABLE snapshots (
  gw TEXT NOT NULL, epoch INTEGER NOT NULL, seq INTEGER NOT NULL, sha256 TEXT NOT NULL, bytes INTEGER NOT NULL,
  quads INTEGER NOT NULL, source TEXT NOT NULL, at TEXT NOT NULL, PRIMARY KEY (gw, epoch, seq)
) WITHOUT ROWID;
CREATE TABLE quarantined (
  file TEXT PRIMARY KEY, path TEXT NOT NULL, sha256 TEXT NOT NULL, kind TEXT NOT NULL, reason TEXT NOT NULL,
  at TEXT NOT NULL, seal BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE moves (source TEXT PRIMARY KEY, target TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE listed (folder TEXT PRIMARY KEY, settled TEXT NOT NULL, full_at REAL NOT NULL) WITHOUT ROWID;
"""
_PAGES = "CREATE TABLE IF NOT EXISTS pages (folder TEXT PRIMARY KEY, after TEXT NOT NULL) WITHOUT ROWID"
"""Only the collector uses it, and it may be absent: the version stays."""

LANDED, KNOWN, QUARANTINED = "landed", "known", "quarantined"
UNANSWERED, ANSWERED, ANSWERED_NEVER = 0, 1, 2


@dataclass(frozen=True)
class Landed:
    """A file in `segments/`: records first to last of an epoch, which no other landed file has.

    source: the object that they came in, and ts: of the last record in that, by its gateway's clock; at: when it
    landed. Times are RFC 3339.
    """

    gw: str
    epoch: int
    first: int
    last: int
    source: str
    at: str
    ts: str

    @property
    def range(self) -> Range:
        return self.first, self.last


@dataclass(frozen=True)
class Quarantined:
    """A file in `quarantine/`. file: relative to it; path: the object that it was at the source, without its suffix;
    kind: as of `Bad`."""

    file: str
    path: str
    sha256: str
    kind: str
    reason: str
    at: str
    seal: bytes


@dataclass(frozen=True)
class Arrivals:
    """What has come of a gateway. at: when a segment landed last; epoch, last, ts: of the last record, None where
    nothing has landed; snapshot: the last one's epoch and sequence; missing: records before it that have not landed and
    may be on their way; lost: those that the gateway says are; quarantined: objects."""

    gw: str
    files: int
    records: int
    at: str | None
    epoch: int | None
    last: int | None
    ts: str | None
    snapshot: tuple[int, int] | None
    missing: int
    lost: int
    quarantined: int


@dataclass(frozen=True)
class Object:
    """What was made of an object of the source. answered: whether it was told there."""

    version: str
    sha256: str
    outcome: str
    reason: str
    at: str
    answered: int


class Manifest:
    """The manifest of a lake. One collector writes; whoever reads may do so meanwhile."""

    def __init__(self, lake: Path, *, write: bool = False) -> None:
        path = lake / FILE
        if not write and not path.exists():
            raise ConfigurationError(f"{path}: there is no such file; collect into this lake first")
        if not path.exists() and any((lake / "segments").glob("*/*")):
            raise ConfigurationError(
                f"{path}: there is no such file, though segments have landed here; put it back from a copy, or collect "
                "into a new lake: without it records would land twice"
            )
        try:
            self._db = sqlite3.connect(
                f"file:{quote(str(path.absolute()))}?mode={'rwc' if write else 'ro'}", uri=True, isolation_level=None
            )
            if write:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if not version and write:
                with self.transaction():
                    for statement in filter(str.strip, _TABLES.split(";")):
                        self._db.execute(statement)
                    self._db.execute(f"PRAGMA user_version={VERSION}")
            elif version != VERSION:
                raise ConfigurationError(
                    f"{path}: its version is {version}, and this program's {VERSION}; it belongs to another program"
                )
            if write:
                self._db.execute(_PAGES)
        except sqlite3.Error as error:
            raise ConfigurationError(
                f"{path}: {error}; if it is damaged put it back from a copy, or collect into a new lake"
            ) from error

    def close(self) -> None:
        self._db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing, and durable at its end."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # --- objects of the source ---

    def objects(self, folder: str, after: str = "", last: str | None = None) -> dict[str, Object]:
        """What is known of the objects in a folder of the source, by stem; ``after`` as in a listing, ``last``: its
        last name."""
        begin = f"{folder}/{after.partition('.')[0]}"
        end = f"{folder}0" if last is None else f"{folder}/{last}"  # 0 is what follows a slash
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

    def unanswered(self) -> list[tuple[str, Object]]:
        rows = self._db.execute(
            "SELECT path, version, sha256, outcome, reason, at, answered FROM objects WHERE answered = 0"
        )
        return [(path, Object(*rest)) for path, *rest in rows]

    def version(self, path: str) -> str:
        """The version of an object that is known."""
        (version,) = self._db.execute("SELECT version FROM objects WHERE path = ?", (path,)).fetchone()
        return str(version)

    def set_answered(self, paths: Iterable[str]) -> None:
        self._db.executemany("UPDATE objects SET answered = 1 WHERE path = ?", [(path,) for path in paths])

    def settled(self, folder: str) -> tuple[str, float]:
        """(the name up to which everything in a folder is settled, when all of it was listed last)."""
        row = self._db.execute("SELECT settled, full_at FROM listed WHERE folder = ?", (folder,)).fetchone()
        return row or ("", 0.0)

    def set_settled(self, folder: str, settled: str, full_at: float) -> None:
        self._db.execute("INSERT OR REPLACE INTO listed VALUES (?, ?, ?)", (folder, settled, full_at))

    def page(self, folder: str) -> str:
        """The name behind which the next page of a folder begins that has too many for one turn; "" for its start."""
        row = self._db.execute("SELECT after FROM pages WHERE folder = ?", (folder,)).fetchone()
        return "" if row is None else str(row[0])

    def set_page(self, folder: str, after: str) -> None:
        if after:
            self._db.execute("INSERT OR REPLACE INTO pages VALUES (?, ?)", (folder, after))
        else:
            self._db.execute("DELETE FROM pages WHERE folder = ?", (folder,))

    # --- segments and snapshots ---

    def landed(self, gw: str, epoch: int, first: int, last: int) -> list[Landed]:
        """The landed files that have one of these records, in their order."""
        rows = self._db.execute(
            "SELECT gw, epoch, first, last, source, at, ts FROM segments WHERE gw = ? AND epoch = ? AND first <= ? "
            # The file before the range may reach into it; it is the only one before that can.
            "AND first >= coalesce((SELECT max(first) FROM segments WHERE gw = ? AND epoch = ? AND first <= ?), 0) "
            "AND last >= ? ORDER BY first",
            (gw, epoch, last, gw, epoch, first, first),
        )
        return [Landed(*row) for row in rows]

    def all_landed(self, gw: str | None = None) -> Iterator[Landed]:
        """All landed files in the order of gateway, epoch and sequence."""
        rows = self._db.execute(
            "SELECT gw, epoch, first, last, source, at, ts FROM segments WHERE ? IS NULL OR gw = ? "
            "ORDER BY gw, epoch, first",
            (gw, gw),
        )
        return (Landed(*row) for row in rows)

    def gateways(self) -> list[str]:
        """Those of which anything has come."""
        rows = self._db.execute(
            "SELECT DISTINCT gw FROM segments UNION SELECT DISTINCT gw FROM snapshots "
            "UNION SELECT DISTINCT substr(path, 1, instr(path, '/') - 1) FROM quarantined ORDER BY 1"
        )
        return [gw for (gw,) in rows]

    def arrivals(self) -> list[Arrivals]:
        """How far each gateway has come."""
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
            kept = len(self.quarantined(gw))
            epoch, last, ts = newest or (None, None, None)
            found.append(Arrivals(gw, files, records, at, epoch, last, ts, snapshot, missing, lost, kept))
        return found

    def broken_chain(self, checked: CheckedSegment) -> str:
        """What is wrong with a segment's place between those that have landed; "" if nothing is.

        A seal that names no predecessor, though there must have been one, is of the same records cut in another way,
        or was made by the shipper: its neighbours cannot know its hash.
        """
        seal = checked.seal
        before = self._chained(seal.gw, seal.epoch, last=seal.first - 1)
        if before and seal.previous is not None and seal.previous not in {sha256 for sha256, _ in before}:
            return (
                f"its seal names {seal.previous} as the segment before it, and the one that has landed is "
                f"{', '.join(sorted(sha256 for sha256, _ in before))}"
            )
        if seal.previous is None and (seal.epoch, seal.first) != (1, 1):
            return ""
        after = {previous for _, previous in self._chained(seal.gw, seal.epoch, first=seal.last + 1) if previous}
        if after and seal.sha256 not in after and not self._chained(seal.gw, seal.epoch, last=seal.last):
            return f"the segment behind it has landed, and names {', '.join(sorted(after))} as the one before it"
        return ""

    def _chained(
        self, gw: str, epoch: int, *, first: int | None = None, last: int | None = None
    ) -> list[tuple[str, str | None]]:
        """(hash, the predecessor's hash) of segments that begin or end there, and name their predecessor, or have
        none."""
        column, value = ("last", last) if first is None else ("first", first)
        return self._db.execute(
            f"SELECT sha256, previous FROM seals WHERE gw = ? AND epoch = ? AND {column} = ? "
            "AND (previous IS NOT NULL OR (epoch = 1 AND first = 1))",
            (gw, epoch, value),
        ).fetchall()

    def take_in(self, checked: CheckedSegment, ranges: Iterable[Range], source: str, at: str) -> None:
        """A segment is good, and lands with these ranges. In a transaction."""
        seal = checked.seal
        self._db.execute(
            "INSERT OR IGNORE INTO seals VALUES (?, ?, ?, ?, ?, ?)",
            (seal.gw, seal.epoch, seal.first, seal.last, seal.sha256, seal.previous),
        )
        for first, last in ranges:
            self._db.execute(
                "INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)",
                (seal.gw, seal.epoch, first, last, source, at, checked.ts),
            )
        for by_epoch, by_seq, gap in checked.gaps:
            self._db.execute(
                "INSERT OR IGNORE INTO lost VALUES (?, ?, ?, ?, ?, ?, ?)",
                (seal.gw, by_epoch, by_seq, gap.epoch, gap.first, gap.last, gap.reason),
            )

    def snapshot(self, gw: str, epoch: int, seq: int) -> str | None:
        """The hash of a snapshot that has landed."""
        row = self._db.execute(
            "SELECT sha256 FROM snapshots WHERE gw = ? AND epoch = ? AND seq = ?", (gw, epoch, seq)
        ).fetchone()
        return None if row is None else row[0]

    def take_snapshot_in(self, checked: CheckedSnapshot, source: str, at: str) -> None:
        seal = checked.seal
        self._db.execute(
            "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (seal.gw, seal.epoch, seal.seq, seal.sha256, seal.bytes, seal.quads, source, at),
        )

    # --- quarantine ---

    def quarantine(self, found: Quarantined) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO quarantined VALUES (?, ?, ?, ?, ?, ?, ?)",
            (found.file, found.path, found.sha256, found.kind, found.reason, found.at, found.seal),
        )

    def quarantined(self, gw: str | None = None, kind: str | None = None) -> list[Quarantined]:
        rows = self._db.execute(
            "SELECT file, path, sha256, kind, reason, at, seal FROM quarantined "
            "WHERE (? IS NULL OR path GLOB ? || '/*') AND (? IS NULL OR kind = ?) ORDER BY at, file",
            (gw, gw, kind, kind),
        )
        return [Quarantined(*row) for row in rows]

    def quarantined_hash(self, file: str) -> str | None:
        row = self._db.execute("SELECT sha256 FROM quarantined WHERE file = ?", (file,)).fetchone()
        return None if row is None else row[0]

    def release(self, file: str) -> None:
        self._db.execute("DELETE FROM quarantined WHERE file = ?", (file,))

    # --- files that are to be moved ---

    def plan_moves(self, moves: Mapping[str, str]) -> None:
        """Files from -> to, relative to the lake."""
        self._db.executemany("INSERT OR REPLACE INTO moves VALUES (?, ?)", moves.items())

    def moves(self) -> list[tuple[str, str]]:
        """(from, to), relative to the lake; those that were not done yet, or not marked as done."""
        return list(self._db.execute("SELECT source, target FROM moves"))

    def moved(self, sources: Iterable[str]) -> None:
        self._db.executemany("DELETE FROM moves WHERE source = ?", [(source,) for source in sources])

    # --- gaps ---

    def gaps(self, gw: str | None = None) -> list[Gap]:
        """What has not landed, of one gateway or of all: before and between the records that have, and behind them
        where the gateway or a seal in quarantine says how far an epoch went."""
        found: list[Gap] = []
        for gateway in self.gateways() if gw is None else [gw]:
            found += self._gaps(gateway)
        return found

    def _gaps(self, gw: str) -> Iterator[Gap]:
        lost: dict[int, list[Said]] = {}
        for epoch, first, last, reason in self._db.execute(
            "SELECT epoch, first, last, reason FROM lost WHERE gw = ? ORDER BY epoch, first", (gw,)
        ):
            lost.setdefault(epoch, []).append((first, last, reason))
        landed: dict[int, list[Range]] = {}
        for segment in self.all_landed(gw):
            landed.setdefault(segment.epoch, []).append(segment.range)
        kept: dict[int, list[Range]] = {}
        for seal in filter(None, (sealed_range(one.seal, gw) for one in self.quarantined(gw))):
            kept.setdefault(seal.epoch, []).append((seal.first, seal.last))
        yield from gaps_of_gateway(gw, landed, lost, kept)
