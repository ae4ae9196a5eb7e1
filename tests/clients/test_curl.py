"""curl and a browser's way of asking against `lamplighter run` (SEPA protocol, 1.2, 1.3 and 1.5)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.components import require_command
from tests.support.gateway_process import GatewayProcess

PAGE = "https://dashboard.example"
QUERY = "SELECT ?o { <http://s> <http://p> ?o }"


@dataclass(frozen=True)
class Answer:
    """headers: names in lower case."""

    status: int
    headers: dict[str, str]
    body: str


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("curl"), security={"origins": [PAGE]}) as process:
        process.update("INSERT DATA { <http://s> <http://p> 'ვაიმეე' }")
        yield process


def curl(gateway: GatewayProcess, path: str, *arguments: str) -> Answer:
    url = f"http://127.0.0.1:{gateway.http_port}{path}"
    command = [require_command("curl"), "--silent", "--show-error", "--include", "--max-time", "60", *arguments, url]
    head, _, body = subprocess.run(command, check=True, capture_output=True, text=True).stdout.partition("\n\n")
    first, *lines = head.splitlines()
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(int(first.split()[1]), headers, body)


def values(answer: Answer) -> list[str]:
    assert answer.status == 200, answer
    return [row["o"]["value"] for row in json.loads(answer.body)["results"]["bindings"]]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--get", "--data-urlencode", f"query={QUERY}"),
        ("--data-urlencode", f"query={QUERY}"),
        ("--header", "Content-Type: application/sparql-query", "--data-binary", QUERY),
        ("--header", "Content-Type: application/sparql-query; charset=utf-8", "--data-binary", QUERY),
    ],
    ids=["GET", "form", "direct", "direct with a charset"],
)
def test_a_query_is_answered_however_it_is_sent(gateway: GatewayProcess, arguments: tuple[str, ...]) -> None:
    assert values(curl(gateway, "/query", *arguments)) == ["ვაიმეე"]


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/sparql-results+json", ""])
def test_json_is_what_clients_get_that_accept_it_or_say_nothing(gateway: GatewayProcess, accept: str) -> None:
    answer = curl(
        gateway, "/query", "--header", f"Accept: {accept}".rstrip(), "--get", "--data-urlencode", f"query={QUERY}"
    )
    assert "json" in answer.headers["content-type"]
    assert values(answer) == ["ვაიმეე"]


def test_an_update_is_answered_in_the_form_of_the_protocol(gateway: GatewayProcess) -> None:
    answer = curl(gateway, "/update", "--data-urlencode", "update=INSERT DATA { <http://curl> <http://p> 1 }")
    assert answer.status == 200
    response = json.loads(answer.body)["response"]
    assert isinstance(response["body"], str)
    assert (response["isJson"], response["isJsonBody"]) == (False, False)


def test_an_error_has_the_three_members_and_the_status_of_its_line(gateway: GatewayProcess) -> None:
    answer = curl(gateway, "/update", "--data-urlencode", "update=INSERT oops")
    members = json.loads(answer.body)
    assert set(members) == {"error", "status_code", "error_description"}
    assert answer.status == members["status_code"] == 400


# --- as a browser asks for a page of another origin (Fetch standard, CORS protocol) ---------------------


@pytest.mark.parametrize("path", ["/query", "/update"])
def test_a_browser_may_ask_and_send_after_a_preflight(gateway: GatewayProcess, path: str) -> None:
    asked = ("--header", f"Origin: {PAGE}", "--header", "Access-Control-Request-Method: POST")
    wanted = "authorization,content-type,accept"
    preflight = curl(
        gateway, path, "--request", "OPTIONS", *asked, "--header", f"Access-Control-Request-Headers: {wanted}"
    )
    assert (preflight.status, preflight.body) == (204, "")
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert preflight.headers["access-control-allow-methods"] == "POST"
    assert preflight.headers["access-control-allow-headers"] == wanted
    assert "access-control-allow-credentials" not in preflight.headers

    kind = path.removeprefix("/")
    text = QUERY if kind == "query" else "INSERT DATA { <http://browser> <http://p> 1 }"
    sent = (
        "--header",
        f"Origin: {PAGE}",
        "--header",
        f"Content-Type: application/sparql-{kind}",
        "--data-binary",
        text,
    )
    answer = curl(gateway, path, *sent)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == PAGE


def test_a_page_may_read_why_it_was_refused(gateway: GatewayProcess) -> None:
    sent = ("--header", "Content-Type: application/sparql-query", "--data-binary", "oops")
    refused = curl(gateway, "/query", "--header", f"Origin: {PAGE}", *sent)
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (400, PAGE)
    assert "access-control-allow-origin" not in curl(gateway, "/query", *sent).headers


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("--header", f"Origin: {PAGE}"),
        ("--header", "Access-Control-Request-Method: POST"),
        ("--header", f"Origin: {PAGE}", "--header", "Origin: x", "--header", "Access-Control-Request-Method: POST"),
    ],
    ids=["neither", "no method", "no origin", "two origins"],
)
def test_what_is_no_preflight_is_refused(gateway: GatewayProcess, headers: tuple[str, ...]) -> None:
    answer = curl(gateway, "/query", "--request", "OPTIONS", *headers)
    assert answer.status == 401
    assert json.loads(answer.body)["error"] == "cors_error"
