"""`lamplighter bundle` has what people need to help, and no secret."""

from __future__ import annotations

import base64
import json
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamplighter.gateway.cli.bundle_command import client_names, without_names, without_secrets
from tests.support.commands import command
from tests.support.secure_gateway import SecureGateway, basic

PASSWORD, USER = "mqtt-pass-7Q", "mqtt-user-3"
KEY, USERINFO = "AKIASECRETACCESS", "courier:route-66-pw"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGateway]:
    folder = tmp_path_factory.mktemp("secure")
    with SecureGateway(folder, attempts_per_min=0) as running:
        (folder / "password").write_text(f"{PASSWORD}\n")
        (folder / "options.toml").write_text(f'key = "{KEY}"\n[client_kwargs]\nsecret = "{KEY}2"\n')
        (folder / "options.toml").chmod(0o600)
        running.toml.write_text(
            running.toml.read_text() + f'[mqtt]\nhost = "127.0.0.1"\nport = 9\nusername = "{USER}"\n'
            f'password_file = "{folder / "password"}"\n'
            f'[sync]\ndestination = "sftp://{USERINFO}@192.0.2.1/x"\noptions_file = "options.toml"\n'
        )
        yield running


def parts(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        return {
            one.name.partition("/")[2]: content.read().decode()
            for one in archive.getmembers()
            if (content := archive.extractfile(one)) is not None
        }


def test_no_secret_of_a_secure_gateway_is_in_its_bundle(gateway: SecureGateway, tmp_path: Path) -> None:
    secret = gateway.client("lamp", read=["*"])
    bearer = gateway.bearer("lamp", secret)
    token = bearer.partition(" ")[2]
    stored = [path.read_text() for path in (gateway.data / "security").iterdir() if path.is_file()]
    keys = [line for text in stored for line in text.splitlines() if re.fullmatch(r"[A-Za-z0-9+/=]{24,}", line)]
    assert len(stored) >= 4 and keys
    # A journal that has what must not be logged.
    shown = [bearer, f'"client_secret": "{secret}"', f"at https://{USERINFO}@h/", PASSWORD, KEY, *stored]
    shown.append(basic("lamp", secret)["Authorization"])
    (tmp_path / "journal").write_text("\n".join(shown) + "\n")
    (tmp_path / "journalctl").write_text(f'#!/bin/sh\ncat "{tmp_path}/journal"\necho a harmless line\n')
    (tmp_path / "journalctl").chmod(0o755)
    file = tmp_path / "b.tar.gz"
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = command("bundle", file, "--json", "--config", gateway.toml, env=environment)
    assert done.returncode == 0, done
    found = parts(file)
    assert set(json.loads(done.stdout)["parts"]) == set(found)
    assert file.stat().st_mode & 0o777 == 0o600
    encoded = base64.b64encode(f"lamp:{secret}".encode()).decode()
    secrets = [secret, token, PASSWORD, USER, KEY, USERINFO, "route-66-pw", encoded, *keys]
    for text in stored:
        if text.startswith("{"):
            secrets += [one for one in _texts(json.loads(text)) if re.fullmatch(r"[A-Za-z0-9+/=_-]{24,}", one)]
    for name, text in found.items():
        for one in secrets:
            assert one not in text, (name, one)
    assert "a harmless line" in found["journal.txt"]
    assert json.loads(found["settings.json"])["mqtt"]["username"] == "[removed]"
    assert json.loads(found["settings.json"])["security"]["enabled"] is True
    assert json.loads(found["health.json"])["engine"]["version"]
    assert "lamplighter_" in found["metrics.txt"]
    assert json.loads(found["verify.json"])["problems"] == []
    assert json.loads(found["about.json"])["lamplighter"]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield value


def test_a_gateway_that_does_not_run_has_a_bundle_too(tmp_path: Path) -> None:
    (tmp_path / "lamplighter.toml").write_text("[http]\nport = 9\n[websocket]\nport = 0\n")
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps" / "a.jsap").write_text("{")
    done = command("bundle", tmp_path / "b.tar.gz", "--config", tmp_path / "lamplighter.toml")
    assert done.returncode == 0, done
    found = parts(tmp_path / "b.tar.gz")
    assert "a.jsap" in found["check.txt"]
    for name in ("health.json", "figures.json", "metrics.txt", "verify.json"):
        assert found[name].startswith("not available: "), name
    done = command("bundle", tmp_path / "b.tar.gz", "--config", tmp_path / "lamplighter.toml")
    assert (done.returncode, "--yes" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("-----BEGIN EC PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY-----", "[removed]"),
        ("token=eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJsYW1wIn0.c2ln end", "token=[removed] end"),
        ("Authorization: Basic bGFtcDpzZWNyZXQ=", "Authorization: Basic [removed]"),
        ("at mqtts://user:pw@broker.example:8883/", "at mqtts://[removed]@broker.example:8883/"),
        ('{"client_secret": "abcdefgh"}', '{"client_secret": "[removed]"}'),
        ("reading dropped topic=home/kitchen reason=no number", "reading dropped topic=home/kitchen reason=no number"),
        ("mqtts://user:p/w@x@broker:8883/", "mqtts://[removed]@broker:8883/"),
        ("AWS_SECRET_ACCESS_KEY=abc mqtt_password=xyz", "AWS_SECRET_ACCESS_KEY=[removed] mqtt_password=[removed]"),
        ('"password": "a b c"', '"password": "[removed]"'),
        ('"secret_hex":"0011","token_life_s":3600', '"secret_hex":"[removed]","token_life_s":3600'),
    ],
)
def test_what_looks_like_a_secret_is_removed(text: str, left: str) -> None:
    assert without_secrets(text, []) == left


def test_no_name_of_a_client_is_left(tmp_path: Path) -> None:
    assert client_names(tmp_path) == []
    (tmp_path / "security").mkdir()
    clients = [{"name": name} for name in ("anna", "anna-phone", "büro")]
    (tmp_path / "security" / "clients.json").write_text(json.dumps({"clients": clients}))
    names = client_names(tmp_path)
    text = 'refused client=anna anna-phone "b\\u00fcro" büro hanna joanna-phone anna-x'
    told = 'refused client=[client 1] [client 2] "[client 3]" [client 3] hanna joanna-phone anna-x'
    assert without_names(text, names) == told
