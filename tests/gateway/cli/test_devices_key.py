"""`lamplighter devices key`: both halves of a key, each in its place."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from lamplighter.adapters.coap.context_files import read_key
from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.gateway.__main__ import main


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lamplighter.toml").write_text('[gateway]\ndata = "data"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def key(*arguments: str) -> int:
    return main(["devices", "key", *arguments])


def halves(home: Path, name: str, device: dict[str, Any]) -> None:
    found = read_key(home / "data-coap/contexts" / name)
    assert device == {
        "sender-id_hex": found.recipient_id.hex(),
        "recipient-id_hex": found.sender_id.hex(),
        "secret_hex": found.secret.hex(),
        "salt_hex": found.salt.hex(),
    }


def test_half_of_the_device_is_a_file_of_its_own(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert key("hall", "--address", "192.168.7.20") == 0
    file = home / "hall.oscore.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    halves(home, "hall", json.loads(file.read_text()))
    said = capsys.readouterr()
    assert f"made {home / 'data-coap/contexts/hall'}, the key of 192.168.7.20" in said.out
    assert json.loads(file.read_text())["secret_hex"] not in said.out + said.err
    assert not (home / "data").exists()
    made = [home / "data-coap", *(home / "data-coap").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o700, 0o600}


def test_half_of_the_device_is_printed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert key("hall", "--address", "Lamp.local:5683", "--print") == 0
    halves(home, "hall", json.loads(capsys.readouterr().out))
    assert not (home / "hall.oscore.json").exists()
    found = Contexts.load(home / "data-coap/contexts")
    assert found.of("lamp.local") is not None
    found.close()


def test_what_was_made_as_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert key("hall", "--address", "192.168.7.20", "--json") == 0
    told = capsys.readouterr().out
    made = {"made": str(home / "data-coap/contexts/hall"), "address": "192.168.7.20", "device": "hall.oscore.json"}
    assert json.loads(told) == made
    assert json.loads((home / "hall.oscore.json").read_text())["secret_hex"] not in told


def test_a_key_is_replaced_when_asked_for(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert key("hall", "--address", "192.168.7.20", "--print") == 0
    first = json.loads(capsys.readouterr().out)
    assert key("hall", "--address", "192.168.7.20", "--print") == 2
    assert "add --replace" in capsys.readouterr().err
    halves(home, "hall", first)
    assert key("hall", "--address", "192.168.7.20", "--print", "--replace") == 0
    second = json.loads(capsys.readouterr().out)
    assert second["secret_hex"] != first["secret_hex"]
    halves(home, "hall", second)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("hall", "--address", "coap://lamp"), "--address: "),
        (("hall", "--address", "224.0.1.187"), "multicast"),
        (("hall", "--address", ""), "--address: "),
        (("../hall", "--address", "lamp"), "../hall"),
        (("h..l", "--address", "lamp"), "no name of a key"),
    ],
)
def test_what_cannot_be_a_key_leaves_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], reason: str
) -> None:
    assert key(*arguments) == 2
    assert reason in capsys.readouterr().err
    assert not list(home.glob("*.oscore.json"))
    assert not list(home.glob("data-coap/contexts/*"))


def test_no_file_is_overwritten_and_no_key_is_lost(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "hall.oscore.json").write_text("other")
    assert key("hall", "--address", "lamp") == 2
    assert "hall.oscore.json: File exists; delete it" in capsys.readouterr().err
    assert (home / "hall.oscore.json").read_text() == "other"
    assert not (home / "data-coap").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_root_makes_a_key_that_the_service_can_read(home: Path, tmp_path: Path) -> None:
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)  # pytest's, which are root's alone
    tmp_path.chmod(0o711)
    (home / "data").mkdir()
    os.chown(home / "data", 12345, 12346)
    assert key("hall", "--address", "lamp") == 0
    made = [home / "data-coap", *(home / "data-coap").rglob("*")]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(12345, 12346)}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o700, 0o600}
    assert (home / "hall.oscore.json").stat().st_uid == 0
    assert (os.geteuid(), os.getegid()) == (0, 0)
