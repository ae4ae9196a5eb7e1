"""The client against a real gateway that comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from lamplighter.engine.client import (
    EngineClient,
    Notification,
    SparqlEndpoint,
    UpdateAnswer,
    UpdateRequest,
    messages,
)
from lamplighter.engine.errors import (
    GatewayError,
    MalformedRequestError,
    RefusedError,
)
from lamplighter.engine.terms import Quad
from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.loop.runner import Runner
from tests.support.brokers import free_port
from tests.support.client_notifications import cut, following, subjects, subjects_of
from tests.support.held_disk import HeldDisk
from tests.support.running_gateway import ask, health, http, rows, running_gateway, until, update

ALL = "SELECT ?s ?o { ?s <http://p> ?o }"
FRESH = "INSERT { ?new <http://p> 1 } WHERE { BIND(UUID() AS ?new) }"


@pytest.fixture
def few_notifications(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription of the client holds five notifications that are not read yet."""
    monkeypatch.setattr(messages, "NOTIFICATIONS_MAX", 5)


def insert(subject: str) -> str:
    return f"INSERT DATA {{ <http://{subject}> <http://p> 1 }}"


def ports() -> dict[str, dict[str, int]]:
    """Settings for a gateway that another one will take the place of."""
    return {name: {"port": free_port()} for name in ("http", "websocket")}


# --- requests ---------------------------------------------------------------------------------------


async def test_notifications_name_their_commits_if_the_client_wants_to_know(gateway: Addresses) -> None:
    async with (
        EngineClient(gateway.subscribe) as client,
        aclosing(client.subscribe(ALL, tell_commit=True)) as asked,
        aclosing(client.subscribe(ALL)) as other,
    ):
        assert [(await anext(one)).commit for one in (asked, other)] == [None, None]
        answer = await client.update(insert("a"))
        assert [(await anext(one)).commit for one in (asked, other)] == [(1, answer.sequence), None]


async def test_updates_are_answered_with_their_sequence_and_queries_with_a_bag(gateway: Addresses) -> None:
    async with EngineClient(gateway.subscribe) as client:
        assert await client.update(insert("a")) == UpdateAnswer(1, None)
        assert await client.update(insert("ვაიმეე")) == UpdateAnswer(2, None)
        bag = await client.query(ALL + " ORDER BY ?s")
        assert bag.variables == ("s", "o")
        one = '"1"^^<http://www.w3.org/2001/XMLSchema#integer>'
        assert bag.rows == (("<http://a>", one), ("<http://ვაიმეე>", one))
        delayed = await client.update(insert("later"), delay="PT1H", missed="skip")
        assert delayed.sequence == 3
        [row] = (await http(gateway.delayed)).json["delayed"]
        assert (row["id"], row["missed"]) == (delayed.delayed, "skip")


async def test_an_answer_tells_what_the_update_changed_if_the_client_wants_to_know(gateway: Addresses) -> None:
    def quad(value: int, graph: str | None = None) -> Quad:
        return Quad("<http://a>", "<http://p>", f'"{value}"^^<http://www.w3.org/2001/XMLSchema#integer>', graph)

    def moved(old: int, new: int) -> str:
        """The default graph and a named one change."""
        return (
            f"DELETE DATA {{ <http://a> <http://p> {old} }} ; INSERT DATA {{ <http://a> <http://p> {new} . "
            f"GRAPH <http://g> {{ <http://a> <http://p> {new} }} }}"
        )

    def changed(answer: UpdateAnswer | GatewayError | None) -> tuple[set[Quad], set[Quad]] | None:
        assert isinstance(answer, UpdateAnswer)
        return None if answer.delta is None else (set(answer.delta.added), set(answer.delta.removed))

    async with EngineClient(gateway.subscribe) as client, SparqlEndpoint(gateway.update.removesuffix("/update")) as web:
        first = await client.update(moved(0, 1), request_id="one", delta=True)
        assert changed(first) == ({quad(1), quad(1, "<http://g>")}, set())
        assert changed(await client.update(moved(0, 1), request_id="one", delta=True)) is None, "it was done before"
        assert changed(await client.update(moved(1, 2))) is None
        wanted, other = await client.updates([UpdateRequest(moved(2, 3), delta=True), UpdateRequest(moved(3, 4))])
        assert changed(wanted) == ({quad(3), quad(3, "<http://g>")}, {quad(2)})
        assert changed(other) is None
        nothing = await client.update("DELETE DATA { <http://a> <http://p> 7 }", delta=True)
        assert changed(nothing) == (set(), set())
        assert changed(await client.update(moved(4, 5), delay="PT1H", delta=True)) is None
        answer = await web.update(moved(4, 5), delta=True)
        assert changed(answer) == ({quad(5), quad(5, "<http://g>")}, {quad(4)})
        assert changed(await web.update(moved(5, 6))) is None


