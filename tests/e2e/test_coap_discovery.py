"""CoAP devices that register themselves: offered, adopted by the command, switched; offline when they are silent."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiocoap
import aiocoap.resource
from aiocoap.resourcedirectory.client.register import Registerer

from lamplighter.adapters.coap.adapter import CoapAdapter
from lamplighter.adapters.coap.server import CoapMachine
from lamplighter.adapters.coap.server_settings import CoapServerSettings
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.parts import AdapterContext
from lamplighter.engine.client import EngineClient
from lamplighter.ontology.vocabulary import GATEWAY
from tests.support.coap_peers import CLIENT_COMMANDS, free_udp_port
from tests.support.commands import command
from tests.support.components import require_command
from tests.support.event_loops import beside, until
from tests.support.gateway_process import GatewayProcess
from tests.support.places import ROOT

DOCUMENT = (ROOT / "docs" / "coap-devices.md").read_text()
[SECTION] = re.findall(r"^## Find devices\n(.*?)^## ", DOCUMENT, re.M | re.S)
BASE = "http://lamplighter.local/"
LOOPBACK = ("127.0.0.0/8",)
STATES = f"""PREFIX gateway: <{GATEWAY}> SELECT ?state ?online {{
  GRAPH <{BASE}graph/proposed> {{ ?device gateway:adoption ?state }} OPTIONAL {{ ?device gateway:online ?online }} }}"""
PROPOSED = f"PREFIX gateway: <{GATEWAY}> SELECT ?device {{ GRAPH ?g {{ ?device gateway:adoption 'proposed' }} }}"
NODES = f"PREFIX gateway: <{GATEWAY}> SELECT ?name {{ GRAPH ?g {{ ?r gateway:endpointName ?name }} }}"


class Lamp(aiocoap.resource.Resource):  # type: ignore[misc]
    """A lamp of aiocoap. payloads: what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.payloads: list[bytes] = []

    def get_link_description(self) -> dict[str, str]:
        return {"rt": "light", "if": "core.a", "ct": "0"}

    async def render_put(self, request: aiocoap.Message) -> aiocoap.Message:
        self.payloads.append(request.payload)
        return aiocoap.Message(code=aiocoap.CHANGED)

    async def render_get(self, request: aiocoap.Message) -> aiocoap.Message:
        state = self.payloads[-1] if self.payloads else b"false"
        return aiocoap.Message(payload=state, content_format=0)


@dataclass
class House:
    """A gateway with the CoAP adapter in this process, and a lamp. seconds: the clock of lifetimes."""

    gateway: GatewayProcess
    adapter: CoapAdapter
    context: aiocoap.Context
    lamp: Lamp
    port: int
    seconds: list[float] = field(default_factory=lambda: [0.0])

    @property
    def directory(self) -> str:
        return f"coap://{self.adapter.health().listens}"

    async def get(self, path: str) -> aiocoap.Message:
        return await self.context.request(aiocoap.Message(code=aiocoap.GET, uri=f"{self.directory}/{path}")).response

    async def rows(self, query: str) -> list[dict[str, str]]:
        return await asyncio.to_thread(self.gateway.rows, query)

    async def until_rows(self, query: str, wanted: list[dict[str, str]]) -> None:
        end = asyncio.get_running_loop().time() + 120
        while (found := await self.rows(query)) != wanted:
            assert asyncio.get_running_loop().time() < end, f"{query} has {found} for 120 s, not {wanted}"
            await asyncio.sleep(0.1)

    async def devices(self, *arguments: str) -> str:
        done = await asyncio.to_thread(command, "devices", *arguments, "--config", self.gateway.config, check=True)
        return done.stdout


@asynccontextmanager
async def house(folder: Path) -> AsyncIterator[House]:
    lamp, site, seconds = Lamp(), aiocoap.resource.Site(), [0.0]
    site.add_resource(["lamp"], lamp)
    site.add_resource([".well-known", "core"], aiocoap.resource.WKCResource(site.get_resources_as_linkheader))
    port = free_udp_port()
    context = await aiocoap.Context.create_server_context(site, bind=("127.0.0.1", port), transports=["udp6"])
    settings = CoapSettings(networks=LOOPBACK, server=CoapServerSettings(port=0))
    try:
        with GatewayProcess(folder, coap={"networks": LOOPBACK}) as gateway:
            url = f"ws://127.0.0.1:{gateway.websocket_port}/subscribe"
            async with EngineClient(url, name="coap") as client:
                adapter = CoapAdapter(
                    settings,
                    AdapterContext(client, BASE),
                    CoapMachine(monotonic=lambda: seconds[0]),
                    rules=DatasetRules(BASE, kind="coap"),
                )
                async with beside(adapter.run()):
                    await until(lambda: bool(adapter.health().listens))
                    home = House(gateway, adapter, context, lamp, port, seconds)
                    while (await home.get("rd-lookup/ep")).code != aiocoap.CONTENT:
                        await asyncio.sleep(0.1)  # the directory is being read from the dataset
                    yield home
    finally:
        await context.shutdown()


