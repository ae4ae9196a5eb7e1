"""Settings that name a place have its type, and are resolved beside their file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from lamplighter.engine.client.places import kinds, place_problem, places
from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.settings import Settings, read_settings
from tests.support.tables import each_row

# Words of keys whose values are places, and the keys that have one of them and are none.
PLACE = re.compile(r"path|file|folder|host|url|user|data$|destination")
NO_PLACES = {
    "shacl.data": "IRIs of graphs",
    "shacl.profile": "a switch",
    "gateway.clock_trusted": "a switch",
}


def of_text(kind: Any) -> bool:
    return kind is str or any(map(of_text, get_args(kind)))


def test_each_setting_that_names_a_place_has_its_type() -> None:
    untyped = [
        key
        for key, kind, place in kinds(Settings)
        if PLACE.search(key.rpartition(".")[2])
        and of_text(kind)
        and place is None
        and key not in NO_PLACES
        # The path of a URL has a pattern, which is its type.
        and not (isinstance(meta := getattr(kind, "__metadata__", (None,))[0], msgspec.Meta) and meta.pattern)
    ]
    assert untyped == []
    typed = {key for key, _, place in kinds(Settings) if place}
    assert {"mqtt.brokers.*.ca_file", "coap.server.host", "ngsild.contexts", "security.local_users"} <= typed


def test_relative_paths_begin_at_the_folder_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / "passed").write_text("")
    file = tmp_path / "home" / "lamplighter.toml"
    file.write_text(
        "[gateway]\ndata = 'kept'\n[store]\npath = 'store'\n[security]\ncertificate_file = 'a.pem'\n"
        "key_file = '/b.pem'\n"
        "[mqtt]\nhost = 'h'\npassword_file = 'passed'\n[mqtt.brokers.attic]\nhost = 'i'\npassword_file = 'other'\n"
        "[ngsild.contexts]\n'http://a/' = 'c.json'\n[sync]\ndestination = 'to'\n"
    )
    settings = read_settings(file)
    folder = tmp_path / "home"
    assert {".".join(place.names): place.value for place in places(settings) if "/" in place.value} == {
        "security.certificate_file": str(folder / "a.pem"),
        "security.key_file": "/b.pem",
        "mqtt.password_file": str(tmp_path / "passed"),
        "mqtt.brokers.attic.password_file": str(folder / "other"),
        "ngsild.contexts.http://a/": str(folder / "c.json"),
        "sync.destination": str(folder / "to"),
        "sync.orders.url": "ws://127.0.0.1:9000/subscribe",
    }
    assert (settings.gateway.data, settings.store.path) == ("kept", "store"), (
        "--data may replace it; in the data folder"
    )


@each_row(
    ("kind", "value", "good"),
    [
        ("host", "lamps.example", True),
        ("host", "192.168.7.2", True),
        ("host", "fe80::1%eth0", True),
        ("host", "::", True),
        ("host", "wohnzimmer_büro", True),
        ("host", "lamps.example.", True),
        ("host", "http://lamps.example", False),
        ("host", "lamps.example:1883", False),
        ("host", "[::1]", False),
        ("host", "[::1]:1883", False),
        ("host", "192.168.7.300", False),
        ("host", "127.1", True),
        ("host", "0", True),
        ("host", "a b", False),
        ("served", "[2001:db8::1]", True),
        ("served", "2001:db8::1", True),
        ("served", "lamps.example", True),
        ("served", "[lamps.example]", False),
        ("served", "lamps.example:443", False),
        ("host", "lamps/", False),
        ("destination", "s3://bucket/prefix", True),
        ("destination", "sftp://user@host/path", True),
        ("destination", "/mnt/lake", True),
        ("destination", "file:///mnt/lake", True),
        ("destination", "local:///mnt/lake", True),
        ("destination", "S3://bucket/prefix", True),
        ("destination", "az://container/prefix", True),
        ("destination", "sftp:///path", True),
        ("destination", "ftp:///path", True),
        ("destination", "s3:///prefix", False),
        ("destination", "s3:/bucket", False),
        ("destination", "s3://", False),
        ("destination", "sftp:host/path", False),
        ("websocket", "ws+unix:/run/ws.sock", True),
        ("websocket", "wss://localhost:9443/secure/subscribe", True),
        ("websocket", "http://localhost:9000", False),
        ("websocket", "ws://localhost:port/", False),
        ("http", "https://localhost:8443/oauth/token", True),
        ("http", "localhost:8443/oauth/token", False),
        ("user", "anna", True),
        ("user", "anna, bob", False),
        ("file", "ca.pem", True),
        ("file", "https://ca.example/ca.pem", False),
        ("file", "~/ca.pem", False),
        ("name", "tokens can be names", True),
        ("name", "name ", False),
    ],
)
def test_what_a_place_may_be(kind: Any, value: str, good: bool) -> None:
    problem = place_problem(kind, value)
    assert (problem == "") == good
    if not good:
        assert repr(value) in problem and "; " in problem, "what it is, and the cure"


def test_the_same_text_in_a_setting_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "lamplighter.toml"
    file.write_text("[mqtt]\nhost = 'h'\n[mqtt.brokers.attic]\nport = 1\nhost = 'mqtt://attic'\n")
    with pytest.raises(ConfigurationError, match=re.escape(f"{file} line 5: mqtt.brokers.attic.host: 'mqtt://attic'")):
        read_settings(file)


@each_row(
    ("table", "key", "value"),
    [
        ("mqtt", "host", "mqtt://user:hunter2@broker:1883"),
        ("mqtt", "host", "user:hun/t@er2@broker"),
        ("mqtt", "password_file", "https://user:hunter2@word.example/"),
        ("security", "origins", ["https://user:hunter2@page.example"]),
        ("http_devices.devices.meter", "origin", "https://user:hunter2@meter.lan"),
        ("gateway", "base_iri", "http//user:hunter2@home"),
        ("sync", "destination", "sftp:user:hunter2@host/path"),
        ("sync", "destination", "az:/container?sig=hunter2"),
        ("sync.orders", "url", "http://user:hun\\\\ter2@gateway/"),
    ],
)
def test_no_password_in_an_address_is_shown(tmp_path: Path, table: str, key: str, value: object) -> None:
    file = tmp_path / "lamplighter.toml"
    file.write_text(f"[{table}]\n{key} = {value!r}\n" + ("secret_file = 'x'\n" if key == "origin" else ""))
    with pytest.raises(ConfigurationError, match=re.escape(table)) as refused:
        read_settings(file)
    told = str(refused.value).replace(str(tmp_path), "")  # which may be of worker2
    assert "hun" not in told and "er2" not in told
