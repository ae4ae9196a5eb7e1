"""The views Applications and System: what acts by itself is put, changed and removed; data are saved and restored."""

from __future__ import annotations

import json
import urllib.request

import paho.mqtt.client as mqtt

from tests.e2e.page.site import Site, has, has_none, open_view, press_button
from tests.e2e.page.test_devices_view import adopted, button
from tests.e2e.page.test_look import looked_at
from tests.support.amounts import Amounts
from tests.support.brokers import subscribed
from tests.support.chromium import Browser
from tests.support.gateway_process import wait_for

THINGS = "SELECT ?thing { ?thing a <http://e/Thing> }"


def document(result: str) -> str:
    """An application that notes each thing."""
    note = f"INSERT {{ ?thing <http://e/{result}> true }} WHERE {{}}"
    return json.dumps(
        {
            "namespaces": {"e": "http://e/"},
            "queries": {"THINGS": {"sparql": THINGS}},
            "updates": {"NOTE": {"sparql": note, "forcedBindings": {"thing": {"type": "uri", "value": ""}}}},
            "extended": {"lamplighter": {"aggregators": {"note": {"query": "THINGS", "added": "NOTE"}}}},
        }
    )


def write(browser: Browser, selector: str, text: str) -> None:
    browser.until(
        "const it = document.querySelector($[0]); it.value = $[1];"
        "it.dispatchEvent(new Event('input', {bubbles: true})); it.dispatchEvent(new Event('change', {bubbles: true}));"
        "return true",
        selector,
        text,
    )


def stored(site: Site) -> list[str]:
    with urllib.request.urlopen(f"{site.gateway.http_url}/applications", timeout=120) as answer:
        return [one["name"] for one in json.load(answer)["applications"]]


def test_an_application_is_checked_put_changed_and_removed(browser: Browser, empty: Site, amounts: Amounts) -> None:
    open_view(browser, empty.at("applications"), "Applications")
    has(browser, ".empty", "no applications yet")
    write(browser, ".new select", "document")
    write(browser, ".new input", "two words")
    assert not browser.run("return document.querySelector('.new input').checkValidity()")
    write(browser, ".new input", "notes")
    write(browser, ".new textarea", document("seen").replace("sparql", "sparkle", 1))
    press_button(browser, "Check")
    has(browser, ".new .failure", "sparkle")
    assert stored(empty) == []
    write(browser, ".new textarea", document("seen"))
    press_button(browser, "Check")
    has(browser, ".new [role=status]", "It is in order")
    assert stored(empty) == []
    press_button(browser, "Switch it on")
    has(browser, "[role=status]", "notes runs")
    has(browser, ".application", "notes", "running")
    empty.gateway.update("INSERT DATA { <http://e/one> a <http://e/Thing> }")
    wait_for(lambda: bool(empty.gateway.rows("SELECT ?x { ?x <http://e/seen> true }")), what="the reaction")
    looked_at(browser, "applications", amounts)
    browser.until("const it = document.querySelector('.application details'); it.open = true; return true")
    has(browser, ".application textarea", "")
    write(browser, ".application textarea", document("later"))
    press_button(browser, "Change it")
    has_none(browser, ".application textarea")
    empty.gateway.update("INSERT DATA { <http://e/two> a <http://e/Thing> }")
    wait_for(lambda: bool(empty.gateway.rows("SELECT ?x { ?x <http://e/later> true }")), what="the reaction")
    button(browser, "Remove… notes")
    has(browser, "dialog[open]", "Remove notes?")
    press_button(browser, "Leave it")
    has_none(browser, "dialog[open]")
    assert stored(empty) == ["notes"]
    button(browser, "Remove… notes")
    press_button(browser, "Remove")
    has(browser, "[role=status]", "notes was removed")
    assert stored(empty) == []


def fill(browser: Browser, label: str, text: str) -> None:
    """Enters a value of a template."""
    browser.until(
        "const it = document.querySelector(`.template [aria-label='${$[0]}']`); it.value = $[1];"
        "it.dispatchEvent(new Event('input', {bubbles: true})); return true",
        label,
        text,
    )


