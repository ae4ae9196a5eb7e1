"""`install --purge` asks before it removes settings and data."""

from __future__ import annotations

import io

import pytest

from lamplighter.gateway.__main__ import main
from lamplighter.gateway.cli import install


def test_settings_and_data_are_not_purged_by_accident(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called = []

    class Installer:
        def __init__(self, *, dry: bool) -> None:
            self.dry = dry

        def uninstall(self, *, purge: bool) -> None:
            called.append((self.dry, purge))

    monkeypatch.setattr(install, "Installer", Installer)
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    assert main(["uninstall", "--purge"]) == 2
    assert "--yes" in capsys.readouterr().err and not called
    assert main(["uninstall", "--purge", "--yes"]) == 0
    assert main(["uninstall", "--purge", "--dry-run"]) == 0
    assert main(["uninstall"]) == 0
    assert called == [(False, True), (True, True), (False, False)]
