"""Each view of the web page in a real browser, with readings over MQTT."""

from __future__ import annotations

import json
import signal
import urllib.request

import pytest
from websockets.sync.client import connect

from tests.e2e.page.site import (
    HOUSE,
    PREFIXES,
    Site,
    has,
    has_after_return,
    has_none,
    open_view,
    press_button,
    text_of,
    write_query,
)
from tests.support.chromium import Browser
from tests.support.gateway_process import wait_for

FOLLOWED = "SELECT ?s ?o { ?s <http://b> ?o }"
TITLES = {
    "now": "Now",
    "devices": "Devices",
    "query": "Query",
    "timers": "Timers",
    "subscriptions": "Subscriptions",
    "log": "Log",
    "explain": "Explain",
    "health": "Health",
}
PENDING = "INSERT DATA { <http://x> <http://p> 1 }"


def test_the_address_of_the_gateway_leads_to_now(browser: Browser, empty: Site) -> None:
    browser.show(empty.gateway.http_url)
    browser.until("return document.querySelector('h1').textContent == 'Now'")
    assert browser.run("return location.pathname") == "/page/"
    browser.until("return document.title == 'Now · Lamplighter'")  # set after the view is drawn
    has(browser, ".empty", "no readings yet")


@pytest.mark.parametrize("view", TITLES)
def test_each_view_has_an_address_and_rows_for_programs(browser: Browser, empty: Site, view: str) -> None:
    open_view(browser, empty.at(view), TITLES[view])
    assert browser.run("return document.querySelector('nav [aria-current=page]').innerText.trim()") == TITLES[view]
    links = "return await Promise.all([...document.querySelectorAll('.downloads a')].map(async it => {"
    answers = browser.run(
        f"{links} const answer = await fetch(it.href);"
        "return [it.innerText, answer.status, answer.headers.get('content-type').split(';')[0]] }))"
    )
    assert answers == [["JSON", 200, "application/json"], ["CSV", 200, "text/csv"]]


# --- Now -----------------------------------------------------------------------------------------------


def test_a_value_that_is_published_over_mqtt_appears_and_changes(browser: Browser, empty: Site) -> None:
    open_view(browser, empty.at("now"), "Now")
    has(browser, ".connection", "live")
    empty.publish("home/kitchen/temperature", "20.5")
    has(browser, ".card", "room/kitchen", "temperature", "20.5 °C")
    empty.publish("home/kitchen/temperature", "21")
    has(browser, ".card", "room/kitchen", "21 °C")
    browser.until("return document.querySelector('.card svg.spark polyline') !== null")
    empty.publish("home/kitchen/presence", "true")
    has(browser, ".card", "presence", "yes")
    empty.publish("home/hall/temperature", "18")
    has(browser, ".card", "room/hall", "18 °C")
    titles = browser.run("return [...document.querySelectorAll('.card h2')].map(it => it.innerText)")
    assert titles == ["room/hall", "room/kitchen"]


def test_problems_and_offline_devices_come_first(browser: Browser, empty: Site) -> None:
    empty.gateway.update(HOUSE)
    open_view(browser, empty.at("now"), "Now")
    has(browser, ".problems", "1 device is offline", "cellar box")
    has(browser, ".card.trouble", "cellar", "71", "offline")
    has(browser, ".card.trouble", "Kitchen", "20.5", "lamp", "reports off", "on")
    has(browser, ".card.trouble", "pump", "refused", "mqtt.commands does not permit it")
    assert text_of(browser, ".card").count("reports") == 1  # 40 and 40.0 are one state
    empty.gateway.update(
        f"{PREFIXES} DELETE {{ :lamp gateway:reportedState false . :cellarbox gateway:online false }} "
        "INSERT { :lamp gateway:reportedState true . :cellarbox gateway:online true } WHERE {}"
    )
    has_none(browser, ".problems .offline")
    has(browser, ".card:not(.trouble)", "Kitchen", "lamp", "reported", "on")


