"""The last messages of devices: clients offer them over the WebSocket, and operators get them over HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
import websockets

from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.mqtt.discovery.announcements import Announcements
from lamplighter.engine.client import EngineClient, KeptMessage, MessagePlace
from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.settings import GatewaySettings
from lamplighter.gateway.sharing import TotalBudget
from lamplighter.gateway.state import messages as sources
from tests.support.announcements import zigbee_house
from tests.support.commands import command
from tests.support.running_gateway import TIMEOUT_S, Answer, http, update

REGISTRY = Registry(GatewaySettings().base_iri)
CLIMATE = next(
    one
    for one in Announcements(["zigbee2mqtt"], devices_max=100)
    .read("default", "z/bridge/devices", zigbee_house(1))
    .devices
    if one.name == "room1/climate"
)
TOPIC = "z/room1/climate"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
READING = b'{"temperature": 21.5, "humidity": 40, "pressure": 990}'


def kept(payload: bytes, place: str = TOPIC, seconds: int = 0, **more: Any) -> KeptMessage:
    return KeptMessage(place, payload, NOW + timedelta(seconds=seconds), "default", **more)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that answers is waited for on a busy machine, too."""
    monkeypatch.setattr(sources, "ANSWER_S", TIMEOUT_S)


@pytest.fixture
async def house(gateway: Addresses) -> Addresses:
    """A gateway with an adopted device."""
    assert (await update(gateway, REGISTRY.announced(None, CLIMATE, "all") or "")).status == 200
    return gateway


async def ask(at: Addresses, parameters: str = f"?device={quote(CLIMATE.identity, safe='')}") -> Answer:
    return await http(at.query.replace("/query", "/messages" + parameters))


async def told(at: Addresses) -> dict[str, Any]:
    answer = await ask(at)
    assert answer.status == 200, answer.body
    return dict(answer.json)


@asynccontextmanager
async def offering(at: Addresses, *messages: KeptMessage) -> AsyncIterator[list[MessagePlace]]:
    """A client that has messages; the places that it was asked for."""
    asked: list[MessagePlace] = []

    def find(places: Sequence[MessagePlace]) -> list[KeptMessage]:
        asked.extend(places)
        return list(messages)

    client = EngineClient(at.subscribe, name="house")
    client.offer_messages(find)
    async with client:
        await client.ask("ASK { ?s ?p ?o }")  # the gateway has taken what was sent before
        yield asked


async def test_a_message_stands_beside_the_triples_that_it_makes(house: Addresses) -> None:
    async with offering(house, kept(READING, retained=True)) as asked:
        found = await told(house)
    assert asked == [MessagePlace(TOPIC, "default")]
    assert (found["answered"], found["silent"]) == (1, 0)
    assert found["places"] == [{"place": TOPIC, "broker": "default"}]
    [message] = found["messages"]
    assert (message["payload"], message["received"]) == (READING.decode(), "2026-01-01T00:00:00Z")
    assert message["retained"] is True
    [rule] = message["rules"]
    made = [quad[2] for one in rule["made"] for quad in one["triples"]]
    assert '"21.5"^^<http://www.w3.org/2001/XMLSchema#decimal>' in made
    assert "updates" not in rule["made"][0]


async def test_the_newest_message_of_several_clients_is_shown(house: Addresses) -> None:
    async with offering(house, kept(b"old")), offering(house, kept(READING, seconds=1)), offering(house):
        found = await told(house)
    assert [one["payload"] for one in found["messages"]] == [READING.decode()]
    assert found["answered"] == 3


async def test_bytes_that_are_no_text_and_long_payloads_are_told(house: Addresses) -> None:
    async with offering(house, kept(b"\xff\x00")):
        [message] = (await told(house))["messages"]
    assert base64.b64decode(message["payload_base64"]) == b"\xff\x00"
    assert "payload" not in message
    assert "fault" in message["rules"][0]["made"][0]
    async with offering(house, kept(READING[:10], cut=True)):
        [message] = (await told(house))["messages"]
    assert message["cut"] is True
    assert "rules" not in message, "the rules are not tried on a part of a payload"


async def test_only_messages_of_the_device_are_shown(house: Addresses) -> None:
    async with offering(house, kept(b"secret", place="other/topic")):
        assert (await told(house))["messages"] == []


async def test_without_a_client_there_are_no_messages(house: Addresses) -> None:
    found = await told(house)
    assert (found["messages"], found["answered"], found["silent"]) == ([], 0, 0)


