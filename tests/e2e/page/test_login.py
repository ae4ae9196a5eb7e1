"""Log-in to the web page of a secure gateway in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lamplighter.gateway.security.browsers import COOKIE
from lamplighter.ontology.vocabulary import DESIRED_STATE
from tests.e2e.page.site import has, has_none, press_button, write_query
from tests.e2e.page.test_look import looked_at
from tests.support.amounts import Amounts
from tests.support.chromium import Browser, pages
from tests.support.secure_gateway import SecureGateway

FOLLOWED = "SELECT ?s ?o { ?s <http://b> ?o }"
FORM = """
const form = document.createElement('form');
[form.action, form.method, form.enctype] = [$[0], 'POST', 'text/plain'];
const field = document.createElement('input');
[field.name, field.value] = ['a', 'b'];
form.append(field); document.body.append(form); form.submit();
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGateway]:
    with SecureGateway(tmp_path_factory.mktemp("gateway"), attempts_per_min=100_000) as running:
        yield running


@pytest.fixture(scope="module")
def secret(gateway: SecureGateway) -> str:
    return gateway.client("anna", read=["*"], write=["*"], subscribe=["*"], operate=True)


@pytest.fixture
def top(gateway: SecureGateway, browser: Browser) -> Iterator[str]:
    """The address of the gateway. Nobody is logged in before or after."""
    top = f"https://localhost:{gateway.port}"
    yield top
    browser.show(f"{top}/page/timers")
    browser.until("return document.querySelector('nav') !== null")
    browser.run("await fetch('logout', {method: 'POST', headers: {'X-Lamplighter-Page': '1'}})")


def log_in(browser: Browser, client: str, secret: str) -> None:
    browser.until(
        "const form = document.querySelector('dialog.login form'); form.elements.client.value = $[0];"
        "form.elements.secret.value = $[1]; form.requestSubmit(); return true",
        client,
        secret,
    )


def insert(gateway: SecureGateway, secret: str, value: str) -> None:
    headers = {"Content-Type": "application/sparql-update", "Authorization": gateway.bearer("anna", secret)}
    answer = gateway.https("POST", "/update", f"INSERT DATA {{ <http://a> <http://b> '{value}' }}", headers)
    assert answer.status == 200, answer.body


def test_a_view_asks_for_a_log_in_and_then_shows_its_data(
    browser: Browser, gateway: SecureGateway, secret: str, top: str, amounts: Amounts
) -> None:
    browser.show(f"{top}/page/health")
    has(browser, "dialog.login[open]", "Log in")
    assert browser.run("return document.querySelector('main h1')") is None
    looked_at(browser, "login", amounts)
    log_in(browser, "anna", "wrong")
    has(browser, "dialog.login .failure", "do not match")
    log_in(browser, "anna", secret)
    has_none(browser, "dialog.login")
    has(browser, ".verdict", "OK")
    has(browser, ".who", "anna")
    assert browser.run("return location.pathname + document.cookie") == "/page/health"
    (cookie,) = [one for one in browser.cookies() if one["name"] == COOKIE]
    assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")
    browser.show(f"{top}/secure/page/timers")
    has(browser, ".empty", "No timer is pending")
    browser.show(f"{top}/page/now")
    has(browser, ".connection", "live")
    has(browser, ".who", "anna")


def test_a_log_in_that_ends_leaves_the_view_as_it_was(
    browser: Browser, gateway: SecureGateway, secret: str, top: str
) -> None:
    browser.show(f"{top}/page/query")
    log_in(browser, "anna", secret)
    write_query(browser, FOLLOWED)
    assert gateway.local("POST", "/keys/rotate", '{"revoke":true}').status == 200
    press_button(browser, "Run")
    has(browser, "dialog.login[open]", "Log in")
    assert browser.run("return document.querySelector('textarea').value") == FOLLOWED
    log_in(browser, "anna", secret)
    has_none(browser, "dialog.login")
    assert browser.run("return [location.pathname, document.querySelector('textarea').value]") == [
        "/page/query",
        FOLLOWED,
    ]
    press_button(browser, "Run")
    has(browser, "[role=status]", "0 rows")


