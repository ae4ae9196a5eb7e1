"""Damage that a start has found, until an operator accepts it.

::

    <data>/damage.json             what starts have found since the last acceptance
    <data>/damage-accepted.json    what was accepted last, when and by whom, and the lasting problems accepted so far

A report is written before the gap record of its damage, so that it is not lost in a power cut. It stays over restarts.
`lamplighter verify --accept` accepts all reports, and the problems that it finds and nothing can mend; a running
gateway notices that the file is gone.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from lamplighter.engine.client.files import json_document, read_file
from lamplighter.engine.client.state_files import file_content
from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.disk import Disk

DAMAGE, ACCEPTED = "damage.json", "damage-accepted.json"
REPORTS_MAX = 100  # later damage of a gateway that nobody looks after is only in its log


class DamageReport(msgspec.Struct, frozen=True):
    """found: a time in ISO 8601; reason: for people."""

    found: str
    reason: str


class AcceptedProblem(msgspec.Struct, frozen=True):
    """A problem of a verification. path: below the data folder; accepted, user: as below."""

    path: str
    place: str
    what: str
    accepted: str
    user: str

    def __str__(self) -> str:
        return f"{self.path}: {self.place}{': ' if self.place else ''}{self.what}"


class Acceptance(msgspec.Struct, frozen=True):
    """accepted: a time in ISO 8601; user: of the machine; problems: those of earlier acceptances, too."""

    accepted: str
    user: str
    reports: list[DamageReport]
    problems: list[AcceptedProblem] = []


def read_damage(data: Path) -> list[DamageReport]:
    """The reports that are not accepted, oldest first. A file that cannot be read is a report."""
    path = data / DAMAGE
    try:
        return json_document(read_file(path, follow=False), list[DamageReport])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        return [DamageReport("", f"{path} cannot be read: {error}")]


def read_acceptance(data: Path) -> Acceptance | None:
    """The last acceptance, if there is one. Raises OSError, msgspec.MsgspecError."""
    try:
        return json_document(read_file(data / ACCEPTED, follow=False), Acceptance)
    except FileNotFoundError:
        return None


def accept_damage(data: Path, disk: Disk, acceptance: Acceptance) -> None:
    """Accepts all reports and some problems, or none. Raises OSError, ConfigurationError if the user has not seen all
    reports."""
    # What was found between the question and the answer has not been seen by anybody.
    if read_damage(data) != acceptance.reports:
        raise ConfigurationError("there is other damage by now; run the command again to see it")
    # Accepted first: after a crash in between, the damage is reported once more, never lost.
    disk.write_file(data / ACCEPTED, [msgspec.json.encode(acceptance) + b"\n"])
    if acceptance.reports:
        disk.remove(data / DAMAGE)
        disk.sync_folder(data)


class KnownDamage:
    """The reports of a running gateway: those of earlier starts, and its own."""

    def __init__(self, data: Path, disk: Disk) -> None:
        self._path = data / DAMAGE
        self._disk = disk
        self._reports = read_damage(data)
        self._written = bool(self._reports)

    def reports(self) -> list[DamageReport]:
        """Those that are not accepted, oldest first."""
        # The command that accepts removes the file of a running gateway.
        if self._written and not self._exists():
            self._reports, self._written = [], False
        return list(self._reports)

    def note(self, report: DamageReport) -> None:
        """Reports damage to this process; `write` makes it durable. The same reason is reported once."""
        known = self.reports()
        if all(one.reason != report.reason for one in known) and len(known) < REPORTS_MAX:
            self._reports, self._written = [*known, report], False

    def add(self, report: DamageReport) -> None:
        """Reports damage durably. Raises OSError; then only this process knows of it."""
        self.note(report)
        self.write()

    def write(self) -> None:
        """Writes the reports that are not written yet. Raises OSError."""
        if self._reports and not self._written:
            self._disk.write_file(self._path, [file_content(self._path, self._reports)])
            self._written = True

    def _exists(self) -> bool:
        """False only if the file is certainly gone."""
        with contextlib.suppress(OSError):
            return self._path.exists()
        return True
