"""docs/http-modbus-devices.md: the blocks of the section on Modbus are executed, with pymodbus's server as device."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from lamplighter.adapters.mapping import ReadTable, load_resource_rules
from lamplighter.adapters.mapping.tables import CommandBase, ResourceCommandTable
from lamplighter.ontology.vocabulary import GATEWAY
from tests.support.commands import command
from tests.support.gateway_process import GatewayProcess, wait_for
from tests.support.modbus_device import threaded_modbus_device
from tests.support.places import ROOT

DOCUMENT = (ROOT / "docs" / "http-modbus-devices.md").read_text()
[SECTION] = re.findall(r"^## Connect a Modbus device\n(.*?)^## ", DOCUMENT, re.M | re.S)
SETTINGS, RULES, MORE = re.findall(r"```toml\n(.*?)```", SECTION, re.S)
[CONSOLE] = re.findall(r"```console\n(.*?)```", SECTION, re.S)
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:]{8}")
READINGS = "SELECT ?v { ?o a <http://www.w3.org/ns/sosa/Observation> ; <http://www.w3.org/ns/sosa/hasSimpleResult> ?v }"
KEYS = {"type", "byte_order", "word_order", "scale", "offset"}


@pytest.mark.faults
def test_the_device_is_read_and_switched_as_the_document_says(tmp_path: Path) -> None:
    test, read, *shown = CONSOLE.splitlines()
    (tmp_path / "mapping").mkdir()
    settings = tomllib.loads(SETTINGS)["modbus"] | {"networks": ["127.0.0.0/8"]}
    with threaded_modbus_device() as device:
        place = f"127.0.0.1:{device.port}"
        (tmp_path / "mapping" / "cellar.toml").write_text(RULES.replace("192.0.2.30", place))
        device.write("input_register", 52, 0x449A, 0x5000)

        def told(line: str) -> list[str]:
            _, *words = shlex.split(line.removeprefix("$ ").replace("192.0.2.30", place))
            done = command(*words, "--config", gateway.config)
            assert done.returncode == 0, done.stderr
            return [TIME.sub("TIME", text) for text in done.stdout.splitlines()]

        with GatewayProcess(tmp_path, "--all", modbus=settings) as gateway:
            wait_for(lambda: bool(gateway.rows(READINGS)), what="the reading")
            assert told(read) == [TIME.sub("TIME", text) for text in shown]
            assert any('"1234.5"' in text for text in told(test))
            gateway.update(f"INSERT DATA {{ <http://lamplighter.local/pump> <{GATEWAY}desiredState> true }}")
            wait_for(lambda: device.read("coil", 3) == [1], what="the pump")


def test_all_rules_of_the_document_are_good_and_name_each_key(tmp_path: Path) -> None:
    for number, text in enumerate((RULES, MORE)):
        (tmp_path / f"{number}.toml").write_text(text)
    found = load_resource_rules(tmp_path, "http://lamplighter.local/", "modbus")
    assert (len(found.resources), len(found.commands)) == (2, 3)
    names = (line.split("|")[1] for line in SECTION.splitlines() if line.startswith("| `"))
    keys = {key for name in names for key in re.findall(r"`(\w+)`", name)}
    assert keys == KEYS | {"quantity", "entity", "function"}
    assert KEYS - set(ReadTable.__struct_fields__) == KEYS & set(ResourceCommandTable.__struct_fields__) - {
        "scale",
        "offset",
    }
    assert not KEYS & set(CommandBase.__struct_fields__)
