"""The data folder of a gateway: one gateway at a time uses it, and it has the gateway's name.

::

    <data>/lock        held by the running gateway
    <data>/identity    gw-xxxxxxxx, made at the first start
    <data>/new-epoch.json    a request: the next start begins a new epoch, as after damage
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import time
from pathlib import Path

import msgspec

from lamplighter.engine.change_log import EPOCH_REQUEST, EpochRequest
from lamplighter.engine.client.files import json_document, own_problem, read_file, read_text
from lamplighter.engine.errors import ChangeLogError, ConfigurationError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.disk import TEMPORARY, Disk

logger = EventLogger(__name__)

GONE = "the change log was removed, or another disk is mounted over it"
GONE_CURE = (
    "put the data folder back as it was; or save what the gateway still has with `lamplighter backup FILE`, restart "
    "it, and `lamplighter restore FILE`"
)
LOCK_WAIT_S = 3.0  # how long a start waits for the data folder


class DataFolder:
    """gateway: the gateway's name, once the folder is open."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self.gateway = ""
        self._disk = disk
        self._lock: int | None = None
        self.gone = False  # whether the log was removed, or covered by another file system, since it was opened
        self._log: os.stat_result | None = None  # its folder, as it was opened

    def open(self) -> None:
        """Makes and locks the folder. Raises ConfigurationError when it cannot be used or another gateway has it."""
        log, snapshots = self.path / "log", self.path / "snapshots"
        try:
            for folder in (self.path, log, snapshots, self.path / "damaged"):
                self._disk.make_folder(folder)
                os.scandir(folder).close()  # a closed one, as root restores it, is named here
            self._lock = _lock_file(self.path / "lock")
        except OSError as error:
            raise ConfigurationError(
                f"data folder {self.path}: "
                + own_problem(error, self.path, "name a folder that can be written with --data")
            ) from error
        if not take_lock(self._lock):
            self.close()
            raise ConfigurationError(
                f"data folder {self.path}: another gateway is using it; stop that one or name another with --data"
            )
        self._log = log.stat()
        self.gateway = self._identity()
        for folder in (log, snapshots):
            for path in folder.glob(f"*{TEMPORARY}"):
                with contextlib.suppress(OSError):
                    self._disk.remove(path)

    def look(self, segment: Path | None, file: int | None) -> None:
        """Looks whether the log is still where a start would find it, for `gone`. To be called now and then: what was
        appended before is in memory only, and a backup has it from there. segment, file: the one that is being written,
        and its descriptor."""
        log = self.path / "log"
        try:
            gone = self._log is not None and not os.path.samestat(log.stat(), self._log)
            if not gone and segment is not None and file is not None:
                gone = not os.path.samestat(segment.stat(), os.fstat(file))
        except FileNotFoundError:
            gone = True
        except OSError:  # it cannot be seen now, or the segment was just ended
            return
        if gone and not self.gone:
            logger.error("change log gone, updates are refused", path=log, cure=GONE_CURE)
        elif self.gone and not gone:
            logger.info("change log is back", path=log)
        self.gone = gone

    def refusal(self) -> ChangeLogError:
        """The error of an append while the log is `gone`."""
        return ChangeLogError(GONE, path=self.path / "log", hint=GONE_CURE)

    def _identity(self) -> str:
        path = self.path / "identity"
        try:
            if not path.exists():
                self._disk.write_file(path, [f"gw-{secrets.token_hex(4)}\n".encode()])
            name = read_text(path, follow=False).strip()
        except OSError as error:
            raise ConfigurationError(
                f"{path}: {own_problem(error, path, 'the first start has to write it')}"
            ) from error
        except UnicodeDecodeError:
            name = ""
        # Another name would make its log, and what it has shipped, that of another gateway.
        if not name or not name.isprintable():
            raise ConfigurationError(
                f"{path} is damaged; write the name of this gateway into it, the gw of `lamplighter log show --json "
                "--last 1`"
            )
        return name

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def requested_epoch(data: Path, epoch: int) -> str:
    """The reason to end an epoch, from `<data>/new-epoch.json`; "" if nobody has asked for it."""
    path = data / EPOCH_REQUEST
    try:
        request = json_document(read_file(path, follow=False), EpochRequest)
        return request.reason if request.epoch == epoch else ""
    except FileNotFoundError:
        return ""
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        logger.error("new epoch not begun", reason=f"{path}: {error}; run `lamplighter new-epoch` again")
        return ""


def take_lock(file: int) -> bool:
    """Takes the lock of a data folder for this process, if it is free within `LOCK_WAIT_S`."""
    # A killed gateway may have left a fork that is about to release it.
    end = time.monotonic() + LOCK_WAIT_S
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.05)


def _lock_file(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.ENOSPC):
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a gateway on a broken card still answers
