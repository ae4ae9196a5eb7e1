"""The view Devices: devices that announce themselves over MQTT, decisions about them, and mapping rules on trial."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import paho.mqtt.client as mqtt

from tests.e2e.page.site import (
    LIST,
    PREFIXES,
    Site,
    devices,
    has,
    has_after_return,
    has_none,
    open_view,
    press_button,
    unfold,
)
from tests.e2e.page.test_hostile_data import LONG, RTL, SCRIPT, nothing_ran
from tests.e2e.page.test_keyboard import tab_to
from tests.e2e.page.test_look import SCREENSHOTS, SIZES, looked_at
from tests.support.amounts import Amounts
from tests.support.announcements import zigbee_house
from tests.support.brokers import subscribed
from tests.support.chromium import Browser
from tests.support.gateway_process import wait_for


def button(browser: Browser, label: str) -> None:
    """Clicks the button that is called so for screen readers, once it is there."""
    browser.until(
        "const found = document.querySelector(`button[aria-label='${$[0]}']`); found?.click(); return Boolean(found)",
        label,
    )


def enter(browser: Browser, name: str, text: str) -> None:
    browser.until(
        "const field = document.querySelector(`[name='${$[0]}']`); field.value = $[1];"
        "field.dispatchEvent(new Event('input', {bubbles: true})); return true",
        name,
        text,
    )


def test_a_device_is_adopted_switched_and_removed(browser: Browser, house: Site) -> None:
    open_view(browser, house.at("devices"), "Devices")
    has(browser, ".device", "room1/lamp", "proposed", "zigbee2mqtt", "Actuators: brightness, state")
    button(browser, "Adopt… room1/lamp")
    has(browser, "dialog[open]", "Adopt room1/lamp?")
    enter(browser, "name", "Ceiling")
    enter(browser, "area", "Kitchen")
    press_button(browser, "Adopt")
    has(browser, ".device", "Ceiling", "Kitchen", "adopted")
    lamp = devices(house)["Ceiling"]
    assert (lamp["state"], lamp["area"]) == ("adopted", "Kitchen")
    unfold(browser, ".device", "Ceiling")
    has(browser, ".device .clip", lamp["id"].partition("/")[2])
    has(browser, ".device .scroll", "gateway:Device", "sosa:hosts")
    sent: list[bytes] = []
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.on_message = lambda _client, _data, message: sent.append(message.payload)
    with subscribed(client, house.broker, "zigbee2mqtt/room1/lamp/set"):
        button(browser, "Set state to true")
        has(browser, ".part", "state", "true")
        wait_for(lambda: any(b'"ON"' in payload for payload in sent), what="the command")
    button(browser, "Remove… Ceiling")
    has(browser, "dialog[open]", "cannot be undone")
    press_button(browser, "Leave it")
    has_none(browser, "dialog[open]")
    assert "Ceiling" in devices(house)
    button(browser, "Remove… Ceiling")
    press_button(browser, "Remove")
    wait_for(lambda: "Ceiling" not in devices(house), what="the removal")
    has(browser, "[role=status]", "Ceiling was removed")


def test_all_proposed_devices_are_adopted_by_one_button(browser: Browser, house: Site) -> None:
    open_view(browser, house.at("devices"), "Devices")
    button(browser, "Ignore… room1/window")
    press_button(browser, "Ignore")
    has(browser, ".device", "room1/window", "ignored")
    press_button(browser, "Adopt all 3…")
    has(browser, "dialog[open]", "Adopt 3 devices?", "room1/climate, room1/lamp, room1/motion")
    press_button(browser, "Adopt")
    has(browser, "[role=status]", "3 devices were adopted")
    found = {name: one["state"] for name, one in devices(house).items()}
    assert found.pop("room1/window") == "ignored"
    assert set(found.values()) == {"adopted"}
    browser.until("return ![...document.querySelectorAll('button')].some(it => it.innerText.startsWith('Adopt all'))")


def test_a_device_is_ignored_after_a_question(browser: Browser, house: Site) -> None:
    open_view(browser, house.at("devices"), "Devices")
    button(browser, "Ignore… room1/window")
    has(browser, "dialog[open]", "Ignore room1/window?")
    press_button(browser, "Ignore")
    has(browser, ".device", "room1/window", "ignored", "Adopt…")
    assert devices(house)["room1/window"]["state"] == "ignored"


def adopted(site: Site, name: str) -> None:
    """Adopts a device; returns once the adapter has subscribed to its messages."""
    body = json.dumps({"action": "adopt"}).encode()
    asking = urllib.request.Request(f"{site.gateway.http_url}/devices/{devices(site)[name]['id']}", body)
    urllib.request.urlopen(asking, timeout=120).close()
    followed(site, name)


def followed(site: Site, name: str) -> None:
    """Waits until the adapter has subscribed to the messages of a device, which are lost before."""
    topic = f"zigbee2mqtt/{name} (QoS"
    wait_for(lambda: any(topic in line for line in site.broker.log), what=f"the subscription to {name}")


def test_a_lamp_is_switched_and_dimmed_where_its_readings_are(browser: Browser, house: Site) -> None:
    adopted(house, "room1/lamp")
    house.publish("zigbee2mqtt/room1/lamp", '{"state": "OFF", "brightness": 100}')
    open_view(browser, house.at("now"), "Now")
    has(browser, ".row.actuator", "state", "off")
    sent: list[dict[str, object]] = []
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.on_message = lambda _client, _data, message: sent.append(json.loads(message.payload))
    with subscribed(client, house.broker, "zigbee2mqtt/room1/lamp/set"):
        button(browser, "Switch state")
        wait_for(lambda: any(one.get("state") == "ON" for one in sent), what="the command")
        house.publish("zigbee2mqtt/room1/lamp", '{"state": "ON", "brightness": 100}')
        browser.until("return document.querySelector('[role=switch].on')?.ariaChecked == 'true'")
        browser.until(
            "const found = document.querySelector('button[aria-label^=\"Set brightness\"]');"
            "found?.click(); return Boolean(found)"
        )
        enter(browser, "state", "120")
        button(browser, "Set brightness")
        wait_for(lambda: any(one.get("brightness") == 120 for one in sent), what="the brightness")
        has(browser, ".row.actuator", "brightness", "120")
        has_none(browser, ".setting")


def test_a_device_shows_its_readings_and_what_adoption_would_write(browser: Browser, house: Site) -> None:
    name = devices(house)["room1/climate"]["id"]
    open_view(browser, house.at(f"devices#device={name}"), "Devices")
    has(browser, ".device", "room1/climate", "Triples that adoption would write", "no reading")
    button(browser, "Adopt… room1/climate")
    press_button(browser, "Adopt")
    wait_for(lambda: devices(house)["room1/climate"]["state"] == "adopted", what="the adoption")

    def read() -> bool:
        house.publish("zigbee2mqtt/room1/climate", '{"temperature": 21.5, "humidity": 40, "pressure": 990}')
        return "21.5" in str(browser.run("return document.querySelector('.parts')?.innerText"))

    wait_for(read, what="the reading")
    has(browser, ".part", "temperature", "21.5", "zigbee2mqtt/room1/climate")


def test_the_last_message_stands_beside_its_triples(browser: Browser, house: Site) -> None:
    adopted(house, "room1/climate")
    open_view(browser, house.at(f"devices#device={devices(house)['room1/climate']['id']}"), "Devices")
    has(browser, ".device", "Last messages", "No adapter has received a message")
    topic = "zigbee2mqtt/room1/climate"
    house.publish(topic, '{"temperature": 21.5, "humidity": 40, "pressure": 990}')
    has(browser, ".message", topic, '{"temperature": 21.5', "sosa:hasSimpleResult", "unit:DEG_C", "990")
    house.publish(topic, '{"temperature": "warm"}')
    has_after_return(browser, ".message", '"warm"', "not a number")
    house.broker.publish((topic, b"\xff\xfe\x00"))
    has_after_return(browser, ".message", "3 bytes that are no text", "ff fe 00")
    house.publish(topic, f"{SCRIPT} {RTL} {LONG[:7_000]}")
    has_after_return(browser, ".message .clip", "<script>window.hacked")
    house.publish(topic, LONG)
    has_after_return(browser, ".message", "longer than what is kept")
    for width in (1280, 360):
        browser.look(width, 800)
        assert nothing_ran(browser)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    logged = (house.gateway.folder / "data").rglob("*")
    assert not any(b"onerror" in one.read_bytes() for one in logged if one.is_file()), "no message is written"


def test_a_mapping_is_tried_in_place(browser: Browser, house: Site) -> None:
    open_view(browser, house.at("devices"), "Devices")
    browser.until("const it = document.querySelector('.trial'); it.open = true; return true")
    enter(browser, "topic", "home/kitchen/temperature")
    enter(browser, "payload", "20.5")
    press_button(browser, "Try it")
    has(browser, ".trial .component", "home.toml", "topic home/{room}/temperature", "20.5", "unit:DEG_C")
    enter(browser, "payload", "warm")
    press_button(browser, "Try it")
    has(browser, ".trial .failure", "not a number")
    browser.run("document.querySelector('.trial input[type=checkbox]').click()")
    enter(browser, "rule", '[[stream]]\ntopic = "other"\n')
    press_button(browser, "Try it")
    has(browser, ".trial .failure", "payload: is missing")
    assert house.gateway.rows("SELECT * { ?s <http://www.w3.org/ns/sosa/hasSimpleResult> ?o }") == []


def test_a_device_is_adopted_by_keyboard(browser: Browser, house: Site) -> None:
    open_view(browser, house.at("devices"), "Devices")
    has(browser, ".device", "room1/motion")
    tab_to(browser, "it.ariaLabel == 'Adopt… room1/motion'")
    browser.press("Enter")
    browser.until("return document.querySelector('dialog[open]').contains(document.activeElement)")
    browser.press("Escape")
    has_none(browser, "dialog[open]")
    browser.until("return document.activeElement.ariaLabel == 'Adopt… room1/motion'")
    browser.press("Enter")
    browser.until("return document.querySelector('dialog[open]').contains(document.activeElement)")
    tab_to(browser, "it.innerText == 'Adopt'")
    browser.press("Enter")
    has(browser, ".device", "room1/motion", "adopted")


def test_hostile_announcements_are_text(browser: Browser, house: Site) -> None:
    listed = json.loads(zigbee_house(1))
    for one, name in zip(listed, (RTL, "x" * 300, "'quoted' \"name\"", SCRIPT), strict=True):
        one["friendly_name"] = name
        one["definition"] |= {"vendor": SCRIPT, "model": LONG[:1000], "description": SCRIPT}
    house.broker.publish((LIST, json.dumps(listed)), retain=True)
    open_view(browser, house.at("devices"), "Devices")
    has(browser, ".device", "<script>window.hacked")
    browser.until("document.querySelectorAll('.device details').forEach(it => it.open = true); return true")
    has(browser, ".device .clip", "<script>window.hacked")
    for width in (1280, 390):
        browser.look(width, 800)
        assert nothing_ran(browser)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


def test_look(browser: Browser, house: Site, amounts: Amounts) -> None:
    open_view(browser, house.at("devices"), "Devices")
    button(browser, "Adopt… room1/lamp")
    has(browser, "dialog[open]", "Adopt room1/lamp?")
    looked_at(browser, "devices-adopt", amounts)
    browser.look(*SIZES["desk"])
    enter(browser, "area", "Kitchen")
    press_button(browser, "Adopt")
    has(browser, ".device", "room1/lamp", "adopted")
    online = f"{PREFIXES} INSERT {{ ?device gateway:online false }} WHERE {{ ?device a gateway:Device }}"
    house.gateway.update(online)
    has_after_return(browser, ".device", "room1/lamp", "offline")
    looked_at(browser, "devices", amounts)
    unfold(browser, ".device", "room1/lamp")
    has(browser, ".device .beside", "gateway:Device")
    followed(house, "room1/lamp")
    house.publish("zigbee2mqtt/room1/lamp", '{"state": "ON", "brightness": 200}')
    has_after_return(browser, ".message .triples", "sosa:hasSimpleResult")
    browser.look(360, 800)
    for name, table in (("device", ".device > details > .beside"), ("message", ".message")):
        browser.until(f"document.querySelector('{table} .triples').scrollIntoView(); return true")
        browser.screenshot(SCREENSHOTS / f"triples-{name}-360.png")
    for width in (360, 1280):
        browser.look(width, 800)
        fits = "return [...document.querySelectorAll('.facts')].every(it => it.scrollWidth <= it.clientWidth)"
        assert browser.run(fits), width
    browser.until("document.querySelector('.device details[open]').scrollIntoView(); return true")
    looked_at(browser, "devices-open", amounts)
    browser.until("const it = document.querySelector('.trial'); it.open = true; return true")
    enter(browser, "topic", "home/kitchen/temperature")
    enter(browser, "payload", "20.5")
    press_button(browser, "Try it")
    has(browser, ".trial .component", "20.5")
    browser.until("document.querySelector('.trial').scrollIntoView(); return true")
    looked_at(browser, "devices-trial", amounts)


@contextmanager
def reporting(site: Site, messages: dict[str, bytes]) -> Iterator[None]:
    """Devices that publish again and again."""
    over = threading.Event()

    def publish() -> None:
        while not over.wait(0.2):
            site.broker.publish(*messages.items())

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_topics_that_nothing_reads_have_their_message_and_a_proposed_rule(browser: Browser, house: Site) -> None:
    with reporting(house, {"attic/co2": b"412", SCRIPT: b"\xff"}):
        open_view(browser, house.at("devices"), "Devices")
        has_none(browser, ".unread .message")
        unfold(browser, ".unread", "Topics that nothing reads")
        has_after_return(browser, ".unread .message", "attic/co2", "412", "Proposed rule")
        has_after_return(browser, ".unread .message", "bytes that are no text")
        assert nothing_ran(browser)
