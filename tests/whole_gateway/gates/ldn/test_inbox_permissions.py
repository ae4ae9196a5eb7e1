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
    with SecureGateway(tmp_path_factory.mktemp("ldn"), {"ldn": {"enabled": True}}) as running:
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
