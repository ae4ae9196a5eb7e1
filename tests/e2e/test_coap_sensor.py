"""docs/coap-devices.md: the blocks of the section on CoAP sensors are executed, with libcoap's server as the sensor."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from lamplighter.adapters.mapping import load_resource_rules
from tests.support.coap_peers import CLIENT_COMMANDS, libcoap_server
from tests.support.commands import command
from tests.support.components import require_command
from tests.support.gateway_process import GatewayProcess, wait_for
from tests.support.places import ROOT

DOCUMENT = (ROOT / "docs" / "coap-devices.md").read_text()
[SECTION] = re.findall(r"^## Read a sensor\n(.*?)^## ", DOCUMENT, re.M | re.S)
RULES = re.findall(r"```toml\n(.*?)```", SECTION, re.S)
[CONSOLE] = re.findall(r"```console\n(.*?)```", SECTION, re.S)
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:]{8}")


def test_the_sensor_is_read_as_the_document_says_and_again_after_its_reboot(tmp_path: Path) -> None:
    put, read, *shown = CONSOLE.splitlines()
    program, *measured = shlex.split(put.removeprefix("$ "))
    assert program in CLIENT_COMMANDS
    _, *words = shlex.split(read.removeprefix("$ "))
    with libcoap_server() as sensor:
        place = f"127.0.0.1:{sensor.port}"
        (tmp_path / "mapping").mkdir()
        rule = RULES[0].replace("192.0.2.20", place) + "max_age_s = 1\n"
        (tmp_path / "mapping" / "cellar.toml").write_text(rule)

        def measure(value: str) -> None:
            arguments = [word.replace("192.0.2.20", place).replace("21.5", value) for word in measured]
            subprocess.run([require_command(*CLIENT_COMMANDS), *arguments], check=True, timeout=120)

        def printed(value: str) -> bool:
            done = command(*words, "--config", gateway.config)
            wanted = [TIME.sub("TIME", line.replace("21.5", value)) for line in shown]
            return [TIME.sub("TIME", line) for line in done.stdout.splitlines()] == wanted

        coap = {"networks": ["127.0.0.0/8"], "ack_timeout_s": 5, "retry_max_s": 0.5}
        with GatewayProcess(tmp_path, "--all", coap=coap) as gateway:
            measure("21.5")
            wait_for(lambda: printed("21.5"), what="the reading")
            sensor.stop()
            sensor.start()
            measure("22.5")
            wait_for(lambda: printed("22.5"), what="the reading after the reboot")


def test_all_rules_of_the_document_are_good(tmp_path: Path) -> None:
    for number, text in enumerate(RULES):
        (tmp_path / f"{number}.toml").write_text(text)
    assert len(load_resource_rules(tmp_path, "http://lamplighter.local/").resources) == len(RULES) == 2
