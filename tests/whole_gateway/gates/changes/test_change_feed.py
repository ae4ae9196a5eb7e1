"""The change feed of a whole gateway: others have its dataset exactly, in each form, or are told that they do not."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lamplighter.engine.errors import QueueFullError
from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.gates.changes import api
from lamplighter.gateway.gates.changes.stream import ChangeSending
from lamplighter.gateway.gates.http import waiting as limits
from lamplighter.gateway.history import changes as history_changes
from lamplighter.gateway.log import tail as log_tail
from tests.support.amounts import Amounts
from tests.support.change_replica import Replica, events
from tests.support.running_gateway import TIMEOUT_S, Answer, http, running_gateway, until, update

ON: dict[str, object] = {"enabled": True}
NDJSON, PATCH, EVENTS, QUADS = (
    "application/x-ndjson",
    "application/rdf-patch",
    "text/event-stream",
    "application/n-quads",
)
LONG = str(10 * TIMEOUT_S)


@pytest.fixture
async def feed(tmp_path: Path) -> AsyncIterator[Addresses]:
    async with running_gateway(tmp_path, changes=ON) as addresses:
        yield addresses


def url(gateway: Addresses, path: str = "/changes") -> str:
    return gateway.query.replace("/query", path)


async def changes(gateway: Addresses, after: str = "", accept: str = NDJSON, **more: str) -> Answer:
    return await http(url(gateway), headers={"Accept": accept}, **({"after": after} if after else {}), **more)


async def snapshot(gateway: Addresses, accept: str = NDJSON) -> Answer:
    """Asks again while the snapshot of another follower of this machine is being sent."""
    while (answer := await http(url(gateway, "/changes/snapshot"), headers={"Accept": accept})).status == 429:
        await asyncio.sleep(0.01)
    assert answer.status == 200, answer.body
    return answer


def at(answer: Answer) -> str:
    return answer.headers["lamplighter-position"]


async def dataset(gateway: Addresses) -> Replica:
    """What the gateway has, by a way of its own."""
    found = Replica()
    found.quads((await snapshot(gateway, QUADS)).body)
    return found


async def ask(gateway: Addresses, *texts: str) -> None:
    for text in texts:
        answer = await update(gateway, text)
        assert answer.status == 200, answer.body


def some_update(random: Random) -> str:
    """Of some quads, with blank nodes, quoted terms of all kinds, and graphs that come and go, also empty ones."""
    graph = random.choice("abc")
    value = random.choice(("1", "2", '"x\\n<_:y>"', "<http://o>"))
    quad = f"<http://s{random.randrange(4)}> <http://p{random.randrange(3)}> {value}"
    where = random.choice((f"GRAPH <http://g/{graph}> {{ {quad} }}", quad))
    return random.choice(
        (
            f"INSERT DATA {{ {where} }}",
            f"INSERT DATA {{ {where} }}",
            f"DELETE DATA {{ {where} }}",
            f"INSERT DATA {{ {where} . _:b <http://blank> _:c }}",
            f"CREATE SILENT GRAPH <http://g/{graph}>",
            f"DROP SILENT GRAPH <http://g/{graph}>",
            f"CLEAR SILENT GRAPH <http://g/{graph}>",
            f"MOVE SILENT <http://g/{graph}> TO <http://g/d>",
            "DELETE { ?s <http://blank> ?o } WHERE { { SELECT * { ?s <http://blank> ?o } LIMIT 1 } }",
        )
    )


async def replicate(gateway: Addresses, replica: Replica, accept: str, done: Callable[[], bool]) -> None:
    """Begins with a snapshot if it has nothing, and follows until it is done and has everything."""
    apply: Callable[[bytes], Any] = replica.ndjson if accept == NDJSON else lambda body: replica.patches(body.decode())
    if not replica.position:
        apply((await snapshot(gateway, accept)).body)
    while True:
        over = done()
        answer = await changes(gateway, replica.position, accept, wait="0.2", limit="7")
        assert answer.status == 200, answer.body
        before = replica.position
        apply(answer.body)
        assert answer.body or replica.position == before
        replica.position = at(answer)
        if over and not answer.body:
            return


@pytest.mark.parametrize("accept", [NDJSON, PATCH])
async def test_a_replica_equals_the_gateway_while_updates_run_and_after_a_restart(
    tmp_path: Path, accept: str, amounts: Amounts
) -> None:
    random, replica, late, found = Random(7), Replica(), Replica(), []
    for _ in range(3):
        async with running_gateway(tmp_path, changes=ON) as gateway:
            written = False

            async def write(gateway: Addresses = gateway) -> None:
                nonlocal written
                for _ in range(amounts.of(60)):
                    await ask(gateway, some_update(random))
                written = True

            await asyncio.gather(
                write(),
                replicate(gateway, replica, accept, lambda: written),  # noqa: B023 - they end in this round
                replicate(gateway, late, accept, lambda: written),  # noqa: B023
            )
            whole = await dataset(gateway)
            assert replica.content == whole.content == late.content
            late.clear()
            found.append(whole.content)
    assert any(quads for quads, _ in found) and any(graphs for _, graphs in found)


async def test_changes_have_the_members_of_the_change_log(feed: Addresses) -> None:
    base = await snapshot(feed)
    assert base.headers["cache-control"] == "no-store" and base.media_type == NDJSON
    [end] = map(json.loads, base.body.splitlines())
    assert end["position"] == at(base) and (end["epoch"], end["seq"]) == (1, 0)
    gw = end["position"].partition("/")[0]
    await ask(feed, "INSERT DATA { GRAPH <http://g> { <http://s> <http://p> 1 } }", "DROP GRAPH <http://g>")
    await update(feed, "CLEAR ALL", delay="PT1H")  # a record that changes nothing
    answer = await changes(feed, at(base))
    assert answer.headers["cache-control"] == "no-store" and answer.media_type == NDJSON
    first, second = map(json.loads, answer.body.splitlines())
    quad = ["<http://s>", "<http://p>", '"1"^^<http://www.w3.org/2001/XMLSchema#integer>', "<http://g>"]
    assert first["position"].startswith(f"{gw}/1/1/") and (first["epoch"], first["seq"]) == (1, 1)
    assert (first["a"], first["graphs"]) == ([quad], {"created": ["<http://g>"]})
    assert (second["d"], second["graphs"]) == ([quad], {"dropped": ["<http://g>"]})
    assert second["trusted"] is True and second["ts"] >= first["ts"]
    assert at(answer).startswith(f"{gw}/1/3/")  # behind the record of the delayed update
    empty = await changes(feed, at(answer))
    assert (empty.status, empty.body, at(empty)) == (200, b"", at(answer))
    assert at(await changes(feed)) == at(answer)  # without after: from now on
    head = await http(url(feed), "HEAD", after=at(base))
    assert (head.status, head.body, at(head)) == (200, b"", at(answer))
    head = await http(url(feed), "HEAD", headers={"Accept": EVENTS})
    assert (head.status, head.body) == (200, b"")
    limited = await changes(feed, at(base), limit="1")
    assert limited.body.count(b"\n") == 1 and at(limited) == first["position"]


async def test_the_same_changes_come_from_memory_and_from_the_files(
    feed: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = at(await snapshot(feed))
    random = Random(3)
    await ask(feed, *(some_update(random) for _ in range(40)))
    recent = {accept: (await changes(feed, begin, accept)).body for accept in (NDJSON, PATCH)}
    monkeypatch.setattr(log_tail, "TAIL_BYTES_MAX", 10)
    await ask(feed, "INSERT DATA { <http://last> <http://p> 1 }")
    for accept, expected in recent.items():
        found = (await changes(feed, begin, accept)).body
        assert expected and found.startswith(expected) and found != expected


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests may wait so long that no slow machine ends the wait."""
    monkeypatch.setattr(api, "WAIT_S_MAX", 10 * TIMEOUT_S)


