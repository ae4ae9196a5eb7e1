"""docs/coap-devices.md: the blocks of the section on CoAP lamps are executed, with libcoap's server as the lamp."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from lamplighter.adapters.mapping import load_resource_rules
from tests.support.coap_peers import libcoap_server
from tests.support.commands import command
from tests.support.gateway_process import GatewayProcess, wait_for
from tests.support.places import ROOT

DOCUMENT = (ROOT / "docs" / "coap-devices.md").read_text()
[SECTION] = re.findall(r"^## Switch a lamp\n(.*?)^## ", DOCUMENT, re.M | re.S)
RULES = re.findall(r"```toml\n(.*?)```", SECTION, re.S)
[CONSOLE] = re.findall(r"```console\n(.*?)```", SECTION, re.S)


def test_the_lamp_is_switched_as_the_document_says_and_again_after_its_reboot(tmp_path: Path) -> None:
    update, read, shown = CONSOLE.splitlines()
    _, *words = shlex.split(update.removeprefix("$ "))
    assert read == "$ coap-client-notls coap://192.0.2.10/lamp"
    with libcoap_server() as lamp:
        (tmp_path / "mapping").mkdir()
        rule = RULES[0].replace("192.0.2.10", f"127.0.0.1:{lamp.port}").replace("reassert_s = 30", "reassert_s = 1")
        (tmp_path / "mapping" / "lamp.toml").write_text(rule)
        with GatewayProcess(tmp_path, "--all", coap={"networks": ["127.0.0.0/8"]}) as gateway:
            done = command(*words, "--config", gateway.config)
            assert done.returncode == 0, done.stderr
            wait_for(lambda: lamp.get("lamp") == shown, what="the state of the lamp")
            lamp.stop()
            lamp.start()
            wait_for(lambda: lamp.get("lamp") == shown, what="the state of the lamp after its reboot")


def test_all_rules_of_the_document_are_good(tmp_path: Path) -> None:
    for number, text in enumerate(RULES):
        (tmp_path / f"{number}.toml").write_text(text)
    assert len(load_resource_rules(tmp_path, "http://lamplighter.local/").commands) == len(RULES) == 2
