"""Followers that may not read every graph: they get the changes of theirs, and do not learn of the others."""

from __future__ import annotations

import itertools
import json
import re
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from starlette.requests import Request
from starlette.types import Send

from lamplighter.gateway.gates.changes import api, stream
from lamplighter.gateway.gates.http import waiting
from lamplighter.gateway.history import changes as history_changes
from lamplighter.gateway.log import tail as log_tail
from lamplighter.gateway.log.snapshots import Place
from lamplighter.gateway.log.tail import LogTail
from lamplighter.gateway.loop import past
from tests.support.change_replica import Replica, events
from tests.support.running_gateway import TIMEOUT_S, Answer
from tests.support.secure_gateway import SecureGateway

NDJSON, PATCH, EVENTS, QUADS = (
    "application/x-ndjson",
    "application/rdf-patch",
    "text/event-stream",
    "application/n-quads",
)
SEEN, HIDDEN = "http://g/seen", "http://g/hidden"
TABLES = {"changes": {"enabled": True}}
LONG = str(10 * TIMEOUT_S)


class Client:
    """One client of a gateway, with its token."""

    def __init__(self, gateway: SecureGateway, name: str, **permissions: Any) -> None:
        self.gateway = gateway
        self.name = name
        self._secret = gateway.client(name, **permissions)
        self.renew(gateway)

    def renew(self, gateway: SecureGateway) -> None:
        """Goes on with a gateway that was started again."""
        self.gateway = gateway
        self.token = gateway.bearer(self.name, self._secret)

    def get(self, target: str, accept: str = NDJSON) -> Answer:
        return self.gateway.https("GET", target, headers={"Authorization": self.token, "Accept": accept})

    def changes(self, after: str, accept: str = NDJSON, more: str = "") -> Answer:
        return self.get(f"/changes?after={after}{more}", accept)

    def begin(self, accept: str = NDJSON) -> Replica:
        replica = Replica()
        answer = self.get("/changes/snapshot", accept)
        assert answer.status == 200, answer.body
        if accept == PATCH:
            replica.patches(answer.body.decode())
        else:
            replica.ndjson(answer.body)
        assert replica.position
        return replica


_writers: WeakKeyDictionary[SecureGateway, str] = WeakKeyDictionary()
_names = itertools.count()


def ask(gateway: SecureGateway, *texts: str) -> None:
    """Updates of a client that may write everything."""
    if gateway not in _writers:
        _writers[gateway] = Client(gateway, f"writer-{next(_names)}", write=["*"], read=["*"]).token
    headers = {"Authorization": _writers[gateway], "Content-Type": "application/sparql-update"}
    for text in texts:
        answer = gateway.https("POST", "/update", text, headers)
        assert answer.status == 200, answer.body


def insert(graph: str, value: int) -> str:
    return f"INSERT DATA {{ GRAPH <{graph}> {{ <http://s> <http://p> {value} }} }}"


