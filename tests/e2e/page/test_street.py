"""The view Street: lamps light as sensors at a real broker report presence, and timers count down over them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lamplighter.demo.street.controls import DEMO
from lamplighter.ontology.vocabulary import LIGHTING
from tests.e2e.page.site import PREFIXES, Site, has, has_none, open_view, press_button, text_of
from tests.e2e.page.test_look import looked_at
from tests.support.amounts import Amounts
from tests.support.brokers import mosquitto
from tests.support.chromium import Browser
from tests.support.gateway_process import street_gateway, wait_for

POSTS = 10
FIGURES = "return [...document.querySelectorAll($[0])].map(it => it.dataset.post)"


def posts(count: int) -> str:
    parts = [
        f":post\\/{n} lighting:hasLamp :lamp\\/{n} . :lamp\\/{n} lighting:hasStatus 'OFF' ."
        for n in range(1, count + 1)
    ]
    return f"PREFIX lighting: <{LIGHTING}> {PREFIXES} INSERT DATA {{ {' '.join(parts)} }}"


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A gateway with the rules and the application of the demo, at a broker. Its lamps have no servers."""
    with mosquitto() as broker:
        folder = tmp_path_factory.mktemp("street")
        with street_gateway(folder, broker_port=broker.port, off_after="PT5M") as gateway:
            gateway.update(posts(POSTS))
            yield Site(gateway, broker)


def test_a_lamp_lights_as_somebody_passes_and_its_timer_counts(
    browser: Browser, street: Site, amounts: Amounts
) -> None:
    open_view(browser, street.at("street"), "Street")
    has(browser, ".street", *(f"post/{n}: lamp off" for n in range(1, POSTS + 1)))
    browser.until("return [...document.querySelectorAll('nav a')].some(it => it.innerText.trim() == 'Street')")
    street.publish("street/3/presence", "true")
    has(browser, ".lit.present[data-post='3']", "lamp on, somebody is there")
    has(browser, ".note", f"1 of {POSTS} lamps are lit")
    street.publish("street/3/presence", "false")
    browser.until(
        "const left = Number(document.querySelector(\"[data-post='3'] .countdown text\")?.textContent);"
        "window.first ||= left; return left > 0 && left < window.first"
    )
    has_none(browser, ".present")  # the timers have a connection of their own
    browser.until("return document.querySelector(\"[data-post='3']\").textContent.includes('timer due in')")
    looked_at(browser, "street", amounts)


def test_a_broken_lamp_an_offline_post_and_a_confirmed_state_are_told(browser: Browser, street: Site) -> None:
    street.gateway.update(
        f"""PREFIX lighting: <{LIGHTING}> {PREFIXES} DELETE {{ ?lamp lighting:hasStatus ?old }} INSERT {{
        :lamp\\/5 lighting:hasStatus 'BROKEN' . :post\\/6 gateway:online false .
        :lamp\\/7 lighting:hasStatus 'ON' ; gateway:reportedState 'OFF' }}
        WHERE {{ VALUES ?lamp {{ :lamp\\/5 :lamp\\/7 }} ?lamp lighting:hasStatus ?old }}"""
    )
    open_view(browser, street.at("street"), "Street")
    has(browser, ".street", "post/5: lamp broken", "post/6: lamp off, offline", "post/7: lamp off, to be on")


def test_somebody_is_there_as_long_as_one_sensor_says_so(browser: Browser, street: Site) -> None:
    seen = "sosa:observedProperty lighting:presence ; sosa:hasFeatureOfInterest :post\\/8 ; sosa:hasSimpleResult"
    prologue = f"PREFIX lighting: <{LIGHTING}> {PREFIXES}"
    street.gateway.update(f"{prologue} INSERT DATA {{ :left {seen} true . :right {seen} true }}")
    open_view(browser, street.at("street"), "Street")
    has(browser, ".present[data-post='8']", "somebody is there")
    street.gateway.update(f"{prologue} DELETE DATA {{ :left {seen} true }} ; INSERT DATA {{ :left {seen} false }}")
    street.gateway.update(f"{prologue} INSERT DATA {{ :lamp\\/8 gateway:reportedState 'ON' }}")
    has(browser, ".present.lit[data-post='8']", "somebody is there")
    street.gateway.update(f"{prologue} DELETE DATA {{ :right {seen} true }}")
    has_none(browser, ".present[data-post='8']")


def test_offers_are_buttons_whose_wish_reaches_the_dataset(browser: Browser, street: Site) -> None:
    street.gateway.update(f"INSERT DATA {{ <http://lamplighter.local/demo/p> <{DEMO}offers> 'add a person' }}")
    open_view(browser, street.at("street"), "Street")
    press_button(browser, "Add a person")
    wishes = f"SELECT ?wish {{ ?wish <{DEMO}asks> <http://lamplighter.local/demo/p> }}"
    wait_for(lambda: len(street.gateway.rows(wishes)) == 1, what="the wish")
    street.gateway.update(f"DELETE WHERE {{ ?action <{DEMO}offers> ?text }}")
    has_none(browser, ".offers")


def test_a_dataset_without_posts_does_not_offer_the_view(browser: Browser, empty: Site) -> None:
    open_view(browser, empty.at("street"), "Street")
    has(browser, ".empty", "There is no street")
    assert "Street" not in text_of(browser, "nav")


def test_fifty_posts_are_drawn_and_more_are_counted(browser: Browser, empty: Site, amounts: Amounts) -> None:
    empty.gateway.update(posts(53))
    open_view(browser, empty.at("street"), "Street")
    has(browser, ".note", "0 of 50 lamps are lit; 3 more posts are not shown")
    assert browser.run(FIGURES, ".post") == [str(n) for n in range(1, 51)]
    looked_at(browser, "street-long", amounts)
