"""Random permissions at the doors: what a client reads there is what plain SPARQL says of its graphs, and it changes no
others. Permissions change while the gateway runs.

A case takes about 1 s. ACCESS_DOOR_SEED repeats one.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from random import Random

import pytest

from tests.support.amounts import Amounts
from tests.support.door_clients import DoorClient, change_dataset, others, some_graphs, whole_dataset
from tests.support.door_deliveries import QUERY, DeliveredRows
from tests.support.door_probes import OBSERVED, PROBES, body_of
from tests.support.doors_dataset import (
    DEFAULT,
    EVENTS,
    GRAPHS,
    INBOX,
    PLAIN,
    change,
    description,
    event,
    graph_of,
    part,
    rows,
)
from tests.support.receivers import PATIENCE_S, HttpReceiver
from tests.support.secure_gateway import SecureGateway

pytestmark = pytest.mark.faults

CASES = 1
"""Permissions of all clients, and permissions that are taken away while deliveries wait."""
SEED = int(os.environ.get("ACCESS_DOOR_SEED") or secrets.randbelow(10**6))
CLIENTS, CHANGES = 3, 6
DELIVERIES = {"enabled": True, "networks": ["127.0.0.0/8"], "ports": [], "backoff_ms": 10, "timeout_s": 120}
TABLES = {
    "http": {"idle_s": 600},
    "wot": {"enabled": True},
    "sensorthings": {"enabled": True},
    "ngsild": {"enabled": True},
    "ldn": DELIVERIES,
    "webhooks": DELIVERIES,
}
PATTERN, END = "GRAPH ?g { ?s <http://e/p> ?o }", "http://e/end"
KINDS = {"webhooks": "callback", "ldn": "inbox"}
"""Doors that deliver, and the member of a registration with the receiver's URL."""
LAST = "999"
UNIMPORTANT = ("date",)
"""Headers that differ without a reason in the dataset."""


class Site:
    """The gateway; its operator, a client that may do everything; and clients with random permissions."""

    def __init__(self, gateway: SecureGateway, stack: ExitStack, random: Random) -> None:
        self.random = random
        self.operator, *self.clients = (
            stack.enter_context(closing(DoorClient(gateway, f"client{number}"))) for number in range(CLIENTS + 1)
        )
        self.operator.permit(read=["*"], write=["*"], subscribe=["*"])
        change_dataset(self.operator, description())

    def change(self, times: int, graphs: list[str] = GRAPHS) -> None:
        for _ in range(times):
            change_dataset(self.operator, change(self.random, graphs).update)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    print(f"ACCESS_DOOR_SEED={SEED}")
    limits = {"attempts_per_min": 100_000, "requests_per_s": 100_000}
    with SecureGateway(tmp_path_factory.mktemp("doors"), TABLES, **limits) as gateway, ExitStack() as stack:
        yield Site(gateway, stack, Random(SEED))


def test_each_door_has_the_permissions_of_its_caller(site: Site, amounts: Amounts) -> None:
    random, tally = site.random, Counter[str]()
    for _ in range(amounts.of(CASES)):
        first, second, *more = site.clients
        first.permit(read=some_graphs(random, 0.6), write=some_graphs(random, 0.5))
        second.permit(read=others(first.read), write=others(first.write))
        for client in more:
            client.permit(read=some_graphs(random, 0.7), write=some_graphs(random, 0.7))
        site.change(CHANGES)
        dataset = whole_dataset(site.operator)
        for client in site.clients:
            visible = part(dataset, client.read)
            for probe in PROBES:
                assert probe.seen(client.send) == probe.expected(visible, client.permitted), (probe.name, client.read)
            tally["quads"] += len(visible)
        tally.update(what_others_change_is_not_seen(site))
        tally.update(nothing_else_is_changed(site))
    print(dict(tally))
    assert tally["hidden"] and tally["done"] and tally["refused"], tally


def what_others_change_is_not_seen(site: Site) -> Iterator[str]:
    """No answer tells of a graph that its client may not read: neither status nor headers nor body."""

    def answers(client: DoorClient) -> dict[str, object]:
        found = {}
        for target in targets:
            answer = client.send("GET", target)
            headers = {name: value for name, value in answer.headers.items() if name not in UNIMPORTANT}
            found[target] = answer.status, headers, answer.body
        return found

    targets = [target for probe in PROBES for target in probe.targets]
    unseen = {client: others(client.read) for client in site.clients}
    client = site.random.choice([client for client, graphs in unseen.items() if graphs])
    before = answers(client)
    site.change(2 * CHANGES, unseen[client])
    after = answers(client)
    for target in targets:
        assert after[target] == before[target], (client.read, target)
    yield "hidden"


def nothing_else_is_changed(site: Site) -> Iterator[str]:
    """Each request to change something is answered as the permissions say, and has changed permitted graphs only."""
    for client in site.clients:
        before, may = set(whole_dataset(site.operator)), [INBOX]
        for probe in PROBES:
            for attempt in probe.attempts(site.random, client.permitted):
                answer = client.send(attempt.method, attempt.target, *body_of(attempt))
                assert answer.status == attempt.status, (probe.name, client.permitted, attempt, answer.body)
                yield "done" if answer.status < 300 else "refused"
                if answer.status < 300:
                    may.extend(attempt.graphs)
        for quad in before ^ set(whole_dataset(site.operator)):
            assert graph_of(quad).startswith(tuple(may)), (client.permitted, quad)


# --- what follows ---


