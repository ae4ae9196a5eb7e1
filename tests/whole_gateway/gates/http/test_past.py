"""The past over HTTP: records of the change log."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.gates.http import gate, kept, past
from lamplighter.gateway.gates.http import waiting as limits
from lamplighter.gateway.log.snapshots import Place
from lamplighter.gateway.log.tail import LogTail
from tests.support.commands import command
from tests.support.forks import forks
from tests.support.running_gateway import FORM, TIMEOUT_S, Answer, http, query, rows, running_gateway, until, update
from tests.support.secure_gateway import SecureGateway


async def log(addresses: Addresses, **parameters: str) -> dict[str, Any]:
    answer = await http(addresses.query.replace("/query", "/log"), **parameters)
    assert answer.status == 200, answer.body
    return dict(answer.json)


async def insert(addresses: Addresses, first: int, count: int) -> None:
    for number in range(first, first + count):
        assert (await update(addresses, f"INSERT DATA {{ <http://s> <http://p> {number} }}")).status == 200


def names(page: dict[str, Any]) -> list[str]:
    return [record["record"] for record in page["records"]]


async def refused(addresses: Addresses, target: str) -> Answer:
    answer = await http(addresses.query.replace("/query", target))
    assert answer.status >= 400, answer.body
    return answer


async def test_the_newest_records_have_type_time_cause_and_delta(gateway: Addresses) -> None:
    assert (await log(gateway)) == {"records": [], "newest": "1/0"}
    assert (await update(gateway, "INSERT DATA { <http://s> <http://p> 1 }", request_id="r")).status == 200
    assert (await update(gateway, "DELETE DATA { <http://s> <http://p> 1 }")).status == 200
    delayed = await update(gateway, "CLEAR ALL", delay="PT1H")
    page = await log(gateway)
    assert page["newest"] == "1/3"
    first, second, third = page["records"]
    number = '"1"^^<http://www.w3.org/2001/XMLSchema#integer>'
    assert (first["record"], first["type"]) == ("1/1", "commit")
    assert first["cause"]["kind"] == "http"
    assert first["request"] == "r"
    assert first["counts"] == {"d": 0, "a": 1, "k": 0}
    assert first["a"] == [["<http://s>", "<http://p>", number, None]]
    assert first["trusted"] is True
    assert second["d"] == first["a"] and "a" not in second
    assert third["type"] == "timer"
    assert third["timer"]["id"] == delayed.json["delayed"]
    assert third["timer"]["update"] == "CLEAR ALL"


async def test_a_range_is_read_from_memory_or_from_the_files_alike(gateway: Addresses) -> None:
    await insert(gateway, 1, 30)
    assert names(await log(gateway, last="3")) == ["1/28", "1/29", "1/30"]
    assert names(await log(gateway, last="3", to="1/30")) == ["1/28", "1/29", "1/30"]
    assert names(await log(gateway, last="2", to="20")) == ["1/19", "1/20"]
    assert names(await log(gateway, **{"from": "5", "to": "1/7"})) == ["1/5", "1/6", "1/7"]
    assert names(await log(gateway, after="28")) == ["1/29", "1/30"]
    assert names(await log(gateway, after="1/30")) == []
    assert names(await log(gateway, **{"from": "31"})) == []
    in_memory, on_disk = await log(gateway, last="30"), await log(gateway, **{"from": "1"})
    assert in_memory == on_disk


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests may wait so long that no slow machine ends the wait."""
    monkeypatch.setattr(past, "WAIT_S_MAX", 10 * TIMEOUT_S)


LONG = str(10 * TIMEOUT_S)


@pytest.mark.usefixtures("long_waits")
async def test_a_request_that_waits_is_answered_by_the_next_commit(gateway: Addresses) -> None:
    await insert(gateway, 1, 2)
    waiting = asyncio.create_task(log(gateway, after="1/2", wait=LONG))
    await insert(gateway, 3, 1)
    assert names(await waiting) == ["1/3"]
    assert names(await log(gateway, after="1/3", wait="0.05")) == []


