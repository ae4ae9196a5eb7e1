"""SEPA's test fixture in our own words (SEPA protocol, section 6), and clients that know the protocol only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.support.gateway_process import GatewayProcess
from tests.support.running_gateway import Answer, http, values

_WORD = '"ვაიმეე"'
_GRAPH = "<http://sepatest>"
_PREFIX = "PREFIX sepa: <http://wot.arces.unibo.it/sepa#> "
_FRESH = 'BIND(IRI(CONCAT("http://fresh.example/", STRUUID())) AS ?fresh)'


def _in_graph(patterns: str) -> str:
    return f"{{ GRAPH {_GRAPH} {{ {patterns} }} }}"


def update_text(operations: str) -> str:
    return _PREFIX + operations


def select(variables: str, patterns: str) -> str:
    return f"{_PREFIX} SELECT {variables} {_in_graph(patterns)}"


DELETE_ALL = update_text(f"DELETE {_in_graph('?s ?p ?o')} WHERE {_in_graph('?s ?p ?o')}")
VAIMEE = update_text(
    f"DELETE WHERE {_in_graph('sepa:Vaimee sepa:says ?word')} ;"
    f" INSERT DATA {_in_graph(f'sepa:Vaimee sepa:says {_WORD}')}"
)
RANDOM = update_text(
    f"DELETE {_in_graph('sepa:S sepa:P ?old')} WHERE {_in_graph('sepa:S sepa:P ?old')} ;"
    f" INSERT {_in_graph('sepa:S sepa:P ?fresh')} WHERE {{ {_FRESH} }}"
)
RANDOM1 = update_text(
    f"DELETE {_in_graph('sepa:S sepa:P ?old')} WHERE {_in_graph('sepa:S1 sepa:P1 ?old')} ;"
    f" INSERT {_in_graph('sepa:S1 sepa:P1 ?fresh')} WHERE {{ {_FRESH} }}"
)
HUGE = update_text(f"INSERT DATA {_in_graph('_:new sepa:huge ' + json.dumps('x' * 6000))}")
WRONG = "this is no SPARQL"

ALL_ROWS = select("*", "?s ?p ?o")
VAIMEE_ROWS = select("?s ?p", f"?s ?p {_WORD}")
RANDOM_ROWS = select("?value", "sepa:S sepa:P ?value")
RANDOM1_ROWS = select("?value", "sepa:S1 sepa:P1 ?value")
HUGE_ROWS = select("?s ?text", "?s sepa:huge ?text")
COUNT = select("(COUNT(*) AS ?n)", "?s ?p ?o")


class Broker:
    """The gateway by its addresses."""

    def __init__(self, process: GatewayProcess) -> None:
        self._process = process
        self._http = f"http://127.0.0.1:{process.http_port}"
        self.socket = f"ws://127.0.0.1:{process.websocket_port}/subscribe"

    def configuration(self) -> dict[str, Any]:
        """The protocol members of a JSAP profile."""
        return {
            "host": "127.0.0.1",
            "sparql11protocol": {
                "protocol": "http",
                "port": self._process.http_port,
                "query": {"path": "/query", "method": "POST", "format": "JSON"},
                "update": {"path": "/update", "method": "POST", "format": "JSON"},
            },
            "sparql11seprotocol": {
                "protocol": "ws",
                "availableProtocols": {"ws": {"port": self._process.websocket_port, "path": "/subscribe"}},
            },
        }

    async def update(self, sparql: str) -> Answer:
        return await http(f"{self._http}/update", "POST", sparql, {"Content-Type": "application/sparql-update"})

    async def query(self, sparql: str) -> Answer:
        return await http(f"{self._http}/query", "POST", sparql, {"Content-Type": "application/sparql-query"})

    async def rows(self, sparql: str) -> list[dict[str, str]]:
        answer = await self.query(sparql)
        assert answer.status == 200, answer.body
        return values(answer.json)

    async def updates(self, *texts: str) -> None:
        """One after the other, each of them answered well."""
        for text in texts:
            answer = await self.update(text)
            assert answer.status == 200, answer.body

    async def subscriptions(self) -> int:
        """How many there are, those of the gateway's own application left out."""
        return int((await http(f"{self._http}/health")).json["subscriptions"])


@dataclass
class Subscriber:
    """One subscription on a socket of its own. confirmations: first notifications; events: all of them."""

    socket: ClientConnection
    spuid: str = ""
    confirmations: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    async def hear(self) -> dict[str, Any]:
        """The next message. A notification is kept, after its number was looked at."""
        message = json.loads(await self.socket.recv())
        if "notification" in message:
            body = message["notification"]
            assert body["sequence"] == len(self.events)
            if body["sequence"] == 0:
                self.confirmations += 1
                self.spuid = body["spuid"]
            assert body["spuid"] == self.spuid
            self.events.append(body)
        return dict(message)

    async def subscribe(self, sparql: str, alias: str = "one") -> None:
        await self.socket.send(json.dumps({"subscribe": {"sparql": sparql, "alias": alias, "timeout": 5000}}))
        message = await self.hear()
        assert message["notification"]["alias"] == alias, message

    async def unsubscribe(self) -> None:
        """Everything that was sent for the subscription is in `events` then, since nothing of it may follow."""
        await self.socket.send(json.dumps({"unsubscribe": {"spuid": self.spuid, "timeout": 5000}}))
        while "unsubscribed" not in (message := await self.hear()):
            assert "notification" in message, message
        assert message == {"unsubscribed": {"spuid": self.spuid}}


@asynccontextmanager
async def subscribers(broker: Broker, *queries: str) -> AsyncIterator[list[Subscriber]]:
    """A subscriber for each query, each on its own socket."""
    async with AsyncExitStack() as stack:
        found = [
            Subscriber(await stack.enter_async_context(connect(broker.socket, max_size=None, ping_interval=None)))
            for _ in queries
        ]
        await asyncio.gather(*[one.subscribe(query) for one, query in zip(found, queries, strict=True)])
        yield found


async def events_in_all(found: list[Subscriber]) -> int:
    """Ends the subscriptions; how many events all of them have seen."""
    await asyncio.gather(*[one.unsubscribe() for one in found])
    return sum(len(one.events) for one in found)