async def test_what_the_gateway_refuses_is_raised_with_its_code(gateway: Addresses) -> None:
    async with EngineClient(gateway.subscribe) as client:
        malformed = "SPARQL11ProtocolException"
        for request, code in (
            (client.update("oops"), malformed),
            (client.query("oops"), malformed),
            (anext(client.subscribe("oops")), "parsing failed"),
        ):
            with pytest.raises(RefusedError) as caught:
                await request
            assert (caught.value.code, caught.value.status) == (code, 400)
            assert not caught.value.retriable
        assert await client.update(insert("a")) == UpdateAnswer(1, None)


async def test_in_a_batch_an_error_stands_in_the_place_of_its_update(gateway: Addresses) -> None:
    async with EngineClient(gateway.subscribe) as client:
        texts = [insert("a"), "oops", insert("c")]
        answers = await client.updates([UpdateRequest(text) for text in texts])
        assert (answers[0], answers[2]) == (UpdateAnswer(1, None), UpdateAnswer(2, None))
        assert isinstance(answers[1], RefusedError)
        assert await client.updates([]) == []


async def test_many_requests_at_once_are_all_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = HeldDisk(monkeypatch)
    limits = {"durability": "fsync", "queue_max": 50}
    async with running_gateway(tmp_path, gateway=limits) as at, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(EngineClient(at.subscribe)) for _ in range(60)]

        async def refused() -> bool:
            return bool((await health(at))["counters"]["queue_full"] > 0)

        disk.hold()
        try:
            # More than the queue holds, each by a client of its own: what is refused for the moment is sent again.
            sent = asyncio.gather(*(client.update(insert(str(n))) for n, client in enumerate(clients)))
            await until(refused)
        finally:
            disk.release()
        assert sorted(answer.sequence for answer in await sent) == list(range(1, 61))


async def test_one_client_leaves_room_in_the_queue_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = HeldDisk(monkeypatch)
    limits = {"durability": "fsync", "queue_max": 50}
    async with running_gateway(tmp_path, gateway=limits) as at, EngineClient(at.subscribe) as client:
        disk.hold()
        try:
            flood = asyncio.gather(*(client.update(insert(str(number))) for number in range(300)))
            assert await asyncio.to_thread(disk.asked.wait, 60)
            async with connect(at.subscribe) as other:
                for _ in range(3):  # the gate has received what was sent before
                    await (await other.ping())
            assert (await health(at))["queue"] <= 26
            one = asyncio.create_task(update(at, insert("other")))
        finally:
            disk.release()
        assert (await one).status == 200
        assert len({answer.sequence for answer in await flood}) == 300
        assert (await health(at))["counters"]["queue_full"] == 0


