"""Output of the client commands."""

from __future__ import annotations

import pytest

from lamplighter.engine.terms import iri, literal
from lamplighter.gateway.__main__ import main
from lamplighter.gateway.cli.client_commands import cell
from lamplighter.gateway.cli.endpoint import addresses_at


@pytest.mark.parametrize(
    ("url", "query", "subscribe"),
    [
        ("http://h", "http://h:8000/query", "ws://h:9000/subscribe"),
        ("https://h", "https://h:8443/query", "wss://h:9443/subscribe"),
        ("https://[::1]:18443/", "https://[::1]:18443/query", "wss://[::1]:19443/subscribe"),
        ("ws://h:9001/here", "http://h:8001/query", "ws://h:9001/here"),
        ("http://h:3030/ds/sparql", "http://h:3030/ds/sparql", "ws://h:4030/subscribe"),
    ],
)
def test_one_address_is_enough_in_the_classic_layout(url: str, query: str, subscribe: str) -> None:
    found = addresses_at(url)
    assert (found.query, found.subscribe) == (query, subscribe)
    assert found.update in (query, query.replace("/query", "/update"))


def test_a_subscription_without_a_gateway_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lamplighter.gateway.cli.client_commands.CONNECT_S", 0.1)
    assert main(["subscribe", "SELECT * { ?s ?p ?o }", "--url", "http://127.0.0.1:9", "--json"]) == 3
    told = capsys.readouterr()
    assert told.out == "" and "no answer from ws://127.0.0.1:1009/subscribe within 0.1 s" in told.err


def test_cells_are_what_people_write() -> None:
    terms = [iri("http://a"), "_:b0", literal("a\u202eb\u009b"), literal("ciao", language="it"), None]
    assert [cell(term) for term in terms] == ["http://a", "_:b0", "a\\u202Eb\\u009B", "ciao@it", ""]
    assert cell(literal("5", datatype="http://www.w3.org/2001/XMLSchema#integer")) == "5"
