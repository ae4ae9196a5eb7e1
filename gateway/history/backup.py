"""Backups: a snapshot file, made by a running gateway or from the data folder of a stopped one."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lamplighter.engine.change_log import VERSION, Record
from lamplighter.engine.errors import ChangeLogError, ConfigurationError
from lamplighter.gateway.clock import Clock, iso
from lamplighter.gateway.disk import TEMPORARY, Disk
from lamplighter.gateway.history.records import History
from lamplighter.gateway.log import snapshots
from lamplighter.gateway.log.data_folder import take_lock
from lamplighter.gateway.log.snapshots import read_snapshot
from lamplighter.gateway.state.knowledge import snapshot_state
from lamplighter.gateway.state.stored_applications import StoredApplications


@dataclass(frozen=True)
class Backup:
    """A backup that was read from end to end. place: gateway, epoch and sequence; timers: pending delayed updates;
    applications: stored ones; None if it was made by a version that had none."""

    place: str
    ts: str
    quads: int
    timers: int
    applications: int | None
    bytes: int


def check(path: Path) -> Backup:
    """Reads a backup from end to end. Raises ChangeLogError if it is damaged, ConfigurationError for a newer one."""
    head, batches = read_snapshot(path)
    quads = sum(map(len, batches))
    state = snapshot_state(head)
    return Backup(
        f"{head.gw}/{head.epoch}/{head.seq}",
        head.ts,
        quads,
        len(state.delayed.pending),
        None if state.stored is None else len(state.stored),
        path.stat().st_size,
    )


def save(path: Path, chunks: Iterable[bytes]) -> Backup:
    """Writes a backup under a temporary name, syncs it, checks it, and renames it. Raises ChangeLogError,
    ConfigurationError, and the errors of `chunks`; then a file of that name is unchanged."""
    disk = Disk()
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        disk.write_temporary(temporary, chunks)
        backup = check(temporary)
        disk.rename(temporary, path)
        disk.sync_folder(path.parent)
    except OSError as error:
        raise ChangeLogError(str(error.strerror), path=path, hint="name a file that can be written") from error
    finally:
        with contextlib.suppress(OSError):
            disk.remove(temporary)
    return backup


def offline(data: Path, clock: Clock, told: Callable[[str], None]) -> Iterator[bytes]:
    """A backup of a data folder that no gateway uses, for `save`. Nothing is written there. told: called with each file
    that was skipped. Raises ConfigurationError when a gateway uses the folder, or ChangeLogError."""
    history = History(data, clock)
    with _lock(data):
        replay = history.replay(passed_over=lambda error: told(str(error)))
        replay.delayed_updates.rebase()
        epoch, sequence = replay.place
        head = Record(
            v=VERSION,
            type="snapshot",
            gw=(data / "identity").read_text().strip(),
            epoch=epoch,
            seq=sequence,
            ts=iso(clock.wall()),
            trusted=clock.trusted(),
            boot=clock.boot,
            boottime_us=clock.boottime_us(),
        )
        replay.knowledge.stored = StoredApplications(data, Disk())
        state = msgspec.json.encode(replay.knowledge.state())
        out = io.BytesIO()  # compressed, and so small beside the dataset in memory
        snapshots.write(out, head, replay.engine.store.graphs(), state, replay.engine.snapshot())
        yield out.getvalue()


@contextlib.contextmanager
def _lock(data: Path) -> Iterator[None]:
    """Keeps gateways from starting. Raises ConfigurationError when one runs."""
    file = os.open(data / "lock", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not take_lock(file):  # one that crashes again and again has it for moments
            raise ConfigurationError(
                f"data folder {data}: a gateway is using it, but does not answer at the configured address; "
                "name its settings with --config"
            )
        yield
    finally:
        os.close(file)