def test_a_state_that_changes_replaces_no_element(browser: Browser, empty: Site) -> None:
    empty.gateway.update(HOUSE)
    open_view(browser, empty.at("now"), "Now")
    has(browser, ".card", "Kitchen", "valve", "40")
    browser.run(
        "window.changes = []; new MutationObserver(all => changes.push(...all)).observe("
        "document.querySelector('.cards'), { childList: true, subtree: true, characterData: true })"
    )
    empty.gateway.update(
        f"{PREFIXES} DELETE {{ :valve gateway:desiredState 40 ; gateway:reportedState 40.0 }} "
        "INSERT { :valve gateway:desiredState 41 ; gateway:reportedState 41 } WHERE {}"
    )
    has(browser, ".card", "Kitchen", "valve", "41")
    replaced = (
        "return changes.filter(it => it.type == 'childList' && [...it.addedNodes, ...it.removedNodes]"
        ".some(node => node.nodeType == Node.ELEMENT_NODE)).length"
    )
    assert browser.run(replaced) == 0
    cards = (
        "return [...new Set(changes.map(it => it.target.parentElement.closest('.card').querySelector('h2').innerText))]"
    )
    assert browser.run(cards) == ["Kitchen"], "other cards are left alone"


def test_a_broker_that_is_away_is_a_problem(browser: Browser, empty: Site) -> None:
    open_view(browser, empty.at("now"), "Now")
    has(browser, ".connection", "live")
    empty.broker.stop()
    try:
        has(browser, ".problems", str(empty.broker.port))
        browser.show(empty.at("health"))
        has(browser, ".verdict", "DEGRADED")
    finally:
        empty.broker.start()
    has(browser, ".verdict", "OK")


def test_a_reading_of_a_plain_update_is_shown_too(browser: Browser, empty: Site) -> None:
    open_view(browser, empty.at("now"), "Now")
    empty.gateway.update(
        f"{PREFIXES} INSERT DATA {{ :reading sosa:madeBySensor :kitchen ; sosa:hasSimpleResult 20.5 }}"
    )
    has(browser, ".card", "value", "20.5")


NAMES = {
    "http://lamplighter.local/co2": "co2",
    "http://lamplighter.local/pm25": "pm25",
    "http://lamplighter.local/room/1/so2": "so2",
    "http://example.org/ns#voc-index_10": "voc-index_10",
    "http://example.org/channel/7": "channel/7",
    "urn:sensors:uv2": "uv2",
    "urn:sensors:12": "sensors:12",
}
"""IRI of a property -> its name in Now."""
UNITS = {"M3": "m³", "PA": "Pa", "MicroGM-PER-M3": "µg/m³", "KiloGM-PER-M2": "KiloGM-PER-M2", "H2O": "H2O"}
"""Name of a unit of QUDT -> its sign in Now."""


def test_names_and_units_that_end_in_digits_are_whole(browser: Browser, empty: Site) -> None:
    names = " ".join(
        f":n{number} sosa:madeBySensor :s ; sosa:observedProperty <{iri}> ; sosa:hasSimpleResult {number} ."
        for number, iri in enumerate(NAMES)
    )
    units = " ".join(
        f":u{number} sosa:madeBySensor :s ; sosa:hasFeatureOfInterest :units ; sosa:hasSimpleResult {number} . "
        f":us{number} gateway:liveObservation :u{number} ; "
        f"<http://qudt.org/schema/qudt/hasUnit> <http://qudt.org/vocab/unit/{unit}> ."
        for number, unit in enumerate(UNITS)
    )
    empty.gateway.update(f"{PREFIXES} INSERT DATA {{ {names} {units} }}")
    open_view(browser, empty.at("now"), "Now")
    for number, name in enumerate(NAMES.values()):
        has(browser, ".card .row", f"{name} {number}")
    for number, sign in enumerate(UNITS.values()):
        has(browser, ".card .row", f"value s {number} {sign}")


