"""The adapter for devices with HTTP against real web servers, with an engine of this process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from lamplighter.adapters.devices.pauses import Pauses
from lamplighter.adapters.http.credentials import HttpCredentials, read_credentials
from lamplighter.adapters.http.protocol import HttpDevices
from lamplighter.adapters.http.settings import HttpDeviceSettings, HttpDevicesSettings
from lamplighter.adapters.mapping import (
    ResourceCommandTable,
    ResourceRule,
    ResourceTable,
    cbor,
    resource_command,
)
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mapping.kinds import ResourceRules
from lamplighter.adapters.networks import Networks
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.resources import reachability, sensors, states
from lamplighter.adapters.resources.exchange import BODY_BYTES_MAX, DeviceRequest
from lamplighter.adapters.resources.polled_adapter import PolledAdapter
from lamplighter.engine.errors import ConfigurationError, PayloadError, UpstreamError
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.brokers import free_port
from tests.support.coap_gateway import EngineGateway
from tests.support.event_loops import beside, until
from tests.support.http_device import WebDevice, served

BASE = "http://gateway.example/"
LAMP = f"<{BASE}actuator/lamp>"
SETTINGS = HttpDevicesSettings(
    enabled=True, networks=("127.0.0.0/8",), retry_min_s=0.01, retry_max_s=0.05, answer_timeout_s=5, contact_write_s=600
)
POLL_S = 0.02


def stream(resource: str, **keys: Any) -> ResourceRule:
    table = {"payload": "number", "property": "gateway:power"} | keys
    made = ResourceTable(resource=resource, poll_s=POLL_S, **table)
    return ResourceRule(made, prefixes=PREFIXES, base_iri=BASE, place=f"rule {resource}")


def command(resource: str, **keys: Any) -> Any:
    table = ResourceCommandTable(resource=resource, actuator="actuator/lamp", **keys)
    return resource_command(table, prefixes=PREFIXES, base_iri=BASE, place=f"rule {resource}")


def rules(*made: Any) -> ResourceRules:
    return ResourceRules.of(made, "http-devices")


class Here:
    """An adapter with its gateway, and a device of this process."""

    def __init__(self, adapter: PolledAdapter, gateway: EngineGateway, device: WebDevice, serving: AsyncExitStack):
        self.adapter, self.gateway, self.device, self._serving = adapter, gateway, device, serving

    async def appear(self) -> None:
        await self._serving.enter_async_context(served(self.device))

    async def vanish(self) -> None:
        await self._serving.aclose()

    def values(self) -> list[str]:
        return self.gateway.found("?o a sosa:Observation ; sosa:hasSimpleResult ?x")

    def of_device(self, name: str) -> list[str]:
        return self.gateway.found(f"<{BASE}device/http-devices/127.0.0.1~{self.device.port}> {name} ?x")

    def problems(self) -> str:
        return " ".join(self.gateway.found("GRAPH ?g { ?p gateway:reason ?x }"))


@asynccontextmanager
async def running(
    device: WebDevice, *made: Any, settings: HttpDevicesSettings = SETTINGS, **options: Any
) -> AsyncIterator[Here]:
    gateway = EngineGateway()
    networks = Networks(settings.networks, "http_devices.networks")
    credentials = options.pop("credentials", None)
    adapter = PolledAdapter(
        "http-devices",
        settings,
        AdapterContext(gateway, BASE, **options),
        lambda: HttpDevices(settings, networks, credentials),
        files=rules(*made),
        rules=DatasetRules(BASE, kind="http-devices"),
    )
    async with AsyncExitStack() as serving, beside(adapter.run()) as task:
        here = Here(adapter, gateway, device, serving)
        await here.appear()
        yield here
        assert not task.done(), task.exception()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What devices have become is looked for and written without the pauses of seconds."""
    for module in (reachability, sensors, states):
        monkeypatch.setattr(module, "CHECK_S", 0.02)
    monkeypatch.setattr(reachability, "Pauses", partial(Pauses, 0.01, 0.02))


@pytest.fixture
def device() -> WebDevice:
    return WebDevice(free_port())


