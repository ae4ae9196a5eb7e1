"""Classes of requests at a whole gateway: an alarm is notified before the bulk load that fills the queue."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from lamplighter.engine.client import EngineClient, Producer
from lamplighter.gateway.addresses import Addresses
from tests.support.held_disk import stepped_disk
from tests.support.running_gateway import ask, hear, http, running_gateway, tell, until, update

ALL = "SELECT ?s ?o { ?s <http://p> ?o }"
ROOM = 40


def insert(name: str) -> str:
    return f"INSERT DATA {{ <http://{name}> <http://p> 1 }}"


async def figures(at: Addresses) -> dict[str, Any]:
    return dict((await http(at.query.replace("/query", "/figures"))).json)


async def waiting(at: Addresses) -> dict[str, int]:
    """Of the classes that have some."""
    found = (await figures(at))["scheduler"]["pending_by_class"]
    return {name: count for name, count in found.items() if count}


async def subjects(socket: ClientConnection) -> set[str]:
    """Those that the next notification adds."""
    rows = (await hear(socket))["notification"]["addedResults"]["results"]["bindings"]
    return {row["s"]["value"] for row in rows}


async def test_an_alarm_is_told_before_the_bulk_load_that_fills_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"durability": "fsync", "queue_max": ROOM}
    async with (
        running_gateway(tmp_path, gateway=limits) as at,
        connect(at.subscribe, max_queue=None) as subscriber,  # who leaves much unread cannot close in order
        connect(at.subscribe) as bulk,
        connect(at.subscribe) as alarms,
    ):
        await ask(subscriber, {"subscribe": {"sparql": ALL}})
        with stepped_disk(monkeypatch) as disk:
            first = asyncio.create_task(update(at, insert("first")))
            await disk.begun()
            members = [
                {"sparql": insert(f"bulk{number}"), "alias": str(number), "priority": "bulk"}
                for number in range(ROOM // 2)
            ]
            await tell(bulk, {"updates": members})

            # The gateway's own steps may wait, too.
            async def full() -> bool:
                return (await waiting(at)).get("bulk") == ROOM // 2

            await until(full)
            refused = await update(at, insert("more"), priority="bulk")
            assert (refused.status, refused.json["error"]) == (429, "too_many_requests")
            assert "20 bulk requests are waiting" in refused.json["error_description"]
            await tell(alarms, {"update": {"sparql": insert("alarm"), "alias": "a", "priority": "alarm"}})

            async def accepted() -> bool:
                found = await waiting(at)
                return (found.get("alarm"), found.get("bulk")) == (1, ROOM // 2)

            await until(accepted)
            disk.go_on()
            assert (await first).status == 200
            assert await subjects(subscriber) == {"http://first"}
            await disk.begun()
            assert (await waiting(at))["bulk"] == ROOM // 2, "the alarm's group has nothing else"
            disk.go_on()
            assert await subjects(subscriber) == {"http://alarm"}
            assert (await hear(alarms))["updated"]["alias"] == "a"
            disk.go_on(1000)
            assert [(await hear(bulk))["updated"]["alias"] for _ in members] == [str(n) for n in range(ROOM // 2)]
        told = (await figures(at))["updates"]["processing_by_class_ms"]
        assert {name: told[name]["count"] for name in told} == {"alarm": 1, "control": 0, "normal": 1, "bulk": 20}


async def test_requests_of_one_connection_keep_their_order_whatever_their_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = ["bulk", "alarm", "control", None, "bulk", "alarm", None, "alarm"]
    async with (
        running_gateway(tmp_path, gateway={"durability": "fsync"}) as at,
        connect(at.subscribe) as socket,
    ):
        with stepped_disk(monkeypatch) as disk:
            first = asyncio.create_task(update(at, insert("first")))
            await disk.begun()
            for number, priority in enumerate(classes):
                member = {"sparql": insert(f"n{number}"), "alias": str(number)}
                await tell(socket, {"update": member if priority is None else member | {"priority": priority}})

            async def queued() -> bool:
                return (await waiting(at)).get("bulk") == len(classes)

            await until(queued)
            disk.go_on(1000)
            assert (await first).status == 200
        answers = [(await hear(socket))["updated"] for _ in classes]
        assert [answer["alias"] for answer in answers] == [str(number) for number in range(len(classes))]
        assert [answer["sequence"] for answer in answers] == sorted(answer["sequence"] for answer in answers)


@pytest.mark.parametrize("kind", ["update", "query", "subscribe"])
async def test_an_unknown_class_is_refused_with_the_classes_there_are(tmp_path: Path, kind: str) -> None:
    text = insert("x") if kind == "update" else ALL
    async with running_gateway(tmp_path) as at, connect(at.subscribe) as socket:
        answer = await ask(socket, {kind: {"sparql": text, "alias": "a", "priority": "urgent"}})
        assert (answer["status_code"], answer["alias"]) == (400, "a")
        assert "unknown class 'urgent'; use alarm, control, normal or bulk" in answer["error_description"]
        mixed = [{"sparql": insert(f"m{n}"), "alias": str(n), "priority": p} for n, p in enumerate(("urgent", "bulk"))]
        await tell(socket, {"updates": mixed})
        assert [next(iter(await hear(socket))) for _ in mixed] == ["error", "updated"]


async def test_queries_and_graph_writes_have_classes_over_http(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at:
        graphs = at.query.replace("/query", "/graphs")
        turtle = {"Content-Type": "text/turtle"}
        created = await http(graphs, "POST", "<urn:s> <urn:p> 1 .", turtle, priority="bulk")
        assert created.status == 201
        graph = created.headers["location"]
        assert (await http(graph, "PUT", "<urn:s> <urn:p> 2 .", turtle, priority="alarm")).status == 204
        assert (await http(graphs, "DELETE", graph=graph, priority="control")).status == 204
        assert (await http(graphs, "PUT", "", turtle, graph="urn:g", priority="x")).status == 400
        twice = await http(graphs, "PUT", "", turtle, graph="urn:g", priority=["bulk", "alarm"])
        assert (twice.status, "once" in twice.json["error_description"]) == (400, True)
        assert (await http(at.query, query="ASK {}", priority="bulk")).status == 200
        assert (await http(at.query, query="ASK {}", priority="x")).status == 400
        assert (await update(at, insert("x"), priority="")).status == 400


async def test_clients_and_profiles_name_classes(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at:
        place = at.update.removeprefix("http://").partition("/")[0]
        profile = tmp_path / "alarm.jsap"
        profile.write_text(
            f'{{"host": "127.0.0.1", "sparql11protocol": {{"protocol": "http", "port": {place.rpartition(":")[2]}}},'
            f' "updates": {{"ALARM": {{"sparql": "{insert("alarm")}", "priority": "alarm"}}}}}}'
        )
        async with Producer(profile, "ALARM") as producer:
            await producer.update()
        async with EngineClient(at.subscribe) as client:
            await client.update(insert("bulk"), priority="bulk")
        told = (await figures(at))["updates"]["processing_by_class_ms"]
        assert {name: told[name]["count"] for name in told} == {"alarm": 1, "control": 0, "normal": 0, "bulk": 1}
