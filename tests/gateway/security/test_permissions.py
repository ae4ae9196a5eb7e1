"""Permissions at the runner: a client can neither see nor end the requests of another client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from lamplighter.engine.access import FULL, Access, Graphs
from lamplighter.engine.core import Notification, Subscription
from lamplighter.engine.errors import (
    AccessDeniedError,
    ChangeLogError,
    ConfigurationError,
    GatewayError,
    MalformedRequestError,
    UnknownDelayedError,
    UnknownSpuidError,
)
from lamplighter.engine.protocol import Results, Resume
from lamplighter.engine.sparql.requests import query_outline
from lamplighter.engine.updating.graph_store import GraphVerb, GraphWrite
from lamplighter.gateway.history.verification import verify
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.subscribers import Sink
from lamplighter.gateway.security.callers import LOCAL, Caller
from lamplighter.gateway.security.permissions import GRAPHS_MAX, graphs
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.state.resumption import AttachedSubscription
from tests.support.gateway_parts import (
    CLIENT,
    FakeClock,
    FullDisk,
    dump,
    idle,
    opened_log,
    records,
    recovered_runner,
    runner_over,
    running,
    time_passes,
    update,
)

A, B = "<http://e/a>", "<http://e/b>"
TEXT = "SELECT ?o { GRAPH ?g { ?s <p:> ?o } }"


def of_graphs(*names: str | None) -> Access:
    graphs = Graphs(frozenset(names))
    return Access(graphs, graphs, graphs)


def caller(name: str, access: Access, *, operator: bool = False) -> Caller:
    return Caller(name, access, operator, registered=True)


ANNA, BEN = caller("anna", of_graphs(A)), caller("ben", of_graphs(B))


def insert(graph: str, value: int) -> str:
    return f"INSERT DATA {{ GRAPH {graph} {{ <s:> <p:> {value} }} }}"


class Ear:
    """Who subscribes, and what it was told."""

    kind = "ws"

    def __init__(self, connection: object | None = None) -> None:
        self.client = "test"
        self.identity: str | None = None
        self.since: datetime | None = None
        self.connection = connection or self
        self.first: list[Any] = []
        self.told: list[Notification] = []
        self.went_on = False
        self.reset: str | None = None
        self.end: GatewayError | None = None
        self.names_commits = True

    def name_no_commits(self) -> None:
        self.names_commits = False

    def subscribed(self, subscription: Subscription, keep: str | None = None, reset: str | None = None) -> None:
        self.first, self.reset = list(subscription.first), reset

    def resumed(self, spuid: str, attached: AttachedSubscription[Sink]) -> None:
        self.went_on = True

    def notify(self, notification: Notification, results: Results) -> None:
        self.told.append(notification)

    def ended(self, spuid: str, error: GatewayError) -> None:
        self.end = error

    def taken_over(self, spuid: str, by: Sink) -> None:
        self.end = UnknownSpuidError(spuid)


class Clients(dict[str, Access]):
    """What the registry says now."""


@asynccontextmanager
async def secured(data: Path, clients: Clients, clock: FakeClock | None = None) -> AsyncIterator[Runner]:
    runner = runner_over(data, clock, access_of=clients.get)
    runner.recover()
    async with running(runner):
        yield runner


async def subscribe(
    runner: Runner, who: Caller, resume: Resume | None = None, ear: Ear | None = None
) -> tuple[str, Ear]:
    ear = ear or Ear()
    return await runner.subscribe(TEXT, ear, None, None, resume=resume, caller=who), ear


async def answer(runner: Runner, text: str, who: Caller) -> bytes:
    found = await runner.queries.query(query_outline(text), "text/csv", caller=who)
    return b"".join([chunk async for chunk in found.chunks()])


def test_a_list_names_as_many_graphs_as_the_limit_says_and_no_more() -> None:
    names = [f"http://graphs/{number}" for number in range(GRAPHS_MAX + 1)]
    assert graphs(names[1:]).names == {f"<{name}>" for name in names[1:]}
    with pytest.raises(ConfigurationError, match=f"{GRAPHS_MAX + 1} graphs are named"):
        graphs(names)
    assert graphs([*names, "*"]).every


async def test_queries_in_processes_of_their_own_and_batches_keep_to_what_is_permitted(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        await update(runner, f"{insert(A, 1)} ; {insert(B, 2)}")
        assert await answer(runner, TEXT, ANNA) == b"o\r\n1\r\n"
        assert await answer(runner, TEXT, BEN) == b"o\r\n2\r\n"
        for graph in (B, "<http://e/none>"):
            with pytest.raises(AccessDeniedError, match=graph):
                await answer(runner, f"ASK FROM {graph} {{ }}", ANNA)
        batch = [update(runner, text, caller=ANNA) for text in (insert(A, 3), insert(B, 4), insert(A, 5))]
        outcomes = await asyncio.gather(*batch, return_exceptions=True)
        assert [isinstance(outcome, AccessDeniedError) for outcome in outcomes] == [False, True, False]
        assert await answer(runner, f"{TEXT} ORDER BY ?o", ANNA) == b"o\r\n1\r\n3\r\n5\r\n"
        assert await answer(runner, TEXT, BEN) == b"o\r\n2\r\n"
    assert [record.client for record in records(tmp_path)] == [None, "anna", "anna"]


async def test_no_number_tells_what_is_in_a_graph_that_may_only_be_written(tmp_path: Path) -> None:
    blind = caller("blind", Access(of_graphs(A).read, of_graphs(A, B).write, of_graphs(A).subscribe))
    async with recovered_runner(tmp_path) as runner:
        await update(runner, insert(B, 1))
        before = runner.log.sequence
        for text in (
            f"DELETE DATA {{ GRAPH {B} {{ <s:> <p:> 2 }} }}",
            f"DELETE DATA {{ GRAPH {B} {{ <s:> <p:> 1 }} }}",
            "DROP SILENT GRAPH <http://e/b>",
            "DROP SILENT GRAPH <http://e/b>",
        ):
            before += 1
            assert (await update(runner, text, caller=blind)).sequence == before
        for graph in (B, B):
            await runner.updates.write_graph(GraphWrite(GraphVerb.DROP, graph), CLIENT, blind)
            before += 1
        assert runner.log.sequence == before
        assert (await update(runner, "DROP SILENT GRAPH <http://e/a>", caller=ANNA)).sequence == before


async def test_notifications_are_of_the_graphs_that_may_be_subscribed_to(tmp_path: Path) -> None:
    async with secured(tmp_path, Clients(anna=ANNA.access, ben=BEN.access)) as runner:
        await update(runner, f"{insert(A, 1)} ; {insert(B, 2)}")
        (_, anna), (_, ben) = await subscribe(runner, ANNA), await subscribe(runner, BEN)
        assert (len(anna.first), len(ben.first)) == (1, 1)
        await update(runner, insert(B, 3))
        await idle(runner)
        assert (len(anna.told), len(ben.told)) == (0, 1)


async def test_request_ids_belong_to_their_client_across_starts_and_snapshots(tmp_path: Path) -> None:
    clients = Clients(anna=ANNA.access, ben=BEN.access)
    async with secured(tmp_path, clients) as runner:
        first = await update(runner, insert(A, 1), request_id="r", caller=ANNA)
        other = await update(runner, insert(B, 2), request_id="r", caller=BEN)
        local = await update(runner, insert(A, 7), request_id="r")
        delayed = await update(runner, insert(A, 3), request_id="d", delay="PT1H", caller=ANNA)
        assert len({first, other, local}) == 3 and len(dump(runner)) == 3
    for _ in range(2):
        async with secured(tmp_path, clients) as runner:
            assert await update(runner, insert(A, 9), request_id="r", caller=ANNA) == first
            assert await update(runner, insert(B, 9), request_id="r", caller=BEN) == other
            assert await update(runner, insert(A, 9), request_id="r") == local
            assert await update(runner, insert(A, 9), request_id="d", delay="PT1H", caller=ANNA) == delayed
            assert len(dump(runner)) == 3
            await runner.log_keeper.take_snapshot()
    async with secured(tmp_path, clients) as runner:
        # What is known of another's id is nothing: neither its answer nor that it is taken.
        mine = await update(runner, insert(B, 4), request_id="d", caller=BEN)
        assert mine.delayed is None and len(dump(runner)) == 4


@pytest.mark.parametrize("how", ["log", "snapshot"])
async def test_request_ids_end_with_their_client(tmp_path: Path, how: str) -> None:
    """Another client that gets the name later is not told what the one before was answered."""
    clients = Clients(anna=ANNA.access, ben=BEN.access)

    async with secured(tmp_path, clients) as runner:
        await update(runner, insert(A, 1), request_id="r", caller=ANNA)
        await update(runner, insert(A, 2), request_id="d", delay="PT1H", caller=ANNA)
        ben = await update(runner, insert(B, 2), request_id="r", caller=BEN)
        del clients["anna"]
        ended = runner.permissions_changed("anna")
        clients["anna"] = ANNA.access
        new = await update(runner, insert(A, 3), request_id="r", caller=ANNA)
        await ended
        assert len(dump(runner)) == 3
        if how == "snapshot":
            await runner.log_keeper.take_snapshot()
    for _ in range(2):
        async with secured(tmp_path, clients) as runner:
            assert await update(runner, insert(A, 9), request_id="r", caller=ANNA) == new
            assert await update(runner, insert(B, 9), request_id="r", caller=BEN) == ben
            assert len(dump(runner)) == 3
    async with secured(tmp_path, clients) as runner:
        again = await update(runner, insert(A, 4), request_id="d", delay="PT1H", caller=ANNA)
        assert again.delayed is not None and runner.delayed_count == 1, "not the answer of the one before"
    assert verify(tmp_path, FakeClock()).problems == []


async def test_request_ids_of_a_client_that_was_removed_while_the_gateway_was_off_are_forgotten(tmp_path: Path) -> None:
    """Its process may have ended between the two: the registry is another file than the log."""
    clients = Clients(anna=ANNA.access)
    async with secured(tmp_path, clients) as runner:
        await update(runner, insert(A, 1), request_id="r", caller=ANNA)
        await update(runner, insert(A, 1), request_id="local")
    del clients["anna"]
    async with secured(tmp_path, clients):
        pass
    clients["anna"] = ANNA.access
    async with secured(tmp_path, clients) as runner:
        await update(runner, insert(A, 2), request_id="r", caller=ANNA)
        await update(runner, insert(A, 9), request_id="local")
        assert len(dump(runner)) == 2


async def test_what_the_log_does_not_take_of_a_removal_is_recorded_before_anything_else(tmp_path: Path) -> None:
    clients, disk = Clients(anna=ANNA.access), FullDisk()
    runner = Runner(Settings(), opened_log(tmp_path, disk=disk), access_of=clients.get)
    runner.recover()
    async with running(runner):
        await update(runner, insert(A, 1), request_id="r", caller=ANNA)
        await update(runner, insert(A, 1), delay="PT1H", caller=ANNA)
        disk.left = 0
        del clients["anna"]
        await runner.permissions_changed("anna")
        clients["anna"] = ANNA.access
        for _ in range(2):
            with pytest.raises(ChangeLogError):
                await update(runner, insert(A, 2), request_id="r", caller=ANNA)
        disk.left = None
        await update(runner, insert(A, 2), request_id="r", caller=ANNA)
        assert (len(dump(runner)), runner.delayed_count) == (2, 0)
    kinds = [(record.type, record.cause.kind) for record in records(tmp_path) if record.cause]
    assert kinds[2:] == [("cancel", "removed"), ("commit", "removed"), ("commit", "http")]


async def test_what_a_removed_client_asked_for_and_is_on_trial_still_is_refused(tmp_path: Path) -> None:
    clients = Clients(anna=ANNA.access)
    async with secured(tmp_path, clients) as runner:
        del clients["anna"]
        with pytest.raises(AccessDeniedError, match="no longer registered"):
            await update(runner, insert(A, 1), request_id="r", caller=ANNA)
        assert not dump(runner)


async def test_delayed_updates_are_seen_and_cancelled_by_their_client_and_by_operators(tmp_path: Path) -> None:
    operator = caller("olga", of_graphs(), operator=True)
    async with recovered_runner(tmp_path) as runner:
        anna = await update(runner, insert(A, 1), delay="PT1H", caller=ANNA)
        ben = await update(runner, insert(B, 1), at="2030-01-01T00:00:00Z", caller=BEN)
        own = await update(runner, insert(B, 1), delay="PT1H")
        for who, expected in (
            (ANNA, [anna]),
            (BEN, [ben]),
            (operator, [anna, own, ben]),
            (LOCAL, [anna, own, ben]),
            (caller("nobody", FULL), []),
        ):
            rows = runner.delayed_updates(who)
            assert [row["id"] for row in rows] == [one.delayed for one in expected]
            assert runner.delayed_count_of(who) == len(expected)
        assert [row["client"] for row in runner.delayed_updates()] == ["anna", None, "ben"]
        told = []
        for name in (anna.delayed, "unknown"):
            with pytest.raises(UnknownDelayedError) as error:
                await runner.updates.cancel(name or "", CLIENT, caller=BEN)
            told.append(str(error.value).replace(name or "", "it"))
        assert told[0] == told[1]
        await runner.updates.cancel(anna.delayed or "", CLIENT, caller=ANNA)
        await runner.updates.cancel(ben.delayed or "", CLIENT, caller=operator)
        assert runner.delayed_count == 1


async def test_a_delayed_update_that_its_client_may_not_do_is_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        for who in (ANNA, caller("nobody", of_graphs())):
            with pytest.raises(AccessDeniedError):
                await update(runner, insert(B, 1), delay="PT1H", caller=who)
        assert runner.delayed_count == 0


async def test_the_delayed_updates_of_a_removed_client_are_cancelled_even_if_another_one_gets_its_name(
    tmp_path: Path,
) -> None:
    clients = Clients(anna=ANNA.access, ben=BEN.access)
    async with secured(tmp_path, clients) as runner:
        _, ear = await subscribe(runner, ANNA)
        for who, graph in ((ANNA, A), (BEN, B), (ANNA, A)):
            await update(runner, insert(graph, 1), delay="PT1H", caller=who)
        await runner.permissions_changed("anna")
        assert runner.delayed_count == 3, "she is there"
        del clients["anna"]
        ended = runner.permissions_changed("anna")
        clients["anna"] = ANNA.access
        await ended
        assert [row["client"] for row in runner.delayed_updates()] == ["ben"]
        assert isinstance(ear.end, AccessDeniedError)
    async with secured(tmp_path, clients) as runner:
        assert runner.delayed_count == 1


async def test_request_ids_have_a_length(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        await update(runner, insert(A, 1), request_id="r" * 200)
        with pytest.raises(MalformedRequestError, match="200 characters"):
            await update(runner, insert(A, 2), request_id="r" * 201)
        assert len(dump(runner)) == 1


async def test_a_delayed_update_has_the_permissions_of_its_client_when_it_is_due(tmp_path: Path) -> None:
    clients = Clients(anna=of_graphs(A, B), ben=BEN.access, gone=FULL)

    clock = FakeClock()
    async with secured(tmp_path, clients, clock) as runner:
        for delay in (10, 20):
            for graph, value in ((A, delay), (B, delay + 1)):
                await update(runner, insert(graph, value), delay=f"PT{delay}S", caller=caller("anna", FULL))
        await update(runner, insert(B, 100), delay="PT20S", caller=BEN)
        await update(runner, insert(B, 200), delay="PT20S", caller=caller("gone", FULL))
        await update(runner, insert(B, 300), delay="PT20S")  # the machine's own
        await time_passes(runner, clock, 10)
    clients["anna"] = of_graphs(A)
    del clients["gone"]
    async with secured(tmp_path, clients, clock) as runner:
        await time_passes(runner, clock, 10)
        assert sorted(int(line.split(b'"')[1]) for line in dump(runner)) == [10, 11, 20, 100, 300]
        assert runner.delayed_count == 0
    effects = [record for record in records(tmp_path) if record.cause is not None and record.cause.kind == "timer"]
    assert len(effects) == 7, "one that may not have its effect has happened all the same"


async def test_a_subscription_is_ended_by_its_client_alone_also_on_a_shared_connection(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path) as runner:
        ear = Ear()
        spuid, _ = await subscribe(runner, ANNA, ear=ear)
        kept, resumable = await subscribe(runner, ANNA, Resume("PT10M"))
        runner.disconnect(resumable, [kept])
        for name, sink in ((spuid, ear), (spuid, Ear()), (kept, resumable), (kept, Ear()), ("unknown", Ear())):
            with pytest.raises(UnknownSpuidError) as error:
                await runner.unsubscribe(name, sink, caller=BEN)
            assert str(error.value) == f"no subscription on this connection has the spuid {name!r}"
        await runner.unsubscribe(spuid, ear, caller=ANNA)
        await runner.unsubscribe(kept, Ear(), caller=ANNA)
        assert runner._engine.subscription_count == 0 and not runner._subscribers._owners


async def test_a_kept_subscription_is_resumed_by_its_client_with_the_permissions_that_it_had(tmp_path: Path) -> None:
    clients = Clients(anna=ANNA.access, ben=BEN.access)
    clock = FakeClock()
    async with secured(tmp_path, clients, clock) as runner:
        await update(runner, f"{insert(A, 1)} ; {insert(B, 2)}")
        spuid, ear = await subscribe(runner, ANNA, Resume("PT10M"))
        await update(runner, f"{insert(A, 3)} ; {insert(B, 4)}")
        await idle(runner)
        assert len(ear.first) == 1 and [len(one.added) for one in ear.told] == [1]
    for start in range(2):
        async with secured(tmp_path, clients, clock) as runner:
            stolen, thief = await subscribe(runner, BEN, Resume("PT10M", spuid, 1))
            assert stolen != spuid and not thief.went_on
            _, nobody = await subscribe(runner, LOCAL, Resume("PT10M", spuid, 1))
            assert not nobody.went_on and nobody.reset == thief.reset
            again, back = await subscribe(runner, ANNA, Resume("PT10M", spuid, 1))
            assert again == spuid and back.went_on
            await update(runner, insert(B, 10 + start))  # it sees no more after a start than before
            await idle(runner)
            assert not back.told
            if not start:
                await runner.log_keeper.take_snapshot()
    async with secured(tmp_path, clients, clock) as runner:
        clients["anna"] = of_graphs(A, B)  # while the gateway was off, say
        wider = caller("anna", of_graphs(A, B))
        new, ear = await subscribe(runner, wider, Resume("PT10M", spuid, 1))
        assert new != spuid and ear.reset == "what this client may subscribe to has changed" and len(ear.first) > 2
        new, ear = await subscribe(runner, wider, Resume("PT10M", spuid, 1))
        assert "no subscription of this client" in (ear.reset or "")


async def test_when_permissions_change_what_they_permitted_ends(tmp_path: Path) -> None:
    clients = Clients(anna=ANNA.access, ben=BEN.access)
    async with secured(tmp_path, clients) as runner:
        (_, plain), (spuid, kept) = await subscribe(runner, ANNA), await subscribe(runner, ANNA, Resume("PT10M"))
        _, other = await subscribe(runner, BEN)
        await runner.permissions_changed("anna")
        clients["anna"] = Access(ANNA.access.read, ANNA.access.write, Graphs(frozenset({A, B})))
        await update(runner, insert(A, 1))
        await idle(runner)
        assert len(plain.told) == len(kept.told) == 1, "nothing had changed yet"
        await runner.permissions_changed("anna")
        await runner.permissions_changed("ben")
        await update(runner, f"{insert(A, 2)} ; {insert(B, 2)}")
        await idle(runner)
        for ear in (plain, kept):
            assert isinstance(ear.end, AccessDeniedError) and len(ear.told) == 1
        assert other.end is None and len(other.told) == 1
        del clients["ben"]
        await runner.permissions_changed("ben")
        await idle(runner)
        assert isinstance(other.end, AccessDeniedError) and runner._engine.subscription_count == 0
    async with secured(tmp_path, clients) as runner:
        _, ear = await subscribe(runner, ANNA, Resume("PT10M", spuid, 1))
        assert "no subscription of this client" in (ear.reset or "")


async def test_a_subscription_begins_with_the_permissions_of_its_turn_and_not_those_of_its_arrival(
    tmp_path: Path,
) -> None:
    clients = Clients(anna=ANNA.access)
    async with secured(tmp_path, clients) as runner:
        await update(runner, f"{insert(A, 1)} ; {insert(B, 2)}")
        _, ear = await subscribe(runner, caller("anna", FULL))
        assert len(ear.first) == 1
        outcome = runner.subscribe(TEXT, Ear(), None, None, caller=ANNA)
        del clients["anna"]
        with pytest.raises(AccessDeniedError, match="no longer registered"):
            await outcome


async def test_notifications_name_no_commits_once_their_client_may_not_read_every_graph(tmp_path: Path) -> None:
    graph = Graphs(frozenset({A}))
    every, narrow = Access(subscribe=graph), Access(read=graph, subscribe=graph)
    clients = Clients(anna=every, ben=every)
    async with secured(tmp_path, clients) as runner:
        anna, ben = caller("anna", every), caller("ben", every)
        ears = [(await subscribe(runner, who, resume))[1] for who in (anna, ben) for resume in (None, Resume("PT1H"))]
        await runner.permissions_changed("anna")
        assert all(ear.names_commits for ear in ears)
        clients["anna"] = narrow
        await runner.permissions_changed("anna")
        assert [ear.names_commits for ear in ears] == [False, False, True, True]
        assert not any(ear.end for ear in ears)
