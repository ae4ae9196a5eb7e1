"""Log-in to the web page in secure mode, and what others try with its cookie."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection

from lamplighter.gateway.security.browsers import COOKIE
from tests.support.running_gateway import Answer, http, running_gateway
from tests.support.secure_gateway import SecureGateway, ask

DASHBOARD = "https://dashboard.example"
QUERY = "SELECT ?x { VALUES ?x { 1 } }"
SPARQL = {"Content-Type": "application/sparql-query"}
UPDATE = {"Content-Type": "application/sparql-update"}
INSERT = "INSERT DATA { <http://x> <http://p> 1 }"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGateway]:
    with SecureGateway(tmp_path_factory.mktemp("gateway"), origins=[DASHBOARD], attempts_per_min=100_000) as running:
        yield running


@pytest.fixture(scope="module")
def secret(gateway: SecureGateway) -> str:
    return gateway.client("anna", read=["*"], write=["*"], subscribe=["*"], operate=True)


def own(gateway: SecureGateway) -> dict[str, str]:
    """What a browser sends for a script of the gateway's page that writes."""
    return {"Origin": f"https://localhost:{gateway.port}", "X-Lamplighter-Page": "1"}


def login(gateway: SecureGateway, client: str, secret: str, **headers: str) -> Answer:
    body = json.dumps({"client": client, "secret": secret})
    return gateway.https("POST", "/page/login", body, {**own(gateway), "Content-Type": "application/json", **headers})


def cookie_of(answer: Answer) -> str:
    """The cookie as a browser sends it."""
    return answer.headers["set-cookie"].partition(";")[0]


@pytest.fixture(scope="module")
def cookie(gateway: SecureGateway, secret: str) -> str:
    return cookie_of(login(gateway, "anna", secret))


def test_a_log_in_sets_a_cookie_that_scripts_other_sites_and_plain_http_do_not_get(
    gateway: SecureGateway, secret: str
) -> None:
    answer = login(gateway, "anna", secret)
    assert (answer.status, answer.json["client"]) == (200, "anna")
    value, *attributes = answer.headers["set-cookie"].split("; ")
    assert re.fullmatch(rf"{COOKIE}=[\w.-]+", value)
    life = f"Max-Age={answer.json['expires_in']}"
    assert set(attributes) == {"Path=/", "Secure", "HttpOnly", "SameSite=Strict", life}
    assert answer.headers["cache-control"] == "no-store"
    assert value.partition("=")[2] not in answer.body.decode()


@pytest.mark.parametrize(("client", "given"), [("anna", "wrong"), ("nobody", "x"), ("", "")])
def test_a_wrong_secret_gets_no_cookie(gateway: SecureGateway, client: str, given: str) -> None:
    answer = login(gateway, client, given)
    assert answer.status == 400 and "set-cookie" not in answer.headers


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"client":1,"secret":2}', "x" * 20_000])
def test_a_wrong_body_is_refused(gateway: SecureGateway, body: str) -> None:
    answer = gateway.https("POST", "/page/login", body, own(gateway))
    assert answer.status in (400, 403) and "set-cookie" not in answer.headers


def test_tries_are_limited_like_those_for_tokens(tmp_path: Path) -> None:
    with SecureGateway(tmp_path, attempts_per_min=3) as running:
        assert [login(running, "anna", "wrong").status for _ in range(4)] == [400, 400, 400, 429]


def test_the_page_and_its_files_need_no_log_in_but_the_data_do(gateway: SecureGateway) -> None:
    told = gateway.https("GET", "/page/session.json").json
    assert (told["secure"], told["client"], told["operator"]) == (True, None, False)
    assert told["subscribe"] == f"wss://localhost:{gateway.socket_port}/secure/subscribe"
    for path in (
        "/page/now.json",
        "/page/query.json?query=ASK%20%7B%7D",
        "/page/timers.csv",
        "/page/subscriptions.json",
    ):
        assert gateway.https("GET", path).status == 401


def test_the_page_s_own_requests_are_the_client_s(gateway: SecureGateway, cookie: str) -> None:
    told = gateway.https("GET", "/page/session.json", b"", {"Cookie": cookie, "Sec-Fetch-Site": "same-origin"}).json
    assert (told["client"], told["operator"]) == ("anna", True)
    for more in ({"Sec-Fetch-Site": "same-origin"}, {"Origin": own(gateway)["Origin"]}):
        assert gateway.https("GET", "/page/now.json", b"", {"Cookie": cookie, **more}).status == 200
    for path in ("/query", "/secure/query"):
        answer = gateway.https("POST", path, QUERY, {"Cookie": cookie, **own(gateway), **SPARQL})
        assert answer.status == 200
    assert gateway.https("POST", "/update", INSERT, {"Cookie": cookie, **own(gateway), **UPDATE}).status == 200