async def test_readings_of_each_content_format_become_observations(device: WebDevice) -> None:
    device.has("/text", "21.5", "text/plain; charset=utf-8")
    device.has("/json", '{"power": {"now": 40}}')
    device.has("/cbor", cbor.encode({"power": 7}), "application/cbor")
    device.has("/senml", '[{"n": "a", "v": 3}, {"n": "b", "v": 4}]', "application/senml+json")
    device.has("/html", '{"power": 9}', "text/html")
    device.has("/hal", '{"power": 11}', "application/hal+json")
    made = [
        stream(f"{device.base}/text"),
        stream(f"{device.base}/json", member="power.now"),
        stream(f"{device.base}/cbor", member="power", accept="cbor"),
        stream(f"{device.base}/senml", payload="senml", sensor="sensor/{n}"),
        stream(f"{device.base}/html", member="power", accept="json"),
        stream(f"{device.base}/hal", member="power"),
    ]
    async with running(device, *made) as here:
        await until(lambda: here.values() == sorted(["21.5", "40", "7", "3", "4", "9", "11"]))
        await until(lambda: here.of_device("gateway:online") == ["true"])
        assert here.of_device("gateway:address") == [f"127.0.0.1:{device.port}"]
        await until(lambda: len(here.of_device("sosa:hosts")) == 7)
        accepts = {path: headers["accept"] for _, path, _, headers in device.asked}
        assert (accepts["/cbor"], accepts["/html"], accepts["/text"]) == ("application/cbor", "application/json", "*/*")
        device.has("/text", "22", "text/plain")
        await until(lambda: "22" in here.values())
        assert device.most == 1, "a device gets one request at a time"
        assert here.adapter.counts()["readings"] >= 8
        assert here.adapter.health().devices == 1


def unconfirmed_states(here: Here) -> list[str]:
    doubted = "?a gateway:reportedState ?x ; gateway:receivedFrom/gateway:since ?since"
    return sorted(
        set(
            here.gateway.found(f"{doubted} OPTIONAL {{ ?a gateway:reportedTime ?t }} FILTER(!BOUND(?t) || ?t < ?since)")
        )
    )


async def test_a_desired_state_reaches_the_device_and_its_own_is_reported(device: WebDevice) -> None:
    device.has("/lamp", "false")
    # Its state is read each second, so that its loss is noticed soon.
    made = command(f"{device.base}/lamp", content_format="json", reassert_s=1)
    async with running(device, made) as here:
        here.gateway.write(f"INSERT DATA {{ {LAMP} gateway:desiredState true }}")
        await until(lambda: device.requests("PUT", "/lamp") == [b"true"])
        await until(lambda: here.gateway.found(f"?a sosa:madeByActuator {LAMP} ; sosa:hasSimpleResult ?x") == ["true"])
        await until(lambda: here.gateway.found(f"{LAMP} gateway:reportedState ?x") == ["true"])
        [headers] = [headers for method, _, _, headers in device.asked if method == "PUT"]
        assert headers["content-type"] == "application/json"
        [time] = here.gateway.found(f"{LAMP} gateway:reportedTime ?x")
        came_by = here.gateway.found(f"{LAMP} gateway:receivedFrom ?x")
        assert came_by == [f"{BASE}adapter/http-devices", f"{BASE}device/http-devices/127.0.0.1~{device.port}"]
        await here.vanish()
        await until(lambda: here.of_device("gateway:online") == ["false"])
        assert unconfirmed_states(here) == ["true"]
        await here.appear()  # the device is asked, and answers the same
        await until(lambda: here.of_device("gateway:online") == ["true"] and unconfirmed_states(here) == [])
        assert here.gateway.found(f"{LAMP} gateway:reportedTime ?x") > [time]


async def test_an_action_is_a_post_whose_refusal_is_recorded(device: WebDevice) -> None:
    device.answers["/scene"] = lambda request: Response("no such scene", 422, media_type="text/plain")
    made = command(
        f"{device.base}/scene", method="POST", payload='{"scene": {json}}', content_format="json", state=False
    )
    async with running(device, made) as here:
        here.gateway.write(f"INSERT DATA {{ {LAMP} gateway:desiredState 'party' }}")
        await until(lambda: here.gateway.found("?a gateway:refused ?x") == ["422: no such scene"])
        assert device.requests("POST", "/scene")[0] == b'{"scene": "party"}'
        assert not device.requests("GET", "/scene"), "an action has no state to read"


