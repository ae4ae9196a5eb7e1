"""Texts of the dataset stay texts, whatever they look like."""

from __future__ import annotations

import json

from lamplighter.demo.street.controls import DEMO
from lamplighter.ontology.vocabulary import LIGHTING
from tests.e2e.page.site import PREFIXES, Site, has, open_view, press_button, text_of, write_query
from tests.support.chromium import Browser
from tests.support.gateway_process import wait_for

SCRIPT = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
RTL = "\u202egnp.exe\u202c \u2067abc"
LONG = "long " * 20_000
LITERALS = (SCRIPT, "{{html}} ${window.hacked = 1} `", RTL, LONG, "\u0001control", "</textarea>")
IRIS = (
    "javascript:window.hacked=1",
    "data:text/html,%3Cscript%3Ealert(1)%3C/script%3E",
    "vbscript:x",
    "http://evil.example/a",
)


def literal(text: str) -> str:
    return json.dumps(text)


def insert(site: Site) -> None:
    parts = [f":thing{number} :says {literal(text)} ." for number, text in enumerate(LITERALS)]
    parts += [f":link{number} :leads <{iri}> ." for number, iri in enumerate(IRIS)]
    for number, text in enumerate((SCRIPT, RTL, LONG)):
        parts.append(
            f":o{number} sosa:madeBySensor <{IRIS[0]}{number}> ; sosa:hasFeatureOfInterest :f{number} ; "
            f"sosa:observedProperty :p ; sosa:hasSimpleResult {literal(text)} ; sosa:resultTime {literal(text[:100])} ."
            f":f{number} rdfs:label {literal(text)} ; sosa:hosts :a{number} . "
            f":a{number} rdfs:label {literal(text)} ; gateway:desiredState {literal(text)} . "
            f":f{number} gateway:online false ; gateway:unreachable {literal(text)} . "
        )
    site.gateway.update(f"{PREFIXES} INSERT DATA {{ {' '.join(parts)} }}")


def nothing_ran(browser: Browser) -> bool:
    return (
        browser.run(
            "return window.hacked === undefined && !document.querySelector('main script, main img, main iframe')"
            " && [...document.querySelectorAll('a')].every(it => ['http:', 'https:'].includes(it.protocol))"
        )
        is True
    )


def test_posts_lamps_and_offers_of_a_street_are_text(browser: Browser, empty: Site) -> None:
    prologue = f"{PREFIXES} PREFIX lighting: <{LIGHTING}> PREFIX demo: <{DEMO}>"
    parts = [f"<{iri}> lighting:hasLamp <{iri}#lamp> ; demo:offers {literal(SCRIPT)} ." for iri in IRIS]
    parts += [f"<{iri}#lamp> lighting:hasStatus {literal(text)} ." for iri, text in zip(IRIS, LITERALS, strict=False)]
    parts += [f"[] demo:offers 'of a blank node' . <{IRIS[0]}/2> demo:offers {literal(LONG)} ."]
    empty.gateway.update(f"{prologue} INSERT DATA {{ {' '.join(parts)} }}")
    open_view(browser, empty.at("street"), "Street")
    has(browser, ".offers", SCRIPT[:80], "Long long")
    press_button(browser, f"{SCRIPT}")
    wait_for(
        lambda: bool(empty.gateway.rows(f"{prologue} SELECT ?action {{ ?wish demo:asks ?action }}")), what="a wish"
    )
    assert "of a blank node" not in text_of(browser, ".offers")
    assert nothing_ran(browser)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


def test_results_of_queries_are_text(browser: Browser, empty: Site) -> None:
    insert(empty)
    open_view(browser, empty.at("query"), "Query")
    for button in ("Run", "Subscribe"):
        write_query(browser, f"{PREFIXES} SELECT ?s ?o {{ ?s :says|:leads ?o }}")
        press_button(browser, button)
        has(browser, "tbody", SCRIPT, "${window.hacked = 1}", "javascript:window.hacked=1", "100,000 characters")
        assert nothing_ran(browser)
        assert browser.run("return document.querySelector('a[href=\"http://evil.example/a\"]').rel") == "noreferrer"
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    press_button(browser, "Stop")


def test_the_editor_shows_a_hostile_query_as_text(browser: Browser, empty: Site) -> None:
    open_view(browser, empty.at(f"query#query={SCRIPT.replace(' ', '%20')}"), "Query")
    assert SCRIPT in str(browser.run("return document.querySelector('.editor pre').textContent"))
    assert nothing_ran(browser)


