"""lamplighter.toml -> typed settings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from lamplighter.engine.client.places import with_absolute_places
from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.settings import Settings, read_settings
from tests.support.places import ROOT
from tests.support.tables import each_row

DOCUMENTED = tomllib.loads((ROOT / "lamplighter.toml").read_text())
KEYS = [(table, key) for table, members in DOCUMENTED.items() for key in members]


def read(tmp_path: Path, text: str | bytes) -> Settings:
    path = tmp_path / "lamplighter.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_settings(path)


def beside(folder: Path, settings: Settings) -> Settings:
    return with_absolute_places(settings, folder)[0]


def test_without_a_file_the_defaults_hold() -> None:
    settings = read_settings(None)
    assert (settings.http.port, settings.websocket.port, settings.mqtt.host) == (8000, 9000, "")
    assert settings.gateway.durability == "fsync"
    assert (settings.http.host, settings.websocket.host) == ("127.0.0.1", "127.0.0.1")


def test_an_empty_file_is_like_none(tmp_path: Path) -> None:
    assert read(tmp_path, "") == beside(tmp_path, read_settings(None))


def test_the_documented_file_is_read_and_says_the_defaults() -> None:
    assert read_settings(ROOT / "lamplighter.toml") == beside(ROOT, Settings())


def test_only_what_is_named_differs_from_the_defaults(tmp_path: Path) -> None:
    settings = read(tmp_path, "[http]\nport = 0\n[query]\nrows_max = 5\n")
    expected = msgspec.structs.replace(
        beside(tmp_path, Settings()),
        http=msgspec.structs.replace(Settings().http, port=0),
        query=msgspec.structs.replace(Settings().query, rows_max=5),
    )
    assert settings == expected


@each_row(("table", "key"), KEYS, ids=lambda name: str(name))
def test_every_documented_key_is_known_and_its_type_checked(tmp_path: Path, table: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"{table}.{key}")) as caught:
        read(tmp_path, f"[{table}]\n{key} = [1979-05-27]\n")
    assert str(tmp_path / "lamplighter.toml") in str(caught.value)


@each_row(
    ("text", "named"),
    [
        ("[gateway]\nqueue = 5", "queue"),
        ("[gatway]\nqueue_max = 5", "gatway"),
        ("queue_max = 5", "queue_max"),
        ("[http]\nport = 65536", "http.port"),
        ("[http]\nport = -1", "http.port"),
        ('[http]\nport = "8000"', "http.port"),
        ("[gateway]\nqueue_max = 0", "gateway.queue_max"),
        ('[gateway]\ndurability = "maybe"', "gateway.durability"),
        ('[gateway]\nclock_trusted = "yes"', "gateway.clock_trusted"),
        ('[gateway]\nbase_iri = "http://a b/"', "gateway.base_iri"),
        ('[gateway]\nbase_iri = "relative"', "gateway.base_iri"),
        ('[gateway]\nbase_iri = ""', "gateway.base_iri"),
        ("[query]\ntime_ms_max = 1.5", "query.time_ms_max"),
        ("[websocket]\noutbox_bytes_max = -1", "websocket.outbox_bytes_max"),
        ("[coap]\nretry_min_s = 10.0\nretry_max_s = 1.0", "retry_max_s"),
        ("[mqtt]\nport = 0", "mqtt.port"),
        ("http = 5", "http"),
        ("[http\nport = 1", "not TOML"),
        ("[mqtt]\n[http]\n[mqtt]\nhost = 'broker'", "write the keys of a table in one place"),
        (b"[http]\nhost = '\xff'", "not TOML"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_key(tmp_path: Path, text: str | bytes, named: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    assert named in str(caught.value)
    assert str(tmp_path / "lamplighter.toml") in str(caught.value)


@each_row(
    ("text", "told"),
    [
        ("# mine\n\n[http]\nhost = 'a'\nprot = 8000\n", " line 5: unknown key http.prot; did you mean port?"),
        ("[store]\nzzz = 1\n", " line 2: unknown key store.zzz; use one of path"),
        ("[http]\nport = 0\n\n[gatway]\n", " line 4: unknown table [gatway]; did you mean gateway?"),
        ("\nrows_max = 5\n", " line 2: key rows_max is outside of a table; write it below [query]"),
        ("http = { prot = 1 }\n", " line 1: unknown key http.prot; did you mean port?"),
        ("http.port = 1\nhttp.prot = 1\n", " line 2: unknown key http.prot; did you mean port?"),
        ("[gateway]\nbase_iri = '''\ndat = 1\n'''\ndat = 1\n", " line 5: unknown key gateway.dat; did you mean data?"),
        ("[http]\nport = 65536\n", " line 2: http.port: Expected `int` <= 65535"),
        ("[http]\nport = 1\n[query]\n'rows_max' = '5'\n", " line 4: query.rows_max: Expected `int`, got `str`"),
        ("[security]\nhosts = [\n  'a',\n  1,\n]\n", " line 2: security.hosts: Expected `str`, got `int`"),
        (
            "[coap]\nretry_min_s = 9.0\nretry_max_s = 1.0",
            " line 1: coap: retry_max_s (1.0) is less than retry_min_s (9.0)",
        ),
        ("[http]\n[gateway]\nbase_iri = ''\n", " line 3: gateway.base_iri: '' is not an absolute IRI"),
        ("http = 5", " line 1: http: Expected `object`, got `int`"),
    ],
)
def test_an_error_names_the_line_and_the_nearest_key(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'lamplighter.toml'}{told}")


@each_row(
    ("text", "told"),
    [
        (
            "[gateway]\ndurability = 'Fsync'\n",
            "gateway.durability: Invalid enum value 'Fsync'; did you mean \"fsync\"?; "
            'allowed: "fsync", "interval", "off"',
        ),
        (
            "[mqtt]\ndiscovery = ['shelly', 'tuya']\n",
            "mqtt.discovery: Invalid enum value 'tuya'; "
            'allowed: "homeassistant", "zigbee2mqtt", "tasmota", "shelly", "sparkplug", "homie", "homie5", '
            '"chirpstack", "thethings", "rtl433", "theengs", "wled", "opendtu", "ahoydtu", "evcc", "victron"',
        ),
        ("[coap]\nenabled = 1\n", "coap.enabled: Expected `bool`, got `int`; write true or false"),
        ("[mqtt]\nhost = 'a'\n[mqtt.brokers.b]\nhots = 'c'\n", "unknown key mqtt.brokers.b.hots; did you mean host?"),
        ("[coap.server]\nprt = 1\n", "unknown key coap.server.prt; did you mean port?"),
    ],
)
def test_an_error_lists_the_allowed_values(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    [line] = str(caught.value).splitlines()
    assert line.partition(": ")[2] == told


def test_an_error_names_all_faults_with_their_lines(tmp_path: Path) -> None:
    text = """\