async def test_a_device_vanishes_and_returns(device: WebDevice) -> None:
    device.has("/power", "1", "text/plain")
    device.has("/lamp", "OFF", "text/plain")
    made = [stream(f"{device.base}/power"), command(f"{device.base}/lamp", state=False)]
    async with running(device, *made) as here:
        await until(lambda: here.of_device("gateway:online") == ["true"])
        await here.vanish()
        await until(lambda: here.of_device("gateway:online") == ["false"])
        assert here.adapter.health().unreachable == 1
        assert "1 devices do not answer" in here.adapter.status()
        here.gateway.write(f"INSERT DATA {{ {LAMP} gateway:desiredState 'ON' }}")
        device.has("/power", "2", "text/plain")
        await here.appear()
        await until(lambda: here.values() == ["2"])
        await until(lambda: b"ON" in device.requests("PUT", "/lamp"))
        await until(lambda: here.of_device("gateway:online") == ["true"] and not here.of_device("gateway:unreachable"))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda request: Response(b"1" * (BODY_BYTES_MAX + 1), media_type="text/plain"), "more than 65,536 bytes"),
        (lambda request: Response("<a/>", media_type="application/xml"), "the content type is application/xml"),
        (lambda request: Response("{", media_type="application/json"), "not JSON"),
        (lambda request: Response("1", headers={"content-encoding": "gzip"}), "encoded as gzip"),
        (lambda request: RedirectResponse("http://127.0.0.1:1/secret"), "redirects to http://127.0.0.1:1;"),
        (lambda request: RedirectResponse("/secret", 302), "302 redirects to another path;"),
        (lambda request: Response(None, 307, {"location": "http://[::1/secret"}), "307 redirects to http://[::1;"),
        (lambda request: Response("go away", 403, media_type="text/plain"), "403 go away"),
    ],
    ids=["oversized", "xml", "faulty", "gzip", "redirect", "path", "malformed", "forbidden"],
)
async def test_an_answer_that_cannot_be_used_is_a_problem(device: WebDevice, answer: Any, reason: str) -> None:
    device.answers["/a"] = answer
    device.has("/b", "1")
    async with running(device, stream(f"{device.base}/a", member="x"), stream(f"{device.base}/b")) as here:
        await until(lambda: reason in here.problems())
        assert "secret" not in here.problems()
        await until(lambda: here.values() == ["1"])


async def test_a_body_without_an_end_is_read_to_the_limit_and_a_slow_one_to_the_time_out(device: WebDevice) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 4096
            yield b"1" * 4096
            await asyncio.sleep(0)

    async def slow() -> AsyncIterator[bytes]:
        yield b"1"
        await asyncio.Event().wait()

    device.answers["/endless"] = lambda request: StreamingResponse(endless(), media_type="text/plain")
    device.answers["/slow"] = lambda request: StreamingResponse(slow(), media_type="text/plain")
    hasty = msgspec.structs.replace(SETTINGS, answer_timeout_s=0.2)
    protocol = HttpDevices(hasty, Networks(hasty.networks, "http_devices.networks"))
    async with served(device):
        with pytest.raises(PayloadError, match="more than 65,536 bytes"):
            await protocol.read(DeviceRequest(f"{device.base}/endless", "GET"))
        with pytest.raises(UpstreamError, match="no answer within"):
            await protocol.read(DeviceRequest(f"{device.base}/slow", "GET"))
        await protocol.close()
    assert sent < 64 * BODY_BYTES_MAX


