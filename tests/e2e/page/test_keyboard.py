"""The page by keyboard only."""

from __future__ import annotations

from tests.e2e.page.site import Site, has, has_none, open_view
from tests.support.chromium import Browser

TABS_MAX = 60


def tab_to(browser: Browser, script: str) -> None:
    """Presses Tab until the focused element, `it`, is the wanted one. What is focused is visible and marked."""
    for _ in range(TABS_MAX):
        browser.press("Tab")
        assert browser.run(
            "const it = document.activeElement; if (it === document.body) return true;"
            "const box = it.getBoundingClientRect(), style = getComputedStyle(it);"
            "const around = it.matches('textarea') ? getComputedStyle(it.parentElement) : style;"
            "return box.width > 0 && around.outlineStyle != 'none'"
        )
        if browser.run(f"const it = document.activeElement; return Boolean({script})"):
            return
    raise AssertionError(f"Tab does not reach {script}")


def test_a_query_is_written_run_and_followed_by_keyboard(browser: Browser, empty: Site) -> None:
    empty.gateway.update("INSERT DATA { <http://a> <http://b> 7 }")
    open_view(browser, empty.at("now"), "Now")
    tab_to(browser, "it.innerText.trim() == 'Query'")
    browser.press("Enter")
    browser.until("return document.activeElement.matches('h1') && document.activeElement.innerText == 'Query'")
    tab_to(browser, "it.matches('textarea')")
    browser.press("Control+a", *"SELECT ?x { ?x <http://b> ?y }", "Control+Enter")
    has(browser, "tbody", "http://a")
    tab_to(browser, "it.innerText == 'Subscribe'")
    browser.press("Enter")
    has(browser, "[role=status]", "Live: 1 row")
    browser.press("Space")
    has_none(browser, ".changes")


def test_a_timer_is_cancelled_by_keyboard(browser: Browser, empty: Site) -> None:
    empty.gateway.update("INSERT DATA { <http://a> <http://b> 7 }", delay="PT1H")
    open_view(browser, empty.at("timers"), "Timers")
    has(browser, ".item", "due")
    tab_to(browser, "it.innerText == 'Cancel…'")
    browser.press("Enter")
    browser.until("return document.activeElement.innerText == 'Keep it'")
    browser.press("Escape")
    has_none(browser, "dialog[open]")
    browser.until("return document.activeElement.innerText == 'Cancel…'")
    browser.press("Enter")
    browser.until("return document.activeElement.innerText == 'Keep it'")
    tab_to(browser, "it.innerText == 'Cancel the timer'")
    browser.press("Enter")
    has(browser, ".empty", "No timer is pending")


def test_the_menu_of_a_phone_opens_and_closes_by_keyboard(browser: Browser, empty: Site) -> None:
    browser.look(390, 844)
    open_view(browser, empty.at("now"), "Now")
    tab_to(browser, "it.matches('summary') && it.innerText.trim() == 'More'")
    browser.press("Enter")
    tab_to(browser, "it.innerText.trim() == 'Subscriptions'")
    browser.press("Escape")
    browser.until("return !document.querySelector('nav details').open")
    browser.run("document.querySelector('nav summary').focus()")
    browser.press("Enter")
    tab_to(browser, "it.innerText.trim() == 'Subscriptions'")
    browser.press("Enter")
    browser.until("return document.activeElement.matches('h1') && document.activeElement.innerText == 'Subscriptions'")
    assert browser.run("return !document.querySelector('nav details').open")


def test_the_first_tab_leads_past_the_navigation(browser: Browser, empty: Site) -> None:
    open_view(browser, empty.at("health"), "Health")
    browser.press("Tab")
    assert browser.run("return document.activeElement.innerText") == "Skip to content"
    browser.press("Enter")
    assert browser.run("return document.activeElement.matches('h1')")
