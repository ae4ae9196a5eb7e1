"""Random permissions at every interface: what a client reads and follows is what a dataset of its graphs would give.

The reference is the raw store, filled with the graphs that the client may see. Each client follows one query by each
interface at once, while another one changes graphs at random.
"""

from __future__ import annotations

import http.client
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

import pyoxigraph as ox

from tests.support.secure_gateway import TIMEOUT_S, SecureGateway, ask, hear

NAMES = [f"http://e/g{number}" for number in range(4)]
COMMON = "http://e/common"
END = "http://e/end"
QUERY = "SELECT ?g ?s ?o ?x { GRAPH ?g { ?s <http://e/p> ?o } OPTIONAL { GRAPH ?h { ?o <http://e/q> ?x } } }"
CLIENTS, UPDATES = 4, 80

Row = tuple[tuple[str, str], ...]
Rows = Counter[Row]
Follow = Callable[[], Rows]
"""Reads until the end of the changes was seen. The rows that are left then."""


def rows_of(results: dict[str, Any]) -> Rows:
    return Counter(
        tuple(sorted((name, str(term["value"])) for name, term in row.items()))
        for row in results["results"]["bindings"]
    )


def folded(message: Callable[[], dict[str, Any]]) -> Rows:
    """The first result with all changes. message: the next message of the SE protocol."""
    rows: Rows = Counter()
    while not any(dict(row).get("s") == END for row in rows):
        notification = message()["notification"]
        assert "commit" not in notification, "its sequence counts the commits of others"
        rows.update(rows_of(notification["addedResults"]))
        rows.subtract(rows_of(notification["removedResults"]))
        assert min(rows.values(), default=0) >= 0, notification
        rows = +rows
    return rows


@contextmanager
def over_websocket(gateway: SecureGateway, bearer: str) -> Iterator[Follow]:
    with gateway.websocket() as socket:
        first = ask(socket, {"subscribe": {"sparql": QUERY, "authorization": bearer}})
        waiting = [first]
        yield lambda: folded(lambda: waiting.pop() if waiting else hear(socket))


@contextmanager
def by_events(gateway: SecureGateway, bearer: str) -> Iterator[Follow]:
    connection = http.client.HTTPSConnection("localhost", gateway.port, timeout=TIMEOUT_S, context=gateway.tls)
    try:
        parameters = urlencode({"query": QUERY, "commit": "true"})
        connection.request("GET", f"/subscribe?{parameters}", headers={"Authorization": bearer})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()

        def message() -> dict[str, Any]:
            while not (line := answer.readline()).startswith(b"data: "):
                assert line, "the stream has ended"
            return dict(json.loads(line.removeprefix(b"data: ")))

        yield lambda: folded(message)
    finally:
        connection.close()


INTERFACES = {"WebSocket": over_websocket, "Server-Sent Events": by_events}


def change(random: Random) -> str:
    """An update of some graphs."""
    graph, other = random.sample(NAMES, 2)
    node = lambda: f"<http://e/n{random.randrange(6)}>"  # noqa: E731
    quads = "".join(
        f"GRAPH <{random.choice((graph, other))}> {{ {node()} <http://e/{random.choice('ppq')}> {node()} }} "
        for _ in range(random.randrange(1, 4))
    )
    return random.choice(
        (
            f"INSERT DATA {{ {quads} }}",
            f"INSERT DATA {{ {quads} }}",
            f"DELETE DATA {{ {quads} }}",
            f"DELETE WHERE {{ GRAPH <{graph}> {{ {node()} ?p ?o }} }}",
            f"CLEAR SILENT GRAPH <{graph}>" if random.random() < 0.2 else f"INSERT DATA {{ {quads} }}",
        )
    )


def expected(dump: bytes, graphs: set[str]) -> Rows:
    """What the store gives on these graphs. dump: N-Quads of all."""
    store = ox.Store()
    for quad in ox.parse(dump, ox.RdfFormat.N_QUADS):
        if isinstance(quad.graph_name, ox.NamedNode) and quad.graph_name.value in graphs:
            store.add(quad)
    solutions = store.query(QUERY)
    assert isinstance(solutions, ox.QuerySolutions)
    found = solutions.serialize(format=ox.QueryResultsFormat.JSON)
    assert found is not None
    return rows_of(json.loads(found))


def test_each_client_has_the_dataset_of_its_graphs_at_each_interface(tmp_path: Path) -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    random = Random(seed)
    with SecureGateway(tmp_path, attempts_per_min=100_000) as gateway, ExitStack() as stack:
        writer = gateway.bearer("writer", gateway.client("writer", read=["*"], write=["*"]))

        def update(text: str) -> None:
            headers = {"Content-Type": "application/sparql-update", "Authorization": writer}
            assert gateway.https("POST", "/update", text, headers).status == 200

        for _ in range(10):
            update(change(random))
        clients = {}
        for number in range(CLIENTS):
            graphs = {COMMON, *(name for name in NAMES if random.random() < 0.5)}
            name = f"client{number}"
            bearer = gateway.bearer(name, gateway.client(name, read=sorted(graphs), subscribe=sorted(graphs)))
            follows = {
                interface: stack.enter_context(opened(gateway, bearer)) for interface, opened in INTERFACES.items()
            }
            clients[bearer] = graphs, follows
        for _ in range(UPDATES):
            update(change(random))
        update(f"INSERT DATA {{ GRAPH <{COMMON}> {{ <{END}> <http://e/p> <{END}> }} }}")
        everything = "SELECT * { GRAPH ?g { ?s ?p ?o } }"
        answer = gateway.https("GET", f"/query?{urlencode({'query': everything})}", headers={"Authorization": writer})
        quads = "".join(
            "<{s}> <{p}> <{o}> <{g}> .\n".format(**{name: term["value"] for name, term in row.items()})
            for row in answer.json["results"]["bindings"]
        )
        sizes = []
        for bearer, (graphs, follows) in clients.items():
            wanted = expected(quads.encode(), graphs)
            asked = gateway.https("GET", f"/query?{urlencode({'query': QUERY})}", headers={"Authorization": bearer})
            assert rows_of(asked.json) == wanted
            for interface, follow in follows.items():
                assert follow() == wanted, (interface, graphs)
            sizes.append(wanted.total())
        print(sizes)
        assert max(sizes) > 2