def missing_something(gateway: SecureGateway) -> Iterator[tuple[str, dict[str, str]]]:
    origin = own(gateway)["Origin"]
    header = {"X-Lamplighter-Page": "1"}
    yield "no header, as of a form", {"Origin": origin}
    yield "no origin", header
    yield "no origin, but same-origin", {**header, "Sec-Fetch-Site": "same-origin"}
    yield "another value", {"Origin": origin, "X-Lamplighter-Page": "0"}
    yield "a listed page", {**header, "Origin": DASHBOARD}
    yield "a foreign page", {**header, "Origin": "https://evil.example"}
    yield "no origin of its own", {**header, "Origin": "null"}
    yield "another port of this machine", {**header, "Origin": f"https://localhost:{gateway.port + 1}"}
    yield "the same host without TLS", {**header, "Origin": f"http://localhost:{gateway.port}x"}


def test_the_cookie_is_no_credential_for_other_pages_that_write(gateway: SecureGateway, cookie: str) -> None:
    for what, headers in missing_something(gateway):
        for path, body, kind in (("/update", "DROP ALL", UPDATE), ("/query", QUERY, SPARQL), ("/clients", "{}", {})):
            answer = gateway.https("POST", path, body, {"Cookie": cookie, **headers, **kind})
            assert answer.status in (401, 403), (what, path, answer.body)
        assert gateway.https("DELETE", "/delayed/x", b"", {"Cookie": cookie, **headers}).status in (401, 403), what


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": DASHBOARD},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_the_cookie_is_no_credential_for_other_pages_that_read(
    gateway: SecureGateway, cookie: str, headers: dict[str, str]
) -> None:
    for path in ("/page/now.json", "/query?query=ASK%20%7B%7D", "/backup", "/figures"):
        assert gateway.https("GET", path, b"", {"Cookie": cookie, **headers}).status in (401, 403)
    if headers:
        session = gateway.https("GET", "/page/session.json", b"", {"Cookie": cookie, **headers})
        assert session.status == 403 or session.json["client"] is None


def answered(socket: ClientConnection) -> dict[str, object]:
    socket.send(json.dumps({"query": {"sparql": QUERY}}))
    return dict(json.loads(socket.recv(120)))


def test_a_websocket_takes_the_cookie_of_the_own_page_only(gateway: SecureGateway, cookie: str) -> None:
    origin = own(gateway)["Origin"]
    with gateway.websocket(Origin=origin, Cookie=cookie) as socket:
        assert "answer" in answered(socket)
    with gateway.websocket(Cookie=cookie) as socket:
        assert answered(socket)["status_code"] == 401
    with gateway.websocket(Origin=DASHBOARD, Cookie=cookie) as socket:
        assert answered(socket)["status_code"] == 401
    with gateway.websocket(Origin=origin) as socket:
        assert answered(socket)["status_code"] == 401
    with gateway.websocket(Origin=origin.replace("https:", "http:"), Cookie=cookie) as socket:
        assert answered(socket)["status_code"] == 401
    for foreign in ("https://evil.example", "null", f"https://localhost:{gateway.port + 1}"):
        with pytest.raises(InvalidStatus) as caught:
            gateway.websocket(Origin=foreign, Cookie=cookie)
        assert caught.value.response.status_code == 403


def test_a_cookie_that_somebody_planted_is_replaced_by_a_log_in(
    gateway: SecureGateway, secret: str, cookie: str
) -> None:
    fresh = cookie_of(login(gateway, "anna", secret, Cookie=cookie))
    assert fresh != cookie
    planted = {"Cookie": f"{COOKIE}=planted; {cookie}", "Sec-Fetch-Site": "same-origin"}
    assert gateway.https("GET", "/page/now.json", b"", planted).status == 401
    assert gateway.https("GET", "/page/session.json", b"", planted).json["client"] is None


@pytest.mark.parametrize("name", ["lamplighter", "__Secure-lamplighter", "__host-lamplighter", f"x{COOKIE}"])
def test_cookies_of_other_names_are_nothing(gateway: SecureGateway, cookie: str, name: str) -> None:
    other = f"{name}={cookie.partition('=')[2]}"
    asked = gateway.https("GET", "/page/now.json", b"", {"Cookie": other, "Sec-Fetch-Site": "same-origin"})
    assert asked.status == 401


def test_a_header_takes_precedence_over_the_cookie(gateway: SecureGateway, cookie: str) -> None:
    headers = {"Cookie": cookie, **own(gateway), **SPARQL, "Authorization": "Bearer wrong"}
    assert gateway.https("POST", "/query", QUERY, headers).status == 401


def test_only_the_own_page_logs_in_and_out(gateway: SecureGateway, secret: str) -> None:
    body = json.dumps({"client": "anna", "secret": secret})
    for what, headers in missing_something(gateway):
        for path in ("/page/login", "/page/logout"):
            answer = gateway.https("POST", path, body, headers)
            assert answer.status == 403 and "set-cookie" not in answer.headers, (what, path)


