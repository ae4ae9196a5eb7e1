"""Each ecosystem that docs/mqtt-devices.md sets up is read and switched, with a real broker, a gateway and simulated
devices. recipes.txt has the commands of a user, and what they print."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lamplighter.adapters.mapping import load_mapping
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import lexical
from lamplighter.gateway.__main__ import main
from tests.support import simulated_devices as simulated
from tests.support.brokers import Mosquitto, mosquitto
from tests.support.components import require_command
from tests.support.gateway_process import GatewayProcess
from tests.support.places import ROOT
from tests.support.simulated_devices import Script, SimulatedDevice

_, *_PARTS = re.split(r"^## (.*)\n", (ROOT / "tests" / "e2e" / "recipes.txt").read_text(), flags=re.M)
[PAGE] = re.findall(r"^### Set up the device\n(.*?)^### ", (ROOT / "docs" / "mqtt-devices.md").read_text(), re.M | re.S)
SECTIONS = dict(zip(_PARTS[::2], _PARTS[1::2], strict=True))
RECIPES = [name for name in SECTIONS if name != "The broker"]
PASSWORDS = "/etc/mosquitto/passwords"
ADDRESS = "192.0.2.5"
LIMIT_S = 120.0


def blocks(section: str, language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", SECTIONS[section], re.M | re.S)
    return [re.sub(rf"^{indent}", "", text, flags=re.M) for indent, text in found]


def setting(device: str, pattern: str) -> str:
    """What the page sets on a device or bridge."""
    [text] = re.findall(rf"^\| {device} \| (.*) \|$", PAGE, re.M)
    assert ADDRESS in text and "devices" in text and "SECRET2" in text
    return re.findall(pattern, text)[0]


def script(section: str) -> Script:
    match section:
        case "Plain topics":
            return Script(asked={("garage/light/set", "ON"): [("garage/light", "ON")]})
        case "Zigbee2MQTT":
            return simulated.zigbee2mqtt(setting("Zigbee2MQTT", r"base_topic: (\w+)"))
        case "Tasmota":
            assert setting("Tasmota", r"SetOption19 (\d)") == "0"
            return simulated.tasmota(setting("Tasmota", r"; Topic (\w+)"))
        case "Shelly, first generation":
            return simulated.shelly_first()
        case "Shelly, later generations":
            return simulated.shelly_later()
        case "ESPHome":
            assert setting("ESPHome", r"mqtt: \{broker: ([\d.]+)") == ADDRESS
            return simulated.esphome("greenhouse", announced=True)
        case "ESPHome without discovery":
            return simulated.esphome("shed", announced=False)
        case "Home Assistant discovery":
            return Script(asked={("well/pump/set", "ON"): [("well/state", '{"level": 3.2, "pump": "ON"}')]})
        case "Sparkplug B":
            return simulated.sparkplug()
        case "SenML":
            return Script()
    raise AssertionError(f"{section} has no simulated device")


@dataclass
class House:
    broker: Mosquitto
    gateway: GatewayProcess
    passwords: dict[str, str]
    published: list[str] = field(default_factory=list)
    """The last command that published a reading."""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Broker and gateway as the first section has them, with the rules and settings of all recipes."""
    folder = tmp_path_factory.mktemp("recipes")
    passwords = {}
    *makes, restart = blocks("The broker", "console")[0].splitlines()
    assert restart == "$ sudo systemctl restart mosquitto"
    for line in makes:
        line = line.replace(PASSWORDS, str(folder / "passwords")).replace("-g mosquitto", f"-g {os.getgid()}")
        program, *arguments = shlex.split(line.removeprefix("$ sudo "))
        subprocess.run([require_command(program), *arguments], check=True, timeout=LIMIT_S)
        passwords[arguments[-2]] = arguments[-1]
    [conf] = blocks("The broker", "conf")
    listener, *lines = conf.splitlines()
    assert listener == "listener 1883"

    settings: dict[str, Any] = {}
    (folder / "gateway" / "mapping").mkdir(parents=True)
    for section in SECTIONS:
        for text in blocks(section, "toml"):
            if text.startswith("[mqtt]"):
                settings |= tomllib.loads(text)["mqtt"]
            else:
                [file] = re.findall(r"`(mapping/\w+\.toml)`", SECTIONS[section])
                (folder / "gateway" / file).write_text(text)
    (folder / settings["password_file"]).write_text(passwords[settings["username"]] + "\n")
    settings["password_file"] = str(folder / settings["password_file"])

    conf_lines = [line.replace(PASSWORDS, str(folder / "passwords")) for line in lines]
    with mosquitto(settings=conf_lines) as broker:
        gateway = GatewayProcess(folder / "gateway", "--all", mqtt=settings | {"port": broker.port})
        with gateway:
            yield House(broker, gateway, passwords)


