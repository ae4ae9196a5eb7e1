"""Reports of damage: durable until they are accepted."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.log.damage import (
    ACCEPTED,
    DAMAGE,
    REPORTS_MAX,
    Acceptance,
    DamageReport,
    KnownDamage,
    accept_damage,
    read_damage,
)
from tests.support.tables import each_row

ONE, TWO = DamageReport("2026-11-21T02:00:00Z", "one"), DamageReport("2026-11-21T02:00:01Z", "two")


def accept(data: Path, disk: Disk | None = None) -> None:
    accept_damage(data, disk or Disk(), Acceptance("2026-11-21T03:00:00Z", "jo", read_damage(data)))


class FailingDisk(Disk):
    """Creates no file while it fails."""

    fails = False

    def create(self, path: Path) -> int:
        if self.fails:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return super().create(path)


def test_reports_stay_over_restarts_until_they_are_accepted(tmp_path: Path) -> None:
    known = KnownDamage(tmp_path, Disk())
    assert known.reports() == []
    known.add(ONE)
    known.add(DamageReport("later", "one"))
    known.add(TWO)
    assert known.reports() == read_damage(tmp_path) == [ONE, TWO]
    again = KnownDamage(tmp_path, Disk())
    assert again.reports() == [ONE, TWO]
    accept(tmp_path)
    assert known.reports() == again.reports() == read_damage(tmp_path) == []
    accepted = msgspec.json.decode((tmp_path / ACCEPTED).read_bytes(), type=Acceptance)
    assert accepted == Acceptance("2026-11-21T03:00:00Z", "jo", [ONE, TWO])
    again.add(ONE)
    assert known.reports() == []
    assert KnownDamage(tmp_path, Disk()).reports() == [ONE], "the same damage again"


def test_a_report_that_cannot_be_written_is_known_and_written_later(tmp_path: Path) -> None:
    disk = FailingDisk()
    known = KnownDamage(tmp_path, disk)
    disk.fails = True
    with pytest.raises(OSError, match="No space"):
        known.add(ONE)
    assert known.reports() == [ONE] and read_damage(tmp_path) == []
    disk.fails = False
    known.write()
    assert read_damage(tmp_path) == [ONE]


def test_damage_that_cannot_be_accepted_stays(tmp_path: Path) -> None:
    disk = FailingDisk()
    KnownDamage(tmp_path, disk).add(ONE)
    disk.fails = True
    with pytest.raises(OSError, match="No space"):
        accept(tmp_path, disk)
    assert read_damage(tmp_path) == [ONE]


def test_damage_that_was_not_shown_is_not_accepted(tmp_path: Path) -> None:
    """A start may find more while the user is asked."""
    known = KnownDamage(tmp_path, Disk())
    known.add(ONE)
    shown = read_damage(tmp_path)
    known.add(TWO)
    with pytest.raises(ConfigurationError, match="run the command again"):
        accept_damage(tmp_path, Disk(), Acceptance("2026-11-21T03:00:00Z", "jo", shown))
    assert read_damage(tmp_path) == [ONE, TWO]


@each_row("content", [b"", b"{}", b"[1]", b"[" * 100_000, b"\xff"])
def test_a_file_that_cannot_be_read_is_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / DAMAGE).write_bytes(content)
    [report] = read_damage(tmp_path)
    assert "cannot be read" in report.reason
    accept(tmp_path)
    assert read_damage(tmp_path) == []


def test_the_reports_are_bounded(tmp_path: Path) -> None:
    known = KnownDamage(tmp_path, Disk())
    for number in range(REPORTS_MAX + 10):
        known.add(DamageReport("now", str(number)))
    assert len(known.reports()) == len(read_damage(tmp_path)) == REPORTS_MAX
