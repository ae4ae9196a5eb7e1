"""Settings files that are wrong, as people write them: each is named with place and cure."""

from __future__ import annotations

import codecs
import os
import re
from pathlib import Path

import pytest

from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.__main__ import main
from lamplighter.gateway.service import unit_view
from lamplighter.gateway.service.preflight import GATEWAY
from lamplighter.gateway.service.unit_view import UnitView
from lamplighter.gateway.settings import read_settings
from tests.support.tables import each_row

PORTS = "[http]\nport = 0\n[websocket]\nport = 0\n[coap]\nenabled = false\n"
SECURE = "[security]\nenabled = true\nhost = '127.0.0.1'\nhttps_port = 0\nwss_port = 0\n"
SHOWN = """\
User=lamplighter
StateDirectory=lamplighter
ReadWritePaths=/srv/kept
InaccessiblePaths=-/var/lib/lamplighter-coap
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
"""

# The text below PORTS, the key that is named with the line, and words of the cure.
BROKEN = [
    ("[place]\ntime_zone = 'Berlin'", "line 8: place.time_zone", "one is Europe/Berlin"),
    ("[place]\nposition = '52.52'", "line 8: place.position", "with a comma"),
    ("[mqtt]\nhost = 'mqtt://broker'", "line 8: mqtt.host", "alone"),
    ("[mqtt]\nhost = 'broker:1883'", "line 8: mqtt.host", "port is a key"),
    ("[mqtt]\nhost = '[fd00::1]'", "line 8: mqtt.host", "without brackets, fd00::1"),
    ("[mqtt]\nhost = 'my broker'", "line 8: mqtt.host", "write a name or an address"),
    ("[mqtt]\nhost = '192.168.1.1000'", "line 8: mqtt.host", "write a name or an address"),
    ("[mqtt]\nhost = 'b'\nport = 70000", "line 9: mqtt.port", "<= 65535"),
    ("[mqtt]\nhost = 'b'\nusername = 'u '", "line 9: mqtt.username", "write it without"),
    ("[mqtt]\nhost = 'b'\nusername = 'u'\npassword_file = 'no'", "line 10: mqtt.password_file", "{folder}/no; make it"),
    ("[mqtt]\nhost = 'b'\npassword_file = '~/word'", "line 9: mqtt.password_file", "such as /etc/lamplighter/name"),
    ("[mqtt]\nhost = 'b'\ntls = true\nca_file = 'ca.crt'", "line 10: mqtt.ca_file", "no file {folder}/ca.crt"),
    ("[mqtt]\nhost = 'b'\ntls = true\nca_file = 'text'", "line 7: mqtt: mqtt.ca_file", "cannot be used"),
    ("[mqtt]\nhost = 'b'\ntls = true\nca_file = 'folder'", "line 10: mqtt.ca_file", "not a regular file"),
    ("[mqtt]\nhost = 'b'\nkey_file = 'k.pem'", "line 7: mqtt", "needs certificate_file"),
    ("[mqtt]\nhost = 'b'\n[mqtt.brokers.attic]\nhost = 'tcp://a'", "line 10: mqtt.brokers.attic.host", "alone"),
    ("[mqtt]\nhost = 'b'\n[mqtt.brokers.attic]\nca_file = 1", "line 10: mqtt.brokers.attic.ca_file", "Expected `str`"),
    ("[mqtt]\nhots = 'b'", "line 8: unknown key mqtt.hots", "did you mean host?"),
    ("[mqtt]\nhost = “broker”", "line 8, column", "not TOML"),
    ("[mqtt\nhost = 'b'", "line 7, column", "not TOML"),
    ("[MQTT]\nhost = 'b'", "line 7: unknown table [MQTT]", "use one of"),
    ("[mqtt]\ntls = yes", "line 8, column", "not TOML"),
    ("[mqtt]\ntls = 'true'", "line 8: mqtt.tls", "write true or false"),
    ("[coap.server]\nhost = 'coap://[::]'", "line 8: coap.server.host", "alone"),
    ("[coap.server]\nhost = 'kitchen'", "line 7: coap.server", "kitchen"),
    (
        "[http_devices.devices.meter]\norigin = 'meter.lan'\nsecret_file = 'x'",
        "line 7: http_devices.devices.meter",
        "https",
    ),
    ("[http_devices]\nenabled = true\nca_file = 'none.pem'", "line 9: http_devices.ca_file", "{folder}/none.pem"),
    ("[modbus]\nnetworks = ['192.168.7.1/24']", "line 7: modbus", "such as"),
    ("[sync]\ndestination = 's3:/bucket'", "line 8: sync.destination", "s3://bucket/prefix"),
    ("[sync]\ndestination = 'sftp:host'", "line 8: sync.destination", "sftp://host/path"),
    ("[sync]\ndestination = '/x'\noptions_file = 'no.toml'", "line 9: sync.options_file", "{folder}/no.toml"),
    ("[sync]\ndestination = '/x'\noptions_file = 'open'", "line 9: sync.options_file", "chmod 600"),
    ("[sync]\nwindow = '1-5'", "line 8: sync.window", "matching regex"),
    ("[sync.orders]\nurl = 'http://localhost:9000'", "line 8: sync.orders.url", "wss://localhost"),
    ("[sync.orders]\ntoken_url = 'localhost:8443'", "line 8: sync.orders.token_url", "https://localhost"),
    (f"{SECURE}local_users = ['nobody-here']", "line 12: security.local_users", "getent passwd"),
    (f"{SECURE}local_users = ['a, b']", "line 12: security.local_users", "in quotes of its own"),
    (f"{SECURE}certificate_file = 'c.pem'\nkey_file = 'k.pem'", "line 12: security.certificate_file", "{folder}/c.pem"),
    ("[security]\nhosts = ['https://lamps.example']", "line 8: security.hosts", "alone"),
    ("[security]\norigins = ['lamps.example']", "line 7: security", "https://dashboard.example"),
    ("[ngsild]\nenabled = true\n[ngsild.contexts]\n'http://c/' = 'c.jsonld'", "ngsild.contexts", "save the context"),
    ("[gateway]\nbase_iri = 'lamplighter'", "line 8: gateway.base_iri", "such as http"),
    ("[gateway]\ndata = 'text'", "data folder", "name another with --data"),
    ("[gateway]\ndata = '/proc/kept'", "data folder", "name another with --data"),
    ("[gateway]\ndata = 'https://kept'", "line 8: gateway.data", "no path"),
    ("[shacl]\nshapes = ['none.ttl']", "shacl.shapes", "correct the name"),
    ("[http]\nport = 1", "not TOML", "write the keys of a table in one place"),
]