async def test_queries_of_all_forms_and_of_some_graphs(gateway: Addresses) -> None:
    async with EngineClient(gateway.subscribe) as client:
        await client.update(insert("a") + " ; INSERT DATA { GRAPH <http://g> { <http://b> <http://p> 'x'@en } }")
        assert await client.ask("ASK { <http://a> ?p ?o }")
        assert not await client.ask("ASK { <http://b> ?p ?o }")
        assert await client.ask("ASK { <http://b> ?p ?o }", default_graphs=["http://g"])
        assert subjects_of(await client.query(ALL, default_graphs=["http://g"])) == ["<http://b>"]
        named = "SELECT ?s { GRAPH ?g { ?s ?p ?o } }"
        assert subjects_of(await client.query(named, named_graphs=["http://g"])) == ["<http://b>"]
        assert not await client.query(named, named_graphs=["http://h"])
        triples = await client.construct("CONSTRUCT { ?s ?p ?o } WHERE { GRAPH ?g { ?s ?p ?o } }")
        assert triples == [("<http://b>", "<http://p>", '"x"@en')]
        for wrong, hint in (
            (client.query("ASK {}"), "use ask"),
            (client.query("CONSTRUCT WHERE { ?s ?p ?o }"), "use construct"),
            (client.ask(ALL), "ask"),
            (client.construct(ALL), "construct"),
        ):
            with pytest.raises(MalformedRequestError, match=hint):
                await wrong
        async with aclosing(client.subscribe(ALL, default_graphs=["http://g"])) as notifications:
            assert subjects(await following(notifications)) == ["<http://b>"]
            await client.update(insert("c") + " ; INSERT DATA { GRAPH <http://g> { <http://d> <http://p> 2 } }")
            assert subjects(await following(notifications)) == ["<http://d>"]


# --- subscriptions ----------------------------------------------------------------------------------


async def test_a_subscription_yields_the_result_and_then_its_changes(gateway: Addresses) -> None:
    async with EngineClient(gateway.subscribe) as client:
        await client.update(insert("a"))
        async with aclosing(client.subscribe(ALL)) as notifications:
            first = await following(notifications)
            assert (first.sequence, subjects(first), len(first.removed)) == (0, ["<http://a>"], 0)
            await client.update("DELETE WHERE { <http://a> ?p ?o } ; " + insert("b"))
            second = await following(notifications)
            assert (second.spuid, second.sequence) == (first.spuid, 1)
            assert (subjects(second), [row[0] for row in second.removed]) == (["<http://b>"], ["<http://a>"])


async def test_closing_a_subscription_ends_it_at_the_gateway(gateway: Addresses) -> None:
    async with EngineClient(gateway.subscribe) as client:
        one, two = client.subscribe(ALL), client.subscribe(ALL)
        await following(one)
        await following(two)
        assert (await health(gateway))["subscriptions"] == 2
        await one.aclose()

        async def one_left() -> bool:
            return bool((await health(gateway))["subscriptions"] == 1)

        await until(one_left)
        await client.update(insert("a"))
        assert (await following(two)).sequence == 1
        await two.aclose()


async def test_a_subscription_given_up_before_its_first_result_ends_too(gateway: Addresses) -> None:
    async with EngineClient(gateway.subscribe) as client:
        await client.update(insert("a"))  # it is connected
        waiting = asyncio.create_task(anext(client.subscribe(ALL)))
        await asyncio.sleep(0)  # it has been sent, and cannot be answered yet
        waiting.cancel()
        await asyncio.wait([waiting])
        await client.update(insert("b"))

        async def subscribed_and_ended() -> bool:
            state = await health(gateway)
            return (state["counters"]["subscribes"], state["subscriptions"]) == (1, 0)

        await until(subscribed_and_ended)


@pytest.mark.usefixtures("few_notifications")
async def test_a_consumer_that_is_too_slow_starts_again_from_a_whole_result(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path) as at,
        EngineClient(at.subscribe) as client,
        aclosing(client.subscribe(ALL)) as notifications,
    ):
        known, last, restarts = 0, 0, 0
        assert (await following(notifications)).sequence == 0
        for number in range(20):
            await client.update(insert(str(number)))
        while known < 20:
            notification = await following(notifications)
            if notification.sequence == 0:
                known, restarts = 0, restarts + 1
            else:
                assert notification.sequence == last + 1
            known, last = known + len(notification.added), notification.sequence
        assert known == 20
        assert restarts >= 1


