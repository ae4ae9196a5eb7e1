"""The page in the language of the browser or of a person's choice, with the formats of the browser's locale."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lamplighter.gateway.gates.http.page import VIEWS
from tests.e2e.page.site import HOUSE, Site, has, open_view
from tests.e2e.page.test_look import looked_at
from tests.support.amounts import Amounts
from tests.support.chromium import Browser

GERMAN = {
    "now": "Jetzt",
    "street": "Straße",
    "devices": "Geräte",
    "history": "Verlauf",
    "logbook": "Logbuch",
    "applications": "Anwendungen",
    "query": "Abfrage",
    "timers": "Timer",
    "subscriptions": "Abonnements",
    "log": "Protokoll",
    "explain": "Erklärung",
    "health": "Zustand",
    "system": "System",
}


@pytest.fixture
def polyglot(browser: Browser, empty: Site) -> Iterator[Browser]:
    """A browser whose languages change; afterwards it is as before, and has forgotten a choice."""
    yield browser
    browser.speak("en-US,en")
    browser.show(empty.at("timers"))
    browser.run("localStorage.clear()")


def test_the_language_is_that_of_the_browser(polyglot: Browser, empty: Site) -> None:
    empty.gateway.update(HOUSE)
    for languages, title, number in (
        ("de-AT,en", "Jetzt", "20,5"),
        ("en-GB,de", "Now", "20.5"),
        ("fr-FR,de-DE", "Jetzt", "20,5"),
        ("fr-FR", "Now", "20,5"),  # no texts, but its formats
    ):
        polyglot.speak(languages)
        open_view(polyglot, empty.at("now"), title)
        has(polyglot, ".card .value", number)
        assert polyglot.run("return document.documentElement.lang") == ("de" if title == "Jetzt" else "en")


def test_a_choice_is_kept(polyglot: Browser, empty: Site) -> None:
    polyglot.speak("de-DE")
    open_view(polyglot, empty.at("timers"), "Timer")
    has(polyglot, ".empty", "Kein Timer wartet")
    choose = (
        "const it = document.querySelector('.language select'); it.value = 'en'; it.dispatchEvent(new Event('change'))"
    )
    polyglot.leave(choose)
    has(polyglot, ".empty", "No timer is pending")
    open_view(polyglot, empty.at("health"), "Health")
    assert polyglot.run("return document.documentElement.lang") == "en"


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_is_in_german(polyglot: Browser, empty: Site, view: str, amounts: Amounts) -> None:
    empty.gateway.update(HOUSE)
    polyglot.speak("de-DE,de")
    open_view(polyglot, empty.at(view), GERMAN[view])
    polyglot.until(
        "return document.querySelector('main').innerText.length > 30 && !document.body.innerText.includes('Lädt…')"
    )
    looked_at(polyglot, f"german-{view}", amounts)