@pytest.mark.parametrize("section", RECIPES)
def test_recipe(section: str, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(house.gateway.folder)
    house.published = []
    told = re.findall(r"gets (`[^`]*`(?: and `[^`]*`)?) on\s+`([^`]*)`", SECTIONS[section])
    try:
        with SimulatedDevice(script(section), house.broker.port, "devices", house.passwords["devices"]) as device:
            for block in blocks(section, "console"):
                for part in block.split("$ ")[1:]:
                    command, _, output = part.partition("\n")
                    execute(command, output, house, device)
            wanted = {(topic, payload) for payloads, topic in told for payload in re.findall(r"`(.*?)`", payloads)}
            wait(lambda: wanted - set(device.heard), set())
    finally:
        forget()


def execute(command: str, output: str, house: House, device: SimulatedDevice) -> None:
    """Runs a command of a recipe until it prints what the recipe shows; one that changes something runs once."""
    program, *arguments = shlex.split(command)
    if program == "mosquitto_pub":
        assert not output
        place = ["127.0.0.1" if word == ADDRESS else word for word in arguments]
        line = [require_command(program), "-p", str(house.broker.port), "-q", "1", *place]
        subprocess.run(line, check=True, timeout=LIMIT_S)
        house.published = line
        return
    assert program == "lamplighter"

    def printed() -> list[str]:
        device.speak()
        if house.published and arguments[0] == "readings":  # the adapter may not have subscribed before
            subprocess.run(house.published, check=True, timeout=LIMIT_S)
        try:
            return timeless(lamplighter(*arguments))
        except AssertionError as error:  # nothing has the name before the first message
            return [str(error)]

    def listed() -> list[str]:
        """The lines of this recipe's devices, whatever the width of the columns: other recipes have ignored theirs."""
        return [re.sub(" +", " ", line) for line in printed() if " ignored " not in line]

    if arguments == ["devices"]:
        wait(listed, [re.sub(" +", " ", line) for line in output.splitlines()])
    elif arguments[0] == "readings":
        wait(printed, timeless(output))
    else:
        assert lamplighter(*arguments) == output


def timeless(output: str) -> list[str]:
    """The lines without times."""
    return [re.sub(r"\d{4}-\d\d-\d\dT[\d:]{8}$", "TIME", line) for line in output.splitlines()]


def lamplighter(*arguments: str) -> str:
    """What the command prints. It runs in this process, since starting one takes a second."""
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        code = main(list(arguments))
    assert code == 0, errors.getvalue()
    return printed.getvalue()


def wait(found: Callable[[], object], wanted: object) -> None:
    """Waits until the call gives what is wanted."""
    end = time.monotonic() + LIMIT_S
    while (last := found()) != wanted and time.monotonic() < end:
        time.sleep(0.1)  # another process is at work
    assert last == wanted


def forget() -> None:
    """Ignores the devices of a recipe, so that the next one has its own only."""

    def others() -> list[str]:
        listed = [line.split() for line in lamplighter("devices").splitlines()[1:] if " ignored " not in line]
        known = [words[0] for words in listed if "/" in words[0]]
        for identity in known:
            with contextlib.suppress(AssertionError):  # it may just have been forgotten
                lamplighter("devices", "ignore", identity)
        return known

    wait(others, [])


def test_rules_without_announcements_read_their_messages(tmp_path: Path) -> None:
    [rules] = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    (tmp_path / "rules.toml").write_text(rules)
    mapping = load_mapping(tmp_path, "http://lamplighter.local/")
    messages = {
        "frigate/yard/motion": ("ON", "true"),
        "350424/data": ('{"state": {"reported": {"sp": 50, "ts": 1680000000000}}}', "50"),
        "v1/gateway/telemetry": ('{"Meter": [{"ts": 1483228800000, "values": {"temperature": 42.5}}]}', "42.5"),
        "$aws/things/cellar/shadow/update/accepted": ('{"state": {"reported": {"temperature": 9}}}', "9"),
        "node-red/attic": ('{"payload": 21}', "21"),
    }
    assert len(mapping.rules) == len(messages)
    for topic, (payload, value) in messages.items():
        [reading] = mapping.readings(topic, payload.encode(), retained=False, received=datetime.now(UTC))
        assert not isinstance(reading, PayloadError), topic
        assert lexical(reading.value) == value, topic