@pytest.mark.usefixtures("long_waits")
async def test_only_so_many_requests_wait(gateway: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAITING_PER_CLIENT_MAX", 2)
    url = gateway.query.replace("/query", "/log")
    waiting = [asyncio.create_task(http(url, after="0", wait=LONG)) for _ in range(3)]
    done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [one.result().status for one in done] == [429]
    assert "wait for records already" in done.pop().result().json["error_description"]
    await insert(gateway, 1, 1)
    for one in others:
        assert names((await one).json) == ["1/1"]


@pytest.mark.usefixtures("long_waits")
async def test_a_client_that_leaves_gives_its_place_back(gateway: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAITING_PER_CLIENT_MAX", 1)
    url = gateway.query.replace("/query", "/log")
    port = int(gateway.query.split(":")[2].split("/")[0])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /log?after=0&wait={LONG} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await writer.drain()

    async def waits() -> bool:
        return (await http(url, after="0", wait="0.01")).status == 429

    async def has_left() -> bool:
        return not await waits()

    await until(waits)
    writer.close()
    await until(has_left)


@pytest.mark.usefixtures("long_waits")
async def test_a_gateway_that_stops_ends_the_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_CLOSING_S", TIMEOUT_S)  # afterwards they would be closed without an answer
    async with running_gateway(tmp_path) as gateway:
        url = gateway.query.replace("/query", "/log")
        waiting = asyncio.create_task(http(url, after="0", wait=LONG))
        refusals = [asyncio.create_task(http(url, after="0", wait=LONG)) for _ in range(limits.WAITING_PER_CLIENT_MAX)]
        await asyncio.wait([waiting, *refusals], return_when=asyncio.FIRST_COMPLETED)  # one is too many
    statuses = [(await one).status for one in (waiting, *refusals)]
    assert sorted(statuses) == [200] * limits.WAITING_PER_CLIENT_MAX + [429]


async def test_what_a_record_shows_is_bounded(gateway: Addresses) -> None:
    many = " ".join(f"<http://s> <http://p> {number} ." for number in range(50))
    assert (await update(gateway, f"INSERT DATA {{ {many} <http://s> <http://long> '{'x' * 5000}' }}")).status == 200
    [record] = (await log(gateway))["records"]
    assert record["counts"]["a"] == 51
    assert len(record["a"]) in (19, 20)  # the long one may be among the first
    [record] = (await log(gateway, quads="1000"))["records"]
    assert len(record["a"]) == 50
    text = f"# {'y' * 2000}\nCLEAR ALL"
    assert (await update(gateway, text, delay="PT1H")).status == 202
    [record] = (await log(gateway, last="1"))["records"]
    assert len(record["timer"]["update"]) == 1000


@pytest.mark.parametrize(
    "target",
    [
        "/log?last=0",
        "/log?last=1001",
        "/log?last=x",
        "/log?from=-1",
        "/log?from=1/2/3",
        "/log?after=1&last=3",
        "/log?after=1&wait=31",
        "/log?after=1&wait=nan",
        "/log?wait=3",
        "/log?after=1&after=2",
        "/log?quads=1001",
        "/log?since=3",
        "/explain",
        "/explain?last=101",
        "/explain?last=1&at=2026-01-01T00:00:00Z",
        "/explain?actuation=a&last=1",
        "/explain?actuation=a&at=1",
        "/explain?actuation=%3Ca",
    ],
)
async def test_wrong_parameters_are_refused(gateway: Addresses, target: str) -> None:
    assert (await refused(gateway, target)).status == 400


async def test_other_methods_and_pages_of_other_sites_are_refused(gateway: Addresses) -> None:
    url = gateway.query.replace("/query", "/log")
    assert (await http(url, "POST", "")).status == 405
    assert (await http(url, headers={"Origin": "http://elsewhere.example"})).status == 403
    assert (await http(url, headers={"Sec-Fetch-Site": "cross-site"})).status == 403
    assert "/log" in (await http(url.replace("/log", "/"))).body.decode()


async def test_records_of_subscriptions_do_not_tell_the_spuid(gateway: Addresses) -> None:
    from websockets.asyncio.client import connect

    from tests.support.running_gateway import ask

    async with connect(gateway.subscribe) as socket:
        members = {"sparql": "SELECT * { ?s ?p ?o }", "alias": "a", "resume": {"keep": "PT10M"}}
        spuid = (await ask(socket, {"subscribe": members}))["notification"]["spuid"]
        page = await log(gateway)
    [record] = page["records"]
    assert record["type"] == "subscribe"
    assert record["subscribe"]["sparql"] == members["sparql"]
    assert spuid not in json.dumps(page)


# --- queries ------------------------------------------------------------------------------------------------

VALUES = "SELECT ?o WHERE { <http://s> <http://p> ?o } ORDER BY ?o"
ENDLESS = "SELECT (COUNT(*) AS ?n) { ?a <http://q> ?b . ?c <http://q> ?d . ?e <http://q> ?f . ?g <http://q> ?h }"


async def values(addresses: Addresses, at: str) -> list[int]:
    found = await rows(addresses, VALUES, at=at)
    return [int(row["o"]) for row in found]


async def test_a_query_of_the_past_has_the_dataset_as_of_a_record(gateway: Addresses) -> None:
    await insert(gateway, 1, 5)
    assert (await update(gateway, "DELETE DATA { <http://s> <http://p> 2 }")).status == 200
    assert await values(gateway, "3") == [1, 2, 3]
    assert await values(gateway, "1/5") == [1, 2, 3, 4, 5]
    assert await values(gateway, "6") == [1, 3, 4, 5]
    [record] = (await log(gateway, **{"from": "4", "to": "4"}))["records"]
    answer = await query(gateway, VALUES, "text/csv", at=record["ts"])
    assert answer.body.decode().split() == ["o", "1", "2", "3", "4"]
    assert answer.headers["lamplighter-at"] == f"1/4 {record['ts']}"
    answer = await query(gateway, VALUES, at="2999-01-01T00:00:00Z")
    assert answer.headers["lamplighter-at"].startswith("1/6 ")


async def test_all_forms_of_queries_take_a_record(gateway: Addresses) -> None:
    await insert(gateway, 1, 3)
    get = await http(gateway.query, headers={"Accept": "text/csv"}, query=VALUES, at="2")
    form = await http(gateway.query, "POST", urlencode({"query": VALUES, "at": "2"}), {"Content-Type": FORM})
    assert get.body.decode().split() == ["o", "1", "2"]
    assert [row["o"]["value"] for row in form.json["results"]["bindings"]] == ["1", "2"]
    graph = await query(gateway, "CONSTRUCT WHERE { ?s ?p ?o }", "application/n-triples", at="1")
    assert len(graph.body.splitlines()) == 1
    relative = await query(gateway, "ASK { <../s> ?p ?o }", at="1")
    assert relative.json["boolean"] is False
    head = await http(gateway.query, "HEAD", query=VALUES, at="2")
    assert (head.status, head.headers["lamplighter-at"][:3]) == (200, "1/2")


@pytest.mark.parametrize(
    ("at", "status", "text"),
    [
        ("99", 404, "no record 99 is kept"),
        ("2/1", 404, "the newest is 1/1"),
        ("1999-01-01T00:00:00Z", 404, "nothing from 1999"),
        ("now", 400, "is no record"),
        ("1/", 400, "is no record"),
        ("2026-01-01T00:00:00", 400, "no time zone"),
    ],
)
async def test_a_record_that_is_not_there_is_an_error(gateway: Addresses, at: str, status: int, text: str) -> None:
    await insert(gateway, 1, 1)
    answer = await query(gateway, VALUES, at=at)
    assert answer.status == status, answer.body
    assert text in answer.json["error_description"]


async def test_a_faulty_query_of_the_past_is_an_error_with_its_place(gateway: Addresses) -> None:
    await insert(gateway, 1, 1)
    answer = await query(gateway, "SELECT * { ?s ?p }", at="1")
    assert (answer.status, "line 1" in answer.json["error_description"]) == (400, True)


async def test_one_query_of_the_past_runs_at_a_time(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, query={"time_ms_max": int(10_000 * TIMEOUT_S)}) as gateway:
        await insert(gateway, 1, 1)
        triples = " ".join(f"<http://s> <http://q> {number} ." for number in range(300))
        assert (await update(gateway, f"INSERT DATA {{ {triples} }}")).status == 200
        port = int(gateway.query.split(":")[2].split("/")[0])
        before = forks()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        target = urlencode({"query": ENDLESS, "at": "2"})
        writer.write(f"GET /query?{target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await writer.drain()

        async def runs() -> bool:
            return forks() != before

        await until(runs)
        second = asyncio.create_task(query(gateway, VALUES, at="1"))
        assert len(await rows(gateway, VALUES)) == 1
        assert not second.done(), "it has its turn when the first one has ended"
        writer.close()
        assert (await second).status == 200


async def test_a_query_of_the_past_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, query={"time_ms_max": 1000}) as gateway:
        triples = " ".join(f"<http://s> <http://q> {number} ." for number in range(300))
        assert (await update(gateway, f"INSERT DATA {{ {triples} }}")).status == 200
        endless = (
            "SELECT (COUNT(*) AS ?n) { ?a <http://q> ?b . ?c <http://q> ?d . ?e <http://q> ?f . ?g <http://q> ?h }"
        )
        answer = await query(gateway, endless, at="1")
        assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")


async def test_the_past_of_a_dataset_on_disk_is_queried_too(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, store={"path": "store"}) as gateway:
        await insert(gateway, 1, 3)
        assert await values(gateway, "2") == [1, 2]
        assert names(await log(gateway, **{"from": "2"})) == ["1/2", "1/3"]


# --- explanations -------------------------------------------------------------------------------------------


async def test_an_actuation_is_explained_from_its_update_on(
    gateway: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = gateway.query.replace("/query", "/explain")
    prefixes = "PREFIX gateway: <http://lamplighter.example/ns/gateway#> PREFIX sosa: <http://www.w3.org/ns/sosa/>"
    lamp = "<http://lamplighter.local/actuator/hall>"
    assert (await http(url, last="5")).json == {"outcomes": []}
    assert (await http(url, actuation="actuator/hall")).status == 404
    assert (await update(gateway, f"{prefixes} INSERT DATA {{ {lamp} gateway:desiredState true }}")).status == 200
    actuation = "<http://lamplighter.local/actuator/hall/actuation>"
    time = "'2026-11-21T10:00:00Z'^^<http://www.w3.org/2001/XMLSchema#dateTime>"
    text = f"{actuation} sosa:hasSimpleResult true ; sosa:resultTime {time} ; gateway:followed '1/1'"
    assert (await update(gateway, f"{prefixes} INSERT DATA {{ {text} }}")).status == 200
    [outcome] = (await http(url, last="5")).json["outcomes"]
    assert (outcome["actuator"], outcome["record"]) == (lamp, "1/2")
    for name in (actuation, lamp, lamp[1:-1], "actuator/hall"):
        found = await http(url, actuation=name)
        links = [link["link"] for link in found.json["links"]]
        assert links == ["update", "notification", "rule", "request", "acknowledgement"]
    assert (await http(url, actuation=lamp, at=outcome["time"])).json == found.json
    assert (await http(url, actuation=lamp, at="2020-01-01T00:00:00Z")).status == 404
    line = ("explain", "actuator/hall", "--url", gateway.query.removesuffix("/query"))
    done = await asyncio.to_thread(command, *line, "--json", "--at", outcome["time"])
    assert (done.returncode, json.loads(done.stdout)) == (0, found.json), done
    done = await asyncio.to_thread(command, *line)
    assert done.stdout.startswith(":actuator/hall") and len(done.stdout.splitlines()) == 6, done
    assert (await asyncio.to_thread(command, *line, "--at", "2020-01-01T00:00:00Z")).returncode == 4
    # Its names are more than a request may read.
    assert (await update(gateway, f"{prefixes} INSERT DATA {{ {lamp} gateway:reportedState false }}")).status == 200
    monkeypatch.setattr(kept, "ROWS_BYTES_MAX", 1)
    assert (await http(url, actuation=lamp, at=outcome["time"])).json == found.json


async def test_explanations_have_bounded_texts(gateway: Addresses) -> None:
    url = gateway.query.replace("/query", "/explain")
    time = "'2026-01-01T00:00:00Z'^^<http://www.w3.org/2001/XMLSchema#dateTime>"
    for first in range(0, 40, 10):
        names = " ".join(f"<http://lamplighter.local/lamp/{first + number}/actuation>" for number in range(10))
        text = f"INSERT {{ ?a sosa:hasSimpleResult ?x ; sosa:resultTime {time} }} "
        text += f"WHERE {{ VALUES ?a {{ {names} }} VALUES ?x {{ '{'x' * 500_000}' }} }}"
        assert (await update(gateway, f"PREFIX sosa: <http://www.w3.org/ns/sosa/> {text}")).status == 200
    assert len((await http(url, last="3")).json["outcomes"]) == 3
    answer = await http(url, last="40")
    assert (answer.status, answer.json["error"]) == (403, "limit_exceeded")


@pytest.mark.parametrize("removed", [True, False], ids=["removed", "permission taken"])
def test_a_client_that_loses_its_rights_while_it_waits_gets_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    waits = threading.Event()

    async def noted(request: Request, tail: LogTail, after: Place, seconds: float) -> None:
        waits.set()
        await limits.next_record(request, tail, after, seconds)

    monkeypatch.setattr(past, "next_record", noted)
    with SecureGateway(tmp_path) as gateway, ThreadPoolExecutor(1) as thread:
        token = gateway.bearer("anna", gateway.client("anna", operate=True))
        writer = gateway.bearer("jo", gateway.client("jo", write=["default"]))
        newest = gateway.https("GET", "/log", headers={"Authorization": token}).json["newest"]
        target = f"/log?after={newest}&wait=30"
        answer = thread.submit(gateway.https, "GET", target, headers={"Authorization": token})
        assert waits.wait(TIMEOUT_S)
        if removed:
            assert gateway.local("DELETE", "/clients/anna").status == 200
        else:
            permissions = json.dumps({"operate": False})
            assert gateway.local("PUT", "/clients/anna", permissions).status == 200
        headers = {"Authorization": writer, "Content-Type": "application/sparql-update"}
        assert gateway.https("POST", "/update", "INSERT DATA { <http://x> <http://p> 1 }", headers).status == 200
        assert answer.result(TIMEOUT_S).status == (401 if removed else 403)
