"""`lamplighter init`: files from templates, questions on a terminal, and refusals."""

from __future__ import annotations

import json
import os
import pty
import shlex
import tomllib
from pathlib import Path

import pytest

from lamplighter.gateway.__main__ import main
from lamplighter.gateway.state.applications import load_applications
from lamplighter.gateway.templates.catalogue import TEMPLATES
from tests.support.fork_server import ForkedProcess

BASE = "http://lamplighter.local/"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("template", TEMPLATES)
def test_application_alone(folder: Path, template: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", template, f"--{TEMPLATES[template].actuator}", "x"]) == 0
    assert files(folder) == [f"apps/{template}.jsap"]
    [application] = load_applications(folder / "apps")
    assert f"<{BASE}actuator/x>" in json.dumps([update.sparql for update in application.profile.updates.values()])
    told = capsys.readouterr().out
    assert told.startswith(f"wrote apps/{template}.jsap\n")
    assert told.endswith("next:\n  lamplighter check\n  lamplighter run --all\n")
    (folder / "lamplighter.toml").write_text("[http]\nport = 0\n[websocket]\nport = 0\n")
    assert main(["check"]) == 0


def test_devices_mapped_by_hand(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "home.toml").write_text('[gateway]\nbase_iri = "http://home.example/"\n')
    line = [
        "init",
        "door-left-open",
        "--config",
        "home.toml",
        "--name",
        "front",
        "--alarm",
        "siren",
        "--sensor",
        "door/1",
    ]
    line += ["--room", "hall", "--topic", "zigbee2mqtt/door", "--member", "state", "--closed", "shut", "--open", "ajar"]
    line += ["--command-topic", "zigbee2mqtt/siren/set", "--command-payload", '{"state": "{value}"}']
    line += ["--command-value", "true=ON", "--command-value", "false=OFF", "--open-for", "90s"]
    assert main(line) == 0
    assert files(folder) == ["apps/front.jsap", "home.toml", "mapping/front.toml"]
    assert tomllib.loads((folder / "mapping" / "front.toml").read_text()) == {
        "stream": [
            {
                "topic": "zigbee2mqtt/door",
                "member": "state",
                "property": "gateway:contact",
                "payload": "boolean",
                "sensor": "door/1",
                "on": ["shut"],
                "off": ["ajar"],
                "feature": "area/hall",
            }
        ],
        "command": [
            {
                "actuator": "actuator/siren",
                "topic": "zigbee2mqtt/siren/set",
                "payload": '{"state": "{value}"}',
                "values": {"true": "ON", "false": "OFF"},
            }
        ],
    }
    [application] = load_applications(folder / "apps")
    profile = application.profile
    assert profile.updates["REPORT"].delay == "PT90S"
    assert "<http://home.example/door/1>" in profile.queries["OPEN"].sparql
    assert "<http://home.example/actuator/siren>" in profile.updates["ALARM_ON"].sparql
    told = capsys.readouterr().out
    assert "wrote apps/front.jsap\nwrote mapping/front.toml\n" in told
    assert "set host of [mqtt] in home.toml" in told
    assert "  lamplighter check --config home.toml\n  lamplighter run --all --config home.toml\n" in told


def test_model_without_live_observations_is_warned_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "lamplighter.toml").write_text('[mqtt]\nmodel = "event"\n')
    assert main(["init", "motion-light", "--light", "x"]) == 0
    assert 'mqtt.model is "event", and must be "latest"' in capsys.readouterr().out


def test_a_coap_device_is_an_update(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "motion-light", "--light", "x", "--coap", "coap://192.168.7.20/lamp"]) == 0
    update = capsys.readouterr().out.splitlines()[-1]
    assert "lamplighter.example/ns/gateway#coapResource> <coap://192.168.7.20/lamp> }" in update


