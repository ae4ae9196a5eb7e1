"""The file of the collector's ledger (SQLite), its tables, and the values in them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from lamplighter.cloud_sync.fleet.collection.segment_check import Range
from lamplighter.cloud_sync.fleet.lake.folder import FORK
from lamplighter.engine.change_log import SegmentName
from lamplighter.engine.client.state_files import NEWER_CURE
from lamplighter.engine.errors import ConfigurationError

FILE = "manifest.sqlite"
VERSION = 1
# Of a lake with packed segments. Earlier versions do not see packs, so their `forget` would leave data in them: they
# refuse this version.
PACKED_VERSION = 2

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
# These tables may be absent. They need no new version: an earlier collector quarantines what has another history.
_LATER_TABLES = (
    "CREATE TABLE IF NOT EXISTS pages (folder TEXT PRIMARY KEY, after TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS histories (gw TEXT NOT NULL, number INTEGER NOT NULL, parent INTEGER NOT NULL, "
    "epoch INTEGER NOT NULL, seq INTEGER NOT NULL, at TEXT NOT NULL, PRIMARY KEY (gw, number)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS claims (gw TEXT NOT NULL, file TEXT NOT NULL, epoch INTEGER NOT NULL, "
    "first INTEGER NOT NULL, last INTEGER, PRIMARY KEY (gw, file, epoch, first)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS landings (number INTEGER PRIMARY KEY AUTOINCREMENT, gw TEXT NOT NULL, "
    "epoch INTEGER NOT NULL, first INTEGER NOT NULL, UNIQUE (gw, epoch, first))",
    "CREATE TABLE IF NOT EXISTS epoch_ids (gw TEXT NOT NULL, epoch INTEGER NOT NULL, id TEXT NOT NULL, "
    "PRIMARY KEY (gw, epoch)) WITHOUT ROWID",
)

LANDED, KNOWN, QUARANTINED = "landed", "known", "quarantined"
UNANSWERED, ANSWERED, ANSWERED_NEVER = 0, 1, 2


@dataclass(frozen=True)
class LogHistory:
    """A history of a gateway. number: 1 for the first; epoch, seq: the last record that it shares with its parent."""

    gateway: str
    number: int = 1
    parent: LogHistory | None = None
    epoch: int = 0
    seq: int = 0

    @property
    def name(self) -> str:
        """In the lake. No gateway has such a name."""
        return self.gateway if self.number == 1 else f"{self.gateway}{FORK}{self.number}"


@dataclass(frozen=True)
class Landed:
    """A file in `segments/` with records first to last of an epoch. No other landed file has these records.

    source: the object that they came in; ts: of that object's last record, by the gateway's clock; at: when it landed.
    Times are RFC 3339.
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

    @property
    def segment(self) -> str:
        """The file, relative to `segments/`."""
        return f"{self.gw}/{SegmentName(self.epoch, self.first, self.last)}"


@dataclass(frozen=True)
class Quarantined:
    """A file in `quarantine/`. file: relative to it; path: of its object at the source, without suffix; kind: as in
    `Bad`."""

    file: str
    path: str
    sha256: str
    kind: str
    reason: str
    at: str
    seal: bytes


@dataclass(frozen=True)
class Arrivals:
    """The progress of a gateway. at: when the last segment landed; epoch, last, ts: of the last record, None if nothing
    has landed; snapshot: epoch and sequence of the last one; missing: earlier records that may still arrive; lost:
    records that the gateway reports as lost; quarantined: number of objects; forked: of a later history, the last
    record that it shares with an earlier one."""

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
    forked: str = ""


@dataclass(frozen=True)
class Object:
    """The outcome of an object of the source. answered: whether the answer was written there."""

    version: str
    sha256: str
    outcome: str
    reason: str
    at: str
    answered: int


def open_ledger(lake: Path, *, write: bool) -> sqlite3.Connection:
    """The ledger of a lake. write: makes it if there is none. Raises ConfigurationError."""
    path = lake / FILE
    if not write and not path.exists():
        raise ConfigurationError(f"{path}: there is no such file; collect into this lake first")
    if not path.exists() and any((lake / "segments").glob("*/*")):
        raise ConfigurationError(
            f"{path}: the file is missing, but the lake has segments; restore it from a backup, or collect into a "
            "new lake: without it records would land twice"
        )
    try:
        db = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?mode={'rwc' if write else 'ro'}", uri=True, isolation_level=None
        )
        with contextlib.ExitStack() as failing:
            failing.callback(db.close)
            _prepare(db, path, write=write)
            failing.pop_all()
    except sqlite3.Error as error:
        raise ConfigurationError(
            f"{path}: {error}; if it is damaged, restore it from a backup, or collect into a new lake"
        ) from error
    return db


def _prepare(db: sqlite3.Connection, path: Path, *, write: bool) -> None:
    """Checks the version; makes the tables if it may write."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version not in (0, VERSION, PACKED_VERSION):
        raise ConfigurationError(
            f"{path}: a newer version of Lamplighter wrote it (version {version}, and this version reads "
            f"{PACKED_VERSION}); {NEWER_CURE}"
        )
    if not write:
        if not version:
            raise ConfigurationError(f"{path}: it has no tables yet; collect into this lake first")
        return
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    if not version:
        with transaction(db):
            for statement in filter(str.strip, _TABLES.split(";")):
                db.execute(statement)
            db.execute(f"PRAGMA user_version={VERSION}")
    for statement in _LATER_TABLES:
        db.execute(statement)


def set_packed(lake: Path, packed: bool) -> None:
    """Says in the ledger, if there is one, whether the lake has packed segments. Raises ConfigurationError."""
    if not (lake / FILE).exists():
        return
    with contextlib.closing(open_ledger(lake, write=True)) as db:
        try:
            db.execute(f"PRAGMA user_version={PACKED_VERSION if packed else VERSION}")
        except sqlite3.Error as error:
            raise ConfigurationError(f"{lake / FILE}: {error}; run the command again") from error


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Makes the statements of the block atomic, and durable at its end."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
