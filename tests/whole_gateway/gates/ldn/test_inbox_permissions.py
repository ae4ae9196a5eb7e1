"""The inbox in secure mode: the permissions for its graph decide."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.running_gateway import Answer
from tests.support.secure_gateway import SecureGateway

GRAPH = "http://lamplighter.local/inbox/"
NOTE = json.dumps({"@id": "", "http://e/p": 1})


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGateway]:
    with SecureGateway(tmp_path_factory.mktemp("ldn"), {"ldn": {"enabled": True, "inbox_max": 2}}) as running:
        yield running


def ask(gateway: SecureGateway, token: str, method: str, path: str) -> Answer:
    headers = {"Authorization": token, "Content-Type": "application/ld+json"}
    return gateway.https(method, path, NOTE if method == "POST" else "", headers)


def test_permissions_of_the_inbox_hold(gateway: SecureGateway) -> None:
    sender = gateway.bearer("sender", gateway.client("sender", write=[GRAPH]))
    reader = gateway.bearer("reader", gateway.client("reader", read=[GRAPH]))
    other = gateway.bearer("other", gateway.client("other", read=["http://e/g"], write=["http://e/g"]))
    assert gateway.https("GET", "/inbox/").status == 401
    assert gateway.https("POST", "/inbox/", NOTE).status == 401
    assert [ask(gateway, token, "POST", "/inbox/").status for token in (reader, other)] == [403, 403]
    answer = ask(gateway, sender, "POST", "/inbox/")
    assert answer.status == 201, answer.body
    path = answer.headers["location"].partition("/inbox/")[2]
    for target in ("/inbox/", f"/inbox/{path}"):
        assert [ask(gateway, token, "GET", target).status for token in (reader, sender, other)] == [200, 403, 403]
    unknown = "/inbox/00000000-0000-4000-8000-000000000000"
    assert [ask(gateway, token, "DELETE", f"/inbox/{path}").status for token in (reader, other)] == [403, 403]
    assert [ask(gateway, token, "DELETE", unknown).status for token in (reader, other)] == [404, 403]
    assert ask(gateway, sender, "DELETE", f"/inbox/{path}").status == 204
    again = ask(gateway, sender, "POST", "/inbox/").headers["location"].partition("/inbox/")[2]
    assert gateway.local("DELETE", f"/inbox/{again}").status == 204


def permit(gateway: SecureGateway, name: str, **graphs: list[str]) -> None:
    permissions = {"read": [], "write": [], "subscribe": [], **graphs}
    assert gateway.local("PUT", f"/clients/{name}", json.dumps(permissions)).status == 200


def test_a_sender_that_may_not_write_any_more_deletes_nothing(gateway: SecureGateway) -> None:
    token = gateway.bearer("former", gateway.client("former", write=[GRAPH]))
    path = ask(gateway, token, "POST", "/inbox/").headers["location"].partition("/inbox/")[2]
    permit(gateway, "former")
    assert ask(gateway, token, "DELETE", f"/inbox/{path}").status == 403
    permit(gateway, "former", write=[GRAPH])
    assert ask(gateway, token, "DELETE", f"/inbox/{path}").status == 204


def test_no_graph_but_those_of_notifications_is_dropped_for_a_new_one(gateway: SecureGateway) -> None:
    """Who may write the inbox can list any graph below it as the oldest notification."""
    token = gateway.bearer("lister", gateway.client("lister", write=[GRAPH]))
    other = f"{GRAPH}of-another-client"

    def update(client: str, text: str) -> None:
        headers = {"Authorization": client, "Content-Type": "application/sparql-update"}
        assert gateway.https("POST", "/update", text, headers).status == 200

    owner = gateway.bearer("owner", gateway.client("owner", read=[other], write=[other]))
    update(owner, f"INSERT DATA {{ GRAPH <{other}> {{ <http://e/s> <http://e/p> 1 }} }}")
    listed = (
        f'<{GRAPH}> <http://www.w3.org/ns/ldp#contains> <{other}> . <{other}> <http://purl.org/dc/terms/created> "0"'
    )
    update(token, f"INSERT DATA {{ GRAPH <{GRAPH}> {{ {listed} }} }}")
    for _ in range(3):
        assert ask(gateway, token, "POST", "/inbox/").status == 201
    target = f"/query?query=ASK%7BGRAPH%20%3C{other.replace('/', '%2F').replace(':', '%3A')}%3E%7B%3Fs%20%3Fp%201%7D%7D"
    assert gateway.https("GET", target, headers={"Authorization": owner}).json["boolean"] is True
