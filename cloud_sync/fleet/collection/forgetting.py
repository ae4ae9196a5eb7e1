"""Takes a gateway out of the collector's ledger, and keeps the collector away meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from lamplighter.cloud_sync.fleet.collection.landing import Landing
from lamplighter.cloud_sync.fleet.collection.ledger import FILE
from lamplighter.cloud_sync.fleet.collection.manifest import Manifest
from lamplighter.cloud_sync.fleet.collection.segment_check import Bounds
from lamplighter.cloud_sync.fleet.lake.folder import FORK
from lamplighter.engine.errors import BusyError, ConfigurationError

_BY_GATEWAY = ("segments", "seals", "lost", "snapshots", "histories", "claims", "landings", "epoch_ids")
_BY_PATH = (("objects", "path"), ("quarantined", "path"), ("listed", "folder"), ("pages", "folder"))


@contextlib.contextmanager
def collector_stopped(lake: Path) -> Iterator[None]:
    """Holds the collector's lock; the moves of one that was killed are done. Raises BusyError if one is running."""
    lock = os.open(lake / "collector.lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(f"{lake}: a collector is running; stop it, and run the command again") from error
        if (lake / FILE).exists():
            manifest = Manifest(lake, write=True)
            with contextlib.closing(manifest):
                Landing(lake, manifest, Bounds(), time.time).recover()
        yield
    finally:
        os.close(lock)


def forget_gateway(lake: Path, gateway: str) -> None:
    """Removes every row of a gateway from the ledger, and its bytes from the file. Hold `collector_stopped`."""
    if not (lake / FILE).exists():
        return
    Manifest(lake, write=True).close()  # checks the version
    try:
        with contextlib.closing(sqlite3.connect(lake / FILE, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            for table in _BY_GATEWAY:
                db.execute(f"DELETE FROM {table} WHERE gw = ? OR gw GLOB ?", (gateway, f"{gateway}{FORK}*"))
            for table, column in _BY_PATH:
                # "0" follows "/" in ASCII.
                db.execute(
                    f"DELETE FROM {table} WHERE {column} = ? OR ({column} >= ? AND {column} < ?)",
                    (gateway, f"{gateway}/", f"{gateway}0"),
                )
            db.execute("COMMIT")
            # Deleted rows stay in the file's free pages and in the log before it.
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise ConfigurationError(
            f"{lake / FILE}: {error}; end the processes that read it, and run the command again"
        ) from error