def test_people_read_labels(browser: Browser, empty: Site) -> None:
    empty.gateway.update(
        f"""{PREFIXES} INSERT DATA {{ :hall rdfs:label "Hall lamp" ; sosa:hosts :lamp .
        :o1 sosa:madeBySensor :s1 ; sosa:hasFeatureOfInterest :hall ; sosa:observedProperty :p ;
          sosa:hasSimpleResult 7 . :s1 rdfs:label "Hall lamp power" .
        :o2 sosa:madeBySensor :s2 ; sosa:hasFeatureOfInterest :hall ; sosa:observedProperty :q ;
          sosa:hasSimpleResult 8 . :q rdfs:label "Quality" .
        :lamp gateway:desiredState true ; rdfs:label "Hall lamp switch" }}"""
    )
    open_view(browser, empty.at("now"), "Now")
    has(browser, ".card", "Hall lamp power 7", "Quality 8", "switch")
    rows = text_of(browser, ".card .row .name").split()
    assert rows[:3] == ["power", "Quality", "switch"]


def test_the_actuator_of_a_rule_is_switched(browser: Browser, empty: Site) -> None:
    empty.gateway.update(
        f"""{PREFIXES} INSERT DATA {{ <http://lamplighter.local/actuator/fan> gateway:desiredState false .
        :unknown gateway:desiredState "on" }}"""
    )
    open_view(browser, empty.at("now"), "Now")
    for state in ("on", "off"):
        browser.until(
            "const it = document.querySelector('[role=switch]'); if (it && !it.disabled) it.click(); return Boolean(it)"
        )
        has(browser, "[role=switch]", state)
    has(browser, ".row.actuator span.value", "on")  # nothing sets the state of the other one


def test_ages_are_shown_whole(browser: Browser, empty: Site) -> None:
    ages = {"47 min": "PT47M20S", "23 h": "PT23H30M", "364 d": "P364DT1H"}
    for number, ago in enumerate(ages.values()):
        empty.gateway.update(
            f"{PREFIXES} INSERT {{ :o{number} sosa:madeBySensor :s ; sosa:hasSimpleResult 1234567.125 ; "
            f"sosa:observedProperty :illuminanceInTheLongHallway ; sosa:resultTime ?then }} "
            f"WHERE {{ BIND(NOW() - '{ago}'^^xsd:dayTimeDuration AS ?then) }}"
        )
    browser.look(390, 844)
    open_view(browser, empty.at("now"), "Now")
    for text in ages:
        has(browser, ".card .age", text)
    clipped = "return [...document.querySelectorAll('.card .age')].filter(it => it.scrollWidth > it.clientWidth).length"
    assert browser.run(clipped) == 0
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


def test_a_device_of_many_readings_shows_some_until_it_is_asked(browser: Browser, empty: Site) -> None:
    many = " ".join(
        f":o{number} sosa:madeBySensor :s{number} ; sosa:hasFeatureOfInterest :inverter ; "
        f"sosa:observedProperty :value{number} ; sosa:hasSimpleResult {number} ."
        for number in range(200)
    )
    empty.gateway.update(
        f"{PREFIXES} INSERT DATA {{ {many} :box sosa:hosts :s150 ; gateway:online false . "
        ":inverter sosa:hosts :relay . :relay gateway:desiredState true }"
    )
    count = "return document.querySelectorAll('.card .row:not(.actuator)').length == $[0]"
    open_view(browser, empty.at("now"), "Now")
    browser.until(count, 12)
    has(browser, ".card .row", "value150", "offline")
    has(browser, ".card .row.actuator", "relay")
    press_button(browser, "All 200 readings")
    browser.until(count, 200)
    press_button(browser, "First 12 readings")
    browser.until(count, 12)