def lines(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer.body
    return [json.loads(line) for line in answer.body.splitlines()]


def position(answer: Answer) -> str:
    return answer.headers["lamplighter-position"]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[SecureGateway]:
    with SecureGateway(tmp_path, TABLES) as found:
        yield found


def test_a_restricted_follower_gets_its_graphs_and_learns_nothing_of_others(gateway: SecureGateway) -> None:
    anna = Client(gateway, "anna", read=["default", SEEN])
    ask(gateway, insert(HIDDEN, 0), insert(SEEN, 0))
    replica = anna.begin()
    begin = replica.position
    assert replica.content[1] == {f"<{SEEN}>"}
    ask(
        gateway,
        *(insert(HIDDEN, number) for number in range(1, 9)),
        f"INSERT DATA {{ <http://d> <http://p> 1 . GRAPH <{SEEN}> {{ <http://d> <http://p> 2 }} "
        f"GRAPH <{HIDDEN}> {{ <http://d> <http://p> 3 }} GRAPH <http://g/new> {{ <http://d> <http://p> 4 }} }}",
        f"CREATE GRAPH <{HIDDEN}/empty>",
        f"DROP GRAPH <{SEEN}>",
        f"DROP GRAPH <{HIDDEN}>",
    )
    answer = anna.changes(begin)
    found = lines(answer)
    assert len(found) == 2
    for line in found:
        assert set(line) <= {"position", "ts", "trusted", "graphs", "a", "d"}
        replica.line(line)
    assert HIDDEN not in answer.body.decode() and "g/new" not in answer.body.decode()
    [quad], graphs = replica.content
    assert quad[0] == "<http://d>" and quad[3] is None and graphs == set()
    assert anna.begin().content == replica.content == anna.begin(PATCH).content
    # What is hidden changes nothing in the form of an answer.
    quiet = [anna.changes(position(answer)) for _ in range(2)]
    ask(gateway, insert(HIDDEN, 1), insert(HIDDEN, 2))
    loud = [anna.changes(position(answer)) for _ in range(2)]
    texts = [position(one) for one in (*quiet, *loud)]
    assert len(set(texts)) == 4 and {len(text) for text in texts} == {75}
    assert {one.body for one in (*quiet, *loud)} == {b""}
    assert {one.headers["content-length"] for one in (*quiet, *loud)} == {"0"}
    patches = [anna.changes(begin, PATCH).body.decode() for _ in range(2)]
    ids = [re.findall(r"H id <urn:uuid:(.*)> \.", text) for text in patches]
    assert len(ids[0]) == 2 and ids[0] == ids[1]
    gw = position(gateway.local("GET", "/changes")).partition("/")[0]
    known = {str(uuid.uuid5(uuid.NAMESPACE_URL, f"lamplighter:{gw}/1/{number}")) for number in range(100)}
    assert not known & {*ids[0]}
    assert "record" not in patches[0]


def test_a_hidden_change_wakes_no_follower(gateway: SecureGateway, waits: threading.Event) -> None:
    anna = Client(gateway, "anna", read=[SEEN])
    begin = anna.begin().position
    with ThreadPoolExecutor(1) as thread:
        single = thread.submit(anna.changes, begin, NDJSON, f"&wait={LONG}")
        assert waits.wait(TIMEOUT_S)
        ask(gateway, *(insert(HIDDEN, number) for number in range(20)))
        assert anna.changes(begin, NDJSON, "&wait=0.2").body == b""
        assert not single.done()
        ask(gateway, insert(SEEN, 1))
        [line] = lines(single.result(TIMEOUT_S))
    assert line["a"][0][3] == f"<{SEEN}>"


@pytest.mark.parametrize("kept", [log_tail.TAIL_BYTES_MAX, 10], ids=["from memory", "from files"])
def test_many_hidden_changes_are_read_in_parts_that_no_one_sees(
    gateway: SecureGateway, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(log_tail, "TAIL_BYTES_MAX", kept)
    for module in (history_changes, past):
        monkeypatch.setattr(module, "SCANNED_MAX", 3)
    anna = Client(gateway, "anna", read=[SEEN])
    begin = anna.begin().position
    ask(gateway, *(insert(HIDDEN, number) for number in range(10)), insert(SEEN, 1), insert(HIDDEN, 11))
    answer = anna.changes(begin)
    [line] = lines(answer)
    assert line["a"][0][3] == f"<{SEEN}>"
    assert anna.changes(position(answer)).body == b""


def test_positions_are_of_one_client_and_survive_a_restart(tmp_path: Path) -> None:
    with SecureGateway(tmp_path, TABLES) as gateway:
        anna, jo = Client(gateway, "anna", read=[SEEN]), Client(gateway, "jo", read=[SEEN])
        full = Client(gateway, "full", read=["*"])
        replica = anna.begin()
        assert full.begin().position.startswith("gw-")
        for other, said in ((jo, "lost or replaced"), (full, "other graphs")):
            refused = other.changes(replica.position)
            assert (refused.status, refused.json["error"]) == (410, "reset")
            assert said in refused.json["error_description"]
        plain = anna.changes(full.begin().position)
        assert plain.status == 410 and "other graphs" in plain.json["error_description"]
        forged = replica.position[:-1] + ("A" if replica.position[-1] != "A" else "Q")
        assert anna.changes(forged).status == 410
        assert anna.changes(replica.position[:-1]).status == 400
        ask(gateway, insert(HIDDEN, 1), insert(SEEN, 1))
    key = tmp_path / "data" / "security" / "changes.key"
    assert key.stat().st_mode & 0o077 == 0 or key.parent.stat().st_mode & 0o077 == 0
    with SecureGateway(tmp_path, TABLES) as gateway:
        anna.renew(gateway)
        ask(gateway, insert(SEEN, 2))
        answer = anna.changes(replica.position)
        for line in lines(answer):
            replica.line(line)
        assert replica.content == anna.begin().content
        position_now = position(answer)
    key.unlink()
    with SecureGateway(tmp_path, TABLES) as gateway:
        anna.renew(gateway)
        assert anna.changes(position_now).status == 410


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a part of a stream was sent."""
    event, send = threading.Event(), stream.ChangeSending.send

    async def noted(self: stream.ChangeSending, to: Send, client: str, body: bytes, *, more: bool) -> None:
        await send(self, to, client, body, more=more)
        if more:
            event.set()

    monkeypatch.setattr(stream.ChangeSending, "send", noted)
    return event


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a request waits for a record, for as long as it takes."""
    event = threading.Event()

    async def noted(request: Request, tail: LogTail, after: Place, seconds: float) -> None:
        event.set()
        await waiting.next_record(request, tail, after, seconds)

    monkeypatch.setattr(api, "next_record", noted)
    monkeypatch.setattr(api, "WAIT_S_MAX", 10 * TIMEOUT_S)
    return event


@pytest.mark.parametrize("permissions", [{"read": ["default", SEEN]}, {"read": ["*"]}, {"read": [HIDDEN]}])
def test_other_permissions_are_a_reset(
    gateway: SecureGateway, waits: threading.Event, sent: threading.Event, permissions: dict[str, list[str]]
) -> None:
    anna = Client(gateway, "anna", read=[SEEN])
    ask(gateway, insert(SEEN, 0), insert(HIDDEN, 0))
    begin = anna.begin().position
    ask(gateway, insert(SEEN, 1))
    answer = anna.changes(begin)
    assert len(lines(answer)) == 1
    behind = position(answer)
    with ThreadPoolExecutor(2) as threads:
        single = threads.submit(anna.changes, behind, NDJSON, f"&wait={LONG}")
        streamed = threads.submit(anna.changes, begin, EVENTS)
        assert waits.wait(TIMEOUT_S) and sent.wait(TIMEOUT_S)
        assert gateway.local("PUT", "/clients/anna", json.dumps(permissions)).status == 200
        ask(gateway, insert(SEEN, 2), insert(HIDDEN, 2))
        told = streamed.result(TIMEOUT_S)
        assert single.result(TIMEOUT_S).status == 410
    refused = anna.changes(behind)
    assert refused.status == 410 and "other graphs" in refused.json["error_description"]
    found = [*events(told.body.decode())]
    assert found[-1]["event"] == "reset" and "other graphs" in found[-1]["data"]
    datas = [json.loads(event["data"]) for event in found[:-1] if "data" in event]
    assert [line["a"][0][2][:3] for line in datas] == ['"1"']
    whole = anna.begin()
    assert {quad[3] for quad in whole.content[0]} == {
        f"<{name}>" for name in (SEEN, HIDDEN) if permissions["read"] == ["*"] or name in permissions["read"]
    }


def test_a_client_that_is_removed_gets_nothing_more(
    gateway: SecureGateway, waits: threading.Event, sent: threading.Event
) -> None:
    anna = Client(gateway, "anna", read=["*"])
    begin = anna.begin().position
    with ThreadPoolExecutor(2) as threads:
        both = [
            threads.submit(anna.changes, begin, NDJSON, f"&wait={LONG}"),
            threads.submit(anna.changes, begin, EVENTS),
        ]
        assert waits.wait(TIMEOUT_S) and sent.wait(TIMEOUT_S)
        assert gateway.local("DELETE", "/clients/anna").status == 200
        ask(gateway, insert(SEEN, 1))
        single, streamed = (one.result(TIMEOUT_S) for one in both)
    assert single.status == 410 and SEEN not in single.body.decode()
    assert [event.get("event") for event in events(streamed.body.decode())] == [None, "reset"]


def test_an_operator_that_may_not_read_every_graph_is_restricted_too(gateway: SecureGateway) -> None:
    boss = Client(gateway, "boss", read=[SEEN], operate=True)
    ask(gateway, insert(HIDDEN, 0), insert(SEEN, 0))
    replica = boss.begin()
    assert len(replica.position) == 75 and replica.content[1] == {f"<{SEEN}>"}
    blind = Client(gateway, "blind", read=[], write=["*"])
    assert blind.begin().content == (set(), set())
    assert gateway.https("GET", "/changes").status == 401
