"""Thing Descriptions that are submitted to the directory: real devices are read and switched by their forms."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import quote

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.brokers import Mosquitto, mosquitto, subscribed
from tests.support.coap_peers import LibcoapServer, libcoap_server
from tests.support.commands import command
from tests.support.gateway_process import GatewayProcess, wait_for
from tests.support.http_device import web_device
from tests.support.modbus_device import threaded_modbus_device
from tests.support.secure_gateway import SecureGateway
from tests.support.thing_descriptions import schema_faults

ID = "urn:dev:ops:32473-porch"


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    with mosquitto() as found:
        yield found


@pytest.fixture(scope="module")
def gateway(broker: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    tables: dict[str, Any] = {
        "mqtt": {"host": "127.0.0.1", "port": broker.port},
        "coap": {"networks": ["127.0.0.0/8"]},
        "http_devices": {"enabled": True, "networks": ["127.0.0.0/8"]},
        "modbus": {"enabled": True, "networks": ["127.0.0.0/8"], "retry_max_s": 1.0},
        "wot": {"enabled": True},
    }
    with GatewayProcess(tmp_path_factory.mktemp("wot") / "gateway", "--all", **tables) as process:
        yield process


def ask(gateway: GatewayProcess, path: str, method: str = "GET", body: Any = None) -> tuple[int, Any, dict[str, str]]:
    """Status, JSON and headers of an answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/td+json" if path.startswith("things") else "application/json"}
    if "/actions/" in path or "/properties/" in path:
        headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{gateway.http_url}/{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None, _headers(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read()), _headers(error.headers)


def _headers(message: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in message.items()}


def value(gateway: GatewayProcess, identifier: str, name: str) -> Any:
    status, found, _ = ask(gateway, f"things/{quote(identifier, safe='')}/properties/{name}")
    return found if status == 200 else None


def porch(broker: Mosquitto, **more: Any) -> dict[str, Any]:
    """A description of a lamp with a thermometer at the broker."""
    base = f"mqtt://127.0.0.1:{broker.port}/"
    unit = "http://qudt.org/vocab/unit/DEG_C"
    return {
        "@context": "https://www.w3.org/2022/wot/td/v1.1",
        "id": ID,
        "title": "porch",
        "base": base,
        "securityDefinitions": {"nosec_sc": {"scheme": "nosec"}},
        "security": "nosec_sc",
        "properties": {
            "temperature": {"type": "number", "unit": unit, "readOnly": True, "forms": [{"href": "porch/temperature"}]},
            "light": {
                "type": "boolean",
                "forms": [
                    {"href": "porch/set", "op": "writeproperty"},
                    {"href": "porch/light", "op": ["observeproperty", "readproperty"]},
                ],
            },
        },
        "actions": {
            "blink": {"input": {"type": "string", "enum": ["slow", "fast"]}, "forms": [{"href": "porch/blink/set"}]}
        },
        **more,
    }


def test_a_thing_at_the_broker_is_adopted_replaced_and_removed(broker: Mosquitto, gateway: GatewayProcess) -> None:
    document = porch(broker)
    assert schema_faults([document]) == [[]]
    status, told, headers = ask(gateway, "things", "POST", document)
    assert (status, told) == (201, {"id": ID, "warnings": []})
    place = headers["location"].removeprefix("/")
    assert place == f"things/{quote(ID, safe='')}"
    assert ask(gateway, "things", "POST", document)[0] == 409

    status, found, _ = ask(gateway, place)
    assert (status, found["id"], found["title"]) == (200, ID, "porch")
    assert set(found["properties"]) == {"temperature", "light", "blink"} and set(found["actions"]) == {"light", "blink"}
    assert schema_faults([found]) == [[]]

    # Each reading is sent until the adapter has subscribed.
    wait_for(lambda: broker.publish(("porch/temperature", "21.5")) or value(gateway, ID, "temperature") == 21.5)
    assert ask(gateway, place)[1]["properties"]["temperature"]["unit"].endswith("DEG_C")
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    heard: list[tuple[str, bytes]] = []
    client.on_message = lambda _client, _data, message: heard.append((message.topic, message.payload))
    with subscribed(client, broker, "porch/set", "porch/blink/set"):
        assert ask(gateway, f"{place}/properties/light", "PUT", True)[0] == 204
        assert ask(gateway, f"{place}/actions/blink", "POST", "fast")[0] == 204
        wait_for(lambda: {("porch/set", b"true"), ("porch/blink/set", b'"fast"')} <= set(heard), what="the messages")
    broker.publish(("porch/light", "true"))
    wait_for(lambda: value(gateway, ID, "light") is True, what="the state of the light")
    listed = command("devices", "list", "--config", gateway.config).stdout
    assert "porch" in listed and "adopted" in listed

    document["title"] = "front porch"
    del document["actions"]
    assert ask(gateway, place, "PUT", document)[0] == 204
    status, found, _ = ask(gateway, place)
    assert found["title"] == "front porch" and set(found["actions"]) == {"light"}
    assert ask(gateway, "things/urn:other", "PUT", document)[0] == 400
    anonymous = {name: value for name, value in document.items() if name != "id"}
    for body in (document, anonymous):
        assert ask(gateway, "things/", "PUT", body)[0] == 400

    assert ask(gateway, place, "DELETE")[0] == 204
    assert ask(gateway, place, "DELETE")[0] == ask(gateway, place)[0] == 404
    assert gateway.rows("SELECT ?m { ?m a <http://lamplighter.example/ns/gateway#Mapping> }") == []


def test_an_anonymous_thing_is_given_an_id(broker: Mosquitto, gateway: GatewayProcess) -> None:
    document = porch(broker)
    del document["id"]
    status, told, headers = ask(gateway, "things", "POST", document)
    assert status == 201 and told["id"].startswith("urn:uuid:")
    place = headers["location"].removeprefix("/")
    assert ask(gateway, place)[1]["id"] == told["id"]
    assert told["id"] in [one["id"] for one in ask(gateway, "things")[1]]
    assert ask(gateway, place, "DELETE")[0] == 204


def test_a_coap_thing_is_read_and_switched(gateway: GatewayProcess) -> None:
    with libcoap_server() as server:
        lamp: LibcoapServer = server
        uri = lamp.uri("lamp")
        document = {
            "@context": ["https://www.w3.org/2022/wot/td/v1.1", {"cov": "http://www.example.org/coap-binding#"}],
            "id": "urn:lamp",
            "title": "lamp",
            "securityDefinitions": {"nosec_sc": {"scheme": "nosec"}},
            "security": ["nosec_sc"],
            "properties": {"light": {"type": "boolean", "forms": [{"href": uri, "contentType": "text/plain"}]}},
        }
        assert schema_faults([document]) == [[]]
        status, told, _ = ask(gateway, "things/urn%3Alamp", "PUT", document)
        assert (status, told["warnings"]) == (201, [])
        assert ask(gateway, "things/urn%3Alamp/actions/light", "POST", True)[0] == 204
        wait_for(lambda: lamp.get("lamp") == "true", what="the state of the lamp")
        wait_for(lambda: value(gateway, "urn:lamp", "light") is True, what="the reported state")
        assert ask(gateway, "things/urn%3Alamp", "DELETE")[0] == 204


def test_an_http_thing_is_read_switched_lost_and_removed(gateway: GatewayProcess) -> None:
    with web_device() as device:
        device.has("/climate", '{"temperature": 21.5}')
        device.has("/light", "false")
        device.has("/scene", "")
        document = {
            "@context": "https://www.w3.org/2022/wot/td/v1.1",
            "id": "urn:web",
            "title": "web lamp",
            "base": f"{device.base}/",
            "securityDefinitions": {"nosec_sc": {"scheme": "nosec"}},
            "security": "nosec_sc",
            "properties": {
                "climate": {
                    "type": "object",
                    "readOnly": True,
                    "properties": {"temperature": {"type": "number"}},
                    "forms": [{"href": "climate"}],
                },
                "light": {"type": "boolean", "forms": [{"href": "light"}]},
            },
            "actions": {"scene": {"input": {"type": "string"}, "forms": [{"href": "scene"}]}},
        }
        assert schema_faults([document]) == [[]]
        status, told, _ = ask(gateway, "things/urn%3Aweb", "PUT", document)
        assert (status, told["warnings"]) == (201, [])
        wait_for(lambda: value(gateway, "urn:web", "climate.temperature") == 21.5, what="the reading")
        assert ask(gateway, "things/urn%3Aweb/properties/light", "PUT", True)[0] == 204
        wait_for(lambda: device.requests("PUT", "/light") == [b"true"], what="the state at the lamp")
        wait_for(lambda: value(gateway, "urn:web", "light") is True, what="the reported state")
        assert ask(gateway, "things/urn%3Aweb/actions/scene", "POST", "night")[0] == 204
        wait_for(lambda: b'"night"' in device.requests("POST", "/scene"), what="the action")
        wait_for(lambda: ask(gateway, "health")[1]["polled"]["http-devices"]["text"] == "1 device", what="the health")
    assert ask(gateway, "things/urn%3Aweb", "DELETE")[0] == 204


def test_a_modbus_thing_is_read_switched_lost_and_found(gateway: GatewayProcess) -> None:
    with threaded_modbus_device() as device:
        device.write("input_register", 52, 0x5000, 0x449A)
        document = {
            "@context": ["https://www.w3.org/2022/wot/td/v1.1", {"modv": "https://www.w3.org/2019/wot/modbus#"}],
            "id": "urn:plc",
            "title": "plc",
            "base": f"modbus+tcp://127.0.0.1:{device.port}/1/",
            "securityDefinitions": {"nosec_sc": {"scheme": "nosec"}},
            "security": "nosec_sc",
            "properties": {
                "power": {
                    "type": "number",
                    "readOnly": True,
                    "forms": [
                        {
                            "href": "52?quantity=2",
                            "op": ["readproperty", "observeproperty"],
                            "contentType": "application/octet-stream",
                            "modv:entity": "InputRegister",
                            "modv:type": "xsd:float",
                            "modv:mostSignificantWord": False,
                            "modv:pollingTime": 1_000,
                        }
                    ],
                },
                "pump": {"type": "boolean", "forms": [{"href": "3", "modv:entity": "Coil", "modv:pollingTime": 1_000}]},
            },
            "actions": {
                "level": {
                    "input": {"type": "integer", "minimum": 0, "maximum": 100},
                    "forms": [
                        {
                            "href": "9",
                            "modv:function": "writeSingleHoldingRegister",
                            "modv:type": "xsd:short",
                            "modv:pollingTime": 1_000,
                        }
                    ],
                }
            },
        }
        assert schema_faults([document]) == [[]]
        status, told, _ = ask(gateway, "things/urn%3Aplc", "PUT", document)
        assert (status, told["warnings"]) == (201, [])
        wait_for(lambda: value(gateway, "urn:plc", "power") == 1234.5, what="the reading")
        assert ask(gateway, "things/urn%3Aplc/properties/pump", "PUT", True)[0] == 204
        assert ask(gateway, "things/urn%3Aplc/actions/level", "POST", 42)[0] == 204
        wait_for(lambda: device.read("coil", 3) + device.read("holding_register", 9) == [1, 42], what="the states")
        wait_for(lambda: value(gateway, "urn:plc", "pump") is True, what="the reported state")
        device.stop()
        device.start()  # its registers and coils are zero
        device.write("input_register", 52, 0x7000, 0x449A)
        wait_for(lambda: value(gateway, "urn:plc", "power") == 1235.5, what="the reading after the outage")
        wait_for(
            lambda: device.read("coil", 3) + device.read("holding_register", 9) == [1, 42], what="the states again"
        )
        wait_for(lambda: ask(gateway, "health")[1]["polled"]["modbus"]["text"] == "1 device", what="the health")
        assert ask(gateway, "things/urn%3Aplc", "DELETE")[0] == 204


def test_faults_are_problem_details_with_their_places(broker: Mosquitto, gateway: GatewayProcess) -> None:
    document = porch(broker, title=5)
    document["properties"]["light"]["forms"][0]["href"] = 7
    status, told, headers = ask(gateway, "things", "POST", document)
    assert (status, headers["content-type"]) == (400, "application/problem+json")
    assert (told["title"], told["status"]) == ("Bad Request", 400)
    assert told["validationErrors"] == [
        {"field": "title", "description": "write a text, the name of the thing"},
        {"field": "properties.light.forms.0.href", "description": "write a URI"},
    ]
    assert ask(gateway, "things", "POST", porch(broker, x="a" * 200_000))[0] == 403
    assert ask(gateway, f"things/{quote(ID, safe='')}")[0] == 404


def test_what_the_settings_do_not_permit_is_a_warning(broker: Mosquitto, gateway: GatewayProcess) -> None:
    document = porch(broker)
    document["actions"]["blink"]["forms"][0]["href"] = "porch/reset"
    status, told, headers = ask(gateway, "things", "POST", document)
    assert status == 201 and any("mqtt.commands" in one for one in told["warnings"])
    assert ask(gateway, headers["location"].removeprefix("/"), "DELETE")[0] == 204


def test_a_thing_that_was_ignored_is_adopted_when_it_is_submitted_again(
    broker: Mosquitto, gateway: GatewayProcess
) -> None:
    document, place = porch(broker), f"things/{quote(ID, safe='')}"
    assert ask(gateway, place, "PUT", document)[0] == 201
    assert command("devices", "ignore", "porch", "--config", gateway.config).returncode == 0
    assert ask(gateway, place)[0] == 404
    assert ask(gateway, place, "PUT", document | {"title": "new porch"})[0] == 204
    assert ask(gateway, place)[1]["title"] == "new porch"
    assert ask(gateway, place, "DELETE")[0] == 204


def test_who_is_no_operator_submits_and_removes_nothing(tmp_path: Path) -> None:
    with SecureGateway(tmp_path, tables={"wot": {"enabled": True}}) as gateway:
        token = gateway.bearer("one", gateway.client("one", read=["*"], write=["*"], subscribe=["*"]))
        for method, target in (("POST", "/things"), ("PUT", "/things/urn%3Aa"), ("DELETE", "/things/urn%3Aa")):
            answer = gateway.https(method, target, "{}", {"Authorization": token, "Content-Type": "application/json"})
            assert (answer.status, answer.json["error"]) == (403, "forbidden")


def test_what_is_not_used_of_a_description_is_listed_until_it_is_replaced(
    gateway: GatewayProcess, broker: Mosquitto
) -> None:
    document = porch(broker, id="urn:dev:listed", events={"pressed": {"forms": [{"href": "porch/pressed"}]}})
    temperature = document["properties"]["temperature"]
    temperature |= {"multipleOf": 0.5, "uriVariables": {"x": {"type": "number"}}, "description": "of the air"}
    status, answer, _ = ask(gateway, "things", "POST", document)
    assert status == 201
    assert "properties.temperature: not used: multipleOf, uriVariables" in answer["warnings"]

    def listed() -> list[str]:
        done = command("devices", "problems", "--json", "--config", gateway.config)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return [row["reason"] for row in rows if "listed" in str(row["device"])]

    [reason] = listed()
    assert "properties.temperature: not used: multipleOf, uriVariables" in reason
    assert "events.pressed: events are not read" in reason and "description" not in reason
    del document["events"], temperature["multipleOf"], temperature["uriVariables"]
    status, _, _ = ask(gateway, "things/urn%3Adev%3Alisted", "PUT", document)
    assert status == 204 and listed() == []
    status, _, _ = ask(gateway, "things/urn%3Adev%3Alisted", "DELETE")
    assert status == 204