def test_many_problems_are_one_line_until_they_are_asked_for(browser: Browser, empty: Site) -> None:
    away = " ".join(f':box{number} gateway:online false ; rdfs:label "box {number}" .' for number in range(60))
    empty.gateway.update(f"{PREFIXES} INSERT DATA {{ {away} }}")
    open_view(browser, empty.at("now"), "Now")
    has(browser, ".problems summary", "60 devices are offline")
    has(browser, ".problems .offline", "box 0", "and 10 more")
    empty.broker.stop()
    try:
        has_after_return(browser, ".problems summary", "problem", "60 devices are offline")
        browser.until(
            "const found = document.querySelector('.problems details');"
            "return document.querySelectorAll('.problems .component').length < 3 || !found.open"
        )
        browser.until("const it = document.querySelector('.problems details'); it.open = true; return it.open")
        has(browser, ".problems .components", str(empty.broker.port))
    finally:
        empty.broker.start()


# --- Query ---------------------------------------------------------------------------------------------


def test_a_query_has_a_table_and_a_chart(browser: Browser, empty: Site) -> None:
    open_view(browser, empty.at("query"), "Query")
    write_query(browser, "SELECT ?t ?n { VALUES (?t ?n) { (xsd:dateTime('2026-01-01T00:00:00Z') 1) } }")
    rows = "('2026-01-01T00:00:00Z'^^xsd:dateTime 1.5) ('2026-01-01T00:01:00Z'^^xsd:dateTime 2)"
    write_query(browser, f"SELECT ?time ?number {{ VALUES (?time ?number) {{ {rows} }} }}")
    press_button(browser, "Run")
    has(browser, "tbody", "2026-01-01T00:01:00Z", "1.5")
    browser.until("return document.querySelector('.chart canvas') !== null")
    text = str(browser.run("return document.querySelector('textarea').value"))
    assert text.startswith("PREFIX xsd: <http://www.w3.org/2001/XMLSchema#>\n")
    write_query(browser, "ASK { <http://nothing> ?p ?o }")
    press_button(browser, "Run")
    has(browser, ".result", "no")
    write_query(browser, "CONSTRUCT { <http://a> <http://b> 7 } {}")
    press_button(browser, "Run")
    has(browser, ".turtle", "<http://a> <http://b> 7")


def test_an_error_of_the_gateway_is_shown_in_its_own_words(browser: Browser, empty: Site) -> None:
    open_view(browser, empty.at("query"), "Query")
    for button in ("Run", "Subscribe"):
        write_query(browser, "SELEKT ?s { ?s ?p ?o }")
        press_button(browser, button)
        has(browser, ".failure", "line 1")
        write_query(browser, "ASK {}")
        press_button(browser, "Run")
        has_none(browser, ".failure")


def test_the_address_keeps_the_query_and_a_link_runs_nothing(browser: Browser, empty: Site) -> None:
    open_view(browser, empty.at("query#query=SELECT%20%3Fx%20%7B%20VALUES%20%3Fx%20%7B%207%20%7D%20%7D"), "Query")
    assert browser.run("return document.querySelector('textarea').value") == "SELECT ?x { VALUES ?x { 7 } }"
    assert browser.run("return document.querySelector('tbody')") is None
    press_button(browser, "Run")
    has(browser, "tbody", "7")
    browser.leave("location.reload()")
    has(browser, "tbody", "7")


def test_a_live_query_shows_rows_that_enter_and_leave(browser: Browser, empty: Site) -> None:
    open_view(browser, empty.at("query"), "Query")
    write_query(browser, FOLLOWED)
    press_button(browser, "Subscribe")
    has(browser, "[role=status]", "Live: 0 rows")
    empty.gateway.update("INSERT DATA { <http://a> <http://b> 'first' }")
    has(browser, "tr.added", "+", "first", "http://a")
    has(browser, "[role=status]", "Live: 1 row")
    empty.gateway.update("DELETE DATA { <http://a> <http://b> 'first' }")
    has(browser, "tr.removed", "−", "first", "http://a")
    assert "removed" in str(browser.run("return document.querySelector('tr.removed').textContent"))
    assert browser.run("return [...document.querySelectorAll('.changes tbody tr')].map(it => it.className)") == [
        "removed",
        "added",
    ]
    following = subscribers(empty)
    press_button(browser, "Stop")
    wait_for(lambda: subscribers(empty) == following - 1, what="the end of the subscription")


