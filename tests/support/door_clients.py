"""Clients with random permissions at a gateway in secure mode, and the whole dataset as its operator reads it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from random import Random
from typing import Any

import pyoxigraph as ox

from tests.support.door_probes import Permitted
from tests.support.doors_dataset import GRAPHS
from tests.support.running_gateway import Answer
from tests.support.secure_gateway import TIMEOUT_S, SecureGateway

EVERYTHING = "SELECT ?g ?s ?p ?o { { ?s ?p ?o } UNION { GRAPH ?g { ?s ?p ?o } } }"


def some_graphs(random: Random, share: float) -> list[str]:
    return ["*"] if random.random() < 0.1 else [name for name in GRAPHS if random.random() < share]


def others(graphs: Collection[str]) -> list[str]:
    """The graphs that are not among these: so one of two clients lacks each."""
    return [name for name in GRAPHS if "*" not in graphs and name not in graphs]


class DoorClient:
    """read, write, subscribe: the graphs of its permissions. Its requests go over one connection."""

    def __init__(self, gateway: SecureGateway, name: str) -> None:
        self._gateway = gateway
        self.name = name
        self.read: list[str] = []
        self.write: list[str] = []
        self.subscribe: list[str] = []
        self.bearer = gateway.bearer(name, gateway.client(name))
        self._connection = http.client.HTTPSConnection(
            "localhost", gateway.port, timeout=TIMEOUT_S, context=gateway.tls
        )

    def permit(self, **graphs: list[str]) -> None:
        """Changes some of its permissions, as the operator does."""
        for name, value in graphs.items():
            setattr(self, name, value)
        wanted = {"read": self.read, "write": self.write, "subscribe": self.subscribe}
        answer = self._gateway.local("PUT", f"/clients/{self.name}", json.dumps(wanted))
        assert answer.status == 200, answer.body

    @property
    def permitted(self) -> Permitted:
        return Permitted(self.read, self.write)

    def may(self, right: str, graph: str) -> bool:
        graphs: Collection[str] = getattr(self, right)
        return "*" in graphs or graph in graphs

    def send(self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        """One request."""
        self._connection.request(method, target, body, {"Authorization": self.bearer, **(headers or {})})
        answer = self._connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())

    def json(self, method: str, target: str, **members: Any) -> Answer:
        return self.send(method, target, json.dumps(members).encode(), {"Content-Type": "application/json"})

    @contextmanager
    def opened(self, target: str) -> Iterator[http.client.HTTPResponse]:
        """The answer to a GET request over a connection of its own, to be read."""
        connection = http.client.HTTPSConnection(
            "localhost", self._gateway.port, timeout=TIMEOUT_S, context=self._gateway.tls
        )
        with closing(connection):
            connection.request("GET", target, headers={"Authorization": self.bearer})
            yield connection.getresponse()

    def close(self) -> None:
        self._connection.close()


def change_dataset(operator: DoorClient, text: str) -> None:
    """An update. operator: a client that may do everything."""
    answer = operator.send("POST", "/update", text.encode(), {"Content-Type": "application/sparql-update"})
    assert answer.status == 200, answer.body


def whole_dataset(operator: DoorClient) -> list[ox.Quad]:
    headers = {"Content-Type": "application/sparql-query", "Accept": "application/sparql-results+json"}
    answer = operator.send("POST", "/query", EVERYTHING.encode(), headers)
    assert answer.status == 200, answer.body
    found = ox.parse_query_results(answer.body, format=ox.QueryResultsFormat.JSON)
    assert isinstance(found, ox.QuerySolutions)
    return [ox.Quad(row["s"], row["p"], row["o"], row["g"] or ox.DefaultGraph()) for row in found]
