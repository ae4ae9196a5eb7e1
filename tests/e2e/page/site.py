"""What the tests of the web page do with a gateway and a browser."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from dataclasses import dataclass
from typing import Any

from lamplighter.ontology.vocabulary import GATEWAY, SOSA
from tests.support.brokers import Mosquitto
from tests.support.chromium import Browser
from tests.support.components import require_command
from tests.support.gateway_process import GatewayProcess

MAPPING = """
[[stream]]
topic = "home/{room}/temperature"
property = "lighting:temperature"
payload = "number"
unit = "unit:DEG_C"
feature = "room/{room}"
platform = "room/{room}"

[[stream]]
topic = "home/{room}/presence"
property = "lighting:presence"
payload = "boolean"
feature = "room/{room}"
platform = "room/{room}"
"""
PREFIXES = f"""PREFIX sosa: <{SOSA}> PREFIX gateway: <{GATEWAY}> PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#>
PREFIX xsd: <http://www.w3.org/2001/XMLSchema#> PREFIX : <http://lamplighter.local/> """
HOUSE = f"""{PREFIXES} INSERT DATA {{
:o1 sosa:madeBySensor :s1 ; sosa:hasFeatureOfInterest :kitchen ; sosa:observedProperty :temperature ;
  sosa:hasSimpleResult 20.5 ; sosa:resultTime "2026-01-01T00:00:00Z"^^xsd:dateTime .
:o2 sosa:madeBySensor :s2 ; sosa:hasFeatureOfInterest :cellar ; sosa:observedProperty :humidity ;
  sosa:hasSimpleResult 71 .
:cellarbox sosa:hosts :s2 ; rdfs:label "cellar box" ; gateway:online false ;
  gateway:lastSeen "2026-01-01T00:00:00Z"^^xsd:dateTime .
:kitchen rdfs:label "Kitchen" ; sosa:hosts :lamp, :valve .
:lamp gateway:desiredState true ; gateway:reportedState false .
:valve gateway:desiredState 40 ; gateway:reportedState 40.0 . :pump gateway:desiredState "on" .
:act a sosa:Actuation ; sosa:madeByActuator :pump ; gateway:refused "mqtt.commands does not permit it" }}"""
"""A kitchen whose lamp does not follow, a cellar whose device is offline, and a pump that is refused."""

EMPTY = f"{PREFIXES} DELETE {{ ?s ?p ?o }} WHERE {{ ?s ?p ?o FILTER NOT EXISTS {{ ?s a gateway:Broker }} }}"


@dataclass(frozen=True)
class Site:
    """A gateway with a broker."""

    gateway: GatewayProcess
    broker: Mosquitto

    def at(self, view: str) -> str:
        return f"{self.gateway.http_url}/page/{view}"

    def publish(self, topic: str, payload: str) -> None:
        """As a person does: by mosquitto_pub."""
        command = [require_command("mosquitto_pub"), "-p", str(self.broker.port), "-q", "1", "-t", topic, "-m", payload]
        subprocess.run(command, check=True, timeout=120)


LIST = "zigbee2mqtt/bridge/devices"
"""The topic of the devices of Zigbee2MQTT."""


def devices(site: Site) -> dict[str, dict[str, Any]]:
    """The devices by their names."""
    with urllib.request.urlopen(f"{site.gateway.http_url}/devices", timeout=120) as answer:
        return {one["name"]: one for one in json.load(answer)["devices"]}


def open_view(browser: Browser, url: str, title: str) -> None:
    browser.show(url)
    browser.until("return document.querySelector('h1').textContent == $[0]", title)


def text_of(browser: Browser, selector: str) -> str:
    """The texts of all elements, as people see them."""
    return str(browser.run("return [...document.querySelectorAll($[0])].map(it => it.innerText).join('\\n')", selector))


def has(browser: Browser, selector: str, *texts: str) -> None:
    """Returns once one element has all the texts, whatever the space between."""
    browser.until(
        "return [...document.querySelectorAll($[0])].some(it => "
        "$.slice(1).every(one => it.innerText.replace(/\\s+/g, ' ').includes(one)))",
        selector,
        *texts,
    )


def has_after_return(browser: Browser, selector: str, *texts: str) -> None:
    """As `has`, of a person who leaves the window and returns now and then: the page then asks at once for what it
    otherwise asks for each five seconds."""
    browser.until(
        "if (!(performance.now() < window.returned + 200)) {"
        "window.returned = performance.now(); document.dispatchEvent(new Event('visibilitychange')) }"
        "return [...document.querySelectorAll($[0])].some(it => "
        "$.slice(1).every(one => it.innerText.replace(/\\s+/g, ' ').includes(one)))",
        selector,
        *texts,
    )


def has_none(browser: Browser, selector: str) -> None:
    browser.until("return document.querySelector($[0]) === null", selector)


def press_button(browser: Browser, text: str) -> None:
    """Clicks the first button that is called so, once it is there."""
    browser.until(
        "const found = [...document.querySelectorAll('button')].find(it => it.innerText.trim() == $[0]);"
        "found?.click(); return Boolean(found)",
        text,
    )


def unfold(browser: Browser, selector: str, text: str) -> None:
    """Opens the first details element with this selector whose surroundings have the text, once it is there."""
    browser.until(
        "const found = [...document.querySelectorAll($[0])].find(it => it.innerText.includes($[1]));"
        "if (found) (found.closest('details') ?? found.querySelector('details')).open = true; return Boolean(found)",
        selector,
        text,
    )


def write_query(browser: Browser, sparql: str) -> None:
    browser.until(
        "const field = document.querySelector('textarea'); field.value = $[0];"
        "field.dispatchEvent(new Event('input', {bubbles: true})); return true",
        sparql,
    )
    browser.until("return document.querySelector('.editor pre').textContent == $[0] + '\\n'", sparql)