def subscribers(site: Site) -> int:
    """How many subscriptions there are; those of the adapters stay."""
    with urllib.request.urlopen(f"{site.gateway.http_url}/subscriptions", timeout=120) as answer:
        return int(json.load(answer)["total"])


def test_a_live_query_goes_on_after_the_gateway_was_killed(browser: Browser, empty: Site) -> None:
    empty.gateway.update("INSERT DATA { <http://a> <http://b> 'before' }")
    open_view(browser, empty.at("query"), "Query")
    write_query(browser, FOLLOWED)
    press_button(browser, "Subscribe")
    has(browser, "tbody", "before")
    empty.gateway.end(signal.SIGKILL)
    has(browser, ".connection", "connection lost")
    empty.gateway.start()
    has(browser, ".connection", "live")
    empty.gateway.update("INSERT DATA { <http://a> <http://b> 'after' }")
    has(browser, "tr.added", "after")
    has(browser, "[role=status]", "Live: 2 rows")


# --- Timers, Subscriptions, Health ---------------------------------------------------------------------


def test_a_timer_counts_down_and_is_cancelled_after_a_question(browser: Browser, empty: Site) -> None:
    empty.gateway.update(PENDING, delay="PT1H")
    open_view(browser, empty.at("timers"), "Timers")
    has(browser, ".item", "59 min", "due")
    press_button(browser, "Cancel…")
    has(browser, "dialog[open]", "Cancel this timer?", "INSERT DATA")
    press_button(browser, "Keep it")
    has_none(browser, "dialog[open]")
    assert len(empty.gateway.delayed()) == 1
    press_button(browser, "Cancel…")
    press_button(browser, "Cancel the timer")
    has(browser, ".empty", "No timer is pending")
    assert empty.gateway.delayed() == []


def test_many_timers_are_shown_in_part_and_sent_again_when_they_change(browser: Browser, empty: Site) -> None:
    for number in range(101):
        empty.gateway.update(PENDING.replace("1 }", f"'{number} {'x' * 3_000}' }}"), delay=f"PT{number + 1}H")
    open_view(browser, empty.at("timers"), "Timers")
    has(browser, "main", "101 pending; the next 100 are shown")
    browser.until("return document.querySelector('.item .clip').textContent.includes('… (3,0')")
    browser.until(
        "return performance.getEntriesByType('resource')"
        ".some(it => it.name.includes('/delayed?') && it.responseStatus == 304)"
    )
    press_button(browser, "Show up to 1,000")
    browser.until("return document.querySelectorAll('.item').length == 101")
    empty.gateway.update(PENDING, delay="PT30M")
    has(browser, ".item", "29 min")


def test_subscriptions_show_class_and_query_of_other_clients(browser: Browser, empty: Site) -> None:
    open_view(browser, empty.at("subscriptions"), "Subscriptions")
    with connect(f"ws://127.0.0.1:{empty.gateway.websocket_port}/subscribe", proxy=None) as socket:
        text = f"{PREFIXES} SELECT ?x {{ ?x sosa:hosts <http://lamplighter.local/thing> }}"
        socket.send(json.dumps({"subscribe": {"sparql": text, "alias": "it"}}))
        socket.recv(120)
        has_after_return(browser, ".item", "telescoped", "127.0.0.1", "sosa:hosts thing")
        browser.until(
            "const found = [...document.querySelectorAll('.item')].find(it => it.textContent.includes('thing'));"
            "found?.querySelector('button').click(); return Boolean(found)"
        )
        browser.until("return document.querySelector('h1').textContent == 'Query'")
        assert "lamplighter.local/thing" in str(browser.run("return document.querySelector('textarea').value"))


