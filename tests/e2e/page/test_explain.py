"""The view Explain: the chain that led to the state of an actuator."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from tests.e2e.page.site import PREFIXES, Site, devices, has, has_after_return, open_view
from tests.e2e.page.test_hostile_data import LONG, SCRIPT, literal, nothing_ran
from tests.e2e.page.test_keyboard import tab_to
from tests.e2e.page.test_look import looked_at
from tests.support.amounts import Amounts
from tests.support.chromium import Browser
from tests.support.gateway_process import wait_for


def outcomes(site: Site) -> list[dict[str, Any]]:
    """The newest first."""
    with urllib.request.urlopen(f"{site.gateway.http_url}/explain?last=50", timeout=120) as answer:
        return list(json.load(answer)["outcomes"])


def decide(site: Site, **body: object) -> None:
    """Sends a decision about the lamp."""
    url = f"{site.gateway.http_url}/devices/{devices(site)['room1/lamp']['id']}"
    urllib.request.urlopen(url, json.dumps(body).encode(), timeout=120).close()


def switched(site: Site, *states: str) -> None:
    """Adopts the lamp and sets it. Returns when the broker has taken all commands."""
    decide(site, action="adopt")
    for number, state in enumerate(states, 1):
        decide(site, action="set", actuator="state", state=state)
        wait_for(lambda number=number: len(outcomes(site)) == number, what="the acknowledgement")  # type: ignore[misc]


def test_the_newest_switching_is_drawn_as_a_chain(browser: Browser, house: Site) -> None:
    open_view(browser, house.at("explain"), "Explain")
    has(browser, ".empty", "No actuator has been switched yet")
    switched(house, "true", "false")
    has_after_return(browser, ".outcomes", "false", "true")
    has(browser, "h2", "room1/lamp state: false")
    kinds = "return [...document.querySelectorAll('.chain strong')].map(it => it.innerText)"
    browser.until(f"{kinds}.length > 0")
    assert browser.run(kinds) == ["update", "notification", "rule", "request", "acknowledgement"]
    has(browser, ".link", "update", "127.0.0.1", "desired state false, was true")
    has(browser, ".link", "request", "zigbee2mqtt/room1/lamp/set")
    has(browser, ".link.ok", "after +", "PUBACK")


def test_an_older_switching_is_chosen_by_keyboard(browser: Browser, house: Site) -> None:
    switched(house, "true", "false")
    open_view(browser, house.at("explain"), "Explain")
    has(browser, "h2", "room1/lamp state: false")
    tab_to(browser, "it.matches('.outcomes a') && it.innerText.includes('true')")
    browser.press("Enter")
    has(browser, "h2", "room1/lamp state: true")
    assert browser.run("return document.querySelector('.outcomes [aria-current]').innerText.includes('true')")
    browser.leave("location.reload()")
    has(browser, "h2", "room1/lamp state: true")
    tab_to(browser, "it.matches('.chain a')")
    browser.press("Enter")
    browser.until("return document.querySelector('h1').textContent == 'Log'")
    has(browser, ".item.chosen", "HTTP 127.0.0.1")


def test_an_actuator_in_now_leads_to_its_explanation(browser: Browser, house: Site) -> None:
    switched(house, "true")
    open_view(browser, house.at("now"), "Now")
    browser.until(
        "const found = [...document.querySelectorAll('.row.actuator a')].find(it => it.innerText.includes('state'));"
        "found?.click(); return Boolean(found)"
    )
    browser.until("return document.querySelector('h1').textContent == 'Explain'")
    has(browser, "h2", "room1/lamp state: true")


def test_hostile_names_and_reasons_are_text(browser: Browser, empty: Site) -> None:
    text = f":lamp gateway:desiredState {literal(SCRIPT)} . :lamp/actuation gateway:refused {literal(LONG)} ."
    empty.gateway.update(f"{PREFIXES} INSERT DATA {{ {text.replace(':lamp/', ':lamp' + chr(92) + '/')} }}")
    open_view(browser, empty.at("explain#actuation=<script>window.hacked=1</script>"), "Explain")
    has(browser, ".failure", "script")
    assert nothing_ran(browser)
    open_view(browser, empty.at("now"), "Now")
    open_view(browser, empty.at("explain"), "Explain")
    has(browser, ".link", "<script>window.hacked")
    for width in (1280, 390):
        browser.look(width, 800)
        assert nothing_ran(browser)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


def test_look(browser: Browser, house: Site, amounts: Amounts) -> None:
    switched(house, "true", "false", "true")
    open_view(browser, house.at("explain"), "Explain")
    has(browser, ".link.ok", "PUBACK")
    looked_at(browser, "explain", amounts)