# --- a gateway that comes and goes ------------------------------------------------------------------


async def test_requests_wait_for_a_gateway_that_is_not_there_yet(tmp_path: Path) -> None:
    port = free_port()
    async with EngineClient(f"ws://127.0.0.1:{port}/subscribe") as client:
        update = asyncio.create_task(client.update(insert("a")))
        query = asyncio.create_task(client.query("SELECT * {}"))
        first: Any = asyncio.create_task(anext(client.subscribe("SELECT (1 AS ?one) {}")))
        done, _ = await asyncio.wait([update, query, first], timeout=0.3)
        assert not done
        async with running_gateway(tmp_path, websocket={"port": port}):
            assert await update == UpdateAnswer(1, None)
            assert len(await query) == 1
            assert (await first).sequence == 0


async def test_after_a_restart_subscriptions_begin_anew_and_requests_go_on(tmp_path: Path) -> None:
    where = ports()
    async with running_gateway(tmp_path, **where) as at:
        client = EngineClient(at.subscribe)
        await client.__aenter__()
        notifications = client.subscribe(ALL)
        assert (await following(notifications)).sequence == 0
        await client.update(insert("a"))
        assert (await following(notifications)).sequence == 1
    async with running_gateway(tmp_path, **where) as again:
        fresh = await following(notifications)
        assert (fresh.sequence, subjects(fresh), len(fresh.removed)) == (0, ["<http://a>"], 0)
        await client.update(insert("b"))
        following_one = await following(notifications)
        assert (following_one.spuid, following_one.sequence) == (fresh.spuid, 1)
        assert (await health(again))["subscriptions"] == 1
        await notifications.aclose()
        await client.__aexit__()


async def test_an_update_whose_answer_was_lost_with_the_gateway_has_one_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, close = HeldDisk(monkeypatch), Runner.close

    def unfinished(runner: Runner, **_: bool) -> None:
        disk.release()  # the closing waits for it
        close(runner, orderly=False)

    where = ports()
    async with running_gateway(tmp_path, gateway={"durability": "fsync"}, **where) as at:
        client = EngineClient(at.subscribe)
        await client.__aenter__()
        assert await client.update(insert("a")) == UpdateAnswer(1, None)
        disk.hold()
        pending = asyncio.create_task(client.update(FRESH))
        assert await asyncio.to_thread(disk.asked.wait, 60)  # it is in the log, and will not be answered
        monkeypatch.setattr(Runner, "close", unfinished)
    async with running_gateway(tmp_path, **where) as again:
        assert await pending == UpdateAnswer(2, None)
        assert len(await rows(again, ALL)) == 2
        assert (await health(again))["sequence"] == 2
        await client.__aexit__()


# --- resuming ---------------------------------------------------------------------------------------


async def connected(client: EngineClient) -> None:
    async def holds() -> bool:
        return client._socket is not None

    await until(holds)


async def resumable(at: Addresses) -> int:
    return int((await health(at))["resumable"]["subscriptions"])


async def numbered(notifications: AsyncIterator[Notification], first: int, last: int) -> str:
    """Takes so many notifications and looks whether each adds what its number says; their spuid."""
    spuids = set()
    for number in range(first, last + 1):
        notification = await following(notifications)
        assert (notification.sequence, subjects(notification)) == (number, [f"<http://{number}>"])
        spuids.add(notification.spuid)
    [spuid] = spuids
    return spuid


async def test_each_notification_comes_once_however_often_the_connection_breaks(gateway: Addresses) -> None:
    async with (
        EngineClient(gateway.subscribe) as client,
        EngineClient(gateway.subscribe) as producer,
        aclosing(client.subscribe(ALL, keep="PT10M")) as notifications,
    ):
        assert (await following(notifications)).sequence == 0
        for number in range(1, 61):
            await producer.update(insert(str(number)))
            if number % 7 == 0:
                await connected(client)
                cut(client)
        await numbered(notifications, 1, 60)
        state = await health(gateway)
        assert (state["counters"]["resets"], state["resumable"]["subscriptions"]) == (0, 1)
        assert state["counters"]["resumed"] >= 5


