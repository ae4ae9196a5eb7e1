"""What web pages can do to a plain gateway, tried in a real browser: those of other sites nothing, listed ones all."""

from __future__ import annotations

import json
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.gateway_process import Gateway, gateway_process
from lamplighter.gateway.page.assets import built_assets
from tests.support.chromium import Browser, chromium, pages
from tests.support.places import ROOT

INSERT = "INSERT DATA { <http://page> <http://p> 1 }"
QUERY = "SELECT * { ?s ?p ?o }"

FETCH = """
const answer = await fetch($[0], {method: $[1], body: $[2] ?? undefined, mode: $[3], headers: $[4] ?? {}});
return answer.type == 'opaque' ? 'opaque' : answer.status
"""
"""Address, method, body, mode, headers -> status, or the name of the error."""
FORM = """
const form = document.createElement('form');
[form.action, form.method, form.enctype] = [$[0], 'POST', $[1]];
const field = document.createElement('input');
[field.name, field.value] = $[2];
form.append(field);
document.body.append(form);
form.submit();
"""
SOCKET = """
const socket = new WebSocket($[0]), told = [];
return await new Promise(done => {
    socket.onerror = () => done('refused');
    socket.onopen = () => socket.send(JSON.stringify($[1]));
    socket.onmessage = message => {
        told.push(JSON.parse(message.data));
        if (told.length == ($[2] ?? 1)) { socket.close(); done(told) }
    };
})
"""
"""Address, first message, how many are waited for -> what came, or 'refused'."""
EVENTS = """
const source = new EventSource($[0]), told = [];
return await new Promise(done => {
    source.onerror = () => { if (source.readyState == EventSource.CLOSED) done('refused') };
    source.onmessage = event => {
        told.push([event.lastEventId, JSON.parse(event.data)]);
        if (told.length == $[1]) { source.close(); done(told) }
    };
})
"""
"""Address, how many are waited for -> id and data of each, or 'refused'."""
EVENTS_MEANWHILE = """
const source = window.source = new EventSource($[0]);
window.told = [];
source.onmessage = event => told.push([event.lastEventId, JSON.parse(event.data)]);
return await new Promise(done => { source.onopen = () => done('open') });
"""
FRAME = """
const frame = document.createElement('iframe');
for (const [name, value] of Object.entries($[0])) frame.setAttribute(name, value);
return await new Promise(done => {
    onmessage = message => done(message.data);
    if ($[1]) frame.onload = () => done('loaded');
    document.body.append(frame);
})
"""
"""Attributes of the frame, whether it is waited for or for what it posts."""


@pytest.fixture(scope="module")
def page_port() -> Iterator[int]:
    with pages() as port:
        yield port


@pytest.fixture(scope="module")
def shared(page_port: int) -> Iterator[Gateway]:
    with gateway_process(
        gateway={"durability": "off", "clock_trusted": "always"},
        security={"origins": [f"http://dashboard.example:{page_port}"]},
    ) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