def written(folder: Path, text: str) -> Path:
    (folder / "text").write_text("text")
    (folder / "open").write_text("")
    (folder / "open").chmod(0o644)
    (folder / "folder").mkdir()
    path = folder / "lamplighter.toml"
    path.write_text(PORTS + text + "\n")
    return path


def test_there_are_enough() -> None:
    assert len(BROKEN) >= 40


@each_row(("text", "named", "cure"), BROKEN)
def test_a_broken_file_is_named_with_place_and_cure(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    named: str,
    cure: str,
) -> None:
    path = written(tmp_path, text)
    monkeypatch.chdir("/")
    assert main(["check", "--config", str(path)]) == 2
    told = capsys.readouterr().err
    assert str(path) in told or "data folder" in told
    assert named in told and cure.format(folder=tmp_path) in told
    assert "Traceback" not in told


@each_row("mark", [codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])
def test_a_byte_order_mark_is_taken(tmp_path: Path, mark: bytes) -> None:
    path = written(tmp_path, "")
    encoding = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}.get(mark, "utf-8")
    path.write_bytes(mark + path.read_text().encode(encoding))
    assert main(["check", "--config", str(path)]) == 0


def test_a_user_name_without_a_password_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(written(tmp_path, "[mqtt]\nhost = 'b'\nusername = 'u'"))]) == 0
    assert "line 9: mqtt.username: there is no password for it" in re.sub(r"\s+", " ", capsys.readouterr().out)


# --- as the service finds it ---------------------------------------------------------------------------------


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UnitView:
    """The view of a unit whose settings are in tmp_path."""
    monkeypatch.setattr(unit_view, "SERVICE_FOLDER", tmp_path)
    return UnitView.of(tmp_path / "lamplighter.toml", GATEWAY, lambda arguments: SHOWN)