async def test_after_a_restart_of_the_gateway_a_kept_subscription_goes_on(tmp_path: Path) -> None:
    where = ports()
    async with running_gateway(tmp_path, **where) as at:
        client = EngineClient(at.subscribe)
        await client.__aenter__()
        notifications = client.subscribe(ALL, keep="PT10M")
        limited = client.subscribe(ALL + " LIMIT 3", keep="PT10M")
        assert (await following(notifications)).sequence == 0
        old = await following(limited)
        await client.update(insert("1"))
        spuid = await numbered(notifications, 1, 1)
        await client.update(insert("2"))
    async with running_gateway(tmp_path, **where):
        await client.update(insert("3"))
        assert await numbered(notifications, 2, 3) == spuid
        # What three solutions there are is not the same for sure, so this one begins anew.
        while (fresh := await following(limited)).sequence:
            assert fresh.spuid == old.spuid
        assert fresh.spuid != old.spuid
        await client.update("DELETE WHERE { <http://1> ?p ?o }")
        assert (await following(notifications)).sequence == 4
        await notifications.aclose()
        await limited.aclose()
        await client.__aexit__()


@pytest.mark.usefixtures("few_notifications")
async def test_a_kept_consumer_that_is_slow_is_told_everything_when_it_has_time(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path) as at,
        EngineClient(at.subscribe) as client,
        aclosing(client.subscribe(ALL, keep="PT10M")) as notifications,
    ):
        assert (await following(notifications)).sequence == 0
        for number in range(1, 21):
            await client.update(insert(str(number)))
        await numbered(notifications, 1, 3)
        cut(client)
        await client.update(insert("21"))
        await numbered(notifications, 4, 21)
        state = await health(at)
        assert state["counters"]["resets"] == 0
        assert state["counters"]["resumed"] >= 3  # as often as the queue had to be emptied


@pytest.mark.usefixtures("few_notifications")
async def test_what_could_not_be_retained_begins_anew_with_the_whole_result(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path, resume={"outbox_bytes_max": 2000}) as at,
        EngineClient(at.subscribe) as client,
        aclosing(client.subscribe(ALL, keep="PT10M")) as notifications,
    ):
        first = await following(notifications)
        for number in range(1, 41):
            await client.update(insert(str(number)))
        await numbered(notifications, 1, 5)
        fresh = await following(notifications)
        assert (fresh.sequence, len(fresh.added)) == (0, 40)
        assert fresh.spuid != first.spuid
        await client.update(insert("41"))
        assert (await following(notifications)).sequence == 1
        assert await resumable(at) == 1


async def test_a_kept_subscription_that_is_closed_while_the_gateway_is_away_ends_there_too(gateway: Addresses) -> None:
    async with EngineClient(gateway.subscribe) as client:
        notifications = client.subscribe(ALL, keep="PT10M")
        await following(notifications)
        assert await resumable(gateway) == 1
        cut(client)

        async def is_away() -> bool:
            return client._socket is None

        await until(is_away)
        await notifications.aclose()

        async def ended() -> bool:
            return await resumable(gateway) == 0

        await until(ended)


async def test_whose_subscription_another_connection_resumes_is_told(gateway: Addresses) -> None:
    async with (
        EngineClient(gateway.subscribe) as client,
        aclosing(client.subscribe(ALL, keep="PT10M")) as notifications,
        connect(gateway.subscribe) as thief,
    ):
        first = await following(notifications)
        resume = {"keep": "PT10M", "spuid": first.spuid, "sequence": 0}
        await ask(thief, {"subscribe": {"sparql": ALL, "resume": resume}})
        with pytest.raises(RefusedError) as caught:
            await following(notifications)
        assert caught.value.code == "sid_not_found"
