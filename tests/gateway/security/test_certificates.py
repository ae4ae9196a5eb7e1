"""Certificates: our own authority and the user's files."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.security import certificates
from lamplighter.gateway.security.certificates import (
    AUTHORITY,
    BUILT,
    DEVICE,
    machine_names,
    own_identity,
    users_identity,
)
from tests.support.gateway_parts import FakeClock
from tests.support.tables import each_row


def openssl(*arguments: object) -> str:
    return subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_first_start_makes_an_authority_and_a_certificate(tmp_path: Path) -> None:
    identity = own_identity(tmp_path, ["lamp.example", "192.0.2.7"], Disk())
    assert identity.authority is not None
    (tmp_path / "ca.pem").write_bytes(identity.authority)
    for name in ("lamp.example", "localhost"):
        said = openssl("verify", "-CAfile", tmp_path / "ca.pem", "-verify_hostname", name, tmp_path / DEVICE)
        assert said.endswith("OK\n")
    for address in ("127.0.0.1", "::1", "192.0.2.7"):
        openssl("verify", "-CAfile", tmp_path / "ca.pem", "-verify_ip", address, tmp_path / DEVICE)
    with pytest.raises(subprocess.CalledProcessError):
        openssl("verify", "-CAfile", tmp_path / "ca.pem", "-verify_hostname", "other.example", tmp_path / DEVICE)
    printed = openssl("x509", "-in", tmp_path / "ca.pem", "-noout", "-fingerprint", "-sha256").strip()
    assert printed.lower() == f"sha256 fingerprint={identity.fingerprint}".lower()
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.pem") if path.name != "ca.pem"} == {0o600}
    assert b"PRIVATE" not in identity.authority
    device = x509.load_pem_x509_certificate((tmp_path / DEVICE).read_bytes())
    critical = {extension.oid._name for extension in device.extensions if extension.critical}
    assert critical == {"basicConstraints", "keyUsage"}, "a client may not know the others (RFC 5280, 4.2)"


def test_it_names_the_machine_and_its_addresses() -> None:
    names = {str(name.value) for name in machine_names()}
    assert {"localhost", "127.0.0.1", "::1", socket.gethostname()} <= names
    for name in names:
        with contextlib.suppress(ValueError):
            version = ipaddress.ip_address(name).version
            family = socket.AF_INET if version == 4 else socket.AF_INET6
            with socket.socket(family, socket.SOCK_DGRAM) as ours, contextlib.suppress(OSError):
                ours.bind((name, 0))
                assert ours.getsockname()[0] == name
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outward, contextlib.suppress(OSError):
        outward.connect(("192.0.2.200", 9))  # sends nothing; says by which address others see this machine
        assert outward.getsockname()[0] in names


def test_certificates_are_valid_from_the_build_on_whatever_the_clock_says(tmp_path: Path) -> None:
    own_identity(tmp_path, [], Disk())
    for name in (AUTHORITY, DEVICE):
        made = certificate(tmp_path / name)
        assert made.not_valid_before_utc == BUILT <= datetime.now(UTC)
        assert (made.not_valid_after_utc - BUILT).days >= 7000


def test_the_second_start_keeps_both_and_new_names_change_the_device_alone(tmp_path: Path) -> None:
    first = own_identity(tmp_path, [], Disk())
    device = (tmp_path / DEVICE).read_bytes()
    second = own_identity(tmp_path, [], Disk())
    assert second.authority == first.authority
    assert (tmp_path / DEVICE).read_bytes() == device
    third = own_identity(tmp_path, ["new.example"], Disk())
    assert third.authority == first.authority
    assert "new.example" in third.names
    assert (tmp_path / DEVICE).read_bytes() != device


def test_a_damaged_certificate_is_made_again_and_a_damaged_authority_is_told(tmp_path: Path) -> None:
    first = own_identity(tmp_path, [], Disk())
    (tmp_path / DEVICE).write_bytes(b"\x00" * 100)
    assert own_identity(tmp_path, [], Disk()).authority == first.authority
    content = (tmp_path / AUTHORITY).read_bytes()
    (tmp_path / AUTHORITY).write_bytes(content[:300])
    with pytest.raises(ConfigurationError, match=r"authority\.pem is damaged .*every client the new ca\.pem"):
        own_identity(tmp_path, [], Disk())


def test_a_certificate_of_another_authority_is_made_again(tmp_path: Path) -> None:
    own_identity(tmp_path, [], Disk())
    (tmp_path / AUTHORITY).unlink()
    own_identity(tmp_path, [], Disk())
    authority = certificate(tmp_path / AUTHORITY)
    certificate(tmp_path / DEVICE).verify_directly_issued_by(authority)


@each_row("name", ["a b", "", "-" * 70 + ".x" + "a" * 70])
def test_a_name_that_is_none_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"security\.names"):
        own_identity(tmp_path, [name], Disk())


def test_a_machine_whose_name_is_no_host_name_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates.socket, "gethostname", lambda: "x" * 64 + " y")
    assert "localhost" in own_identity(tmp_path, [], Disk()).names


# --- the user's own -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("users")
    for name, options in (("good", ["-days", "30"]), ("other", ["-days", "30"])):
        openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=lamp.example"),
            *("-addext", "subjectAltName=DNS:lamp.example", *options),
            *("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem"),
        )
    openssl("req", "-x509", "-key", folder / "good.key", "-subj", "/CN=x", "-days", "30", "-out", folder / "bare.pem")
    openssl("pkey", "-in", folder / "good.key", "-aes128", "-passout", "pass:x", "-out", folder / "locked.key")
    (folder / "empty.pem").write_text("")
    return folder


def now() -> FakeClock:
    clock = FakeClock()
    clock.now = datetime.now(UTC)
    return clock


def test_the_users_certificate_is_used(users: Path) -> None:
    identity = users_identity(users / "good.pem", users / "good.key", now())
    assert identity.authority is None
    assert identity.names == ("lamp.example",)


@each_row(
    ("certificate_file", "key_file", "told"),
    [
        ("missing.pem", "good.key", r"certificate_file: .*missing\.pem: No such file"),
        ("good.pem", "missing.key", r"key_file: .*missing\.key: No such file"),
        ("empty.pem", "good.key", "no certificate in PEM"),
        ("good.key", "good.key", "no certificate in PEM"),
        ("good.pem", "good.pem", "no private key in PEM"),
        ("good.pem", "locked.key", "is encrypted.*openssl pkey"),
        ("good.pem", "other.key", "is not the key of the first certificate"),
        ("bare.pem", "good.key", "names no host"),
    ],
)
def test_files_that_cannot_be_used_are_named_with_the_cure(
    users: Path, certificate_file: str, key_file: str, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        users_identity(users / certificate_file, users / key_file, now())


def test_one_that_is_over_is_told_and_used_where_the_clock_is_right(
    users: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = now()
    clock.now += timedelta(days=365)
    with caplog.at_level(logging.ERROR):
        users_identity(users / "good.pem", users / "good.key", clock)
        assert "certificate is not valid now" in caplog.text
        caplog.clear()
        clock.synchronised = False
        users_identity(users / "good.pem", users / "good.key", clock)
        assert not caplog.records, "a clock that nobody set says nothing about a certificate"