class Watched:
    """A gateway, and what was done to it since."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.update, self.subscribe = gateway.urls["update"], gateway.urls["subscribe"]
        self.query = gateway.urls["query"]
        self.asking = f"{self.query}?{urllib.parse.urlencode({'query': QUERY})}"
        self.backup = self.at("/backup")
        self._asked = 0
        self._before = self._done()

    def at(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self._gateway.http[1]}{path}"

    def socket_at(self, host: str) -> str:
        return self.subscribe.replace("127.0.0.1", host)

    def _done(self) -> dict[str, int]:
        """What was done when no other request is in progress. The browser looks for an icon by itself, and for that of
        an earlier page also later."""
        deadline = time.monotonic() + 60
        while True:
            told = self._gateway.figures()
            self._asked += 1
            http = told["http"]
            if http["requests"] == http["handling_ms"]["count"] + 1:
                break
            assert time.monotonic() < deadline, http
        return {
            "requests": http["requests"] - http["errors"].get("not_found", 0) - self._asked,
            "commits": told["log"]["commits"],
            "sockets": told["websocket"]["max_sockets"],
            "messages": told["websocket"]["messages"],
        }

    def untouched(self) -> bool:
        """Whether nothing was asked of it that it answered as if a client had asked."""
        return self._done() == self._before

    def post(self, url: str, body: str, media_type: str) -> dict[str, Any]:
        request = urllib.request.Request(url, body.encode(), {"Content-Type": media_type})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return dict(json.load(answer))


@pytest.fixture
def gateway(shared: Gateway) -> Watched:
    return Watched(shared)


@pytest.fixture(params=["page.example", "localhost"])
def foreign(request: pytest.FixtureRequest, browser: Browser, page_port: int) -> Browser:
    """A page of another site, and one that another program of this machine serves."""
    browser.show(f"http://{request.param}:{page_port}/")
    return browser


# --- pages of other sites ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["cors", "no-cors"])
def test_a_foreign_page_cannot_query(foreign: Browser, gateway: Watched, mode: str) -> None:
    assert foreign.run(FETCH, gateway.asking, "GET", None, mode) in ("TypeError", "opaque")
    form = urllib.parse.urlencode({"query": QUERY})
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert foreign.run(FETCH, gateway.query, "POST", form, mode, headers) in ("TypeError", "opaque")
    assert gateway.untouched()


def test_a_foreign_page_cannot_subscribe(foreign: Browser, gateway: Watched) -> None:
    assert foreign.run(EVENTS, gateway.asking.replace("/query?", "/subscribe?"), 1) == "refused"
    assert foreign.run(FETCH, gateway.asking.replace("/query?", "/subscribe?"), "GET", None, "no-cors") == "opaque"
    assert gateway.untouched()


@pytest.mark.parametrize("mode", ["cors", "no-cors"])
def test_a_foreign_page_cannot_update_by_a_request_without_preflight(
    foreign: Browser, gateway: Watched, mode: str
) -> None:
    form = urllib.parse.urlencode({"update": INSERT})
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert foreign.run(FETCH, gateway.update, "POST", form, mode, headers) in ("TypeError", "opaque")
    assert gateway.untouched()


def test_a_foreign_page_cannot_update_by_a_request_with_preflight(foreign: Browser, gateway: Watched) -> None:
    headers = {"Content-Type": "application/sparql-update"}
    assert foreign.run(FETCH, gateway.update, "POST", INSERT, "cors", headers) == "TypeError"
    graph = gateway.at("/graphs?default")
    assert foreign.run(FETCH, graph, "PUT", "<a:> <b:> 1", "cors", {"Content-Type": "text/turtle"}) == "TypeError"
    assert foreign.run(FETCH, graph, "DELETE", None, "cors") == "TypeError"
    assert gateway.untouched()


def test_a_foreign_page_cannot_fetch_a_backup(foreign: Browser, gateway: Watched) -> None:
    assert foreign.run(FETCH, gateway.backup, "GET", None, "cors") == "TypeError"
    assert foreign.run(FETCH, gateway.backup, "GET", None, "no-cors") == "opaque"
    assert gateway.untouched()


@pytest.mark.parametrize("encoding", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data"])
def test_a_form_of_a_foreign_page_cannot_update(foreign: Browser, gateway: Watched, encoding: str) -> None:
    told = json.loads(foreign.leave(FORM, gateway.update, encoding, ["update", "DROP ALL"]))
    assert (told["status_code"], told["error"]) == (403, "cors_error")
    assert gateway.untouched()


def test_a_form_of_a_foreign_page_cannot_restore(foreign: Browser, gateway: Watched) -> None:
    told = json.loads(foreign.leave(FORM, gateway.at("/restore"), "text/plain", ["a", "b"]))
    assert (told["status_code"], told["error"]) == (403, "cors_error")
    assert gateway.untouched()


def test_a_foreign_page_cannot_frame_or_embed_anything(foreign: Browser, gateway: Watched) -> None:
    for url in (gateway.asking, gateway.backup, gateway.at("/health")):
        assert foreign.run(FRAME, {"src": url}, True) == "loaded"
    script = "const it = new Image(); await new Promise(done => { it.onerror = it.onload = done; it.src = $[0] })"
    foreign.run(script, gateway.asking)
    assert gateway.untouched()


def test_a_link_of_a_foreign_page_leads_to_what_only_reads(foreign: Browser, gateway: Watched) -> None:
    page = foreign.run("return location.href")
    for url in (gateway.asking, gateway.at("/figures")):
        assert json.loads(foreign.leave("location.href = $[0]", url))["error"] == "cors_error"
        foreign.show(page)
    assert gateway.untouched()
    assert json.loads(foreign.leave("location.href = $[0]", gateway.at("/health")))["status"] == "ok"
    foreign.show(page)
    foreign.leave("location.href = $[0]", gateway.at("/"))
    assert foreign.run("return location.pathname") == ("/page/" if built_assets() else "/")


def test_a_foreign_page_cannot_open_a_websocket(foreign: Browser, gateway: Watched) -> None:
    for message in ({"subscribe": {"sparql": QUERY}}, {"update": {"sparql": INSERT}}):
        assert foreign.run(SOCKET, gateway.subscribe, message) == "refused"
    assert gateway.untouched()


def test_a_page_of_no_origin_can_do_nothing(browser: Browser, page_port: int, gateway: Watched) -> None:
    body = urllib.parse.urlencode({"update": INSERT})
    script = f"""
        const tell = done => parent.postMessage(String(done), '*');
        const form = new URLSearchParams({json.dumps(body)});
        fetch({json.dumps(gateway.update)}, {{method: 'POST', body: form}})
            .then(answer => tell(answer.status), error => tell(error.name))
    """
    browser.show(f"http://page.example:{page_port}/")
    frame = {"sandbox": "allow-scripts", "srcdoc": f"<script>{script}</script>"}
    assert browser.run(FRAME, frame, False) == "TypeError"
    browser.show("data:text/html,<title>page</title>")
    assert browser.run("return origin") == "null"
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert browser.run(FETCH, gateway.update, "POST", body, "cors", headers) == "TypeError"
    assert browser.run(SOCKET, gateway.subscribe, {"update": {"sparql": INSERT}}) == "refused"
    assert gateway.untouched()


def test_a_name_that_is_rebound_to_this_machine_opens_nothing(browser: Browser, gateway: Watched) -> None:
    """The page has been loaded from its own server before; now its name leads here, and all is of the same origin."""
    evil = gateway.at("", "evil.example")
    told = json.loads(browser.show(f"{evil}/"))
    assert (told["status_code"], told["error"]) == (421, "wrong_host")
    assert "security.hosts" in told["error_description"]
    assert browser.run("return origin") == evil
    sparql = {"Content-Type": "application/sparql-update"}
    assert browser.run(FETCH, f"{evil}/update", "POST", INSERT, "cors", sparql) == 421
    assert browser.run(FETCH, f"{evil}{urlsplit(gateway.asking).path}", "GET", None, "cors") == 421
    assert browser.run(FETCH, f"{evil}/backup", "GET", None, "cors") == 421
    socket = gateway.socket_at("evil.example")
    assert browser.run(SOCKET, socket, {"update": {"sparql": INSERT}}) == "refused"
    assert gateway.untouched()


# --- pages that may ------------------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["listed", "own"])
def test_a_listed_page_and_the_gateway_s_own_can_do_all(
    browser: Browser, page_port: int, gateway: Watched, whose: str
) -> None:
    host = "127.0.0.1" if whose == "listed" else "localhost"
    browser.show(f"http://dashboard.example:{page_port}/" if whose == "listed" else gateway.at("/", host))
    asking = gateway.asking.replace("127.0.0.1", host)
    update = gateway.at("/update", host)
    assert browser.run(FETCH, asking, "GET", None, "cors") == 200
    assert browser.run(FETCH, update, "POST", INSERT, "cors", {"Content-Type": "application/sparql-update"}) == 200
    assert browser.run(FETCH, update, "POST", "oops", "cors", {"Content-Type": "application/sparql-update"}) == 400
    form = urllib.parse.urlencode({"update": "DROP ALL"})
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert browser.run(FETCH, update, "POST", form, "cors", headers) == 200
    (first,) = browser.run(SOCKET, gateway.socket_at(host), {"subscribe": {"sparql": QUERY}})
    assert first["notification"]["sequence"] == 0
    ((event_id, event),) = browser.run(EVENTS, asking.replace("/query?", "/subscribe?"), 1)
    assert event_id.endswith("/0")
    assert event["notification"]["sequence"] == 0
    (updated,) = browser.run(SOCKET, gateway.socket_at(host), {"update": {"sparql": INSERT}})
    assert "updated" in updated


def test_a_browser_goes_on_with_its_stream_by_itself(browser: Browser, gateway: Watched) -> None:
    browser.show(gateway.at("/"))
    stream = gateway.at(f"/subscribe?{urllib.parse.urlencode({'query': 'SELECT ?o { <http://stream> ?p ?o }'})}")
    assert browser.run(EVENTS_MEANWHILE, stream) == "open"
    browser.until("return told.length == 1")
    [[first_id, first]] = browser.run("return told")
    assert first["notification"]["sequence"] == 0

    def insert(value: int) -> None:
        gateway.post(
            gateway.update, f"INSERT DATA {{ <http://stream> <http://p> {value} }}", "application/sparql-update"
        )

    insert(1)
    browser.until("return told.length == 2")
    # Another client takes the subscription, so the stream of the browser ends: it asks again with its Last-Event-ID.
    request = urllib.request.Request(stream, headers={"Last-Event-ID": first_id})
    with urllib.request.urlopen(request, timeout=60) as other:
        assert b"resumed" in other.readline()
    insert(2)
    browser.until("return told.length == 5")
    told = browser.run("return told")
    browser.run("source.close()")
    kinds = [next(iter(message)) for _, message in told]
    assert kinds == ["notification", "notification", "error", "resumed", "notification"]
    assert [event_id.rpartition("/")[2] for event_id, _ in told] == ["0", "1", "1", "1", "2"]
    assert told[4][1]["notification"]["addedResults"]["results"]["bindings"][0]["o"]["value"] == "2"


def test_the_script_of_the_document_is_told_of_rows(browser: Browser, gateway: Watched) -> None:
    [script] = re.findall(r"^```js\n(.*?)^```$", (ROOT / "docs" / "choose-interface.md").read_text(), re.M | re.S)
    browser.show(gateway.at("/"))
    browser.run(f"window.told = []; console.log = (...rows) => told.push(rows); {script}; window.readings = readings")
    browser.until("return told.length == 1")
    insert = "INSERT DATA { <http://example.org/reading> <http://www.w3.org/ns/sosa/hasSimpleResult> 21.5 }"
    gateway.post(gateway.update, insert, "application/sparql-update")
    browser.until("return told.length == 2")
    [[first, _], [added, removed]] = browser.run("readings.close(); return told")
    assert (first, removed) == ([], [])
    assert [row["value"]["value"] for row in added] == ["21.5"]


def test_clients_that_are_no_browsers_are_served_as_before(gateway: Watched) -> None:
    assert gateway.post(gateway.query, QUERY, "application/sparql-query")["head"]["vars"]
    form = urllib.parse.urlencode({"update": "DROP ALL"})
    assert "response" in gateway.post(gateway.update, form, "application/x-www-form-urlencoded")
