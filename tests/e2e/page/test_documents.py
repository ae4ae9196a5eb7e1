"""The documents in a browser: search without a network, accessibility, and the way there from the page."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tests.e2e.page.site import Site, open_view
from tests.e2e.page.test_look import AXE, SERIOUS
from tests.support.chromium import Browser
from tests.support.components import missing, require_documents

WORDS = {"--delay": "--delay", "co2": "co2", "OSCORE": "oscore", "restore": "restore"}
"""What people search -> what a page that is found has, in lower case."""


@pytest.fixture(scope="module", autouse=True)
def documents() -> None:
    require_documents()


def searched(browser: Browser, words: str) -> list[str]:
    """Writes words into the field of the menu and presses Enter; the addresses of the pages that are found."""
    browser.run("const field = document.querySelector('input[name=q]'); field.focus(); field.value = $[0]", words)
    browser.leave("document.querySelector('input[name=q]').form.requestSubmit()")
    said = "return document.querySelector('#search-results > p').innerText"
    browser.until(f"{said}.match(/finished|did not match/) !== null")
    found = "return [...document.querySelectorAll('#search-results li > a')].map(it => it.href)"
    return [str(url) for url in browser.run(found)]


@pytest.mark.parametrize("words", WORDS)
def test_search_finds_a_page_with_the_word(browser: Browser, site: Site, words: str) -> None:
    browser.show(site.at("docs/"))
    urls = searched(browser, words)
    assert urls, words
    assert {urlsplit(url).netloc for url in urls} == {urlsplit(site.gateway.http_url).netloc}
    assert WORDS[words] in browser.show(urls[0]).lower(), urls[0]


def test_a_search_without_a_hit_says_so(browser: Browser, site: Site) -> None:
    browser.show(site.at("docs/"))
    assert searched(browser, "zzyzx") == []


@pytest.mark.parametrize("page", ["index.html", "readme.html", "settings.html", "search.html?q=restore"])
@pytest.mark.parametrize("dark", [False, True])
def test_pages_are_accessible(browser: Browser, site: Site, page: str, dark: bool) -> None:
    if not AXE.exists():
        missing("axe-core is not there; sh tests/fetch-npm.sh tests/e2e/page/axe build/axe axe-core")
    for width in (1280, 390):
        browser.look(width, 844, dark=dark)
        browser.show(site.at(f"docs/{page}"))
        browser.run(AXE.read_text())
        assert browser.run(SERIOUS) == [], (page, width)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), (page, width)


@pytest.mark.parametrize(("languages", "text"), [("en-GB,en", "Documents"), ("de-DE,de", "Dokumente")])
def test_the_page_leads_to_the_documents_and_back(browser: Browser, site: Site, languages: str, text: str) -> None:
    browser.speak(languages)
    browser.show(site.at("now"))
    link = "[...document.querySelectorAll('nav .wide a')].find(it => it.innerText.trim() == $[0])"
    browser.until(f"return {link} !== undefined", text)
    assert "Lamplighter" in browser.leave(f"{link}.click()", text)
    assert browser.run("return location.pathname") == "/page/docs/"
    browser.leave("document.querySelector('.sidebar-drawer a[href=\"../\"]').click()")
    browser.until("return document.querySelector('nav .wide') !== null")
    browser.speak("en-GB,en")


def test_pages_of_the_documents_show_pictures(browser: Browser, site: Site) -> None:
    browser.show(site.at("docs/readme.html"))
    browser.until("return [...document.images].length > 0 && [...document.images].every(it => it.naturalWidth > 0)")
    open_view(browser, site.at("now"), "Now")
