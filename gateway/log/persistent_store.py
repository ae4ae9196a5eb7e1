"""The dataset in a store on disk (RocksDB), for more data than fits into memory; the change log stays the truth.

The store is a copy of the log's state, ahead of the newest snapshot, and is written without sync. A start reuses it if
nothing was lost since the last write: it was closed cleanly, or the machine has not restarted, so that the kernel still
has the writes of a killed gateway. It is then rolled back to the snapshot, and the log is replayed as for a dataset in
memory. Otherwise it is rebuilt.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import msgspec

from lamplighter.engine.client.files import json_document, own_problem, read_file
from lamplighter.engine.client.state_files import file_content
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import Quad, Term
from lamplighter.gateway.log.reader import LogReader
from lamplighter.gateway.log.writer import LogWriter

logger = EventLogger(__name__)


class _Mark(msgspec.Struct, frozen=True):
    """`<data>/store.json`: the gateway of the store, the boot in which it was opened, whether it was closed."""

    gateway: str
    boot: str
    closed: bool


class PersistentStore:
    """The folder of a store, before it is opened and after it was closed. path: of the folder; log: opened."""

    def __init__(self, path: Path, log: LogWriter, boot: str) -> None:
        self.path = path
        self._log = log
        self._boot = boot
        self._mark = log.data / "store.json"

    def usable(self, epoch: int, sequence: int, *, anew: bool = False) -> QuadDelta | None:
        """The delta that rolls the store back to a record, whatever it has of later ones. None if it has to be rebuilt;
        then its folder is empty. Raises ConfigurationError when the folder cannot be changed."""
        delta = self._way_back(epoch, sequence) if self._is_trusted() and not anew else None
        try:
            if delta is None and self.path.exists():
                self.empty()
            try:
                # While it is open, it counts as closed no more.
                self._write_mark(closed=False)
            except OSError:  # the disk is full; without a mark the next start rebuilds the store
                self._log.disk.remove(self._mark)
        except OSError as error:
            raise ConfigurationError(
                f"store folder {self.path}: "
                + own_problem(error, self.path, "make it writable, or leave store.path empty")
            ) from error
        return delta

    def empty(self) -> None:
        """Removes the store. Raises OSError."""
        logger.warning("store rebuilt", path=self.path)
        self._log.disk.remove(self._mark)
        shutil.rmtree(self.path)

    def _is_trusted(self) -> bool:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            mark = json_document(read_file(self._mark, follow=False), _Mark)
            # RocksDB survives the end of a process, and not a power cut: within one boot, or after a clean end, it can
            # be used.
            return mark.gateway == self._log.gateway and (mark.closed or mark.boot == self._boot)
        return False

    def _way_back(self, epoch: int, sequence: int) -> QuadDelta | None:
        """A quad that was touched since the record was there before if the first to touch it removed it."""
        quads: dict[Quad, bool] = {}
        graphs: dict[Term, bool] = {}
        # The store may have more than the snapshot: it is taken back to it, and the log replayed as for a store in
        # memory.
        reader = LogReader(self._log.path, epoch, sequence, self._boot)
        for record in reader:
            delta = record.delta
            for present, members, names in ((True, delta.removed, delta.dropped), (False, delta.added, delta.created)):
                for quad in members:
                    # The first to touch it decides: if it removed the quad, the quad was there.
                    quads.setdefault(quad, present)
                for name in names:
                    graphs.setdefault(name, present)
        if reader.damage is not None:
            return None  # it may have quads that the log has lost
        return QuadDelta(
            removed=tuple(quad for quad, present in quads.items() if not present),
            added=tuple(quad for quad, present in quads.items() if present),
            created=tuple(name for name, present in graphs.items() if present),
            dropped=tuple(name for name, present in graphs.items() if not present),
        )

    def mark_closed(self) -> None:
        """Marks the store as closed; everything must be durable. Raises OSError."""
        self._write_mark(closed=True)

    def _write_mark(self, *, closed: bool) -> None:
        mark = _Mark(self._log.gateway, self._boot, closed)
        self._log.disk.write_file(self._mark, [file_content(self._mark, mark)])
