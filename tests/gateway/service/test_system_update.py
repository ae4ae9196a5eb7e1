from pathlib import Path

import pytest

from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.__main__ import main
from lamplighter.gateway.service.system_update import install_bundle


def test_bundle_is_refused_where_there_are_no_slots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = tmp_path / "lamplighter.raucb"
    bundle.touch()
    assert main(["update", str(bundle)]) == 2
    assert "bundles are for the image" in capsys.readouterr().err


def test_bundle_that_is_not_there_is_named(tmp_path: Path) -> None:
    slots = tmp_path / "system.conf"
    slots.touch()
    with pytest.raises(ConfigurationError, match="no such file"):
        install_bundle(tmp_path / "lamplighter.raucb", slots)


def test_nothing_is_installed_during_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for name in ("system.conf", "trial", "lamplighter.raucb"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigurationError, match=r"on trial.*wait until the trial has ended"):
        install_bundle(tmp_path / "lamplighter.raucb", tmp_path / "system.conf", tmp_path / "trial")