def test_a_live_query_comes_back_after_the_log_in(
    browser: Browser, gateway: SecureGateway, secret: str, top: str
) -> None:
    browser.show(f"{top}/page/query")
    log_in(browser, "anna", secret)
    write_query(browser, FOLLOWED)
    press_button(browser, "Subscribe")
    has(browser, "[role=status]", "Live: 0 rows")
    insert(gateway, secret, "one")
    has(browser, "tr.added", "one")
    assert gateway.local("POST", "/keys/rotate", '{"revoke":true}').status == 200
    press_button(browser, "Stop")
    press_button(browser, "Subscribe")
    has(browser, "dialog.login[open]", "Log in")
    insert(gateway, secret, "two")
    log_in(browser, "anna", secret)
    has(browser, "[role=status]", "Live: 2 rows")
    insert(gateway, secret, "three")
    has(browser, "tr.added", "three")


def test_a_log_out_leaves_no_data_in_the_page(browser: Browser, gateway: SecureGateway, secret: str, top: str) -> None:
    browser.show(f"{top}/page/health")
    log_in(browser, "anna", secret)
    has(browser, ".verdict", "OK")
    [token] = [one["value"] for one in browser.cookies() if one["name"] == COOKIE]
    bearer = {"Authorization": f"Bearer {token}"}
    assert gateway.https("GET", "/page/now.json", b"", bearer).status == 200
    browser.leave("[...document.querySelectorAll('button')].find(it => it.innerText == 'Log out').click()")
    has(browser, "dialog.login[open]", "Log in")
    assert gateway.https("GET", "/page/now.json", b"", bearer).status == 401, "a copy of the cookie is of no use"
    has_none(browser, ".verdict")
    assert [one for one in browser.cookies() if one["name"] == COOKIE] == []
    assert browser.run("return (await fetch('now.json')).status") == 401


def test_a_client_without_operator_is_not_led_to_what_it_may_not_see(
    browser: Browser, gateway: SecureGateway, secret: str, top: str
) -> None:
    headers = {"Content-Type": "application/sparql-update", "Authorization": gateway.bearer("anna", secret)}
    lamp = f"INSERT DATA {{ <urn:porch/lamp> <{DESIRED_STATE}> 'ON' }}"
    assert gateway.https("POST", "/update", lamp, headers).status == 200
    reader = gateway.client("ben", read=["*"], subscribe=["*"])
    browser.show(f"{top}/page/now")
    log_in(browser, "ben", reader)
    has(browser, ".row.actuator", "lamp", "ON")
    link = "return document.querySelector('.row.actuator .name a').pathname"
    assert browser.run(link) == "/page/history"
    browser.run("document.querySelector('.row.actuator .name a').click()")
    has(browser, ".summary", "ON")
    assert browser.run("return document.querySelector('main a[href*=logbook]')") is None


def test_other_pages_cannot_use_the_log_in(browser: Browser, gateway: SecureGateway, secret: str, top: str) -> None:
    browser.show(f"{top}/page/timers")
    log_in(browser, "anna", secret)
    has(browser, ".who", "anna")
    before = gateway.local("GET", "/health").json["sequence"]
    with pages() as port:
        for host in ("page.example", "localhost"):
            page = f"http://{host}:{port}/"
            browser.show(page)
            for mode in ("cors", "no-cors"):
                fetched = browser.run(
                    "const answer = await fetch($[0], {method: 'POST', mode: $[1], credentials: 'include',"
                    "headers: {'Content-Type': 'application/x-www-form-urlencoded'}, body: 'update=DROP+ALL'});"
                    "return answer.type",
                    f"{top}/update",
                    mode,
                )
                assert fetched in ("TypeError", "opaque")
            assert "cors_error" in browser.leave(FORM, f"{top}/page/logout")
            browser.show(page)
            assert "cors_error" in browser.leave("location.href = $[0]", f"{top}/page/now.json")
            browser.show(page)
            opened = browser.run(
                "const socket = new WebSocket($[0]);"
                "return await new Promise(done => {"
                "socket.onerror = () => done('refused'); socket.onopen = () => done('open') })",
                f"wss://localhost:{gateway.socket_port}/subscribe",
            )
            assert opened == "refused"
    assert gateway.local("GET", "/health").json["sequence"] == before
    browser.show(f"{top}/page/timers")
    has(browser, ".who", "anna")
