"""The view Now every day: controls beside readings, cards in an own order and with own names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest

from lamplighter.ontology.vocabulary import GATEWAY
from tests.e2e.page.site import LIST, MAPPING, PREFIXES, Site, devices, has, has_none, open_view, press_button, text_of
from tests.e2e.page.test_devices_view import adopted, button, enter
from tests.e2e.page.test_look import looked_at
from tests.support.amounts import Amounts
from tests.support.brokers import mosquitto, subscribed
from tests.support.chromium import Browser
from tests.support.gateway_process import GatewayProcess, wait_for

LAMP = "Table lamp"
PUBLISHED = f"zigbee2mqtt/{LAMP}"


def announced() -> bytes:
    """A lamp that can be dimmed and coloured, and a blind."""
    color = {
        "type": "composite",
        "name": "color_xy",
        "property": "color",
        "access": 7,
        "features": [{"type": "numeric", "name": one, "property": one, "access": 7} for one in ("x", "y")],
    }
    light = [
        {"type": "binary", "name": "state", "property": "state", "value_on": "ON", "value_off": "OFF", "access": 7},
        {
            "type": "numeric",
            "name": "brightness",
            "property": "brightness",
            "value_min": 0,
            "value_max": 254,
            "access": 7,
        },
        color,
    ]
    position = {
        "type": "numeric",
        "name": "position",
        "property": "position",
        "value_min": 0,
        "value_max": 100,
        "access": 7,
        "unit": "%",
    }
    devices = [
        ("0x00158d0000000001", LAMP, [{"type": "light", "features": light}]),
        ("0x00158d0000000002", "Blind", [{"type": "cover", "features": [position]}]),
    ]
    return json.dumps(
        [
            {
                "ieee_address": address,
                "type": "Router",
                "friendly_name": name,
                "supported": True,
                "disabled": False,
                "interview_completed": True,
                "definition": {"model": "M", "vendor": "Vendor", "description": name, "exposes": exposes},
            }
            for address, name, exposes in devices
        ]
    ).encode()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Site]:
    """A gateway with that lamp and that blind, which are adopted and have reported."""
    (tmp_path / "mapping").mkdir()
    (tmp_path / "mapping" / "home.toml").write_text(MAPPING)
    with mosquitto() as broker:
        mqtt = {"host": "127.0.0.1", "port": broker.port, "commands": ["zigbee2mqtt/#"]}
        with GatewayProcess(tmp_path, "--all", mqtt=mqtt, gateway={"clock_trusted": "always"}) as gateway:
            site = Site(gateway, broker)
            broker.publish((LIST, announced()), retain=True)
            wait_for(lambda: len(devices(site)) == 2, what="the proposed devices")
            for name in (LAMP, "Blind"):
                adopted(site, name)
            site.publish(PUBLISHED, '{"state": "OFF", "brightness": 100, "color": {"x": 0.3, "y": 0.3}}')
            site.publish("zigbee2mqtt/Blind", '{"position": 40}')
            yield site


def slide(browser: Browser, label: str, value: int) -> None:
    """As a person does that lets the slider go at a value."""
    browser.until(
        "const found = document.querySelector(`input[type=range][aria-label='${$[0]}']`); found.value = $[1];"
        "for (const name of ['input', 'change']) found.dispatchEvent(new Event(name, {bubbles: true})); return true",
        label,
        value,
    )


def test_a_lamp_is_dimmed_and_coloured_and_a_blind_is_moved(browser: Browser, room: Site, amounts: Amounts) -> None:
    sent: list[tuple[str, dict[str, object]]] = []
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.on_message = lambda _client, _data, message: sent.append((message.topic, json.loads(message.payload)))
    open_view(browser, room.at("now"), "Now")
    has(browser, ".row.actuator", "brightness", "100")
    with subscribed(client, room.broker, "zigbee2mqtt/+/set"):
        slide(browser, "Set brightness", 180)
        wait_for(
            lambda: (f"{PUBLISHED}/set", 180) in [(topic, one.get("brightness")) for topic, one in sent],
            what="the brightness",
        )
        slide(browser, "Set position", 75)
        wait_for(lambda: 75 in [one.get("position") for _, one in sent], what="the position")
        browser.until(
            "const found = document.querySelector('input[type=color]'); found.value = '#ff8800';"
            "found.dispatchEvent(new Event('change', {bubbles: true})); return true"
        )
        wait_for(lambda: {"hex": "#ff8800"} in [one.get("color") for _, one in sent], what="the colour")
    has(browser, ".row.actuator", "brightness", "180", "reports 100")
    browser.offline(True)
    try:
        slide(browser, "Set brightness", 20)
        has(browser, ".setting .failure", "does not answer")
        browser.until("return document.querySelector(`input[type=range][aria-label='Set brightness']`).value == '180'")
    finally:
        browser.offline(False)
    asked = f"{PREFIXES} SELECT ?s {{ ?a gateway:desiredState ?s ; gateway:controls <{GATEWAY}brightness> }}"
    assert [row["s"] for row in room.gateway.rows(asked)] == ["180"]
    looked_at(browser, "now-controls", amounts)


def test_an_actuator_and_its_reading_are_one_row(browser: Browser, room: Site) -> None:
    open_view(browser, room.at("now"), "Now")
    has(browser, ".row.actuator", "state", "off")

    def rows(name: str) -> int:
        return sum(line.startswith(name) for line in text_of(browser, ".card .row .name").split("\n"))

    # Until it is known what hosts them, they are two.
    wait_for(lambda: rows("state") == rows("brightness") == 1, what="one row for each")
    newest = "Math.max(...[...document.querySelectorAll('.row.actuator time.age')].map(it => Date.parse(it.dateTime)))"
    before = browser.run(f"return {newest}")
    room.publish(PUBLISHED, '{"state": "ON", "brightness": 90}')
    has(browser, ".row.actuator", "state", "on")
    has(browser, ".row.actuator", "brightness", "90")
    browser.until(f"return {newest} > $[0]", before)


def titles(browser: Browser) -> list[str]:
    return list(
        browser.run("return [...document.querySelectorAll('.card h2 bdi:first-child')].map(it => it.innerText)")
    )


def test_cards_are_moved_hidden_and_shown_again(browser: Browser, room: Site) -> None:
    open_view(browser, room.at("now"), "Now")
    wait_for(lambda: titles(browser) == ["Blind", LAMP], what="the cards with their names")
    press_button(browser, "Arrange")
    button(browser, f"{LAMP}: one place earlier")
    browser.until("return document.querySelector('.card h2').innerText.startsWith($[0])", LAMP)
    button(browser, "Hide Blind")
    has(browser, "summary", "1 hidden card")
    browser.leave("location.reload()")
    has(browser, "summary", "1 hidden card")
    wait_for(lambda: titles(browser) == [LAMP], what="the card that is not hidden")
    browser.until("const it = document.querySelector('.hiddenCards'); it.open = true; return true")
    button(browser, "Show Blind")
    wait_for(lambda: titles(browser) == [LAMP, "Blind"], what="both cards in the order of a person")
    browser.run("localStorage.clear()")


def test_a_device_and_a_room_get_names(browser: Browser, room: Site) -> None:
    room.publish("home/attic/temperature", "17")
    open_view(browser, room.at("now"), "Now")
    has(browser, ".card", "room/attic", "17")
    press_button(browser, "Arrange")
    for title, name in (("Blind", "Window"), ("room/attic", 'Under the "roof"')):
        button(browser, f"Rename {title}")
        has(browser, "dialog[open]", f"Rename {title}")
        enter(browser, "name", name)
        press_button(browser, "Rename")
        has_none(browser, "dialog[open]")
        has(browser, ".card h2", name)
    assert "Window" in devices(room)
    label = f"{PREFIXES} SELECT ?label {{ <http://lamplighter.local/room/attic> rdfs:label ?label }}"
    assert room.gateway.rows(label) == [{"label": 'Under the "roof"'}]
