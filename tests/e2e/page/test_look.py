"""Accessibility by axe-core, in light and dark, on a desk and on a phone; and screenshots in build/screenshots."""

from __future__ import annotations

from itertools import product

import pytest

from tests.e2e.page.site import HOUSE, Site, has, open_view, press_button, write_query
from tests.support.amounts import Amounts
from tests.support.chromium import Browser
from tests.support.components import missing
from tests.support.places import ROOT

pytestmark = pytest.mark.faults  # it takes long

AXE = ROOT / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
SCREENSHOTS = ROOT / "build" / "screenshots"
SIZES = {"desk": (1280, 860), "phone": (390, 844)}
CHART = """PREFIX xsd: <http://www.w3.org/2001/XMLSchema#>
SELECT ?room ?temperature ?time {
  VALUES (?room ?temperature ?time) {
    ('kitchen' 20.5 '2026-01-01T08:00:00Z'^^xsd:dateTime) ('kitchen' 21 '2026-01-01T08:10:00Z'^^xsd:dateTime)
    ('kitchen' 22.5 '2026-01-01T08:20:00Z'^^xsd:dateTime) ('hall' 17 '2026-01-01T08:00:00Z'^^xsd:dateTime)
    ('hall' 17.5 '2026-01-01T08:15:00Z'^^xsd:dateTime) ('hall' 18.5 '2026-01-01T08:20:00Z'^^xsd:dateTime)
  }
}"""
SERIOUS = """
const result = await axe.run(document, {resultTypes: ['violations']});
return result.violations.filter(it => ['serious', 'critical'].includes(it.impact))
    .map(it => it.id + ': ' + it.nodes.map(node => node.html + ' ' + node.failureSummary).join(' | '))
"""


def looked_at(browser: Browser, name: str, amounts: Amounts) -> None:
    """Checks the view that is shown, and keeps its pictures. `make test` takes one of the four ways to look at it."""
    if not AXE.exists():
        missing("axe-core is not there; sh tests/fetch-npm.sh tests/e2e/page/axe build/axe axe-core")
    for size, dark in amounts.some(list(product(SIZES, (False, True)))):
        width, height = SIZES[size]
        browser.look(width, height, dark=dark)
        browser.until(
            "return matchMedia('(prefers-color-scheme: dark)').matches == $[0] && innerWidth == $[1]", dark, width
        )
        browser.screenshot(SCREENSHOTS / f"{name}-{size}-{'dark' if dark else 'light'}.png")
        browser.run(f"if (!window.axe) {{ {AXE.read_text()} }}")
        assert browser.run(SERIOUS) == [], (name, size, dark)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), (name, size)


def test_now(browser: Browser, empty: Site, amounts: Amounts) -> None:
    empty.gateway.update(HOUSE)
    for topic, values in {"hall/temperature": (18, 18.5, 19), "office/temperature": (21, 20, 22)}.items():
        open_view(browser, empty.at("now"), "Now")
        has(browser, ".connection", "live")
        for value in values:
            empty.publish(f"home/{topic}", str(value))
            has(browser, ".card", f"{value} °C")
    empty.publish("home/hall/presence", "true")
    has(browser, ".card", "presence", "yes")
    looked_at(browser, "now", amounts)


def test_now_without_readings(browser: Browser, empty: Site, amounts: Amounts) -> None:
    open_view(browser, empty.at("now"), "Now")
    has(browser, ".empty", "no readings yet")
    looked_at(browser, "now-empty", amounts)


def test_a_query_with_its_chart(browser: Browser, empty: Site, amounts: Amounts) -> None:
    open_view(browser, empty.at("query"), "Query")
    write_query(browser, CHART)
    press_button(browser, "Run")
    has(browser, "tbody", "kitchen")
    looked_at(browser, "query", amounts)


def test_a_live_query(browser: Browser, empty: Site, amounts: Amounts) -> None:
    open_view(browser, empty.at("query"), "Query")
    write_query(browser, "SELECT ?lamp ?state { ?lamp <http://example.org/state> ?state }")
    press_button(browser, "Subscribe")
    has(browser, "[role=status]", "Live: 0 rows")
    empty.gateway.update("INSERT DATA { <http://lamplighter.local/lamp/1> <http://example.org/state> 'OFF' }")
    has(browser, "tr.added", "OFF")
    empty.gateway.update("DELETE { ?lamp ?state 'OFF' } INSERT { ?lamp ?state 'ON' } WHERE { ?lamp ?state 'OFF' }")
    has(browser, "tr.removed", "OFF")
    looked_at(browser, "query-live", amounts)
    press_button(browser, "Stop")


def test_an_error(browser: Browser, empty: Site, amounts: Amounts) -> None:
    open_view(browser, empty.at("query"), "Query")
    write_query(browser, "SELEKT * { ?s ?p ?o }")
    press_button(browser, "Run")
    has(browser, ".failure", "line 1")
    looked_at(browser, "query-error", amounts)


def test_timers(browser: Browser, empty: Site, amounts: Amounts) -> None:
    for delay in ("PT10M", "PT1H", "P2D"):
        empty.gateway.update(
            "INSERT DATA { <http://lamplighter.local/lamp/1> <http://example.org/state> 'OFF' }", delay=delay
        )
    open_view(browser, empty.at("timers"), "Timers")
    has(browser, ".item", "1 d 23 h")
    looked_at(browser, "timers", amounts)
    browser.look(*SIZES["desk"])
    press_button(browser, "Cancel…")
    has(browser, "dialog[open]", "Cancel this timer?")
    looked_at(browser, "timers-cancel", amounts)


@pytest.mark.parametrize(
    ("view", "title", "shown"), [("subscriptions", "Subscriptions", ".item"), ("health", "Health", ".figures")]
)
def test_lists(browser: Browser, empty: Site, view: str, title: str, shown: str, amounts: Amounts) -> None:
    open_view(browser, empty.at(view), title)
    has(browser, shown, "")
    looked_at(browser, view, amounts)
