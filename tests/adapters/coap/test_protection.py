"""Which messages are protected: a device with a key never gets a plain one, by any of its names."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from aiocoap import PUT, Message

from lamplighter.adapters.coap.adapter import CoapAdapter
from lamplighter.adapters.coap.context_files import make_context
from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.adapters.coap.protection import DeviceProtection
from lamplighter.adapters.coap.server import CoapMachine
from lamplighter.adapters.coap.server_settings import CoapServerSettings
from lamplighter.adapters.coap.settings import CoapDeviceSettings, CoapSettings, normal_authority
from lamplighter.adapters.networks import Networks
from lamplighter.adapters.parts import AdapterContext
from lamplighter.engine.errors import PayloadError
from tests.support.coap_gateway import EngineGateway
from tests.support.coap_lamp import CoapLamp
from tests.support.event_loops import beside, until
from tests.support.oscore_devices import Device, arriving
from tests.support.tables import each_row

LAMP = ipaddress.ip_address("192.168.7.20")
OTHER = ipaddress.ip_address("192.168.7.99")
Load = Callable[[], Contexts]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    loaded: list[Contexts] = []

    def again() -> Contexts:
        for one in loaded:
            one.close()
        loaded.append(Contexts.load(tmp_path / "contexts"))
        return loaded[-1]

    yield again
    for one in loaded:
        one.close()


def test_a_request_to_a_device_with_a_key_is_protected(tmp_path: Path, load: Load) -> None:
    device = Device(tmp_path / "device", make_context(tmp_path / "contexts", "hall", "192.168.7.20"))
    seal = DeviceProtection(load(), {}, None).seal("", "coap://192.168.7.20/lamp", LAMP)
    assert seal is not None
    outer, opened = seal(Message(code=PUT, payload=b"ON"))
    inner, ids = device.context.unprotect(arriving(outer))
    assert inner.payload == b"ON"
    answer, _ = device.context.protect(Message(code=68), ids)
    assert opened(arriving(answer)).code.dotted == "2.04"


@pytest.mark.parametrize(
    ("made_for", "uri", "protected"),
    [
        ("192.168.7.20", "coap://192.168.7.20/lamp", True),
        ("192.168.7.20", "coap://alias.local/lamp", True),  # it has the same address
        ("lamp.local", "coap://lamp.local/lamp", True),
        ("lamp.local", "coap://192.168.7.20/lamp", False),
        ("192.168.7.20", "coap://192.168.7.20:61616/lamp", False),
        ("192.168.7.20:61616", "coap://alias.local:61616/lamp", True),
        ("192.168.7.20:61616", "coap://192.168.7.20/lamp", False),
    ],
)
def test_a_key_is_found_by_name_and_by_address(
    tmp_path: Path, load: Load, made_for: str, uri: str, protected: bool
) -> None:
    make_context(tmp_path / "contexts", "hall", made_for)
    assert (DeviceProtection(load(), {}, None).seal("", uri, LAMP) is not None) is protected


def test_a_rule_names_the_device(tmp_path: Path, load: Load) -> None:
    make_context(tmp_path / "contexts", "hall", "lamp.local")
    protection = DeviceProtection(load(), {}, None)
    assert protection.seal("hall", "coap://192.168.7.99/lamp", OTHER) is not None
    with pytest.raises(PayloadError, match="no OSCORE context door; make it with `lamplighter devices key door"):
        protection.seal("door", "coap://192.168.7.99/lamp", OTHER)


def test_settings_name_devices_with_and_without_a_key(tmp_path: Path, load: Load) -> None:
    make_context(tmp_path / "contexts", "hall", "lamp.local")
    devices = {
        "hall": CoapDeviceSettings(address="192.168.7.20"),
        "old": CoapDeviceSettings(address="192.168.7.99", security="plain"),
        "new": CoapDeviceSettings(address="192.168.7.98"),
    }
    protection = DeviceProtection(load(), devices, Networks([], "coap.plain"))
    assert protection.seal("", "coap://192.168.7.20/lamp", LAMP) is not None
    assert protection.seal("", "coap://192.168.7.99/lamp", OTHER) is None
    assert protection.seal("old", "coap://192.168.7.97/lamp", ipaddress.ip_address("192.168.7.97")) is None
    with pytest.raises(PayloadError, match="devices key new"):
        protection.seal("", "coap://192.168.7.98/lamp", ipaddress.ip_address("192.168.7.98"))


def test_without_a_key_a_device_is_in_a_network_for_this(load: Load) -> None:
    permitting = DeviceProtection(load(), {}, Networks(["192.168.7.0/24"], "coap.plain"))
    assert permitting.seal("", "coap://192.168.7.99/lamp", OTHER) is None
    outside = ipaddress.ip_address("192.168.8.1")
    for protection, address in (
        (permitting, outside),
        (DeviceProtection(load(), {}, Networks([], "coap.plain")), OTHER),
    ):
        assert not protection.permits_plain(address)
        with pytest.raises(PayloadError, match=r"coap\.plain allows; make a key with `lamplighter devices key NAME"):
            protection.seal("", f"coap://{address}/lamp", address)
    assert DeviceProtection(load(), {}, None).permits_plain(outside)


@pytest.mark.parametrize("file", ["settings.json", "secret.json", "sequence.json"])
def test_a_damaged_key_makes_no_request_plain(tmp_path: Path, load: Load, file: str) -> None:
    make_context(tmp_path / "contexts", "hall", "192.168.7.20")
    (tmp_path / "contexts/hall" / file).write_bytes(b"\0\0")
    protection = DeviceProtection(load(), {}, None)
    for device, uri in (("", "coap://192.168.7.20/lamp"), ("", "coap://alias.local/lamp"), ("hall", "coap://a/lamp")):
        with pytest.raises(PayloadError, match=f"hall/{file}.*lamplighter devices key hall"):
            protection.seal(device, uri, LAMP)


@each_row(
    ("text", "normal"),
    [("Lamp.LOCAL", "lamp.local"), ("lamp:5683", "lamp"), ("lamp:61616", "lamp:61616"), ("[FE80::1]", "[fe80::1]")],
)
def test_an_address_has_one_spelling(text: str, normal: str) -> None:
    assert normal_authority(text) == normal


@each_row("text", ["", "coap://lamp", "lamp/x", "lamp?x", "lamp:0", "224.0.1.187", "user@lamp", "a b"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(PayloadError):
        normal_authority(text)
    with pytest.raises(msgspec.ValidationError, match=r"^address: "):
        msgspec.convert({"hall": {"address": text}}, dict[str, CoapDeviceSettings])


async def test_in_secure_mode_a_lamp_without_a_key_is_sent_to_only_in_the_networks_of_coap_plain() -> None:
    on = "INSERT DATA {{ <urn:lamp> gateway:coapResource <coap://127.0.0.1:{}/lamp> ; gateway:desiredState 'ON' }}"
    for plain in (None, ("127.0.0.0/8",)):
        gateway = EngineGateway()
        settings = CoapSettings(networks=("127.0.0.0/8",), plain=plain, server=CoapServerSettings(enabled=False))
        with CoapLamp() as lamp:
            gateway.write(on.format(lamp.port))
            async with beside(CoapAdapter(settings, AdapterContext(gateway), CoapMachine(secure=True)).run()):
                if plain is None:
                    await until(lambda gateway=gateway: bool(gateway.found("?sent gateway:refused ?x")))  # type: ignore[misc]
                    [reason] = gateway.found("?sent gateway:refused ?x")
                    assert "has no key" in reason and "coap.plain" in reason
                    assert lamp.states == []
                else:
                    await until(lambda lamp=lamp: lamp.states == ["ON"])  # type: ignore[misc]