def test_what_a_unit_sees_and_writes(unit: UnitView) -> None:
    assert unit.user == "lamplighter"
    hidden = {name: unit.hides(Path(name)) for name in ("/home/anna/ca.pem", "/tmp/x", "/etc/ssl/ca.pem")}
    assert hidden == {"/home/anna/ca.pem": "ProtectHome=", "/tmp/x": "PrivateTmp=", "/etc/ssl/ca.pem": ""}
    assert unit.hides(Path("/var/lib/lamplighter-coap/keys")) == "InaccessiblePaths="
    written = [unit.may_write(Path(name)) for name in ("/var/lib/lamplighter", "/srv/kept/a", "/srv", "/mnt/usb")]
    assert written == [True, True, False, False]


def test_other_settings_are_of_no_unit(unit: UnitView, tmp_path: Path) -> None:
    other = UnitView.of(tmp_path / "elsewhere" / "lamplighter.toml", GATEWAY, lambda arguments: SHOWN)
    assert (other, other.may_write(Path("/mnt")), other.hides(Path("/home/a"))) == (UnitView(), True, "")
    assert UnitView.of(None, GATEWAY, lambda arguments: SHOWN) == UnitView()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look with the eyes of another user")
def test_root_looks_with_the_eyes_of_the_service(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("")
    secret.chmod(0o600)
    groups = os.getgroups()
    with UnitView("x", "nobody").eyes(), pytest.raises(PermissionError):
        secret.read_text()
    assert (secret.read_text(), os.geteuid(), os.getgroups()) == ("", 0, groups)
    with UnitView("x", "no-such-user").eyes():
        assert os.geteuid() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look with the eyes of another user")
def test_roots_check_finds_what_the_service_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if any(one.name.startswith("pytest-of-") for one in (folder, *folder.parents)):
            folder.chmod(0o755)  # pytest's own, which are for their owner only
    monkeypatch.setattr(unit_view, "SERVICE_FOLDER", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    (tmp_path / "bin").mkdir()
    shown = SHOWN.replace("lamplighter\n", "nobody\n", 1).replace("PrivateTmp=yes", "PrivateTmp=no")
    (tmp_path / "bin" / "systemctl").write_text(f"#!/bin/sh\ncat <<'SHOWN'\n{shown}SHOWN\n")
    (tmp_path / "bin" / "systemctl").chmod(0o755)
    path = written(tmp_path, "[mqtt]\nhost = 'b'\npassword_file = 'secret'\n[gateway]\ndata = '/srv/other'")
    path.chmod(0o644)
    (tmp_path / "secret").write_text("word")
    (tmp_path / "secret").chmod(0o600)
    assert main(["check", "--config", str(path)]) == 2
    told = capsys.readouterr().err
    assert (
        f"line 9: mqtt.password_file: {tmp_path / 'secret'}: the service's user may not read it; `chgrp nobody" in told
    )
    assert "lamplighter-gateway.service may not write there" in told and "ReadWritePaths=/srv/other" in told
    (tmp_path / "secret").chmod(0o644)
    path.write_text(path.read_text().replace("/srv/other", "/srv/kept"))
    assert main(["check", "--config", str(path)]) == 2, "nobody may not write there"
    told = capsys.readouterr().err
    assert "mqtt.password_file" not in told and "data folder /srv/kept: /srv cannot be written" in told


@pytest.mark.parametrize("zone", ["CET-1CEST,M3.5.0,M10.5.0/3", "Nowhere/Town"])
def test_machine_whose_time_zone_has_no_name_matters_only_with_a_place(
    zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    monkeypatch.setattr("tzlocal.unix._cache_tz", None)  # it asks the machine once
    settings = tmp_path / "lamplighter.toml"
    settings.write_text("[gateway]\n")
    read_settings(settings)
    settings.write_text("[place]\nposition = '52.52, 13.40'\n")
    with pytest.raises(ConfigurationError, match=r"place\.time_zone: this machine's own is not known.*Europe/Berlin"):
        read_settings(settings)
    settings.write_text("[place]\nposition = '52.52, 13.40'\ntime_zone = 'Europe/Berlin'\n")
    read_settings(settings)