def test_a_log_out_removes_the_cookie(gateway: SecureGateway, secret: str) -> None:
    cookie = cookie_of(login(gateway, "anna", secret))
    answer = gateway.https("POST", "/page/logout", b"", {"Cookie": cookie, **own(gateway)})
    value, *attributes = answer.headers["set-cookie"].split("; ")
    assert (answer.status, value) == (200, f"{COOKIE}=")
    assert {"Path=/", "Secure", "HttpOnly", "SameSite=Strict", "Max-Age=0"} == set(attributes)


def test_both_gates_refuse_the_token_after_a_log_out(gateway: SecureGateway, secret: str, cookie: str) -> None:
    ended = cookie_of(login(gateway, "anna", secret))
    bearer = f"Bearer {ended.partition('=')[2]}"
    origin = own(gateway)["Origin"]
    with gateway.websocket(Cookie=ended, Origin=origin) as socket:
        assert "answer" in ask(socket, {"query": {"sparql": QUERY, "alias": "a"}})
        assert gateway.https("POST", "/page/logout", b"", {"Cookie": ended, **own(gateway)}).status == 200
        assert ask(socket, {"query": {"sparql": QUERY, "alias": "b"}})["error"] == "invalid_grant"
    for headers in ({"Cookie": ended, "Sec-Fetch-Site": "same-origin"}, {"Authorization": bearer}):
        answer = gateway.https("GET", "/page/now.json", b"", headers)
        assert (answer.status, answer.json["error"]) == (401, "invalid_grant")
    with gateway.websocket(Authorization=bearer) as socket:
        assert ask(socket, {"query": {"sparql": QUERY, "alias": "c"}})["error"] == "invalid_grant"
    assert gateway.https("GET", "/page/now.json", b"", {"Cookie": cookie, "Origin": origin}).status == 200, (
        "another log-in"
    )


def test_a_log_out_without_a_good_cookie_is_no_error(gateway: SecureGateway, cookie: str) -> None:
    for wrong in ("", f"{COOKIE}=x", f"{cookie}; {cookie}"):
        assert gateway.https("POST", "/page/logout", b"", {"Cookie": wrong, **own(gateway)}).status == 200
    headers = {"Cookie": cookie, "Sec-Fetch-Site": "same-origin"}
    assert gateway.https("GET", "/page/now.json", b"", headers).status == 200


def test_a_log_out_survives_a_restart(tmp_path: Path) -> None:
    with SecureGateway(tmp_path) as running:
        secret = running.client("anna", read=["*"])
        ended, good = (cookie_of(login(running, "anna", secret)) for _ in range(2))
        assert running.https("POST", "/page/logout", b"", {"Cookie": ended, **own(running)}).status == 200
    with SecureGateway(tmp_path) as running:
        for cookie, status in ((ended, 401), (good, 200)):
            headers = {"Cookie": cookie, "Sec-Fetch-Site": "same-origin"}
            assert running.https("GET", "/page/now.json", b"", headers).status == status


def test_permissions_of_the_client_hold(gateway: SecureGateway) -> None:
    reader = cookie_of(login(gateway, "reader", gateway.client("reader", read=["default"])))
    headers = {"Cookie": reader, "Sec-Fetch-Site": "same-origin"}
    assert gateway.https("GET", "/page/now.json", b"", headers).status == 200
    assert gateway.https("GET", "/page/subscriptions.json", b"", headers).status == 403
    rows = gateway.https("GET", "/page/health.json", b"", headers).json
    assert [list(row) for row in rows] == [["status"]]
    writes = {"Cookie": reader, **own(gateway), **UPDATE}
    assert gateway.https("POST", "/update", INSERT, writes).status == 403
    assert gateway.local("DELETE", "/clients/reader").status == 200
    assert gateway.https("GET", "/page/now.json", b"", headers).status == 401
    assert gateway.https("GET", "/page/session.json", b"", headers).json["client"] is None


def test_the_log_in_ends_with_its_token(tmp_path: Path) -> None:
    with SecureGateway(tmp_path, token_life_s=1) as running:
        cookie = cookie_of(login(running, "anna", running.client("anna", read=["*"])))
        headers = {"Cookie": cookie, "Sec-Fetch-Site": "same-origin"}
        while running.https("GET", "/page/session.json", b"", headers).json["client"] is not None:
            pass
        assert running.https("GET", "/page/now.json", b"", headers).json["error"] == "invalid_grant"


async def test_plain_mode_has_no_log_in(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at:
        top = at.query.removesuffix("/query")
        answer = await http(f"{top}/page/login", "POST", "{}", {"Origin": top, "X-Lamplighter-Page": "1"})
        assert (answer.status, answer.json["error"]) == (500, "dependability_not_configured")
        session = (await http(f"{top}/page/session.json")).json
        assert (session["secure"], session["client"], session["operator"]) == (False, "", True)
