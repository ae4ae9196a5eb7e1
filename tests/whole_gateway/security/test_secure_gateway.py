"""A gateway in secure mode, from outside: TLS, every row of the protocol's table 3.6, permissions, the operator."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.commands import command
from tests.support.components import require_command
from tests.support.running_gateway import TIMEOUT_S, Answer
from tests.support.secure_gateway import JSON, SecureGateway, ask, basic, hear

SELECT = "SELECT * WHERE { GRAPH ?g { ?s ?p ?o } }"
FORM = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGateway]:
    folder = tmp_path_factory.mktemp("secure")
    with SecureGateway(
        folder, registration="listed", attempts_per_min=100_000, origins=["https://dashboard.example"]
    ) as running:
        yield running


@pytest.fixture(scope="module")
def full(gateway: SecureGateway) -> str:
    """The bearer of a client that may read, write and subscribe to everything."""
    return gateway.bearer("full", gateway.client("full", read=["*"], write=["*"], subscribe=["*"]))


def failed(answer: Answer) -> tuple[int, str]:
    members = answer.json
    assert set(members) == {"error", "status_code", "error_description"}
    assert members["status_code"] == answer.status
    assert members["error_description"]
    if answer.status == 401:
        assert f'error="{members["error"]}"' in answer.headers["www-authenticate"]
    return answer.status, members["error"]


def update(gateway: SecureGateway, bearer: str, sparql: str) -> Answer:
    return gateway.https(
        "POST",
        "/secure/update",
        sparql,
        {"Content-Type": "application/sparql-update", "Authorization": bearer},
    )


def rows(gateway: SecureGateway) -> int:
    answer = gateway.local("GET", "/query?query=SELECT%20*%20%7B%20GRAPH%20%3Fg%20%7B%3Fs%20%3Fp%20%3Fo%7D%7D")
    return len(answer.json["results"]["bindings"])


# --- TLS ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", ["port", "socket_port"])
def test_openssl_verifies_chain_and_host_and_old_protocols_are_refused(gateway: SecureGateway, gate: str) -> None:
    openssl = require_command("openssl")
    port = getattr(gateway, gate)

    def s_client(*options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [openssl, "s_client", "-connect", f"127.0.0.1:{port}", *map(str, options)],
            input="",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    trusting = ("-CAfile", gateway.authority, "-verify_return_error", "-brief")
    good = s_client(*trusting, "-verify_hostname", "localhost")
    assert good.returncode == 0, good.stderr
    assert "Verification: OK" in good.stderr
    assert "Protocol version: TLSv1.3" in good.stderr
    assert s_client(*trusting, "-verify_ip", "127.0.0.1", "-tls1_2").returncode == 0
    assert "hostname mismatch" in s_client(*trusting, "-verify_hostname", "other.example").stderr
    for old in ("-tls1_1", "-tls1"):
        assert s_client(*trusting, old, "-cipher", "DEFAULT@SECLEVEL=0").returncode != 0


def test_curl_trusts_the_authority_and_nothing_else(gateway: SecureGateway, full: str) -> None:
    curl = require_command("curl")

    def get(*options: object) -> subprocess.CompletedProcess[str]:
        url = f"https://localhost:{gateway.port}/secure/query?query=ASK%20%7B%7D"
        return subprocess.run([curl, "-sS", *map(str, options), url], capture_output=True, text=True, timeout=60)

    done = get("--cacert", gateway.authority, "-H", f"Authorization: {full}")
    assert json.loads(done.stdout)["boolean"] is True, done.stderr
    assert get("-H", f"Authorization: {full}").returncode == 60, "without the authority's certificate it is a stranger"


def test_no_plain_text_is_spoken_on_the_network(gateway: SecureGateway) -> None:
    for port in (gateway.port, gateway.socket_port):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
            plain.sendall(b"GET /ca.pem HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP" not in plain.recv(100)


# --- registration ---------------------------------------------------------------------------------------


def test_the_grant_types_that_were_registered_are_told(gateway: SecureGateway) -> None:
    """RFC 7591, 3.2.1."""
    for number, grants in enumerate((["client_credentials"], ["password", "client_credentials", "refresh_token"])):
        name = f"grants:{number}"
        gateway.local("POST", "/clients", json.dumps({"name": name}))
        body = json.dumps({"register": {"client_identity": name, "grant_types": grants}})
        answer = gateway.https("POST", "/oauth/register", body, JSON)
        assert (answer.status, answer.json["credentials"]["grant_types"]) == (201, ["client_credentials"])


def test_a_client_registers_once_with_much_besides(gateway: SecureGateway) -> None:
    gateway.local("POST", "/clients", json.dumps({"name": "sensor:7f"}))
    answer = gateway.register("sensor:7f", httpsAgent={"options": {"ca": "x" * 40_000}})
    assert answer.status == 201
    credentials = answer.json["credentials"]
    assert credentials["client_id"] == "sensor:7f"
    assert {"kty", "crv", "x", "y", "kid"} <= set(credentials["signature"])
    assert answer.headers["cache-control"] == "no-store"
    assert failed(gateway.register("sensor:7f")) == (401, "not_authorized_identity")
    bearer = gateway.bearer("sensor:7f", credentials["client_secret"])
    assert failed(update(gateway, bearer, "CLEAR ALL")) == (403, "forbidden"), "it was given no permission"


REGISTER = {"register": {"client_identity": "x", "grant_types": ["client_credentials"]}}


@pytest.mark.parametrize(
    ("headers", "more", "body", "outcome"),
    [
        ({"Accept": "application/json"}, {}, REGISTER, (400, "content_type_error")),
        (JSON, {"Content_Type": "application/json"}, REGISTER, (400, "content_type_error")),
        ({**JSON, "Content-Type": "text/plain"}, {}, REGISTER, (400, "content_type_error")),
        ({"Content-Type": "application/json"}, {}, REGISTER, (400, "accept_error")),
        (JSON, {"accept": "application/json"}, REGISTER, (400, "accept_error")),
        ({**JSON, "Accept": "text/html"}, {}, REGISTER, (400, "accept_error")),
        ({**JSON, "Accept": "*/*"}, {}, REGISTER, (401, "not_authorized_identity")),
        ({**JSON, "Accept": "text/html, application/*;q=0.1"}, {}, REGISTER, (401, "not_authorized_identity")),
        ({**JSON, "Accept": "*/*;q=0"}, {}, REGISTER, (400, "accept_error")),
        ({**JSON, "Content-Type": "application/json; charset=utf-8"}, {}, REGISTER, (401, "not_authorized_identity")),
        (JSON, {}, {}, (400, "invalid_request")),
        (JSON, {}, [], (400, "invalid_request")),
        (JSON, {}, {"register": {"grant_types": ["client_credentials"]}}, (400, "invalid_request")),
        (JSON, {}, {"register": {"client_identity": "x"}}, (400, "invalid_request")),
        (JSON, {}, {"register": {"client_identity": 5, "grant_types": []}}, (400, "invalid_request")),
        (JSON, {}, {"register": {"client_identity": "x", "grant_types": ["password"]}}, (400, "invalid_grant")),
        (
            JSON,
            {},
            {"register": {"client_identity": "x", "grant_types": ["client_credentials", 5]}},
            (400, "invalid_r"),
        ),
        (JSON, {}, REGISTER, (401, "not_authorized_identity")),
        (JSON, {}, {**REGISTER, "register": {**REGISTER["register"], "client_identity": "SEPATest"}}, (401, "not_au")),
    ],
)
def test_registrations_that_fail(
    gateway: SecureGateway, headers: Any, more: Any, body: Any, outcome: tuple[int, str]
) -> None:
    status, code = failed(gateway.https("POST", "/oauth/register", json.dumps(body), headers, **more))
    assert status == outcome[0]
    assert code.startswith(outcome[1])


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 5000, b'{"register":' * 3])
def test_a_registration_that_is_no_json_is_an_invalid_request(gateway: SecureGateway, body: bytes) -> None:
    assert failed(gateway.https("POST", "/oauth/register", body, JSON)) == (400, "invalid_request")


def test_a_huge_registration_is_refused(gateway: SecureGateway) -> None:
    assert failed(gateway.register("x", padding="x" * 200_000)) == (403, "limit_exceeded")


# --- tokens ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b'""', b"{}", b"anything"])
def test_a_token_comes_in_both_shapes_whatever_the_body(gateway: SecureGateway, full: str, body: bytes) -> None:
    gateway.local("DELETE", "/clients/tok%3Aen")
    secret = gateway.client("tok:en")
    answer = gateway.https("POST", "/oauth/token", body, JSON | basic("tok:en", secret))
    assert answer.status == 201
    flat = {name: answer.json[name] for name in ("access_token", "token_type", "expires_in")}
    assert answer.json == {**flat, "token": flat}
    assert (flat["token_type"], flat["expires_in"]) == ("bearer", 43_200)
    assert answer.headers["cache-control"] == "no-store"


def encoded(pair: str) -> str:
    return base64.b64encode(pair.encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "outcome"),
    [
        (None, (401, "unauthorized_client")),
        ("Bearer x", (401, "unauthorized_client")),
        ("Basic", (401, "invalid_client")),
        ("Basic %%%", (401, "invalid_request")),
        (f"Basic {base64.b64encode(bytes([0xFF, 58])).decode()}", (401, "invalid_request")),
        (f"Basic {encoded('nocolon')}", (401, "invalid_client")),
        (f"Basic {encoded('nobody:secret')}", (400, "unauthorized_client")),
        (f"Basic {encoded('full:wrong')}", (400, "unauthorized_client")),
        (f"Basic {encoded('SEPATest:SEPATest')}", (400, "unauthorized_client")),
    ],
)
def test_tokens_that_are_not_given(
    gateway: SecureGateway, full: str, authorization: str | None, outcome: tuple[int, str]
) -> None:
    headers = JSON if authorization is None else {**JSON, "Authorization": authorization}
    assert failed(gateway.https("POST", "/oauth/token", b"", headers)) == outcome


def test_token_headers_are_needed_once_each(gateway: SecureGateway) -> None:
    good = JSON | basic("full", "x")
    assert failed(gateway.https("POST", "/oauth/token", b"", good, authorization="Basic x")) == (
        401,
        "unauthorized_client",
    )
    assert failed(gateway.https("POST", "/oauth/token", b"", basic("full", "x"))) == (400, "content_type_error")
    assert failed(gateway.https("POST", "/oauth/token", b"", {"Content-Type": "application/json"})) == (
        400,
        "accept_error",
    )


def test_the_standard_request_is_answered_as_libraries_expect(gateway: SecureGateway) -> None:
    secret = gateway.client("form:client")
    form = {"Content-Type": FORM}
    body = f"grant_type=client_credentials&client_id=form%3Aclient&client_secret={secret}"
    assert gateway.https("POST", "/oauth/token", body, form).status == 200
    answer = gateway.https(
        "POST", "/oauth/token", "grant_type=client_credentials", form | basic("form%3Aclient", secret)
    )
    assert (answer.status, answer.json["token_type"]) == (200, "bearer")
    assert gateway.https("POST", "/oauth/token", f"{body}&colour=red", form).status == 200, "RFC 6749, 3.2"
    assert failed(gateway.https("POST", "/oauth/token", f"{body}&scope=read", form)) == (400, "invalid_scope")
    assert gateway.https("POST", "/oauth/token", body, form | basic("form%3Aclient", secret)).status == 400
    assert failed(gateway.https("POST", "/oauth/token", body.replace("_credentials", "_x", 1), form)) == (
        400,
        "unsupported_grant_type",
    )
    assert failed(gateway.https("POST", "/oauth/token", "grant_type=client_credentials", form)) == (
        401,
        "unauthorized_client",
    )


# --- HTTP -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/secure"])
def test_both_layouts_are_served(gateway: SecureGateway, full: str, prefix: str) -> None:
    target = f"{prefix}/query?query=ASK%20%7B%7D"
    for scheme in ("Bearer", "bearer", "BEARER"):
        headers = {"Authorization": full.replace("Bearer", scheme)}
        assert gateway.https("GET", target, b"", headers).json["boolean"] is True


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [
        ({}, (401, "invalid_request")),
        ({"Authorization": "Basic eDp5"}, (401, "unsupported_grant_type")),
        ({"Authorization": "Bearer"}, (401, "invalid_request")),
        ({"Authorization": "Bearer x"}, (401, "invalid_request")),
    ],
)
def test_requests_without_good_credentials_are_refused_before_they_are_parsed(
    gateway: SecureGateway, headers: dict[str, str], outcome: tuple[int, str]
) -> None:
    before = rows(gateway)
    body = "this does not parse"
    for path in ("/query", "/update", "/secure/query", "/secure/update"):
        kind = path.rpartition("/")[2]
        sent = {"Content-Type": f"application/sparql-{kind}", **headers}
        assert failed(gateway.https("POST", path, body, sent)) == outcome
    for path in (
        "/health",
        "/delayed",
        "/metrics",
        "/subscriptions",
        "/backup",
        "/clients",
        "/figures",
        "/log",
        "/explain",
    ):
        assert failed(gateway.https("GET", path, b"", headers)) == outcome, path
    assert rows(gateway) == before


def test_a_token_twice_or_in_the_address_is_refused(gateway: SecureGateway, full: str) -> None:
    good = {"Authorization": full}
    answer = gateway.https("GET", "/query?query=ASK%20%7B%7D", b"", good, authorization=full)
    assert failed(answer) == (401, "invalid_request")
    for headers in (good, {}):
        target = f"/query?query=ASK%20%7B%7D&access_token={full.split()[1]}"
        assert failed(gateway.https("GET", target, b"", headers)) == (401, "invalid_request")


def test_preflights_are_answered_before_authorization(gateway: SecureGateway) -> None:
    headers = {
        "Origin": "https://dashboard.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    for path in ("/secure/query", "/secure/update", "/oauth/register", "/oauth/token"):
        answer = gateway.https("OPTIONS", path, b"", headers)
        assert (answer.status, answer.headers["access-control-allow-headers"]) == (204, "authorization")
    refused = gateway.https("POST", "/secure/query", b"", {"Origin": "https://dashboard.example"})
    assert refused.headers["access-control-allow-origin"] == "https://dashboard.example"


def test_a_client_that_is_no_operator_gets_no_details(gateway: SecureGateway, full: str) -> None:
    for method, path in (
        ("GET", "/metrics"),
        ("GET", "/subscriptions"),
        ("GET", "/backup"),
        ("GET", "/log"),
        ("GET", "/messages?device=a"),
        ("POST", "/mapping/try"),
        ("GET", "/settings/check"),
        ("GET", "/devices"),
        ("GET", "/devices/zigbee2mqtt/0x1"),
        ("POST", "/devices/zigbee2mqtt/0x1"),
        ("GET", "/explain?last=1"),
        ("GET", "/query?query=ASK%20%7B%7D&at=1"),
        ("POST", "/restore"),
        ("GET", "/clients"),
        ("POST", "/clients"),
        ("DELETE", "/clients/full"),
        ("PUT", "/clients/full"),
        ("POST", "/keys/rotate"),
    ):
        assert failed(gateway.https(method, path, b"", {"Authorization": full})) == (403, "forbidden"), path
    assert gateway.https("GET", "/health", b"", {"Authorization": full}).json == {"status": "ok"}


def test_a_client_that_is_no_operator_is_not_asked_for_messages(gateway: SecureGateway, full: str) -> None:
    offer = {"messages": {"alias": "m"}}
    with gateway.websocket(Authorization=full) as socket:
        assert refusal(ask(socket, offer)) == (403, "forbidden", "m")
        assert refusal(ask(socket, {"messages": {"alias": "m", "number": 1}})) == (403, "forbidden", "m")
    with gateway.websocket() as socket:
        assert refusal(ask(socket, offer)) == (401, "invalid_request", "m")


def test_an_operator_may_do_it_over_the_network(gateway: SecureGateway) -> None:
    bearer = gateway.bearer("boss", gateway.client("boss", operate=True))
    answer = gateway.https("GET", "/clients", b"", {"Authorization": bearer})
    assert "boss" in {client["name"] for client in answer.json["clients"]}
    assert "secret" not in answer.body.decode()


def test_permissions_hold_graph_by_graph_and_denials_are_audited(
    gateway: SecureGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lamplighter.audit")
    bearer = gateway.bearer("writer", gateway.client("writer", write=["http://e/mine"]))
    assert (
        update(gateway, bearer, "INSERT DATA { GRAPH <http://e/mine> { <http://e/s> <http://e/p> 1 } }").status == 200
    )
    before = rows(gateway)
    other = "INSERT DATA { GRAPH <http://e/other> { <http://e/s> <http://e/p> 1 } }"
    assert failed(update(gateway, bearer, other)) == (403, "forbidden")
    assert rows(gateway) == before
    with gateway.websocket(Authorization=bearer) as socket:
        assert refusal(ask(socket, {"update": {"sparql": other, "alias": "a"}})) == (403, "forbidden", "a")
        seen = ask(socket, {"subscribe": SUBSCRIBE})["notification"]["addedResults"]["results"]["bindings"]
        assert seen == [], "what it may not subscribe to is not there for it"
    assert rows(gateway) == before
    denied = [record.getMessage() for record in caplog.records if record.getMessage().startswith("denied ")]
    assert [line.split(" why=")[0] for line in denied[:2]] == ["denied client=writer operation=update"] * 2


# --- WebSocket ------------------------------------------------------------------------------------------

SUBSCRIBE = {"sparql": SELECT, "alias": "a"}


def refusal(message: dict[str, Any]) -> tuple[int, str, str | None]:
    assert message["error_description"]
    return message["status_code"], message["error"], message.get("alias")


def test_a_subscription_needs_a_token_and_the_socket_stays_open(gateway: SecureGateway, full: str) -> None:
    with gateway.websocket() as socket:
        for authorization, code in (
            (None, "invalid_request"),
            (5, "invalid_request"),
            ("", "unsupported_grant_type"),
            ("Bearer ", "invalid_request"),
            (full.split()[1], "unsupported_grant_type"),
            ("Bearer a.b.c", "invalid_request"),
        ):
            member = SUBSCRIBE if authorization is None else {**SUBSCRIBE, "authorization": authorization}
            assert refusal(ask(socket, {"subscribe": member})) == (401, code, "a"), authorization
        assert refusal(ask(socket, {"subscribe": SUBSCRIBE, "authorization": full.split()[1]}))[0] == 401
        socket.send("this is not JSON")
        assert refusal(hear(socket)) == (401, "invalid_request", None)
        assert refusal(ask(socket, {"something": 1})) == (401, "invalid_request", None)
        assert refusal(ask(socket, {"subscribe": {"alias": "a"}})) == (401, "invalid_request", "a")
        for kind in ("update", "query", "unsubscribe"):
            member = {"sparql": "CLEAR ALL", "spuid": "sepa://subscription/x", "alias": "b"}
            assert refusal(ask(socket, {kind: member})) == (401, "invalid_request", "b")
        both = ask(socket, {"updates": [{"sparql": "CLEAR ALL", "alias": "1"}, {"sparql": "CLEAR ALL", "alias": "2"}]})
        assert (refusal(both), refusal(hear(socket))) == ((401, "invalid_request", "1"), (401, "invalid_request", "2"))
        first = ask(socket, {"subscribe": {**SUBSCRIBE, "authorization": full}})
        assert first["notification"]["sequence"] == 0
        spuid = first["notification"]["spuid"]
        assert refusal(ask(socket, {"unsubscribe": {"spuid": spuid, "alias": "a"}}))[:2] == (401, "invalid_request")
        done = ask(socket, {"unsubscribe": {"spuid": spuid, "authorization": full.replace("Bearer", "bearer")}})
        assert done == {"unsubscribed": {"spuid": spuid}}


def test_one_header_at_the_handshake_counts_for_all_messages(gateway: SecureGateway, full: str) -> None:
    with gateway.websocket("/subscribe", Authorization=full) as socket:
        assert "answer" in ask(socket, {"query": {"sparql": "ASK {}"}})
        assert "updated" in ask(socket, {"updates": [{"sparql": "CLEAR SILENT GRAPH <http://e/none>"}]})
        assert refusal(ask(socket, {"query": {"sparql": "ASK {}", "authorization": "Bearer x"}}))[0] == 401
    with gateway.websocket("/subscribe", Authorization="Bearer x") as socket:
        assert refusal(ask(socket, {"query": {"sparql": "ASK {}"}}))[:2] == (401, "invalid_request")


def test_a_token_in_the_sockets_address_is_refused(gateway: SecureGateway, full: str) -> None:
    with pytest.raises(InvalidStatus) as caught, gateway.websocket(f"/subscribe?access_token={full.split()[1]}"):
        pass
    assert caught.value.response.status_code == 400
    assert b"unknown parameter access_token" in (caught.value.response.body or b"")


def test_nobody_ends_the_subscription_of_another_client(gateway: SecureGateway, full: str) -> None:
    thief = gateway.bearer("thief", gateway.client("thief", subscribe=["*"]))
    with gateway.websocket() as socket, gateway.websocket() as another:
        spuid = ask(socket, {"subscribe": {**SUBSCRIBE, "authorization": full}})["notification"]["spuid"]
        for tried_on, bearer in ((socket, thief), (another, thief), (another, full)):
            stolen = ask(tried_on, {"unsubscribe": {"spuid": spuid, "authorization": bearer}})
            assert stolen["error"] == "sid_not_found"
        update(gateway, full, "INSERT DATA { GRAPH <http://e/theft> { <http://e/s> <http://e/p> 1 } }")
        assert hear(socket)["notification"]["sequence"] == 1


def test_removing_a_client_ends_its_subscriptions_and_nobody_elses(gateway: SecureGateway, full: str) -> None:
    going = gateway.bearer("going", gateway.client("going", subscribe=["*"]))
    with gateway.websocket() as leaving, gateway.websocket() as staying:
        spuid = ask(leaving, {"subscribe": {**SUBSCRIBE, "authorization": going}})["notification"]["spuid"]
        ask(staying, {"subscribe": {**SUBSCRIBE, "authorization": full}})
        assert gateway.local("DELETE", "/clients/going").status == 200
        ended = hear(leaving)
        assert (ended["spuid"], ended["error"], ended["alias"]) == (spuid, "forbidden", "a")
        assert refusal(ask(leaving, {"subscribe": {**SUBSCRIBE, "authorization": going}})) == (
            401,
            "invalid_grant",
            "a",
        )
        update(gateway, full, "INSERT DATA { GRAPH <http://e/going> { <http://e/s> <http://e/p> 1 } }")
        assert hear(staying)["notification"]["sequence"] == 1


# --- Server-Sent Events ---------------------------------------------------------------------------------


@contextmanager
def stream(gateway: SecureGateway, bearer: str, **headers: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """A stream over TLS; gives the next message."""
    connection = http.client.HTTPSConnection("localhost", gateway.port, timeout=TIMEOUT_S, context=gateway.tls)
    try:
        target = "/subscribe?" + urlencode({"query": SELECT})
        connection.request("GET", target, headers={"Authorization": bearer} | headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()

        def message() -> dict[str, Any]:
            while not (line := answer.readline()).startswith(b"data: "):
                assert line, "the stream has ended"
            return dict(json.loads(line.removeprefix(b"data: ")))

        yield message
    finally:
        connection.close()


def test_a_stream_needs_a_token_and_has_the_graphs_of_its_client(gateway: SecureGateway, full: str) -> None:
    target = "/subscribe?" + urlencode({"query": SELECT})
    assert failed(gateway.https("GET", target)) == (401, "invalid_request")
    bearer = gateway.bearer("watcher", gateway.client("watcher", subscribe=["http://e/seen"]))
    insert = "INSERT DATA {{ GRAPH <http://e/{}> {{ <http://e/{}> <http://e/p> 1 }} }}"
    with stream(gateway, bearer) as message:
        assert message()["notification"]["addedResults"]["results"]["bindings"] == []
        update(gateway, full, insert.format("hidden", "one"))
        update(gateway, full, insert.format("seen", "two"))
        assert "http://e/two" in str(message()["notification"]["addedResults"]["results"])
        assert gateway.local("DELETE", "/clients/watcher").status == 200
        assert message()["error"] == "forbidden"
    assert failed(gateway.https("GET", target, b"", {"Authorization": bearer})) == (401, "invalid_grant")


def test_nobody_resumes_the_stream_of_another_client(gateway: SecureGateway, full: str) -> None:
    thief = gateway.bearer("thief2", gateway.client("thief2", subscribe=["*"]))
    with stream(gateway, full) as message:
        spuid = message()["notification"]["spuid"]
        with stream(gateway, thief, **{"Last-Event-ID": f"{spuid.rpartition('/')[2]}/0"}) as other:
            stolen = other()["notification"]
            assert stolen["reset"]
            assert stolen["spuid"] != spuid


# --- this machine ---------------------------------------------------------------------------------------


def test_processes_of_this_machine_need_no_token(gateway: SecureGateway) -> None:
    with gateway.local_websocket() as socket:
        assert "updated" in ask(socket, {"update": {"sparql": "CLEAR SILENT GRAPH <http://e/none>"}})
    for path in (gateway.addresses.http_here, gateway.addresses.subscribe_here.partition(":")[2]):
        assert Path(path).stat().st_mode & 0o777 == 0o600
    assert (gateway.data / "security").stat().st_mode & 0o777 == 0o700


def lamplighter(gateway: SecureGateway, *arguments: str, code: int = 0) -> str:
    done = command(*arguments, "--config", gateway.toml)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_the_operators_commands(gateway: SecureGateway) -> None:
    said = lamplighter(gateway, "clients", "code", "cli", "--read", "http://e/g", "--read", "default")
    code = said.split()[0]
    assert failed(gateway.register("cli", code="0000-0000")) == (401, "not_authorized_identity")
    registered = gateway.register("cli", code=code)
    assert registered.status == 201
    bearer = gateway.bearer("cli", registered.json["credentials"]["client_secret"])
    row = next(line for line in lamplighter(gateway, "clients", "list").splitlines() if line.startswith("cli "))
    assert row.split()[1] == "registered" and row.split()[3:] == ["http://e/g", "default", "-", "-", "-", "normal"]
    lamplighter(gateway, "clients", "permit", "cli", "--write", "*")
    shown = json.loads(lamplighter(gateway, "clients", "list", "--json"))
    client = next(client for client in shown["clients"] if client["name"] == "cli")
    assert (client["read"], client["write"]) == (["http://e/g", "default"], ["*"])
    lamplighter(gateway, "keys", "rotate")
    good = {"Authorization": bearer}
    assert gateway.https("GET", "/query?query=ASK%20%7B%7D", b"", good).status == 200, "it was given before"
    lamplighter(gateway, "clients", "remove", "cli", "--yes")
    assert failed(gateway.https("GET", "/query?query=ASK%20%7B%7D", b"", good)) == (401, "invalid_grant")
    assert "there is no client cli" in lamplighter(gateway, "clients", "remove", "cli", "--yes", code=4)
    assert "not an absolute IRI" in lamplighter(gateway, "clients", "add", "x", "--read", "relative", code=4)


# --- what numbers and causes tell --------------------------------------------------------------------------


def test_no_answer_counts_what_happens_in_graphs_that_a_client_may_not_read(gateway: SecureGateway, full: str) -> None:
    """The sequence of a record counts everybody's commits."""
    graphs = {"write": ["http://e/n"], "subscribe": ["http://e/n"]}
    narrow = gateway.bearer("narrow", gateway.client("narrow", read=["http://e/n"], **graphs))
    every = gateway.bearer("every", gateway.client("every", read=["*"], **graphs))
    delete = "DELETE DATA { GRAPH <http://e/n> { <http://e/s> <http://e/p> 1 } }"
    insert = "INSERT DATA { GRAPH <http://e/n> { <http://e/s> <http://e/p> 1 } }"
    nothing = "DELETE DATA { GRAPH <http://e/n> { <http://e/s> <http://e/p> 0 } }"

    def numbers(bearer: str) -> set[bool]:
        """Whether a number is in the answers, over HTTP and WebSocket, at once, delayed, and again."""
        found = []
        for query in ("", "?request_id=n", "?request_id=n", "?delay=PT1H"):
            for text in (insert, nothing):
                headers = {"Content-Type": "application/sparql-update", "Authorization": bearer}
                answer = gateway.https("POST", f"/secure/update{query}", text, headers)
                assert answer.status in (200, 202), answer.body
                found.append("sequence" in answer.json)
        with gateway.websocket(Authorization=bearer) as socket:
            for members in ({}, {"request_id": "w"}, {"request_id": "w"}, {"delay": "PT1H"}):
                answer_ = ask(socket, {"update": {"sparql": insert, **members}})
                found.append("sequence" in answer_["updated"])
        with gateway.websocket(Authorization=bearer) as socket:
            ask(socket, {"subscribe": {"sparql": "SELECT * { GRAPH <http://e/n> { ?s ?p ?o } }", "commit": True}})
            for text in (delete, insert):
                messages = [ask(socket, {"update": {"sparql": text}}), hear(socket)]
                found += ["commit" in one["notification"] for one in messages if "notification" in one]
        rows = gateway.https("GET", "/delayed", headers={"Authorization": bearer}).json["delayed"]
        assert len(rows) == 3
        found += ["sequence" in row for row in rows]
        return set(found)

    assert (numbers(narrow), numbers(every)) == ({False}, {True})
    assert "sequence" in update(gateway, full, insert).json
    for row in gateway.local("GET", "/delayed").json["delayed"]:
        gateway.local("DELETE", f"/delayed/{row['id']}")