@dataclass
class Stream:
    """What a client was told that observes a property. values: in their order; ended: the gateway has ended it."""

    values: list[str]
    ended: bool = False


def observed(client: DoorClient, stack: ExitStack) -> tuple[Stream, threading.Thread]:
    """Observes the events of stream 3. The thread reads until the value `LAST`, or until the gateway ends it."""
    answer = stack.enter_context(client.opened(OBSERVED))
    assert answer.status == 200, answer.read()
    stream = Stream([])

    def read() -> None:
        while not stream.ended and LAST not in stream.values and (line := answer.readline()):
            if line.startswith(b"event: ended"):
                stream.ended = True
            elif line.startswith(b"data: "):
                stream.values.append(line.removeprefix(b"data: ").strip().decode())

    thread = threading.Thread(target=read)
    thread.start()
    return stream, thread


def delivered(client: DoorClient, to: DeliveredRows, number: int) -> list[str]:
    """Registers a delivery at each door: the paths of their receivers."""
    paths = []
    for door, member in KINDS.items():
        path = f"/{door}/{client.name}/{number}"
        answer = client.json("POST", f"/{door}", query=QUERY, **{member: to.receiver.url(path)})
        assert answer.status == 201, answer.body
        paths.append(path)
    return paths


def test_what_follows_has_the_permissions_of_its_client(site: Site, amounts: Amounts) -> None:
    with HttpReceiver() as receiver:
        to = DeliveredRows(receiver)
        paths: dict[str, list[str]] = {}
        first, second, *more = site.clients
        for client in (first, *more):
            client.permit(subscribe=some_graphs(site.random, 0.6))
        second.permit(subscribe=others(first.subscribe))
        for client in site.clients:
            paths[client.name] = delivered(client, to, 0)
        for number in range(1, amounts.of(CASES) + 1):
            site.change(CHANGES, PLAIN)
            loser = site.random.choice(site.clients)
            paths[loser.name] = a_row_that_waits_is_lost(site, loser, to, paths[loser.name], number)
        ends = " ".join(f"GRAPH <{name}> {{ <{END}> <http://e/p> 1 }}" for name in PLAIN)
        change_dataset(site.operator, f"INSERT DATA {{ {ends} }}")
        dataset = whole_dataset(site.operator)
        for client in site.clients:
            wanted = Counter(rows(part(dataset, client.subscribe), PATTERN, "g", "s", "o"))
            for path in paths[client.name]:
                to.wait_for_end(path, END if wanted else "")
                assert to.has(path) == wanted, (path, client.subscribe)


def a_row_that_waits_is_lost(
    site: Site, client: DoorClient, to: DeliveredRows, paths: list[str], number: int
) -> list[str]:
    """A client loses a permission while a row that it may not have any more waits for its receivers, which never have
    it. Returns the paths of its next deliveries."""
    lost, secret = site.random.choice(PLAIN), f"http://e/secret{number}"
    row = f'"{secret}"'.encode()
    if not client.may("subscribe", lost):
        client.permit(subscribe=sorted({*client.subscribe, lost}))
        to.wait(lambda: to.denied(paths[0]), "the end of a webhook")
        paths = delivered(client, to, 2 * number)
    change_dataset(site.operator, f"INSERT DATA {{ GRAPH <{lost}> {{ <{secret}/before> <http://e/p> 1 }} }}")
    for path in paths:
        to.wait_for_end(path, f"{secret}/before")  # so that nothing else waits
    to.hold(paths)
    change_dataset(site.operator, f"INSERT DATA {{ GRAPH <{lost}> {{ <{secret}> <http://e/p> 1 }} }}")
    to.wait(lambda: all(to.holds(path, row) for path in paths), "deliveries that wait")
    client.permit(subscribe=[name for name in GRAPHS if name != lost and client.may("subscribe", name)])
    to.wait(lambda: to.denied(paths[0]), "the end of a webhook that waits")
    assert [client.send("GET", f"/{door}").json["total"] for door in KINDS] == [0, 0]
    to.refuse_held()
    following = delivered(client, to, 2 * number + 1)
    to.wait(lambda: all(to.told[path] for path in following), "the first results")
    assert not any(row in body for path in paths for body in to.told[path])
    return following


def test_what_is_observed_has_the_permissions_of_its_client(site: Site) -> None:
    random = site.random
    own, loser, *more = site.clients
    shown = random.choice(EVENTS[:2])
    own.permit(read=[DEFAULT], subscribe=[DEFAULT, shown])
    loser.permit(read=[DEFAULT], subscribe=[DEFAULT, *EVENTS])
    with ExitStack() as stack:
        for client in more:
            client.permit(read=some_graphs(random, 0.6), subscribe=some_graphs(random, 0.6))
            status = stack.enter_context(client.opened(OBSERVED)).status
            right = 404 if not client.may("read", DEFAULT) else 403 if not client.may("subscribe", DEFAULT) else 200
            assert status == right, (client.read, client.subscribe)
        stream, thread = observed(own, stack)
        lost, losing = observed(loser, stack)
        told = [(random.choice(EVENTS), str(100 + number)) for number in range(CHANGES)]
        for number, (graph, value) in enumerate(told):
            change_dataset(site.operator, event(graph, value, number))
        loser.permit(subscribe=["http://e/other"])
        losing.join(PATIENCE_S)
        assert lost.ended
        change_dataset(site.operator, event(shown, LAST, 9))
        thread.join(PATIENCE_S)
        values = [value for value in stream.values if int(value) >= 100]
        assert values == [*(value for graph, value in told if graph == shown), LAST]
        assert LAST not in lost.values
