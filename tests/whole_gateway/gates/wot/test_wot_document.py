"""docs/wot.md: its blocks are executed in order, with a real broker, a device, curl and node-wot."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.brokers import mosquitto, subscribed
from tests.support.components import require_command
from tests.support.gateway_process import GatewayProcess, wait_for
from tests.support.places import ROOT
from tests.support.thing_descriptions import node_environment

DOCUMENT = (ROOT / "docs" / "wot.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", DOCUMENT, re.M | re.S)
    return [re.sub(rf"^{indent}", "", text, flags=re.M) for indent, text in found]


def test_the_document_shows_what_its_commands_print(tmp_path: Path) -> None:
    [settings], [description], [program] = blocks("toml"), blocks("json"), blocks("js")
    with mosquitto() as broker:
        tables = tomllib.loads(settings)
        assert tables["wot"] == {"enabled": True}
        tables["mqtt"]["port"] = broker.port
        (tmp_path / "porch.td.json").write_text(description.replace(":1883", f":{broker.port}"))
        with GatewayProcess(tmp_path / "gateway", "--all", **tables) as gateway:
            address = gateway.http_url.removeprefix("http://")

            def printed(command: str) -> str:
                words = shlex.split(command.replace("127.0.0.1:8000", address))
                words[0] = require_command(words[0])
                words[1:1] = ["-p", str(broker.port)] if "mosquitto" in words[0] else ["-sS"]
                done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
                return done.stdout

            heard: list[bytes] = []
            device = mqtt.Client(CallbackAPIVersion.VERSION2)
            device.on_message = lambda _client, _data, message: heard.append(message.payload)
            commands = [line for text in blocks("console") for line in re.split(r"^\$ ", text, flags=re.M)[1:]]
            submit, publish, read, switch, search = (one.partition("\n") for one in commands)
            assert printed(submit[0]) == submit[2].rstrip("\n")
            with subscribed(device, broker, "porch/set"):
                # The reading is sent until the adapter has subscribed.
                wait_for(lambda: printed(publish[0]) == "" and printed(read[0]) == read[2].rstrip("\n"))
                assert printed(switch[0]) == ""
                wait_for(lambda: heard[-1:] == [b"true"], what="the message to the device")
                assert printed(search[0]) == search[2].rstrip("\n")

                (tmp_path / "client.js").write_text(program.replace("127.0.0.1:8000", address))
                broker.publish(("porch/light", "true"))
                wait_for(lambda: printed(f"{read[0].replace('temperature', 'light')}") == "true")
                client = subprocess.Popen(
                    [require_command("node"), "client.js"],
                    cwd=tmp_path,
                    env=node_environment(),
                    stdout=subprocess.PIPE,
                    text=True,
                )
                told, _ = client.communicate(timeout=120)
                assert (told, client.returncode) == ("porch 21.5\nlight true\n", 0)
                wait_for(lambda: heard[-1:] == [b"false"], what="the message of node-wot")


def test_the_document_has_the_limits_of_the_code() -> None:
    from lamplighter.gateway.gates.wot import api, registrations, submitted, things

    for limit in (
        f"{api.PAGE} at a time",
        f"at most {api.PAGE_MAX:,}",
        f"at most {things.THINGS_MAX:,} things",
        f"{api.SEARCHED_MAX:,} can be searched",
        f"{registrations.DEVICES_MAX:,} submitted ones",
        f"at most {submitted.BYTES_MAX // 1024} KiB, {submitted.DEPTH_MAX} levels",
        f"{submitted.AFFORDANCES_MAX} properties, actions and events",
    ):
        assert limit in DOCUMENT
