"""Mapping rules on trial over HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.gates.http import mapping
from tests.support.commands import command
from tests.support.mapping_rules import TWO_READINGS as RULES
from tests.support.running_gateway import Answer, http, rows, running_gateway, update

COAP = """\
[[stream]]
resource = "coap://lamp/3303/0"
payload = "lwm2m"
member = "5700"
property = "gateway:temperature"
unit = "Cel"
[[command]]
actuator = "lamp/hall"
resource = "coap://lamp/on"
content_format = "json"
values = {true = "ON", false = "OFF"}
state = {member = "on"}
"""
VALUE = '"21.5"^^<http://www.w3.org/2001/XMLSchema#decimal>'


async def post(at: Addresses, **members: object) -> Answer:
    return await http(at.query.replace("/query", "/mapping/try"), "POST", json.dumps(members))


async def tried(at: Addresses, **members: object) -> dict[str, Any]:
    answer = await post(at, **members)
    assert answer.status == 200, answer.body
    return dict(answer.json)


async def test_a_rule_text_is_tried_alone(gateway: Addresses) -> None:
    found = await tried(gateway, topic="z/hall", payload='{"temperature": 21.5}', rule=RULES)
    [rule] = found["rules"]
    assert (rule["rule"], rule["about"]) == ("rule line 1: stream 1", "topic z/{device}")
    assert rule["missing"] == ["occupancy"]
    [made] = rule["made"]
    assert made["read"] == "read 1"
    assert VALUE in [quad[2] for quad in made["triples"]]
    assert any("INSERT" in text for text in made["updates"])
    assert found["not_tested"] == []
    assert await rows(gateway, "SELECT * { ?s ?p ?o }") == [], "nothing is written"


async def test_the_rules_of_files_and_of_the_dataset_are_tried(tmp_path: Path) -> None:
    (tmp_path / "mapping").mkdir()
    (tmp_path / "mapping" / "home.toml").write_text(RULES)
    async with running_gateway(tmp_path) as gateway:
        rule = {"stream": {"topic": "z/hall", "payload": "json", "property": "gateway:temperature"}}
        good = {
            "stream": {"topic": "z/+", "payload": "number", "member": "temperature", "property": "gateway:temperature"}
        }
        for name, table in (("bad", rule), ("good", good)):
            text = json.dumps(json.dumps(table))
            node = f"<http://lamplighter.local/mapping/{name}>"
            ns = "http://lamplighter.example/ns/gateway#"
            assert (
                await update(gateway, f"INSERT DATA {{ {node} a <{ns}Mapping> ; <{ns}rule> {text} }}")
            ).status == 200
        found = await tried(gateway, topic="z/hall", payload='{"temperature": 21.5}')
        assert [rule["about"] for rule in found["rules"]] == ["topic z/{device}", "topic z/+"]
        [fault] = found["not_tested"]
        assert "mapping/bad" in fault
        (tmp_path / "mapping" / "home.toml").write_text(RULES.replace("z/{device}", "y/{device}"))
        found = await tried(gateway, topic="y/hall", payload='{"temperature": 21.5}')
        assert [rule["about"] for rule in found["rules"]] == ["topic y/{device}"], "files are read each time"


async def test_why_nothing_was_read_is_told(gateway: Addresses) -> None:
    found = await tried(gateway, topic="a/b/c", payload="1", rule=RULES)
    assert found["problem"] == "no rule covers the topic a/b/c"
    found = await tried(gateway, topic="z/hall", payload='{"temperature": "warm"}', rule=RULES)
    [rule] = found["rules"]
    [fault] = [made["fault"] for made in rule["made"] if "fault" in made]
    assert "temperature: not a number" in fault
    found = await tried(gateway, topic="z/hall", payload="1", rule="[[stream]\n")
    assert "rule: " in found["not_tested"][0] and "line 1" in found["not_tested"][0]
    found = await tried(gateway, topic="z/hall", payload="1", rule='[[stream]]\ntopic = "a"\npayloat = "number"\n')
    assert "rule line 1: stream 1" in found["not_tested"][0] and "did you mean payload" in found["not_tested"][0]
    found = await tried(gateway, topic="coap://224.0.1.187/a", payload="1")
    assert "multicast" in found["problem"]


async def test_bodies_of_coap_are_tried(gateway: Addresses) -> None:
    payload = base64.b64encode(bytes.fromhex("e4164441ac0000")).decode()
    found = await tried(gateway, topic="coap://lamp/3303/0", payload_base64=payload, rule=COAP)
    [rule] = found["rules"]
    assert rule["about"] == "resource coap://lamp/3303/0, content format 11542 (lwm2m+tlv)"
    assert VALUE in [quad[2] for quad in rule["made"][0]["triples"]]
    found = await tried(gateway, topic="coap://lamp/3303/0", payload_base64=payload, rule=COAP, content_format="json")
    assert "the content format is 50" in found["rules"][0]["made"][0]["fault"]
    found = await tried(gateway, topic="coap://lamp/on", payload='{"on": "ON"}', rule=COAP)
    assert found["rules"][0]["made"] == [{"state": '"true"^^<http://www.w3.org/2001/XMLSchema#boolean>'}]


async def test_the_values_of_one_message_are_bounded(gateway: Addresses) -> None:
    rule = '[[stream]]\ntopic = "t"\npayload = "senml"\nsensor = "sensor/{n}"\nproperty = "gateway:temperature"\n'
    records = [{"n": f"a{number}", "v": number} for number in range(mapping.MADE_MAX + 20)]
    found = await tried(gateway, topic="t", payload=json.dumps(records), rule=rule)
    [of_rule] = found["rules"]
    assert (len(of_rule["made"]), of_rule["more"]) == (mapping.MADE_MAX, 20)


@pytest.mark.parametrize(
    "members",
    [
        {"topic": "a"},
        {"topic": "a", "payload": "1", "payload_base64": "MQ=="},
        {"topic": "a", "payload_base64": "~"},
        {"topic": "a", "payload": "1", "content_format": "yaml"},
        {"topic": "a", "payload": "1", "what": 1},
        {"payload": "1"},
        {"topic": "a", "payload": "\ud800"},
    ],
)
async def test_wrong_requests_are_refused(gateway: Addresses, members: dict[str, object]) -> None:
    assert (await post(gateway, **members)).status == 400


async def test_size_number_and_origin_are_checked(gateway: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    url = gateway.query.replace("/query", "/mapping/try")
    body = json.dumps({"topic": "a", "payload": "x" * mapping.BODY_BYTES_MAX})
    assert (await http(url, "POST", body)).status == 403
    assert (await http(url, "POST", "{}", {"Origin": "http://elsewhere.example"})).status == 403
    assert (await http(url)).status == 405
    waiting, go_on = asyncio.Event(), asyncio.Event()

    async def slow(self: mapping.MappingRequests, caller: object) -> list[tuple[str, str]]:
        waiting.set()
        await go_on.wait()
        return []

    monkeypatch.setattr(mapping.MappingRequests, "_dataset_rules", slow)
    first = asyncio.create_task(post(gateway, topic="a", payload="1"))
    await waiting.wait()
    second = asyncio.create_task(post(gateway, topic="a", payload="1"))
    done, _ = await asyncio.wait([second], timeout=0)
    assert not done, "one at a time"
    go_on.set()
    assert [(await one).status for one in (first, second)] == [200, 200]
    assert (await post(gateway, topic="a", payload="1")).status == 200


async def test_a_trial_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    rule = '[[stream]]\ntopic = "t"\npayload = "senml"\nsensor = "sensor/{n}"\nproperty = "gateway:temperature"\n'
    # A pack of the largest number of records; they take 100 times as long as the limit.
    records = [{"n": f"a{number}", "v": number} for number in range(1_000)]
    async with running_gateway(tmp_path, query={"time_ms_max": 1}) as gateway:
        answer = await post(gateway, topic="t", payload=json.dumps(records), rule=rule)
        assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")


async def test_the_command_shows_the_same(gateway: Addresses, tmp_path: Path) -> None:
    (tmp_path / "mapping").mkdir()
    (tmp_path / "mapping" / "home.toml").write_text(RULES)
    toml = tmp_path / "lamplighter.toml"
    toml.write_text(f"[websocket]\nport = {urlsplit(gateway.subscribe).port}\n")
    payload = '{"temperature": 21.5, "occupancy": true}'
    done = await asyncio.to_thread(command, "mapping", "test", "z/hall", payload, "--config", toml)
    assert done.returncode == 0, done
    found = await tried(gateway, topic="z/hall", payload=payload, rule=RULES)
    [rule] = found["rules"]
    assert sum(len(made["triples"]) for made in rule["made"]) == done.stdout.count("\n    ")
