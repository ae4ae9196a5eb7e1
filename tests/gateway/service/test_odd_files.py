"""All readers of files that people and other programs write, against files of all kinds: each ends in bounded time and
memory, with an error that names the file."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lamplighter.adapters.coap.context_files import make_context
from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.adapters.http import credentials as http_credentials
from lamplighter.adapters.http.settings import HttpDevicesSettings
from lamplighter.adapters.mapping.files import load_mapping
from lamplighter.adapters.mqtt import credentials as mqtt_credentials
from lamplighter.adapters.mqtt.settings import BrokerSettings
from lamplighter.adapters.specs import ADAPTERS
from lamplighter.cloud_sync.commands import light_context
from lamplighter.cloud_sync.settings import storage_options
from lamplighter.engine.client import Credentials, load_profile
from lamplighter.engine.client.files import NESTING_MAX, read_file, toml_document
from lamplighter.engine.errors import ConfigurationError, GatewayError
from lamplighter.gateway.cli.endpoint import tokens
from lamplighter.gateway.cli.mapping_commands import _rules_text
from lamplighter.gateway.clock import MachineClock
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.gates.ngsild.contexts import KnownContexts
from lamplighter.gateway.log.damage import DAMAGE, read_damage
from lamplighter.gateway.log.reader import contents
from lamplighter.gateway.security.certificates import users_identity
from lamplighter.gateway.security.registry import CLIENTS, ClientRegistry
from lamplighter.gateway.security.revocations import REVOKED, RevokedTokens
from lamplighter.gateway.service.enabled import reason_against
from lamplighter.gateway.service.shape_files import shape_sources
from lamplighter.gateway.settings import read_settings
from lamplighter.gateway.settings.reasoning import ShaclSettings
from lamplighter.gateway.state.applications import load_applications
from tests.support.tables import each_row

WITHIN_S = 10
BASE = "http://gateway.example/"
KINDS: dict[str, Callable[[Path], object]] = {
    "a device without an end": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path),
    "a folder": Path.mkdir,
    "a very large file": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), 2**42),
    "brackets": lambda path: path.write_text("a = " + "[" * 20_000 + "]" * 20_000),
    "JSON arrays": lambda path: path.write_text("[" * 20_000 + "]" * 20_000),
    "JSON objects": lambda path: path.write_text('{"a":' * 20_000 + "1" + "}" * 20_000),
    "inline tables": lambda path: path.write_text("a = " + "{a=" * 20_000 + "1" + "}" * 20_000),
    "a key of many parts": lambda path: path.write_text("a" + ".a" * 50_000 + " = 1"),
    "a table of many parts": lambda path: path.write_text("[a" + ".a" * 50_000 + "]"),
    "no UTF-8": lambda path: path.write_bytes(b"\xff\xff"),
}


def contexts(path: Path) -> None:
    """A context of which one file is another one."""
    made = path.parent / "contexts"
    make_context(made, "hall", "192.168.7.20")
    target = made / "hall" / "settings.json"
    target.unlink()
    path.rename(target)
    found = Contexts.load(made)
    try:
        for problem in found.problems.values():
            raise ConfigurationError(problem.replace(str(target), str(path)))
    finally:
        found.close()


def damage(path: Path) -> None:
    [found] = read_damage(path.parent)
    raise ConfigurationError(found.reason)


def registry(path: Path) -> object:
    return ClientRegistry(path.parent, MachineClock(), Disk(), 10, 10)


def mapping(path: Path) -> object:
    return load_mapping(path.parent, BASE)


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "settings": ("lamplighter.toml", read_settings),
    "settings of the shipper": ("lamplighter.toml", lambda path: light_context(argparse.Namespace(config=path))),
    "mapping": ("home.toml", mapping),
    "rules of a trial": ("home.toml", _rules_text),
    "application": ("app.jsap", lambda path: load_applications(path.parent)),
    "profile": ("app.jsap", load_profile),
    "NGSI-LD context": ("c.jsonld", lambda path: KnownContexts({"http://e/c": path.name}, path.parent)),
    "OSCORE context": ("settings.json", contexts),
    "options of a destination": ("options.toml", lambda path: storage_options(path.name, path.parent)),
    "shapes": ("s.ttl", lambda path: shape_sources(ShaclSettings(shapes=(path.name,)), path.parent)),
    "segment": ("segment", contents),
    "damage": (DAMAGE, damage),
    "clients": (CLIENTS, registry),
    "revoked tokens": (REVOKED, lambda path: RevokedTokens(path.parent, Disk())),
    "credentials": ("c.json", Credentials.load),
    "certificate": ("c.pem", lambda path: users_identity(path, path, None)),
    "token": ("token", lambda path: tokens(argparse.Namespace(token=path), None)),  # type: ignore[arg-type]
    "password of a broker": (
        "password",
        lambda path: mqtt_credentials.read_credentials(BrokerSettings(host="h", password_file=str(path)), "mqtt"),
    ),
    "authorities of HTTP devices": (
        "ca.pem",
        lambda path: http_credentials.read_credentials(HttpDevicesSettings(ca_file=path.name), path.parent),
    ),
}
FREE_TEXT = ("rules of a trial", "token", "password of a broker", "segment")
"""What any text may be in."""


@contextmanager
def bounded() -> Iterator[None]:
    """Ends what takes longer than `WITHIN_S`, and a read that waits."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"more than {WITHIN_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(WITHIN_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@each_row("reader", READERS)
@each_row("kind", KINDS)
def test_each_reader_ends_with_an_error_that_names_the_file(tmp_path: Path, reader: str, kind: str) -> None:
    name, read = READERS[reader]
    path = tmp_path / "files" / name
    path.parent.mkdir()
    KINDS[kind](path)
    if not path.is_symlink():
        path.chmod(0o700 if path.is_dir() else 0o600)
    is_text = kind not in [*list(KINDS)[:5], "no UTF-8"]
    if (is_text and reader in FREE_TEXT) or (kind == "no UTF-8" and reader == "segment"):
        with bounded():
            read(path)
        return
    with bounded(), pytest.raises(GatewayError) as raised:
        read(path)
    assert path.name in str(raised.value)
    assert len(str(raised.value)) < 2_000


@each_row("kind", KINDS)
def test_the_question_of_systemd_ends(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lamplighter.toml"
    KINDS[kind](path)
    with bounded():
        assert reason_against("mqtt", path) in ("", ADAPTERS[0].reason)


def test_signs_in_texts_and_comments_are_not_nested() -> None:
    many = "[{" * NESTING_MAX
    text = f'a = "{many}\\"{many}"\nb = \'{many}\'\nc = """\n{many}"\\"""""\nd = \'\'\'{many}\n\'\'\'\n# {many}\n'
    text += f"e = [{', '.join(['1.5'] * 1_000)}]\n[f.g]\nh = [[1], [2]]\n"
    assert toml_document(text)["f"] == {"g": {"h": [[1], [2]]}}
    levels = "[" * NESTING_MAX + "]" * NESTING_MAX
    assert toml_document(f"a = {levels}")["a"]
    with pytest.raises(ValueError, match=r"more than 100 levels \(at line 2\); write it flatter"):
        toml_document(f"b = 1\na = [{levels}]")


def test_a_link_is_followed_but_in_a_folder_of_the_program(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("text")
    link.symlink_to(file)
    assert read_file(link) == read_file(file, follow=False) == b"text"
    with pytest.raises(OSError, match="a symbolic link; replace it by the file"):
        read_file(link, follow=False)


def test_settings_that_are_too_deep_are_no_settings(tmp_path: Path) -> None:
    path = tmp_path / "lamplighter.toml"
    path.write_text("[gateway]\nbase_iri = " + "[" * 20_000 + "]" * 20_000)
    with pytest.raises(ConfigurationError, match="not TOML: more than 100 levels"):
        read_settings(path)