def test_now_shows_hostile_names_values_and_reasons_as_text(browser: Browser, empty: Site) -> None:
    insert(empty)
    open_view(browser, empty.at("now"), "Now")
    has(browser, ".problems", "3 devices are offline", "<script>window.hacked")
    has(browser, ".card", "<script>window.hacked")
    assert nothing_ran(browser)
    assert len(text_of(browser, "main")) < 20_000
    for width in (1280, 390):
        browser.look(width, 800)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


def test_now_sets_states_only_of_what_is_below_devices(browser: Browser, empty: Site) -> None:
    names = ("lamp", "../../keys/rotate", "../device", "%2e%2e/%2E%2E/keys/rotate", "a?b#c")
    states = [":actuator\\/triple gateway:desiredState <<( :a :b 'on' )>> ."]
    states += [f"<http://lamplighter.local/actuator/{name}> gateway:desiredState 'on' ." for name in names]
    empty.gateway.update(f"{PREFIXES} INSERT DATA {{ {' '.join(states)} }}")
    open_view(browser, empty.at("now"), "Now")
    browser.until("return document.querySelectorAll('.row.actuator').length == $[0]", len(states))
    browser.run(
        "window.asked = []; const real = window.fetch;"
        "window.fetch = (url, ...rest) => { asked.push(new URL(url).pathname); return real(url, ...rest) };"
        "for (const it of document.querySelectorAll('[role=switch]')) it.click()"
    )
    browser.until("return asked.filter(it => !it.startsWith('/health')).length >= 3")
    asked = set(browser.run("return asked.filter(it => !it.startsWith('/health'))"))
    assert asked == {f"/devices/actuator/{name}" for name in ("lamp", "%252e%252e/%252E%252E/keys/rotate", "a%3Fb%23c")}


def test_now_shows_triple_terms_wherever_they_stand(browser: Browser, empty: Site) -> None:
    term = "<<( :a :b 'inner' )>>"
    empty.gateway.update(
        f"{PREFIXES} INSERT DATA {{ :o sosa:madeBySensor {term} ; sosa:hasFeatureOfInterest {term} ; "
        f"sosa:observedProperty {term} ; sosa:hasSimpleResult {term} ; sosa:resultTime {term} . "
        f":stream gateway:liveObservation :o ; gateway:unknownUnit {term} . :o gateway:timeProblem {term} . "
        f":p gateway:online false ; gateway:unreachable {term} ; gateway:lastSeen {term} ; rdfs:label {term} . "
        f":lamp gateway:desiredState {term} ; gateway:reportedState {term} ; gateway:controls {term} . "
        f":act sosa:madeByActuator :lamp, {term} ; gateway:refused {term} ; sosa:hasSimpleResult 1 }}"
    )
    open_view(browser, empty.at("now"), "Now")
    has(browser, ".card", "inner", "refused")
    has(browser, ".problems", "1 device is offline", "inner")
    assert "This view failed" not in text_of(browser, "main")


def test_timers_show_a_hostile_update_as_text(browser: Browser, empty: Site) -> None:
    empty.gateway.update(f"INSERT DATA {{ <http://a> <http://b> {literal(SCRIPT)} }}", delay="PT1H")
    open_view(browser, empty.at("timers"), "Timers")
    browser.until("const it = document.querySelector('.item details'); it.open = true; return true")
    has(browser, ".clip", "<script>window.hacked")
    assert nothing_ran(browser)


def test_the_policy_stops_what_gets_into_the_page_nevertheless(browser: Browser, empty: Site) -> None:
    open_view(browser, empty.at("timers"), "Timers")
    browser.run(
        "const script = document.createElement('script'); script.textContent = 'window.hacked = 1';"
        "document.body.append(script);"
        "const host = document.createElement('div');"
        'host.innerHTML = \'<p style="color:red" onclick="hacked = 1">x</p>\';'
        "document.body.append(host); host.firstChild.click();"
        "const frame = document.createElement('iframe'); frame.src = 'http://evil.example/';"
        "document.body.append(frame)"
    )
    browser.until("return violations.length >= 4")
    assert browser.run("return window.hacked === undefined")
    assert browser.run("return fetch('http://127.0.0.1:9/')") == "TypeError"
    browser.run("window.violations = []")
