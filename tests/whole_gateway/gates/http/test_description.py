"""The service description (SPARQL 1.1 Service Description), and the requests that do not get it."""

from __future__ import annotations

import pyoxigraph as ox
import pytest

from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.gates.http.description import FORMATS, SD, SUBSCRIPTIONS
from lamplighter.ontology.vocabulary import GATEWAY, RDF_TYPE
from tests.support.running_gateway import http


@pytest.mark.parametrize(
    "media_type", ["text/turtle", "application/n-triples", "application/rdf+xml", "application/ld+json"]
)
async def test_the_endpoint_describes_itself_in_every_rdf_format(gateway: Addresses, media_type: str) -> None:
    answer = await http(gateway.query, headers={"Accept": f"{media_type}, */*;q=0.1"})
    assert (answer.status, answer.media_type) == (200, media_type)
    triples = list(ox.parse(answer.body, ox.RdfFormat.from_media_type(media_type)))
    [service] = [t.subject for t in triples if t.object == ox.NamedNode(SD + "Service")]

    def said(predicate: str) -> set[str]:
        name = ox.NamedNode(predicate)
        return {t.object.value for t in triples if t.subject == service and t.predicate == name}

    assert said(SD + "endpoint") == {gateway.query, gateway.update}
    assert said(SD + "supportedLanguage") == {SD + "SPARQL11Query", SD + "SPARQL11Update"}
    assert said(SD + "languageExtension") == {SUBSCRIPTIONS}
    assert said(SD + "extensionFunction") == {GATEWAY + "clock"}
    assert said(GATEWAY + "subscribeEndpoint") == {gateway.subscribe}
    assert said(GATEWAY + "graphStore") == {gateway.query.replace("/query", "/graphs")}
    assert {FORMATS + "Turtle", FORMATS + "SPARQL_Results_JSON"} <= said(SD + "resultFormat")
    types = [t for t in triples if t.predicate == ox.NamedNode(RDF_TYPE)]
    assert len(types) == 5


async def test_it_is_given_to_those_who_ask_for_rdf_and_not_in_place_of_a_missing_query(gateway: Addresses) -> None:
    for accept in ("", "*/*", "application/json", "application/json, text/plain, */*"):
        answer = await http(gateway.query, headers={"Accept": accept} if accept else {})
        assert (answer.status, answer.json["error"]) == (400, "SPARQL11ProtocolException"), accept
    turtle = {"Accept": "text/turtle"}
    assert (await http(gateway.update, headers=turtle)).status == 400
    assert (await http(gateway.query, headers=turtle, query="ASK {}")).status == 406
    assert (await http(gateway.query, headers=turtle, query="DESCRIBE <http://a>")).body == b""