[http]
port = "8000"
prot = 1
[nosuch]
[security]
hosts = ["a:1", "b:2"]
certificate_file = "a.pem"
[coap.devices.lamp]
adress = "192.0.2.1"
"""
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    lines = [line.removeprefix(f"{tmp_path / 'lamplighter.toml'} ") for line in str(caught.value).splitlines()]
    assert [line[:40] for line in lines] == [
        "line 2: http.port: Expected `int`, got `str`"[:40],
        "line 3: unknown key http.prot; did you mean port?"[:40],
        "line 4: unknown table [nosuch]; use one "[:40],
        "line 6: security.hosts: 'a:1' is not a host"[:40],
        "line 6: security.hosts: 'b:2' is not a host"[:40],
        "line 5: security: certificate_file and key_file belong"[:40],
        "line 9: unknown key coap.devices.lamp.adress; did you"[:40],
    ]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(str(tmp_path / "none.toml"))):
        read_settings(tmp_path / "none.toml")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(str(tmp_path))):
        read_settings(tmp_path)


def test_keys_of_the_command_line_count_instead_of_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lamplighter.toml"
    path.write_text('[mqtt]\nhost = "away"\nport = 1884\n[http]\nport = 0\n')
    assigned = (
        "mqtt.host=127.0.0.1",
        "place.position = 52.52, 13.40",
        "mqtt.discovery=['shelly']",
        "mqtt.brokers.barn.host=b",
    )
    settings = read_settings(path, assigned=assigned)
    assert (settings.mqtt.host, settings.mqtt.port, settings.http.port) == ("127.0.0.1", 1884, 0)
    assert (settings.place.position, settings.mqtt.discovery) == ("52.52, 13.40", ("shelly",))
    assert settings.mqtt.brokers["barn"].host == "b"
    assert read_settings(None, assigned=assigned).mqtt.host == "127.0.0.1"


@each_row(
    ("assigned", "told"),
    [
        ("mqtt.prot=1", "--set mqtt.prot: unknown key mqtt.prot; did you mean port?"),
        ("mqtt.port=high", "--set mqtt.port: mqtt.port: Expected `int`, got `str`"),
        ("mqtt.host=a b", "--set mqtt.host: mqtt.host: 'a b' is not a host"),
        ("place.position=north", "--set place.position: place.position: 'north' is not latitude and longitude"),
        ("nosuch.key=1", "--set nosuch.key: unknown table [nosuch]; use one"),
        ("mqtt.port.more=1", "--set mqtt.port.more: port is no table"),
        ("mqtt=1", "--set mqtt=1: write TABLE.KEY=VALUE, such as mqtt.host=127.0.0.1"),
        ("mqtt.port=1\nhost='a'", "--set mqtt.port: mqtt.port: Expected `int`, got `str`"),
        ("mqtt.client_id=a\udcff", "--set mqtt.client_id: write UTF-8"),
    ],
)
def test_what_is_wrong_on_the_command_line_names_the_option(tmp_path: Path, assigned: str, told: str) -> None:
    path = tmp_path / "lamplighter.toml"
    path.write_text("[mqtt]\nport = 1884\n")
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        read_settings(path, assigned=[assigned])


def test_faults_of_the_file_keep_their_line_beside_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "lamplighter.toml"
    path.write_text("[http]\nport = 'x'\n")
    with pytest.raises(ConfigurationError, match=f"{re.escape(str(path))} line 2: http.port") as caught:
        read_settings(path, assigned=["mqtt.host=1"])
    assert "--set mqtt.host: mqtt.host: Expected `str`" in str(caught.value)
