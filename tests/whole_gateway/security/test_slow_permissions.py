"""A permission that is taken away while a client still sends its request does not hold for it any more."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from tests.support.door_clients import DoorClient, change_dataset, whole_dataset
from tests.support.doors_dataset import BASE, description
from tests.support.running_gateway import Answer
from tests.support.secure_gateway import TIMEOUT_S, SecureGateway

DOORS = ("wot", "sensorthings", "ngsild", "ldn")
JSON, SPARQL = "application/json", "application/sparql-update"
THING = f"/things/{BASE.replace(':', '%3A').replace('/', '%2F')}platform%2F2/properties/9"
WRITES = {
    "update": ("POST", "/update", SPARQL, "INSERT DATA { <http://e/a> <http://e/b> 1 }"),
    "graph store": ("PUT", "/graphs?default", "text/turtle", "<http://e/a> <http://e/b> 1 ."),
    "wot": ("PUT", THING, JSON, '"ON"'),
    "sensorthings": ("POST", "/v1.1/Datastreams('stream~1')/Observations", JSON, '{"result": 9}'),
    "ngsild": ("POST", "/ngsi-ld/v1/entities", JSON, '{"id": "urn:n:1", "type": "T"}'),
    "ldn": ("POST", "/inbox/", "application/ld+json", '{"@id": "", "http://e/p": 1}'),
}


class Site:
    def __init__(self, gateway: SecureGateway, stack: ExitStack) -> None:
        self.gateway = gateway
        self.operator, self.slow = (
            stack.enter_context(closing(DoorClient(gateway, name))) for name in ("operator", "slow")
        )
        self.operator.permit(read=["*"], write=["*"])
        change_dataset(self.operator, description())

    @contextmanager
    def halted(self, method: str, target: str, media_type: str, body: str) -> Iterator[list[Answer]]:
        """A request of the slow client, of which the gateway has all but the last byte inside of the block. Its answer
        is there behind it."""
        content = body.encode()
        connection = http.client.HTTPSConnection(
            "localhost", self.gateway.port, timeout=TIMEOUT_S, context=self.gateway.tls
        )
        answers: list[Answer] = []
        with closing(connection):
            connection.putrequest(method, target)
            for name, value in (("Authorization", self.slow.bearer), ("Content-Type", media_type)):
                connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(content)))
            connection.putheader("Expect", "100-continue")
            connection.endheaders()
            assert connection.sock is not None
            assert connection.sock.recv(1000).startswith(b"HTTP/1.1 100 "), "its caller is known, and its body awaited"
            connection.send(content[:-1])
            yield answers
            connection.send(content[-1:])
            answer = connection.getresponse()
            answers.append(Answer(answer.status, dict(answer.getheaders()), answer.read()))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    tables: dict[str, dict[str, object]] = {name: {"enabled": True} for name in DOORS}
    with SecureGateway(tmp_path_factory.mktemp("slow"), tables) as gateway, ExitStack() as stack:
        yield Site(gateway, stack)


@pytest.mark.parametrize("door", WRITES)
def test_nothing_is_written_without_a_permission_at_its_turn(site: Site, door: str) -> None:
    site.slow.permit(read=["*"], write=["*"])
    before = set(whole_dataset(site.operator))
    with site.halted(*WRITES[door]) as answers:
        site.slow.permit(write=["http://e/other"])
    [answer] = answers
    assert (answer.status, answer.json["error"]) == (403, "forbidden"), answer.body
    assert set(whole_dataset(site.operator)) == before


@pytest.mark.parametrize(("came", "turn"), [("*", "http://e/other"), ("http://e/other", "*")])
def test_nothing_is_read_without_a_permission_when_it_comes_and_at_its_turn(site: Site, came: str, turn: str) -> None:
    """Another client may have come under its name meanwhile, which may do more."""
    site.slow.permit(read=[came])
    with site.halted("POST", "/query", "application/sparql-query", "SELECT * { ?s ?p ?o }") as answers:
        site.slow.permit(read=[turn])
    [answer] = answers
    assert (answer.status, json.loads(answer.body)["results"]["bindings"]) == (200, [])
