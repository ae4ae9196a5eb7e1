"""Random permissions at the doors: what a client reads there is what plain SPARQL says of its graphs, and it changes no
others. Permissions change while the gateway runs.

`ACCESS_DOOR_CASES=200` in the environment runs more; a case takes about 1 s. Seeds: ACCESS_DOOR_SEED.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from random import Random

import pytest

from tests.support.door_clients import DoorClient, change_dataset, some_graphs, whole_dataset
from tests.support.door_probes import PROBES, body_of
from tests.support.doors_dataset import GRAPHS, INBOX, change, description, graph_of, part
from tests.support.secure_gateway import SecureGateway

CASES = int(os.environ.get("ACCESS_DOOR_CASES", "3"))
SEED = int(os.environ.get("ACCESS_DOOR_SEED") or secrets.randbelow(10**6))
CLIENTS, CHANGES = 3, 6
TABLES = {
    "wot": {"enabled": True},
    "sensorthings": {"enabled": True},
    "ngsild": {"enabled": True},
    "ldn": {"enabled": True},
}
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


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    print(f"ACCESS_DOOR_SEED={SEED}")
    limits = {"attempts_per_min": 100_000, "requests_per_s": 100_000}
    with SecureGateway(tmp_path_factory.mktemp("doors"), TABLES, **limits) as gateway, ExitStack() as stack:
        yield Site(gateway, stack, Random(SEED))


def test_each_door_has_the_permissions_of_its_caller(site: Site) -> None:
    random, tally = site.random, Counter[str]()
    for _ in range(CASES):
        for client in site.clients:
            client.permit(read=some_graphs(random, 0.6), write=some_graphs(random, 0.5))
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
    client = site.random.choice(site.clients)
    hidden = [graph for graph in GRAPHS if not client.may("read", graph)]
    if hidden:
        before = answers(client)
        site.change(2 * CHANGES, hidden)
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