def test_a_problem_has_a_button_to_where_it_is_cured(browser: Browser, empty: Site) -> None:
    empty.gateway.update(HOUSE)
    open_view(browser, empty.at("health"), "Health")
    has(browser, ".component", "device/cellarbox", "lamplighter devices remove", "Open Devices")
    browser.until("document.querySelector('.component a.open').click(); return true")
    browser.until("return document.querySelector('h1').textContent == 'Devices'")
    assert browser.run("return new URLSearchParams(location.hash.slice(1)).get('device')") == "cellarbox"
    open_view(browser, empty.at("now"), "Now")
    has(browser, ".problems", "false is reported", "Open Explain")
    browser.until("document.querySelector('.problems a.open').click(); return true")
    browser.until("return document.querySelector('h1').textContent == 'Explain'")
    assert "actuation=http" in str(browser.run("return location.hash"))


def test_cards_are_not_empty_after_a_scroll(browser: Browser, empty: Site) -> None:
    rooms = " ".join(
        f":o{number} sosa:madeBySensor :s{number} ; sosa:hasFeatureOfInterest :room{number} ; "
        f"sosa:observedProperty :temperature ; sosa:hasSimpleResult {number} ."
        for number in range(120)
    )
    empty.gateway.update(f"{PREFIXES} INSERT DATA {{ {rooms} }}")
    open_view(browser, empty.at("now"), "Now")
    browser.until("return document.querySelectorAll('.card').length == 120")
    browser.look(390, 844)
    drawn = (
        "const seen = [...document.querySelectorAll('.card')].filter(it => {"
        "const box = it.getBoundingClientRect(); return box.bottom > 0 && box.top < innerHeight });"
        "return seen.length > 2 && seen.every(it => it.querySelector('.row .value')"
        ".checkVisibility({contentVisibilityAuto: true}) && it.querySelector('.row').offsetHeight > 10)"
    )
    for place in ("document.body.scrollHeight", "0", "document.body.scrollHeight / 2", "200"):
        browser.run(f"scrollTo(0, {place})")
        browser.until(drawn)


LONG_NAMES = (
    "illuminanceInTheLongHallway",
    "volatile_organic_compounds",
    "living-room/ceiling.lamp:power",
    "PM25Index",
)
"""Ends of IRIs of properties, which may break behind a sign or before a capital only."""


def test_long_names_break_between_words_only(browser: Browser, empty: Site) -> None:
    names = " ".join(
        f":n{number} sosa:madeBySensor :s ; sosa:observedProperty <http://example.org/ns#{name}> ; "
        f"sosa:hasSimpleResult 1234567.125 ."
        for number, name in enumerate(LONG_NAMES)
    )
    empty.gateway.update(f"{PREFIXES} INSERT DATA {{ {names} }}")
    browser.look(390, 844)
    open_view(browser, empty.at("now"), "Now")
    browser.until("return document.querySelectorAll('.card .row').length == $[0]", len(LONG_NAMES))
    broken = (
        "const found = [], range = document.createRange();"
        "for (const name of document.querySelectorAll('.card .name bdi'))"
        " for (const part of name.childNodes) if (part.nodeType == 3) {"
        "  range.selectNodeContents(part);"
        "  if (new Set([...range.getClientRects()].map(it => it.top)).size > 1) found.push(part.data) }"
        "return found"
    )
    assert browser.run(broken) == []


def test_health_has_a_verdict_and_figures(browser: Browser, empty: Site) -> None:
    open_view(browser, empty.at("health"), "Health")
    has(browser, ".verdict", "OK")
    has(browser, ".figures", "Version", "Up for", "Clock")
    has(browser, ".figures", "Quads", "Change log on disk")
    has(browser, ".figures", "MQTT brokers", str(empty.broker.port))
    browser.run("document.querySelector('details.all').open = true")
    has(browser, "details.all tbody", "loop_held_ms_max", "quads")