def test_a_client_is_told_no_commits_once_it_may_not_read_every_graph(gateway: SecureGateway, full: str) -> None:
    secret = gateway.client("counting", read=["*"], subscribe=["http://e/counted"])
    query = "SELECT * { GRAPH <http://e/counted> { ?s ?p ?o } }"
    with gateway.websocket(Authorization=gateway.bearer("counting", secret)) as socket:
        for members in ({}, {"resume": {"keep": "PT1H"}}):
            ask(socket, {"subscribe": {"sparql": query, "commit": True, **members}})
        found = []
        for number in range(2):
            update(
                gateway, full, f"INSERT DATA {{ GRAPH <http://e/counted> {{ <http://e/s> <http://e/p> {number} }} }}"
            )
            found.append(["commit" in hear(socket)["notification"] for _ in range(2)])
            lamplighter(gateway, "clients", "permit", "counting", "--read", "http://e/counted")
    assert found == [[True, True], [False, False]]


def test_a_registered_client_does_not_pass_for_an_adapter(gateway: SecureGateway, full: str) -> None:
    insert = "INSERT DATA { GRAPH <http://e/cause> { <http://e/s> <http://e/p> 1 } }"
    with gateway.websocket(Authorization=full) as socket:
        for kind in ("mqtt", "coap"):
            refused = ask(socket, {"update": {"sparql": insert, "cause": {"kind": kind, "id": "x"}, "alias": "a"}})
            assert refusal(refused) == (403, "forbidden", "a") and f"{kind}-bridge" in refused["error_description"]
        assert "updated" in ask(socket, {"update": {"sparql": insert, "cause": {"kind": "zigbee", "id": "x"}}})
    with gateway.local_websocket() as socket:
        assert "updated" in ask(socket, {"update": {"sparql": insert, "cause": {"kind": "mqtt", "id": "street/1"}}})
