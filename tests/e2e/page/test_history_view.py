"""The views History and Logbook: what was, as a chart; what happened, in words that lead to Explain."""

from __future__ import annotations

from tests.e2e.page.site import Site, has, has_after_return, has_none, open_view, press_button, text_of
from tests.e2e.page.test_applications_view import write
from tests.e2e.page.test_devices_view import adopted, button
from tests.e2e.page.test_hostile_data import SCRIPT, nothing_ran
from tests.e2e.page.test_look import looked_at
from tests.support.amounts import Amounts
from tests.support.chromium import Browser


def follow(browser: Browser, selector: str, text: str) -> None:
    """Clicks the first link with a text, once it is there."""
    browser.until(
        "const found = [...document.querySelectorAll($[0])].find(it => it.innerText.includes($[1]));"
        "found?.click(); return Boolean(found)",
        selector,
        text,
    )


def test_the_name_of_a_reading_leads_to_its_history(browser: Browser, empty: Site, amounts: Amounts) -> None:
    open_view(browser, empty.at("now"), "Now")
    for value in ("18", "19.5", "21"):
        empty.publish("home/study/temperature", value)
        has(browser, ".card", "room/study", f"{value} °C")
    follow(browser, ".card .name a", "temperature")
    browser.until("return document.querySelector('h1').textContent == 'History'")
    browser.until("return document.querySelector('.chart canvas') !== null")
    has(browser, ".summary", "last", "21 °C", "lowest", "18 °C", "readings", "3")
    browser.until("const it = document.querySelector('details.all'); it.open = true; return true")
    has(browser, "details.all tbody tr", "19.5")
    looked_at(browser, "history", amounts)
    press_button(browser, "30 days")
    browser.until("return location.hash.includes('range=30d')")
    browser.until("return document.querySelector('[aria-pressed=true]').innerText == '30 days'")
    browser.until("return document.querySelector('.chart canvas') !== null")
    browser.leave("location.reload()")
    browser.until("return document.querySelector('[aria-pressed=true]')?.innerText == '30 days'")


def test_a_history_is_found_by_name_and_a_wrong_name_says_so(browser: Browser, empty: Site) -> None:
    empty.publish("home/bathroom/presence", "true")
    open_view(browser, empty.at("now"), "Now")
    has(browser, ".card", "room/bathroom", "yes")
    open_view(browser, empty.at("history"), "History")
    has(browser, ".empty", "Type a name")
    write(browser, ".picker input", "bathroom presence")
    press_button(browser, "Show")
    browser.until("return document.querySelector('.chart canvas') !== null")
    has(browser, ".summary", "true")
    write(browser, ".picker input", "nothing of that name")
    press_button(browser, "Show")
    has(browser, ".failure", "nothing of that name")


def test_an_actuator_that_was_never_set_has_what_it_reported(browser: Browser, house: Site) -> None:
    adopted(house, "room1/lamp")
    house.publish("zigbee2mqtt/room1/lamp", '{"state": "OFF", "brightness": 100}')
    open_view(browser, house.at("now"), "Now")
    has(browser, ".row.actuator", "brightness", "100")
    follow(browser, ".row.actuator .name a", "brightness")
    has(browser, ".chart .u-legend", "reported")
    assert "desired" not in text_of(browser, ".chart")
    has(browser, ".summary", "100")
    has_none(browser, ".empty")


def test_what_happened_to_a_lamp_leads_to_its_explanation(browser: Browser, house: Site, amounts: Amounts) -> None:
    adopted(house, "room1/lamp")
    house.publish("zigbee2mqtt/room1/lamp", '{"state": "OFF", "brightness": 100}')
    open_view(browser, house.at("now"), "Now")
    has(browser, ".row.actuator", "state", "off")
    button(browser, "Switch state")
    has(browser, ".row.actuator", "state", "on")
    open_view(browser, house.at("logbook"), "Logbook")
    has_after_return(browser, ".entry.switch", "state")
    looked_at(browser, "logbook", amounts)
    browser.until("const it = document.querySelector('.filters'); it.open = true; return true")
    looked_at(browser, "logbook-filters", amounts)
    write(browser, ".filters [name=kind]", "switch")
    browser.until("return location.hash == '#kind=switch'")
    has(browser, ".entry.switch", "state")
    has_none(browser, ".entry:not(.switch)")
    write(browser, ".filters [name=device]", "room1/window")
    browser.until("return location.hash.includes('device=')")
    has_none(browser, ".entry")
    press_button(browser, "Clear")
    follow(browser, ".entry.switch a", "state")
    browser.until("return document.querySelector('h1').textContent == 'Explain'")
    has(browser, ".chain", "update")
    follow(browser, ".explained a", "History")
    browser.until("return document.querySelector('h1').textContent == 'History'")
    browser.until("return document.querySelector('.chart canvas') !== null")
    has(browser, ".chart", "desired", "reported")
    looked_at(browser, "history-states", amounts)


def test_hostile_texts_of_the_past_are_text(browser: Browser, empty: Site) -> None:
    name = SCRIPT.replace("'", "\\'")
    empty.gateway.update(
        "PREFIX : <http://lamplighter.local/> PREFIX sosa: <http://www.w3.org/ns/sosa/> "
        "PREFIX gateway: <http://lamplighter.example/ns/gateway#> INSERT DATA { "
        f":evil gateway:desiredState '{name}' ; <http://www.w3.org/2000/01/rdf-schema#label> '{name}' }}"
    )
    open_view(browser, empty.at("logbook"), "Logbook")
    has_after_return(browser, ".entry", "<script>window.hacked")
    open_view(browser, empty.at("history#iri=http://lamplighter.local/evil"), "History")
    browser.until("return document.querySelector('.chart canvas, .empty, .failure') !== null")
    assert nothing_ran(browser)
    assert "hacked" not in text_of(browser, "script")