async def test_a_registered_lamp_is_offered_adopted_switched_and_offline_when_its_lifetime_ends(tmp_path: Path) -> None:
    async with house(tmp_path) as home:
        registerer = Registerer(
            home.context, rd=home.directory, lt=600, registration_parameters={"ep": "hall"}, name_from_hostname=False
        )
        await home.until_rows(STATES, [{"state": "proposed"}])
        await until(lambda: registerer.state == "registered")
        await home.until_rows(NODES, [{"name": "hall"}])  # the directory writes it beside the proposal
        assert home.adapter.health().registered == 1
        assert home.lamp.payloads == []
        assert "coap/hall" in await home.devices("list")

        assert (await home.devices("adopt", "hall")).startswith("adopted coap/hall")
        await home.until_rows(STATES, [{"state": "adopted", "online": "true"}])
        await home.devices("set", "hall", "on")
        await until(lambda: home.lamp.payloads == [b"true"])

        home.seconds[0] = 601.0
        await home.until_rows(STATES, [{"state": "adopted", "online": "false"}])
        await home.until_rows(NODES, [])
        assert home.adapter.counts()["registrations_expired"] == 1
        await registerer.shutdown()


async def test_a_lamp_registers_simply_once_it_has_repeated_the_echo_value(tmp_path: Path) -> None:
    async with house(tmp_path) as home:

        async def post(**options: Any) -> aiocoap.Message:
            message = aiocoap.Message(code=aiocoap.POST, uri=f"{home.directory}/.well-known/rd?ep=hall&lt=600")
            for name, value in options.items():
                setattr(message.opt, name, value)
            return await home.context.request(message).response

        first = await post()
        assert first.code == aiocoap.UNAUTHORIZED and first.opt.echo
        assert home.adapter.health().registered == 0
        assert (await post(echo=first.opt.echo)).code == aiocoap.CHANGED
        await home.until_rows(STATES, [{"state": "proposed"}])
        found = await home.get("rd-lookup/res?ep=hall&rt=light")
        assert b"/lamp>;" in found.payload and b'rt="light"' in found.payload


async def test_the_document_adopts_a_lamp_that_was_found(tmp_path: Path) -> None:
    """The blocks of docs/coap-devices.md are executed, with a lamp of this test."""
    blocks = re.findall(r"^( *)```console\n(.*?)^ *```", SECTION, re.M | re.S)
    assert len(blocks) == 3
    async with house(tmp_path) as home:
        for indent, block in blocks:
            text = block.replace("\n" + indent, "\n").removeprefix(indent)
            text = text.replace("192.0.2.10~5683", f"127.0.0.1~{home.port}")
            text = text.replace("discover 192.0.2.10", f"discover 127.0.0.1:{home.port}").replace(
                "192.0.2.10", "127.0.0.1"
            )
            text = text.replace("coap://127.0.0.1/rd", f"{home.directory}/rd")
            for line, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
                program, *words = shlex.split(line)
                if program in CLIENT_COMMANDS:
                    arguments = [require_command(*CLIENT_COMMANDS), "-v", "3", "-B", "100", *words]
                    await asyncio.to_thread(subprocess.run, arguments, check=True, timeout=120)
                    await home.until_rows(PROPOSED, [{"device": f"{BASE}device/coap/stairs"}])
                else:
                    assert program.endswith("/lamplighter")
                    done = await asyncio.to_thread(command, *words, "--config", home.gateway.config, check=True)
                    assert done.stdout == shown
        await until(lambda: home.lamp.payloads == [b"true"])
        line = ("devices", "discover", f"127.0.0.1:{home.port}", "--json", "--config", home.gateway.config)
        told = json.loads((await asyncio.to_thread(command, *line, check=True)).stdout)
        assert told == {
            "found": [{"id": f"coap/127.0.0.1~{home.port}", "state": "adopted", "has": ["light"]}],
            "not_used": [],
        }