async def test_a_client_that_does_not_answer_is_counted(house: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ANSWER_S", 0.2)
    async with websockets.connect(house.subscribe) as socket:
        await socket.send('{"messages": {"alias": "mute"}}')
        await socket.send('{"query": {"sparql": "ASK {}", "alias": "q"}}')
        await socket.recv()
        found = await told(house)
        assert (found["answered"], found["silent"]) == (0, 1)
        asked = json.loads(await socket.recv())["asked"]
        assert (asked["alias"], asked["places"]) == ("mute", [{"place": TOPIC, "broker": "default"}])
        await socket.send(json.dumps({"messages": {"number": asked["number"], "found": []}}))  # too late
        await socket.send(json.dumps({"messages": {"number": 99}}))
        await socket.send('{"query": {"sparql": "ASK {}", "alias": "still"}}')
        assert json.loads(await socket.recv())["answer"]["alias"] == "still"


async def test_a_client_that_leaves_ends_the_question(house: Addresses) -> None:
    async with websockets.connect(house.subscribe) as socket:
        await socket.send('{"messages": {}}')
        await socket.send('{"query": {"sparql": "ASK {}", "alias": "q"}}')
        await socket.recv()
        asking = asyncio.create_task(told(house))
        await socket.recv()
    found = await asking
    assert (found["answered"], found["silent"]) == (0, 1)


@pytest.mark.parametrize(
    "members",
    [
        {"found": 5},
        {"number": "1"},
        {"number": 1, "found": [{"place": "a", "payload": "%%%", "received": "2026-01-01T00:00:00Z"}]},
        {"number": 1, "found": [{"place": "a", "payload": "", "received": "2026-01-01T00:00:00"}]},
        {"number": 1, "found": [{"place": "a"}]},
    ],
)
async def test_malformed_messages_are_refused(gateway: Addresses, members: dict[str, object]) -> None:
    async with websockets.connect(gateway.subscribe) as socket:
        await socket.send(json.dumps({"messages": {"alias": "m"} | members}))
        error = json.loads(await socket.recv())
    assert (error["status_code"], error["alias"]) == (400, "m")


async def test_the_number_of_clients_is_limited(gateway: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SOURCES_MAX", 1)
    async with offering(gateway), websockets.connect(gateway.subscribe) as socket:
        await socket.send('{"messages": {"alias": "m"}}')
        assert json.loads(await socket.recv())["error"] == "limit_exceeded"


@pytest.mark.parametrize("parameters", ["", "?device=a&device=b", "?device=a&last=1"])
async def test_other_parameters_are_refused(gateway: Addresses, parameters: str) -> None:
    assert (await ask(gateway, parameters)).status == 400


async def test_an_unknown_device_is_not_found(gateway: Addresses) -> None:
    assert (await ask(gateway, "?device=a")).status == 404


async def test_requests_at_the_same_time_are_limited(house: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TotalBudget, "refusal", lambda room, client: "there is no room")
    assert (await ask(house)).status == 429


async def unread(at: Addresses) -> dict[str, Any]:
    answer = await http(at.query.replace("/query", "/messages/unread"))
    assert answer.status == 200, answer.body
    return dict(answer.json)


@asynccontextmanager
async def offering_unread(at: Addresses, *messages: KeptMessage, more: int = 0) -> AsyncIterator[None]:
    client = EngineClient(at.subscribe, name="attic")
    client.offer_messages(lambda places: [], lambda: (messages, more))
    async with client:
        await client.ask("ASK { ?s ?p ?o }")
        yield


async def test_topics_without_a_rule_have_their_last_message_and_a_proposed_rule(gateway: Addresses) -> None:
    once, often = kept(b"\xff", "cellar", count=1), kept(b'{"temperature": 21.5}', "attic", count=7)
    cut = kept("é".encode()[:1], "yard", count=2, cut=True)
    async with offering_unread(gateway, once, cut, more=3), offering_unread(gateway, often), offering(gateway):
        found = await unread(gateway)
        listed = await asyncio.to_thread(command, "devices", "unread", "--url", gateway.query)
        proposed = await asyncio.to_thread(command, "devices", "unread", "attic", "--url", gateway.query)
        printed = await asyncio.to_thread(command, "devices", "unread", "--json", "--url", gateway.query)
        refused = await asyncio.to_thread(command, "devices", "unread", "nowhere", "--url", gateway.query)
    assert (found["more"], found["answered"], found["silent"]) == (3, 3, 0)
    first, second, third = found["unread"]
    assert (first["place"], first["count"], first["readable_as"]) == ("attic", 7, "JSON: temperature")
    assert first["rule"].startswith('[[stream]]\ntopic = "attic"\n')
    assert second == {
        "place": "yard",
        "broker": "default",
        "received": "2026-01-01T00:00:00Z",
        "payload": "",
        "count": 2,
        "cut": True,
    }
    assert (third["payload_base64"], "rule" in third) == ("/w==", False)
    assert proposed.stdout == first["rule"]
    assert json.loads(printed.stdout) == found
    title, *lines, others, hint = listed.stdout.splitlines()
    assert title.split() == ["LAST", "SEEN", "COUNT", "TOPIC", "PAYLOAD", "READABLE", "AS"]
    assert [line.split()[1:3] for line in lines] == [["7", "attic"], ["2", "yard"], ["1", "cellar"]]
    assert (others, "TOPIC" in hint) == ("and 3 more", True)
    assert refused.returncode == 4 and "devices unread` lists them" in refused.stderr


async def test_without_an_adapter_the_command_says_so(gateway: Addresses) -> None:
    listed = await asyncio.to_thread(command, "devices", "unread", "--url", gateway.query)
    assert listed.returncode == 1
    assert "no adapter is connected" in listed.stdout
