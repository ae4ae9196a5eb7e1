"""The data folder, as a start finds it: whether it is seen, may be written and belongs to the service, and free disk
space."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from lamplighter.gateway.gates.protection_check import FOLDER
from lamplighter.gateway.service.unit_view import UnitView
from lamplighter.gateway.settings import Settings


def unwritable(folder: Path, unit: UnitView) -> str:
    return (
        f"{folder}: {unit.name} may not write there; `systemctl edit {unit.name}`, and below [Service] "
        f"ReadWritePaths={folder.absolute()}"
    )


def check_data(settings: Settings, data: Path, unit: UnitView, faults: list[str], notes: list[str]) -> None:
    """Adds what is wrong with the data folder, and what is not checked or needs attention."""
    if line := unit.hides(data):
        faults.append(f"data folder {data}: {unit.name} does not see it ({line}); name another, gateway.data")
        return
    if not unit.may_write(data):
        faults.append(f"data folder {unwritable(data, unit)}, or leave gateway.data as it was")
        return
    folders = [data, *(data / name for name in ("log", "snapshots", "damaged", "history"))]
    if settings.security.enabled:
        folders.append((data / settings.security.socket_folder).resolve())
    for folder in folders:
        try:
            existing = _existing(folder)
        except OSError:
            notes.append(f"not checked, this user may not look at it: {folder}")
            return
        if not existing.is_dir():
            faults.append(f"data folder {data}: {existing} is not a folder; name another with --data")
            return
    existing = _existing(data)
    made_by_systemd = any(data.absolute() == one for one in unit.state)  # and owned by its user
    if not made_by_systemd and not os.access(existing, os.W_OK | os.X_OK, effective_ids=True):
        if unit.seen_as_user or existing.stat().st_uid == os.geteuid():
            faults.append(f"data folder {data}: {existing} cannot be written; name another with --data")
        else:
            notes.append(f"not checked, only another user may write it: {existing}")
        return
    if unit.seen_as_user and (foreign := _foreign(data)):
        more = f" and {len(foreign) - 1:,} more" if len(foreign) > 1 else ""
        faults.append(
            f"data folder {data}: {unit.user} may not use {foreign[0]}{more}, as after a copy that root has restored; "
            f"`chown -R {unit.user}: {data}`"
        )
        return
    total, _, free = shutil.disk_usage(existing)
    if not total:  # /proc, /sys
        faults.append(f"data folder {data}: nothing can be kept at {existing}; name another with --data")
        return
    wanted = settings.log.bytes_max - _bytes(data)
    if free < wanted:
        notes.append(
            f"free disk space: {_megabytes(free)} at {existing}, and log, snapshots, index and damaged files may grow "
            f"by {_megabytes(wanted)} more (log.bytes_max); lower log.bytes_max, or free space"
        )


def _foreign(data: Path) -> list[Path]:
    """What a start reads or writes, and this user may not."""
    if not data.exists() or data.stat().st_uid != os.geteuid():
        return []  # systemd gives all of it to the service's user
    found = [data / name for name in ("identity", "lock")]
    for folder in (data / name for name in ("log", "snapshots", "history", FOLDER)):
        found.append(folder)
        with contextlib.suppress(OSError):
            found += sorted(folder.iterdir())
    return [path for path in found if path.exists() and not _is_usable(path)]


def _is_usable(path: Path) -> bool:
    if path.is_dir():  # its mode is set, which only its owner may do
        return path.stat().st_uid == os.geteuid()
    return os.access(path, os.R_OK | os.W_OK, effective_ids=True)


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists. Raises OSError where one may not be looked at."""
    for one in (path.absolute(), *path.absolute().parents):
        try:
            one.stat()
            return one
        except FileNotFoundError:
            continue
        except NotADirectoryError:  # a file is above it
            continue
    raise FileNotFoundError(path)


def _bytes(data: Path) -> int:
    used = 0
    for name in ("log", "snapshots", "damaged", "history"):
        with contextlib.suppress(OSError):  # a gateway removes files meanwhile
            used += sum(file.stat().st_size for file in (data / name).iterdir())
    return used


def _megabytes(count: int) -> str:
    return f"{max(count, 0) / 1_000_000:,.0f} MB"