@pytest.mark.usefixtures("long_waits")
async def test_a_request_that_waits_is_answered_by_the_next_change_and_by_nothing_else(feed: Addresses) -> None:
    await ask(feed, "INSERT DATA { <http://s> <http://p> 1 }")
    begin = at(await snapshot(feed))
    waiting = asyncio.create_task(changes(feed, begin, wait=LONG))
    await update(feed, "CLEAR ALL", delay="PT1H")
    await ask(feed, "INSERT DATA { <http://s> <http://p> 1 }", "INSERT DATA { <http://s> <http://p> 2 }")
    answer = await waiting
    [change] = map(json.loads, answer.body.splitlines())
    assert change["seq"] == 4 and at(answer) == change["position"]
    assert (await changes(feed, at(answer), wait="0.05")).body == b""


async def test_a_client_for_which_too_much_waits_gets_no_more(feed: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is refused, and a stream ends; what the others have to be sent is not counted against them."""
    sending = ChangeSending(100)
    taken = asyncio.Event()

    async def slow(message: object) -> None:
        await taken.wait()

    one = asyncio.create_task(sending.send(slow, "slow", b"x" * 60, more=True))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError, match=r"websocket\.unsent_bytes_max"):
        sending.check("slow")
    sending.check("other")
    taken.set()
    await one
    sending.check("slow")

    begin = at(await snapshot(feed))
    async with stream(feed, after=begin) as open_one:
        await open_one.next()
        refuse = ChangeSending(0).check  # it has no room
        monkeypatch.setattr(ChangeSending, "check", lambda self, client: refuse(client))
        assert (await changes(feed, begin)).status == 429
        await ask(feed, "INSERT DATA { <http://s> <http://p> 1 }")
        await open_one.end()


@pytest.mark.usefixtures("long_waits")
async def test_only_so_many_requests_wait(feed: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAITING_PER_CLIENT_MAX", 2)
    begin = at(await snapshot(feed))
    async with stream(feed, after=begin) as first:
        await first.next()
        waiting = [asyncio.create_task(changes(feed, begin, wait=LONG)) for _ in range(2)]
        done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result().status for one in done] == [429]
        assert "retry-after" in done.pop().result().headers
        await ask(feed, "INSERT DATA { <http://s> <http://p> 1 }")
        assert (await others.pop()).status == 200
        await first.next()

    async def free() -> bool:
        answers = await asyncio.gather(*(changes(feed, begin, wait="0.01") for _ in range(2)))
        return [answer.status for answer in answers] == [200, 200]

    await until(free)  # the stream has given its place back


# --- events -------------------------------------------------------------------------------------------------


class Stream:
    """An open stream of events."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def next(self) -> dict[str, str]:
        """The next event."""
        async with asyncio.timeout(TIMEOUT_S):
            block = await self._reader.readuntil(b"\n\n")
        if b"\r\n" in block:  # of chunks
            block = b"\n".join(line for line in block.splitlines() if b":" in line) + b"\n\n"
        [found] = events(block.decode())
        return found

    async def end(self) -> None:
        """Reads to the last chunk."""
        async with asyncio.timeout(TIMEOUT_S):
            await self._reader.readuntil(b"\r\n0\r\n\r\n")


@asynccontextmanager
async def stream(gateway: Addresses, **parameters: str) -> AsyncIterator[Stream]:
    """parameters: after, or last_event_id for the header."""
    port = int(gateway.query.split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    last = parameters.get("last_event_id")
    more = f"Last-Event-ID: {last}\r\n" if last else ""
    target = f"/changes?after={parameters['after']}" if "after" in parameters else "/changes"
    writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nAccept: {EVENTS}\r\n{more}\r\n".encode())
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
        assert head.startswith(b"HTTP/1.1 200"), head
        yield Stream(reader)
    finally:
        writer.close()


async def test_a_stream_of_events_follows_and_is_resumed_by_the_id_of_its_last_one(feed: Addresses) -> None:
    replica = Replica()
    replica.ndjson((await snapshot(feed)).body)
    random = Random(5)
    async with stream(feed, after=replica.position) as one:
        assert await one.next() == {"id": replica.position}  # where it stands
        for _ in range(20):
            await ask(feed, some_update(random))
        await ask(feed, "INSERT DATA { <http://end> <http://p> 1 }")
        while True:
            event = await one.next()
            assert set(event) == {"id", "data"}
            line = json.loads(event["data"])
            assert line["position"] == event["id"]
            replica.line(line)
            if line.get("a", [[""]])[0][0] == "<http://end>":
                break
    await ask(feed, *(some_update(random) for _ in range(10)), "INSERT DATA { <http://end> <http://p> 2 }")
    async with stream(feed, after="gw-x/1/1/00000000", last_event_id=replica.position) as two:
        while (await dataset(feed)).content != replica.content:
            event = await two.next()
            replica.line(json.loads(event["data"]))


async def test_a_quiet_stream_has_heartbeats_with_its_position(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with running_gateway(tmp_path, changes=ON, websocket={"port": 0, "ping_s": 1}) as gateway:
            await ask(gateway, "INSERT DATA { <http://s> <http://p> 1 }")
            begin = at(await changes(gateway))
            one = await stack.enter_async_context(stream(gateway, after=begin))
            assert [await one.next() for _ in range(3)] == [{"id": begin}] * 3
        await one.end()  # a gateway that stops ends it whole


# --- resets -------------------------------------------------------------------------------------------------


async def reset(gateway: Addresses, position: str) -> str:
    """The reason why a position cannot be continued, in each form."""
    reasons = set()
    for accept in (NDJSON, PATCH, EVENTS):
        answer = await changes(gateway, position, accept)
        assert (answer.status, answer.json["error"]) == (410, "reset"), answer.body
        reasons.add(answer.json["error_description"])
    [reason] = reasons
    assert "/changes/snapshot" in reason
    return str(reason)


async def test_a_position_of_another_gateway_or_another_history_is_a_reset(tmp_path: Path) -> None:
    old = tmp_path / "old"
    async with running_gateway(tmp_path, changes=ON) as gateway:
        await ask(gateway, *(f"INSERT DATA {{ <http://s> <http://p> {number} }}" for number in range(5)))
    shutil.copytree(tmp_path / "data", old / "data")
    async with running_gateway(tmp_path, changes=ON) as gateway:
        await ask(gateway, "INSERT DATA { <http://s> <http://p> 5 }")
        newer = at(await changes(gateway))
        assert newer.split("/")[1:3] == ["1", "6"]
        kept = at(await changes(gateway, newer))
    async with running_gateway(old, changes=ON) as gateway:  # an older copy, whose record 6 is another one
        assert "lost or replaced" in await reset(gateway, newer)
        await ask(gateway, "INSERT DATA { <http://other> <http://p> 5 }", "INSERT DATA { <http://other> <http://p> 6 }")
        assert "lost or replaced" in await reset(gateway, newer)
        gw = newer.partition("/")[0]
        for position in (f"{gw}/1/999/00000000", f"{gw}/7/1/00000000", "gw-other/1/1/00000000"):
            await reset(gateway, position)
    async with running_gateway(tmp_path, changes=ON) as gateway:
        assert (await changes(gateway, kept)).status == 200


async def test_a_follower_goes_on_over_lost_records_only_if_it_had_none_of_them(tmp_path: Path) -> None:
    random, replicas = Random(9), [Replica()]
    async with running_gateway(tmp_path, changes=ON) as gateway:
        replicas[0].ndjson((await snapshot(gateway)).body)
        for _ in range(20):
            await ask(gateway, f"INSERT DATA {{ <http://s> <http://p> '{random.randbytes(1200).hex()}' }}")
        body = (await changes(gateway, replicas[0].position)).body.splitlines()
    for end in range(1, len(body) + 1):
        replicas.append(Replica())
        replicas[-1].ndjson(b"\n".join(body[:end]))
    [segment] = (tmp_path / "data" / "log").glob("1-*.zst")
    content = bytearray(segment.read_bytes())
    content[len(content) * 2 // 3] ^= 0x10
    segment.write_bytes(content)
    async with running_gateway(tmp_path, changes=ON) as gateway:
        await ask(gateway, "INSERT DATA { <http://s> <http://p> 1 }")
        gap, commit = (await http(url(gateway, "/log"), last="2")).json["records"]
        lost = gap["gap"]["first"]
        assert commit["record"] == "2/2" and 1 < lost < len(body)
        whole = await dataset(gateway)
        for sequence, replica in enumerate(replicas):
            if sequence >= lost:
                assert "lost or replaced" in await reset(gateway, replica.position)
                continue
            replica.ndjson((await changes(gateway, replica.position)).body)
            assert replica.content == whole.content, sequence


async def test_removed_records_are_a_reset(tmp_path: Path) -> None:
    log = {"segment_bytes_max": 500, "bytes_max": 1, "snapshot_records": 10}
    async with running_gateway(tmp_path, changes=ON, log=log) as gateway:
        begin = at(await changes(gateway))
        await ask(gateway, *(f"INSERT DATA {{ <http://s> <http://p> '{number}' }}" for number in range(30)))

        async def removed() -> bool:
            await ask(gateway, "INSERT DATA { <http://s> <http://p> 1 }", "DELETE DATA { <http://s> <http://p> 1 }")
            return not (tmp_path / "data" / "log" / "1-000000000001-000000000030.ndjson.zst").exists() and all(
                not path.name.startswith("1-000000000001") for path in (tmp_path / "data" / "log").iterdir()
            )

        await until(removed)
    async with running_gateway(tmp_path, changes=ON, log=log) as gateway:
        assert "removed from the change log to free space" in await reset(gateway, begin)
        replica = Replica()
        await replicate(gateway, replica, NDJSON, lambda: True)
        assert replica.content == (await dataset(gateway)).content


async def test_a_change_that_is_too_large_is_a_reset(feed: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_changes, "PART_CHARACTERS_MAX", 5_000)
    monkeypatch.setattr(history_changes, "CHANGE_CHARACTERS_MAX", 5_000)
    begin = at(await changes(feed))
    await ask(
        feed, "INSERT DATA { <http://s> <http://p> 1 }", f"INSERT DATA {{ <http://s> <http://p> '{'x' * 5000}' }}"
    )
    first = await changes(feed, begin)
    assert first.body.count(b"\n") == 1
    assert "too large" in await reset(feed, at(first))
    async with stream(feed, after=begin) as one:
        assert json.loads((await one.next())["data"])["seq"] == 1
        event = await one.next()
        assert event["event"] == "reset" and "too large" in json.loads(event["data"])["reason"]
        await one.end()
    replica = Replica()
    await replicate(feed, replica, NDJSON, lambda: True)
    assert replica.content == (await dataset(feed)).content


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "status", "said"),
    [
        ("/changes?after=17", 400, "no position"),
        ("/changes?after=", 400, "no position"),
        ("/changes?after=gw/1/1/0000000g", 400, "no position"),
        ("/changes?after=a&after=b", 400, "may occur once"),
        ("/changes?wait=31", 400, "seconds from 0 to 30"),
        ("/changes?limit=0", 400, "from 1 to 1000"),
        ("/changes?x=1", 400, "unknown parameter"),
        ("/changes/snapshot?after=1", 400, "unknown parameter"),
        ("/changes/other", 404, "nothing at"),
    ],
)
async def test_a_bad_request_is_told_what_is_wrong(feed: Addresses, target: str, status: int, said: str) -> None:
    answer = await http(url(feed, target))
    assert (answer.status, said in answer.json["error_description"]) == (status, True), answer.body


async def test_forms_and_methods_are_those_that_there_are(feed: Addresses) -> None:
    assert (await changes(feed)).media_type == NDJSON
    assert (await changes(feed, accept="*/*")).media_type == NDJSON
    assert (await changes(feed, accept=f"{NDJSON};q=0.1, {PATCH}")).media_type == PATCH
    assert (await snapshot(feed, "*/*")).media_type == QUADS
    refused = await changes(feed, accept="text/turtle")
    assert (refused.status, refused.json["error"]) == (406, "not_acceptable")
    assert (await http(url(feed), "POST", b"")).status == 405
    assert (await changes(feed, accept=EVENTS, wait="1")).status == 400


async def test_without_the_setting_there_is_no_feed(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        for path in ("/changes", "/changes/snapshot"):
            assert (await http(url(gateway, path))).status == 404