async def test_nothing_is_sent_outside_of_the_networks_or_through_a_proxy(
    device: WebDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    device.has("/a", "1")
    elsewhere = msgspec.structs.replace(SETTINGS, networks=("10.0.0.0/8",))
    made = [stream(f"http://localhost:{device.port}/a"), command(f"{device.base}/a")]
    async with running(device, *made, settings=elsewhere) as here:
        here.gateway.write(f"INSERT DATA {{ {LAMP} gateway:desiredState 'ON' }}")
        await until(lambda: "none of the networks that http_devices.networks allows" in here.problems())
        await until(lambda: len(here.gateway.found("?a gateway:refused ?x")) == 1)
        assert "outside of http_devices.networks" in here.adapter.status()
        assert "127.0.0.0" not in here.problems() and not device.asked
    async with running(device, *made[:1]) as here:
        await until(lambda: here.values() == ["1"])


async def test_the_name_that_was_checked_is_the_one_that_is_asked(device: WebDevice, monkeypatch: Any) -> None:
    places, resolved = ["127.0.0.1", "10.9.9.9"], socket.getaddrinfo

    def rebinding(host: str, port: int, *others: Any, **named: Any) -> list[Any]:
        if host != "meter.lan":
            return resolved(host, port, *others, **named)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (places.pop(0), port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    device.has("/a", "1")
    protocol = HttpDevices(SETTINGS, Networks(SETTINGS.networks, "http_devices.networks"))
    async with served(device):
        reply = await protocol.read(DeviceRequest(f"http://meter.lan:{device.port}/a", "GET"))
        assert (reply.code, reply.body) == ("200", b"1")
        assert places == ["10.9.9.9"], "it is resolved once"
        assert device.asked[0][3]["host"] == f"meter.lan:{device.port}"
        await protocol.close()


async def test_rules_change_at_run_time(device: WebDevice) -> None:
    device.has("/a", "1")
    device.has("/b", "2")
    async with running(device) as here:
        here.adapter.remap(rules(stream(f"{device.base}/a")))
        await until(lambda: here.values() == ["1"])
        table = {"resource": f"{device.base}/b", "payload": "number", "property": "gateway:power", "poll_s": 3600}
        text = msgspec.json.encode({"stream": table}).decode().replace("\\", "\\\\").replace("'", "\\'")
        here.gateway.write(f"INSERT DATA {{ <{BASE}mapping/b> a gateway:Mapping ; gateway:rule '{text}' }}")
        await until(lambda: here.values() == ["1", "2"])
        here.adapter.remap(rules())
        await until(lambda: here.adapter._running is not None and here.adapter._running.sensors.states().polled == 1)
        faulty = text.replace("3600", "0")
        here.gateway.write(f"INSERT DATA {{ <{BASE}mapping/c> a gateway:Mapping ; gateway:rule '{faulty}' }}")
        await until(lambda: any(one.startswith("HTTP: ") for one in here.gateway.found("?m gateway:problem ?x")))


async def test_credentials_go_to_their_origin_alone(device: WebDevice, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("pässword\n")
    (tmp_path / "token").write_text("abc")
    other = WebDevice(free_port())
    table = {
        "lamp": HttpDeviceSettings(origin=device.base.upper(), username="me", secret_file="secret"),
        "elsewhere": HttpDeviceSettings(origin="https://127.0.0.1", secret_file="token"),
    }
    credentials = read_credentials(msgspec.structs.replace(SETTINGS, devices=table), tmp_path)
    assert credentials.authorizations["https://127.0.0.1"] == "Bearer abc"
    for one in (device, other):
        one.has("/a", "1")
    made = [stream(f"{device.base}/a"), stream(f"{other.base}/a")]
    async with served(other), running(device, *made, credentials=credentials) as here:
        await until(lambda: len(here.values()) == 2)
    assert device.asked[0][3]["authorization"] == "Basic bWU6cMOkc3N3b3Jk"
    assert "authorization" not in other.asked[0][3]


def test_faulty_credentials_and_settings_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    devices = {"a": HttpDeviceSettings(origin="http://a", secret_file="empty")}
    devices["b"] = HttpDeviceSettings(origin="http://b", secret_file="none")
    with pytest.raises(ConfigurationError) as found:
        read_credentials(HttpDevicesSettings(devices=devices, ca_file="empty"), tmp_path)
    assert all(one in str(found.value) for one in ("devices.a.secret_file", "devices.b.secret_file", "ca_file"))
    for origin in ("meter", "coap://meter", "http://meter/path", "http://me@meter"):
        with pytest.raises(ValueError, match="origin"):
            HttpDeviceSettings(origin=origin, secret_file="a")
    with pytest.raises(ValueError, match="same origin"):
        HttpDevicesSettings(devices=dict.fromkeys("ab", devices["a"]))
    assert HttpCredentials().tls().verify_mode.name == "CERT_REQUIRED"


async def test_uris_are_sent_in_ascii(device: WebDevice) -> None:
    seen: list[str] = []

    def answer(request: Request) -> Response:
        seen.append(request.scope["raw_path"].decode() + "?" + request.scope["query_string"].decode())
        return Response("1", media_type="text/plain")

    device.answers["/kü che"] = answer
    protocol = HttpDevices(SETTINGS, Networks(SETTINGS.networks, "http_devices.networks"))
    async with served(device):
        await protocol.read(DeviceRequest(f"{device.base}/kü%20che?a=ß&b=%C3%9F", "GET"))
        await protocol.close()
    assert seen == ["/k%C3%BC%20che?a=%C3%9F&b=%C3%9F"]


UNCONFIRMED = """?stream gateway:liveObservation ?o ; gateway:receivedFrom/gateway:since ?since .
    ?o sosa:hasSimpleResult ?x OPTIONAL { ?o sosa:resultTime ?last } FILTER(!BOUND(?last) || ?last < ?since)"""


async def test_value_is_unconfirmed_after_a_loss_until_the_device_answers() -> None:
    device = WebDevice(free_port())
    device.has("/t", "21")
    rule = stream(f"{device.base}/t", on_repeat="ignore")
    async with running(device, rule) as here:

        def unconfirmed() -> list[str]:
            return sorted(set(here.gateway.found(UNCONFIRMED)))

        await until(lambda: here.values() == ["21"] and here.of_device("gateway:online") == ["true"])
        assert unconfirmed() == []
        await here.vanish()
        await until(lambda: here.of_device("gateway:online") == ["false"])
        assert unconfirmed() == ["21"]
        await here.appear()  # with the same value, which the rule ignores otherwise
        await until(lambda: here.of_device("gateway:online") == ["true"] and unconfirmed() == [])

        await here.vanish()
        await until(lambda: here.of_device("gateway:online") == ["false"])
        await here.appear()
        await until(lambda: here.of_device("gateway:online") == ["true"] and unconfirmed() == [])

        def time(where: str) -> datetime:
            [text] = here.gateway.found(where)
            return datetime.fromisoformat(text)

        since = f"<{BASE}adapter/http-devices> gateway:since ?x"
        before = time(since)
        here.gateway.come_back()
        await until(lambda: time(since) > before)
        back = time(since)
        await until(lambda: time("?o a sosa:Observation ; sosa:resultTime ?x") >= back and unconfirmed() == [])