def test_what_was_written_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["init", "motion-light", "--light", "x", "--room", "hall", "--topic", "a/b", "--coap", "coap://h/lamp"]
    assert main([*line, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["wrote"] == ["apps/motion-light.jsap", "mapping/motion-light.toml"] == files(folder)
    assert told["follows"]["room"] == f"{BASE}area/hall"
    assert told["notes"] == ["set host of [mqtt] in lamplighter.toml: the broker of the devices"]
    assert told["next"] == ["lamplighter check", "lamplighter run --all"]
    assert told["once_it_runs"][0].startswith("lamplighter update 'INSERT DATA {")
    assert main([*line, "--json"]) == 2
    refused = capsys.readouterr()
    assert refused.out == "" and "nothing was written" in refused.err


def test_a_sensor_that_is_mapped_without_room_and_name_is_the_one_that_counts(folder: Path) -> None:
    assert main(["init", "leak-alarm", "--alarm", "x", "--topic", "cellar/water"]) == 0
    [application] = load_applications(folder / "apps")
    assert f"<{BASE}sensor/leak-alarm>" in application.profile.queries["LEAK"].sparql


@pytest.mark.parametrize(
    ("room", "path"), [("Kitchen", "area/Kitchen"), ("Living room", "area/Living_room~"), ("room/1", "room/1")]
)
def test_a_room_is_the_area_of_devices_or_a_path(folder: Path, room: str, path: str) -> None:
    assert main(["init", "motion-light", "--light", "x", "--room", room, "--topic", "a/b"]) == 0
    [application] = load_applications(folder / "apps")
    assert f"gateway:inArea <{BASE}{path}" in application.profile.queries["MOTION"].sparql
    [stream] = tomllib.loads((folder / "mapping" / "motion-light.toml").read_text())["stream"]
    assert stream["feature"].startswith(path)


def test_no_file_is_overwritten_without_being_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["init", "motion-light", "--light", "x", "--topic", "a/b"]
    assert main(line) == 0
    (folder / "apps" / "motion-light.jsap").unlink()
    mapping = folder / "mapping" / "motion-light.toml"
    mapping.write_text("# mine\n")
    assert main(line) == 2
    assert files(folder) == ["mapping/motion-light.toml"]
    assert mapping.read_text() == "# mine\n"
    told = capsys.readouterr().err
    assert told.startswith("lamplighter: mapping/motion-light.toml exists; nothing was written.")
    assert main([*line, "--name", "other"]) == 0
    assert main([*line, "--force"]) == 0
    assert "[[stream]]" in mapping.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--light: name the light to switch"),
        (["--light", "living room"], "--light living room: use letters, digits, - and _, or give an IRI"),
        (["--light", "http://x/ y"], "--light http://x/ y: "),
        (["--light", "x", "--name", "../x"], "--name ../x: use letters"),
        (["--light", "x", "--off-after", "soon"], "--off-after soon: write a time such as 30s, 5min, 1h or PT30S"),
        (["--light", "x", "--topic", "a/#/b"], "mapping/motion-light.toml line 3: stream 1: topic"),
        (["--light", "x", "--member", "a"], "--member and the words of a sensor need --topic"),
        (["--light", "x", "--command-value", "true=ON"], "need --command-topic"),
        (["--light", "x", "--light", "y", "--coap", "coap://h/a"], "--coap and --command-topic are of one light"),
        (["--light", "x", "--sensor", "a", "--sensor", "b", "--topic", "t"], "--topic: it is of one sensor"),
        (["--light", "x", "--coap", "http://h/a"], "--coap: only coap:// URIs are supported"),
        (["--light", "x", "--config", "none.toml"], "none.toml: No such file"),
    ],
)
def test_refused_options_write_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["init", "motion-light", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert files(folder) == []


def test_temperatures_are_numbers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["init", "presence-heating", "--thermostat", "x"]
    for wrong in ("warm", "NaN", "Infinity"):
        assert main([*line, "--present", wrong]) == 2
        assert f"--present {wrong}: write a number such as 21 or 20.5" in capsys.readouterr().err
    assert main([*line, "--present", "2.05E1", "--absent", "-3"]) == 0
    [application] = load_applications(folder / "apps")
    assert "desiredState 20.5 }" in application.profile.updates["HEAT"].sparql
    assert "desiredState -3 }" in application.profile.updates["LOWER"].sparql


def test_a_terminal_is_asked_for_what_is_missing(folder: Path) -> None:
    ours, theirs = pty.openpty()
    words = ["init", "motion-light", "--off-after", "5min"]
    process = ForkedProcess(words, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder)
    os.close(theirs)
    os.write(ours, b"kitchen\nkitchen\nzigbee2mqtt/pir\noccupancy\n\n")
    told = b""
    try:
        while chunk := os.read(ours, 4096):
            told += chunk
    except OSError:  # the other end is closed
        pass
    assert process.wait(60) == 0
    os.close(ours)
    for question in ("The light", "The room", "MQTT topic", "JSON member", "How the light is told"):
        assert question in told.decode(), question
    assert files(folder) == ["apps/motion-light.jsap", "mapping/motion-light.toml"]
    [stream] = tomllib.loads((folder / "mapping" / "motion-light.toml").read_text())["stream"]
    assert (stream["topic"], stream["member"], stream["feature"]) == ("zigbee2mqtt/pir", "occupancy", "area/kitchen")
    [application] = load_applications(folder / "apps")
    assert f"<{BASE}area/kitchen>" in application.profile.queries["MOTION"].sparql
    assert application.profile.updates["SWITCH_OFF"].delay == "PT5M"


def test_links_are_not_followed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "apps").mkdir()
    (folder / "apps" / "x.jsap").symlink_to(folder / "victim")
    for force in ([], ["--force"]):
        assert main(["init", "leak-alarm", "--alarm", "a", "--name", "x", *force]) == 2
    assert "apps/x.jsap is a link; nothing was written" in capsys.readouterr().err
    assert files(folder) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--present", "1e999999999"], "--present 1e999999999: write a number"),
        (["--present", "1e-999999999"], "--present 1e-999999999: write a number"),
        (["--topic", "a/\udcff"], "--topic: write UTF-8"),
        (["--room", "\udcff"], "--room: write UTF-8"),
    ],
)
def test_values_that_no_file_may_have(
    folder: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert main(["init", "presence-heating", "--thermostat", "a", *more]) == 2
    assert said in capsys.readouterr().err
    assert files(folder) == []


def test_printed_commands_are_quoted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "leak-alarm", "--alarm", "http://x/a'b", "--coap", "coap://10.0.0.1/a"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "INSERT DATA" in line]
    assert len(shlex.split(line)) == 3


def test_refusals_send_no_control_sequences_to_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "leak-alarm", "--alarm", "\x1b[31mx"]) == 2
    assert capsys.readouterr().err.startswith("lamplighter: --alarm \\u001B[31mx: use letters")
