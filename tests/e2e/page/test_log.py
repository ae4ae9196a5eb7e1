"""The view Log: commits as they happen, and the dataset of a past moment."""

from __future__ import annotations

import json

from tests.e2e.page.site import Site, has, has_none, open_view, press_button, unfold, write_query
from tests.e2e.page.test_hostile_data import LONG, RTL, SCRIPT, literal, nothing_ran
from tests.e2e.page.test_keyboard import tab_to
from tests.e2e.page.test_look import looked_at
from tests.support.amounts import Amounts
from tests.support.chromium import Browser

STATE = "<http://lamplighter.local/lamp> <http://example.org/state>"


def switch(site: Site, *states: str) -> list[int]:
    """Sets the states one after the other; the sequences of the records."""
    text = f"DELETE {{ {STATE} ?old }} INSERT {{ {STATE} '%s' }} WHERE {{ OPTIONAL {{ {STATE} ?old }} }}"
    return [int(site.gateway.update(text % state)["sequence"]) for state in states]


def test_commits_appear_with_cause_and_delta(browser: Browser, empty: Site) -> None:
    open_view(browser, empty.at("log"), "Log")
    has(browser, ".note", "live")
    empty.publish("home/attic/temperature", "20.5")
    has(browser, ".commits .item", "MQTT home/attic/temperature", "+17")
    off, on = switch(empty, "OFF", "ON")
    has(browser, ".commits .item", "HTTP 127.0.0.1", f"1/{on}", "+1", "−1")
    unfold(browser, ".commits details", f"1/{on}")
    has(browser, "tr.added", "+", "lamp", "http://example.org/state", "ON")
    has(browser, "tr.removed", "−", "OFF")
    assert "removed" in str(browser.run("return document.querySelector('tr.removed').textContent"))
    listed = browser.run("return [...document.querySelectorAll('.commits .commit > .note')].map(it => it.innerText)")
    sequences = [int(record.partition("/")[2]) for record in listed]
    assert sequences == sorted(sequences, reverse=True), "the newest first; those of adapters come at any time"
    assert {on, off} <= set(sequences)


def test_a_large_delta_is_shown_on_demand(browser: Browser, empty: Site) -> None:
    many = " . ".join(f"<http://a> <http://b> {number}" for number in range(60))
    sequence = empty.gateway.update(f"INSERT DATA {{ {many} }}")["sequence"]
    open_view(browser, empty.at("log"), "Log")
    has(browser, ".commits .item", f"1/{sequence}", "+60")
    unfold(browser, ".commits details", f"1/{sequence}")
    press_button(browser, "Show 40 more")
    browser.until("return document.querySelectorAll('tr.added').length == 60")


def test_a_past_moment_is_chosen_and_queried(browser: Browser, empty: Site) -> None:
    off, _, last = switch(empty, "OFF", "DIM", "ON")
    open_view(browser, empty.at("log"), "Log")
    has(browser, ".commits .item", f"1/{last}")
    browser.run(
        "const slider = document.querySelector('input[type=range]'); slider.value = $[0];"
        "slider.dispatchEvent(new Event('input', {bubbles: true}))",
        off,
    )
    has(browser, ".moment", f"Record 1/{off}", "Query this moment")
    has(browser, ".item.chosen", f"1/{off}", "OFF")
    assert browser.run("return new URLSearchParams(location.hash.slice(1)).get('at')") == f"1/{off}"
    press_button(browser, "Query this moment")
    browser.until("return document.querySelector('h1').textContent == 'Query'")
    has(browser, ".moment", f"As of record 1/{off}", "Back to now")
    write_query(browser, f"SELECT ?state {{ {STATE} ?state }}")
    press_button(browser, "Run")
    has(browser, "tbody", "OFF")
    browser.leave("location.reload()")
    has(browser, ".moment", f"As of record 1/{off}")
    has(browser, "tbody", "OFF")
    press_button(browser, "Back to now")
    has_none(browser, ".moment")
    press_button(browser, "Run")
    has(browser, "tbody", "ON")
    browser.run("history.back()")
    has(browser, ".moment", f"Record 1/{off}")


def test_an_address_leads_to_a_moment(browser: Browser, empty: Site) -> None:
    [sequence] = switch(empty, "OFF")
    open_view(browser, empty.at(f"log#at={sequence}"), "Log")
    has(browser, ".item.chosen", f"1/{sequence}", "OFF")
    press_button(browser, "Back to now")
    has_none(browser, ".moment")
    has(browser, ".note", "live")
    open_view(browser, empty.at("query#at=1/999999"), "Query")
    press_button(browser, "Run")
    has(browser, ".failure", "999999")


def test_records_are_opened_by_keyboard(browser: Browser, empty: Site) -> None:
    [sequence] = switch(empty, "OFF")
    open_view(browser, empty.at("log"), "Log")
    has(browser, ".commits .item", f"1/{sequence}")
    tab_to(browser, "it.matches('input[type=range]')")
    tab_to(browser, f"it.matches('summary') && it.innerText.includes('1/{sequence}')")
    browser.press("Enter")
    has(browser, "tr.added", "OFF")
    tab_to(browser, "it.innerText == 'Query this moment'")
    browser.press("Enter")
    browser.until("return document.querySelector('h1').textContent == 'Query'")
    has(browser, ".moment", f"1/{sequence}")


def test_records_show_hostile_texts_as_text(browser: Browser, empty: Site) -> None:
    terms = [*(literal(text) for text in (SCRIPT, RTL, LONG)), "<javascript:window.hacked=1>", "'x'@en", "_:b"]
    texts = " . ".join(f"<http://a> <http://b> {term}" for term in terms)
    sequence = empty.gateway.update(f"INSERT DATA {{ {texts} }}")["sequence"]
    for width in (1280, 390):
        browser.look(width, 800)
        open_view(browser, empty.at(f"log#at=1/{sequence}"), "Log")
        has(browser, ".item.chosen", SCRIPT, "javascript:window.hacked=1", "@en")
        assert nothing_ran(browser)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


def test_look(browser: Browser, empty: Site, amounts: Amounts) -> None:
    for value in ("20.5", "21"):
        empty.publish("home/kitchen/temperature", value)
    sequence = switch(empty, "OFF", "ON")[1]
    empty.gateway.update(f"INSERT DATA {{ {STATE} 'OFF' }}", delay="PT1H")
    open_view(browser, empty.at("log"), "Log")
    has(browser, ".commits .item", "timer")
    unfold(browser, ".commits details", f"1/{sequence}")
    has(browser, "tr.removed", "OFF")
    looked_at(browser, "log", amounts)
    open_view(browser, empty.at(f"log#at=1/{sequence}"), "Log")
    has(browser, ".item.chosen", json.dumps("ON").strip('"'))
    looked_at(browser, "log-past", amounts)
    press_button(browser, "Query this moment")
    has(browser, ".moment", "As of record")
    looked_at(browser, "query-past", amounts)