def test_a_template_is_filled_in_tried_and_switched_on(browser: Browser, house: Site, amounts: Amounts) -> None:
    for name in ("room1/lamp", "room1/motion"):
        adopted(house, name)
    house.publish("zigbee2mqtt/room1/lamp", '{"state": "OFF", "brightness": 100}')
    house.publish("zigbee2mqtt/room1/motion", '{"occupancy": false}')
    open_view(browser, house.at("applications"), "Applications")
    browser.until("return document.querySelector('.new option[value=motion-light]') !== null")
    write(browser, ".new select", "motion-light")
    fill(browser, "light", "room1/lam")
    fill(browser, "sensor", "room1/motion occupancy")
    press_button(browser, "Preview")
    has(browser, ".option .failure", "room1/lam")
    fill(browser, "light", "room1/lamp state")
    fill(browser, "off after", "1h")
    press_button(browser, "Try on the last day")
    has(browser, ".template [role=status]", "What it would have done", "room1/lamp")
    browser.until("return /would have done since .*[0-9]/.test(document.querySelector('.template').innerText)")
    assert stored(house) == []
    looked_at(browser, "applications-template", amounts)
    press_button(browser, "Switch it on")
    has(browser, ".application", "motion-light", "running")
    sent: list[bytes] = []
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.on_message = lambda _client, _data, message: sent.append(message.payload)
    with subscribed(client, house.broker, "zigbee2mqtt/room1/lamp/set"):
        house.publish("zigbee2mqtt/room1/motion", '{"occupancy": true}')
        wait_for(lambda: any(b'"ON"' in one for one in sent), what="the light")
    browser.until("const it = document.querySelector('.application details'); it.open = true; return true")
    browser.until("return document.querySelector('.application [aria-label=\"off after\"]').value.length > 0")
    fill(browser, "off after", "2h")
    press_button(browser, "Change it")
    has_none(browser, ".application .template")
    with urllib.request.urlopen(f"{house.gateway.http_url}/applications/motion-light", timeout=120) as answer:
        assert json.load(answer)["values"]["off-after"] in ("2h", "PT2H")


def test_a_backup_is_restored_after_two_questions(browser: Browser, empty: Site, amounts: Amounts) -> None:
    empty.gateway.update("INSERT DATA { <http://e/before> a <http://e/Kept> }")
    open_view(browser, empty.at("system"), "System")
    link = browser.run("const it = document.querySelector('a.button'); return [it.href, it.download]")
    assert link[0] == f"{empty.gateway.http_url}/backup" and link[1].startswith("lamplighter-")
    taken = (
        "const data = await (await fetch($[0])).blob(), moved = new DataTransfer();"
        "moved.items.add(new File([data], 'house.backup'));"
        "const field = document.querySelector('input[type=file]'); field.files = moved.files;"
        "field.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    browser.run(taken, link[0])
    empty.gateway.update("DELETE DATA { <http://e/before> a <http://e/Kept> }")
    asked = "SELECT ?what { <http://e/before> a ?what }"
    for last in ("Leave it", "Continue"):
        press_button(browser, "Restore…")
        has(browser, "dialog[open]", "house.backup", "replaces everything")
        press_button(browser, last)
    has(browser, "dialog[open]", "type the word replace")
    looked_at(browser, "backup-restore", amounts)
    write(browser, "dialog[open] input", "no")
    press_button(browser, "Replace all data")
    assert browser.run("return document.querySelector('dialog[open] input').validity.patternMismatch")
    assert not empty.gateway.rows(asked)
    browser.run(
        "const real = fetch; window.sent = 0;"
        "window.fetch = async (...asked) => {"
        "sent++; await new Promise(it => setTimeout(it, 300)); return real(...asked) }"
    )
    write(browser, "dialog[open] input", "replace")
    for _ in range(2):  # as a person does who is in a hurry
        browser.run("[...document.querySelectorAll('dialog[open] button')][0].click()")
    has(browser, "[role=status]", "Restored")
    assert browser.run("return sent") == 1
    assert empty.gateway.rows(asked)


def test_the_settings_are_checked(browser: Browser, site: Site, amounts: Amounts) -> None:
    # Longer than a phone is wide, and without a place to break it.
    broken = site.gateway.config.parent / "mapping" / f"broken{'n' * 60}.toml"
    open_view(browser, site.at("system"), "System")
    press_button(browser, "Check the settings")
    has(browser, "[role=status]", "The gateway starts with these settings.")
    broken.write_text("[[stream]]\ntopic = 'a/<img src=x>'\n")
    try:
        press_button(browser, "Check the settings")
        has(browser, "[role=status]", "does not start")
        has(browser, ".findings", "broken")
        looked_at(browser, "settings-checked", amounts)
    finally:
        broken.unlink()
