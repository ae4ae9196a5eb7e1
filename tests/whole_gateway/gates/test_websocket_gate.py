"""The WebSocket gate as clients see it (SEPA protocol, sections 2, 6.5 and 9)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Close, CloseCode

from lamplighter.engine.client.sending import PART_BYTES
from lamplighter.engine.errors import QueueFullError
from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.gates.websocket import _Connection
from tests.support.held_disk import HeldDisk
from tests.support.running_gateway import (
    TIMEOUT_S,
    ask,
    health,
    hear,
    http,
    rows,
    running_gateway,
    tell,
    until,
    update,
    values,
)
from tests.support.slow_sockets import slow_socket

ALL = "SELECT ?s ?o { ?s <http://p> ?o }"
SPUID = r"sepa://subscription/[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
"""As SEPA's broker forms it: with a random UUID."""
EMPTY: dict[str, Any] = {"head": {"vars": ["s", "o"]}, "results": {"bindings": []}}


def insert(subject: str, value: object = 1) -> str:
    return f"INSERT DATA {{ <http://{subject}> <http://p> {json.dumps(value, ensure_ascii=False)} }}"


async def subscribe(socket: ClientConnection, sparql: str, alias: str = "a", **members: object) -> dict[str, Any]:
    """The first notification of a new subscription."""
    answer = await ask(socket, {"subscribe": {"sparql": sparql, "alias": alias, **members}})
    assert "notification" in answer, answer
    return dict(answer["notification"])


async def notification(socket: ClientConnection) -> dict[str, Any]:
    answer = await hear(socket)
    assert "notification" in answer, answer
    return dict(answer["notification"])


def change(body: dict[str, Any]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """What a notification says was added and removed, values only."""
    return values(body["addedResults"]), values(body["removedResults"])


async def events_until_unsubscribed(socket: ClientConnection, spuid: str) -> list[dict[str, Any]]:
    """What still came for a subscription before the end of it was confirmed; nothing can come after that."""
    await tell(socket, {"unsubscribe": {"spuid": spuid}})
    found = []
    while "unsubscribed" not in (message := await hear(socket)):
        found.append(message["notification"])
    return found


@asynccontextmanager
async def running_and_connected(folder: Path, **tables: Any) -> AsyncIterator[tuple[Addresses, ClientConnection]]:
    """A gateway, and one client of it."""
    async with running_gateway(folder, **tables) as at, connect(at.subscribe) as socket:
        yield at, socket


# --- notifications ----------------------------------------------------------------------------------


async def test_the_first_notification_is_the_whole_result_with_the_alias(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        await update(at, insert("a", "x"))
        first = await ask(socket, {"subscribe": {"sparql": ALL, "alias": "lamps"}})
        row = {"s": {"type": "uri", "value": "http://a"}, "o": {"type": "literal", "value": "x"}}
        spuid = first["notification"]["spuid"]
        assert first == {
            "notification": {
                "spuid": spuid,
                "alias": "lamps",
                "sequence": 0,
                "addedResults": {"head": {"vars": ["s", "o"]}, "results": {"bindings": [row]}},
                "removedResults": EMPTY,
            }
        }
        assert re.fullmatch(SPUID, spuid)


async def test_an_empty_first_result_has_its_variables_and_no_alias_stays_none(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (_, socket):
        first = (await ask(socket, {"subscribe": {"sparql": ALL}}))["notification"]
        assert (first["addedResults"], first["removedResults"]) == (EMPTY, EMPTY)
        assert "alias" not in first


async def test_later_notifications_count_up_and_come_only_on_change(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        first = await subscribe(socket, ALL)
        await update(at, insert("a", "x"))
        await update(at, insert("a", "x"))  # it is there already
        await update(at, "INSERT DATA { <http://a> <http://other> 1 }")
        await update(at, insert("b") + " ; DELETE DATA { <http://b> <http://p> 1 }")  # no net effect
        await update(at, "DELETE { ?s <http://p> ?o } INSERT { ?s <http://p> 'y' } WHERE { ?s <http://p> ?o }")
        one, two = await notification(socket), await notification(socket)
        assert (one["alias"], two["alias"]) == ("a", "a")
        assert [one["sequence"], two["sequence"]] == [1, 2]
        assert {one["spuid"], two["spuid"]} == {first["spuid"]}
        assert one["addedResults"]["head"] == one["removedResults"]["head"] == EMPTY["head"]
        assert one["removedResults"] == EMPTY
        assert change(one) == ([{"s": "http://a", "o": "x"}], [])
        assert change(two) == ([{"s": "http://a", "o": "y"}], [{"s": "http://a", "o": "x"}])
        assert await events_until_unsubscribed(socket, first["spuid"]) == []


async def test_a_long_alias_is_in_the_first_notification_only(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        for length in (256, 257):
            first = await subscribe(socket, ALL, "a" * length)
            assert first["alias"] == "a" * length
        await update(at, insert("a", "x"))
        assert [len(one.get("alias", "")) for one in (await notification(socket), await notification(socket))] == [
            256,
            0,
        ]


async def test_ask_and_construct_are_followed(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        asked = await subscribe(socket, "ASK { ?s <http://p> 'x' }", "ask")
        made = await subscribe(socket, "CONSTRUCT { ?o <http://of> ?s } WHERE { ?s <http://p> ?o }", "made")
        assert (values(asked["addedResults"]), values(made["addedResults"])) == ([{"ask": "false"}], [])
        assert made["addedResults"]["head"]["vars"] == ["subject", "predicate", "object"]
        await update(at, insert("a", "x"))  # a literal is no subject
        await update(at, "INSERT DATA { <http://b> <http://p> <http://c> }")
        told = {one["alias"]: change(one) for one in (await notification(socket), await notification(socket))}
        assert told == {
            "ask": ([{"ask": "true"}], [{"ask": "false"}]),
            "made": ([{"subject": "http://c", "predicate": "http://of", "object": "http://b"}], []),
        }


async def test_an_update_is_answered_with_its_delta_on_request(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (_, socket):
        plain = await ask(socket, {"update": {"sparql": insert("a", "x")}})
        assert set(plain["updated"]) == {"sequence"}
        there = "GRAPH <http://g> { <http://a> <http://p> 1 }"
        moved = f"DELETE DATA {{ <http://a> <http://p> 'x' , 'y' }} ; INSERT DATA {{ {there} }}"
        asked = {"sparql": moved, "delta": True, "request_id": "one"}
        delta = (await ask(socket, {"update": asked}))["updated"]["delta"]
        assert change(delta) == (
            [{"subject": "http://a", "predicate": "http://p", "object": "1", "graph": "http://g"}],
            [{"subject": "http://a", "predicate": "http://p", "object": "x"}],
        )
        retry = await ask(socket, {"update": asked})
        assert retry["updated"]["delta"] is None, "what a retry had changed is not kept"
        many = "INSERT DATA { " + " ".join(f"<http://{number}> <http://p> 1 ." for number in range(1001)) + " }"
        await tell(socket, {"updates": [{"sparql": many, "delta": True}, {"sparql": insert("0"), "delta": True}]})
        large, nothing = (await hear(socket))["updated"], (await hear(socket))["updated"]
        assert large["delta"] is None
        assert change(nothing["delta"]) == ([], [])
        later = await ask(socket, {"update": {"sparql": insert("z"), "delta": True, "delay": "PT1H"}})
        assert set(later["updated"]) == {"sequence", "delayed"}


async def test_one_request_of_several_operations_is_one_notification(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        first = await subscribe(socket, ALL)
        await update(at, " ; ".join([insert("a"), insert("b"), "DELETE DATA { <http://a> <http://p> 1 }", insert("c")]))
        body = await notification(socket)
        added, removed = change(body)
        assert sorted(row["s"] for row in added) == ["http://b", "http://c"]
        assert removed == []
        assert await events_until_unsubscribed(socket, first["spuid"]) == []


async def test_changes_of_the_default_graph_are_told_when_nobody_names_a_graph(tmp_path: Path) -> None:
    """SEPA issue #68, and the JavaScript client's test "notification with update"."""

    async with running_and_connected(tmp_path) as (at, socket):
        await update(at, "DELETE WHERE { ?s ?p ?o }")
        assert (await subscribe(socket, "SELECT * { ?a ?b ?c }"))["sequence"] == 0
        await update(at, "INSERT DATA { <http://a> <http://b> 'ვაიმეე' }")
        assert change(await notification(socket))[0] == [{"a": "http://a", "b": "http://b", "c": "ვაიმეე"}]


async def test_an_optional_part_that_appears_replaces_the_row_once(tmp_path: Path) -> None:
    """SEPA issue #32."""
    text = "SELECT ?s ?x ?y { ?s a <http://T> OPTIONAL { ?s <http://x> ?x } OPTIONAL { ?s <http://y> ?y } }"

    async with running_and_connected(tmp_path) as (at, socket):
        first = await subscribe(socket, text)
        for operation in (
            "INSERT DATA { <http://a> a <http://T> }",
            "INSERT DATA { <http://a> <http://x> 1 }",
            "INSERT DATA { <http://a> <http://y> 2 }",
            "DELETE DATA { <http://a> <http://x> 1 }",
        ):
            await update(at, operation)
        bare, with_x = {"s": "http://a"}, {"s": "http://a", "x": "1"}
        both, with_y = {"s": "http://a", "x": "1", "y": "2"}, {"s": "http://a", "y": "2"}
        told = [change(await notification(socket)) for _ in range(4)]
        assert told == [([bare], []), ([with_x], [bare]), ([both], [with_x]), ([with_y], [both])]
        assert await events_until_unsubscribed(socket, first["spuid"]) == []


async def test_duplicates_are_counted(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        await subscribe(socket, "SELECT ?o { ?s <http://p> ?o }")
        await update(at, f"{insert('a')} ; {insert('b')}")
        await update(at, insert("c"))
        await update(at, "DELETE DATA { <http://a> <http://p> 1 . <http://c> <http://p> 1 }")
        told = [change(await notification(socket)) for _ in range(3)]
        one = {"o": "1"}
        assert told == [([one, one], []), ([one], []), ([], [one, one])]


async def test_several_subscriptions_share_a_socket_and_each_counts_for_itself(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        texts = {"first": ALL, "second": "SELECT ?x { ?x <http://q> 1 }", "third": ALL}
        for alias, text in texts.items():
            await tell(socket, {"subscribe": {"sparql": text, "alias": alias}})
        spuids = {}
        for _ in texts:
            body = await notification(socket)
            assert body["sequence"] == 0
            spuids[body["alias"]] = body["spuid"]
        assert set(spuids) == set(texts)
        assert len(set(spuids.values())) == 3
        await update(at, insert("a"))
        told = [await notification(socket) for _ in range(2)]
        assert {(body["spuid"], body["sequence"]) for body in told} == {(spuids["first"], 1), (spuids["third"], 1)}
        await update(at, "INSERT DATA { <http://a> <http://q> 1 }")
        body = await notification(socket)
        assert (body["spuid"], body["sequence"]) == (spuids["second"], 1)
        assert await events_until_unsubscribed(socket, spuids["first"]) == []
        await update(at, insert("b"))
        body = await notification(socket)
        assert (body["spuid"], body["sequence"]) == (spuids["third"], 2)


async def test_a_large_first_result_is_one_message(tmp_path: Path) -> None:
    huge = "x" * 6000
    async with running_gateway(tmp_path) as at, connect(at.subscribe, max_size=None) as socket:
        await update(at, " ; ".join(insert(str(number), huge) for number in range(100)))
        first = await subscribe(socket, ALL)
        assert len(values(first["addedResults"])) == 100


# --- requests ---------------------------------------------------------------------------------------


async def test_members_that_nobody_knows_are_ignored(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (_, socket):
        extra = {"timeout": 5000, "authorization": "Bearer x", "headers": {"a": [1]}, "httpsAgent": None}
        first = await subscribe(socket, ALL, "a", **extra)
        answer = await ask(socket, {"unsubscribe": {"spuid": first["spuid"], "alias": "a", "timeout": 5000}})
        assert answer == {"unsubscribed": {"spuid": first["spuid"]}}


@pytest.mark.parametrize("graphs", ["http://g1", ["http://g1"]])
async def test_graph_parameters_are_a_string_or_an_array(tmp_path: Path, graphs: str | list[str]) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        await update(at, insert("default"))
        in_graph = "SELECT ?s { GRAPH ?g { ?s ?p ?o } }"
        for text, member in ((ALL, "default-graph-uri"), (in_graph, "named-graph-uri")):
            first = await subscribe(socket, text, "a", **{member: graphs})
            assert change(first) == ([], [])
        await update(at, "INSERT DATA { GRAPH <http://g2> { <http://no> <http://p> 1 } }")
        await update(at, "INSERT DATA { GRAPH <http://g1> { <http://yes> <http://p> 1 } }")
        told = [change(await notification(socket)) for _ in range(2)]
        assert [[row["s"] for row in added] for added, _ in told] == [["http://yes"], ["http://yes"]]


WRONG: list[tuple[str | bytes, str | None, int]] = [
    ("no JSON", None, 400),
    ("[" * 100_000, None, 400),
    (b"\xff\xfe", None, 400),
    ("5", None, 400),
    ("{}", None, 400),
    ('{"hello": {"alias": "a"}}', None, 400),
    ('{"subscribe": null}', None, 400),
    ('{"subscribe": {"alias": "a"}}', "a", 400),
    ('{"subscribe": {"sparql": 5, "alias": "a"}}', "a", 400),
    ('{"subscribe": {"sparql": "SELECT oops", "alias": "a"}}', "a", 400),
    ('{"subscribe": {"sparql": "DESCRIBE <http://x>", "alias": "a"}}', "a", 400),
    ('{"subscribe": {"sparql": "SELECT (RAND() AS ?r) {}", "alias": "a"}}', "a", 400),
    ('{"subscribe": {"sparql": "SELECT * { SERVICE <http://x> { ?s ?p ?o } }", "alias": "a"}}', "a", 400),
    ('{"subscribe": {"sparql": "SELECT * {}", "default-graph-uri": "relative", "alias": "a"}}', "a", 400),
    ('{"subscribe": {"sparql": "SELECT * {}", "default-graph-uri": [1], "alias": "a"}}', "a", 400),
    ('{"unsubscribe": {"alias": "a"}}', "a", 400),
    ('{"unsubscribe": {"spuid": "sepa://subscription/unknown", "alias": "a"}}', "a", 500),
    ('{"update": {"sparql": "INSERT oops", "alias": "a"}}', "a", 400),
    ('{"update": {"sparql": "LOAD <http://x>", "alias": "a"}}', "a", 400),
    ('{"update": {"sparql": "CLEAR ALL", "delay": "soon", "alias": "a"}}', "a", 400),
    ('{"update": {"sparql": "CLEAR ALL", "delay": "PT1S", "missed": "later", "alias": "a"}}', "a", 400),
    ('{"update": {"sparql": "CLEAR ALL", "missed": "skip", "alias": "a"}}', "a", 400),
    ('{"update": {"sparql": "CLEAR ALL", "at": "9999-12-31T23:59:59-14:00", "alias": "a"}}', "a", 400),
    ('{"query": {"sparql": "SELECT oops", "alias": "a"}}', "a", 400),
]


async def test_a_wrong_message_gets_an_error_with_its_alias_and_the_socket_stays_open(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        for text, alias, status in WRONG:
            await socket.send(text)
            answer = await hear(socket)
            assert answer.get("alias") == alias, text
            assert set(answer) - {"alias"} == {"error", "status_code", "error_description"}, text
            assert answer["status_code"] == status, text
            assert all(isinstance(answer[name], str) for name in ("error", "error_description"))
        state = await health(at)
        assert (state["subscriptions"], state["sequence"]) == (0, 0)
        assert (await subscribe(socket, ALL))["sequence"] == 0


CODES: list[tuple[str, str, int]] = [
    ("no JSON", "JsonParseException", 400),
    ("[1, 2]", "unsupported", 400),
    ('{"hello": 1}', "unsupported", 400),
    ('{"subscribe": {"alias": "a"}}', "Exception", 400),
    ('{"unsubscribe": {"alias": "a"}}', "Exception", 400),
    ('{"subscribe": {"sparql": "SELECT oops", "alias": "a"}}', "parsing failed", 400),
    ('{"unsubscribe": {"spuid": "sepa://subscription/x", "alias": "a"}}', "sid_not_found", 500),
    ('{"subscribe": {"sparql": "DESCRIBE <http://x>", "alias": "a"}}', "unsupported", 400),
    ('{"subscribe": {"sparql": "CONSTRUCT WHERE { ?s ?p [] }", "alias": "a"}}', "unsupported", 400),
    ('{"query": {"sparql": "SELECT oops", "alias": "a"}}', "SPARQL11ProtocolException", 400),
    ('{"update": {"alias": "a"}}', "SPARQL11ProtocolException", 400),
]
"""Protocol 2.6; what is not SEPA's has the codes of HTTP."""


async def test_the_codes_are_those_of_the_protocol(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (_, socket):
        for text, code, status in CODES:
            await socket.send(text)
            answer = await hear(socket)
            assert (answer["error"], answer["status_code"]) == (code, status), text
            assert answer.get("alias") == ("a" if "alias" in text else None), text
        broken = await ask(socket, {"subscribe": {"sparql": "SELECT * {\n oops", "alias": "a"}})
        assert broken["error_description"].startswith("line 2, column ")
        describe = await ask(socket, {"subscribe": {"sparql": "DESCRIBE <http://x>", "alias": "a"}})
        assert "DESCRIBE" in describe["error_description"]
        assert "SELECT" in describe["error_description"]


async def test_unsubscribe_is_confirmed_and_final_and_cannot_be_repeated(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        gone, stays = await subscribe(socket, ALL, "gone"), await subscribe(socket, ALL, "stays")
        answer = await ask(socket, {"unsubscribe": {"spuid": gone["spuid"]}})
        assert answer == {"unsubscribed": {"spuid": gone["spuid"]}}
        await update(at, insert("a"))
        assert (await notification(socket))["spuid"] == stays["spuid"]
        assert await events_until_unsubscribed(socket, stays["spuid"]) == []
        again = await ask(socket, {"unsubscribe": {"spuid": gone["spuid"], "alias": "x"}})
        assert (again["error"], again["alias"]) == ("sid_not_found", "x")
        assert (await health(at))["subscriptions"] == 0


async def test_nobody_can_end_the_subscription_of_another_socket(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        mine = await subscribe(socket, ALL)
        async with connect(at.subscribe) as stranger:
            answer = await ask(stranger, {"unsubscribe": {"spuid": mine["spuid"]}})
            assert (answer["error"], answer["status_code"]) == ("sid_not_found", 500)
        await update(at, insert("a"))
        assert (await notification(socket))["sequence"] == 1


async def test_subscriptions_end_with_their_socket_however_it_ends(gateway: Addresses) -> None:
    async with connect(gateway.subscribe) as polite, connect(gateway.subscribe) as rude:
        for socket in (polite, rude):
            for alias in ("a", "b"):
                await subscribe(socket, ALL, alias)
        assert (await health(gateway))["subscriptions"] == 4
        await tell(rude, {"subscribe": {"sparql": ALL}})  # its answer finds nobody
        rude.transport.abort()
        await polite.close()

    async def all_ended() -> bool:
        return bool((await health(gateway))["subscriptions"] == 0)

    await until(all_ended)
    assert (await update(gateway, insert("a"))).status == 200
    assert (await health(gateway))["counters"]["notifications"] == 0


async def test_a_subscription_that_waits_in_the_queue_ends_with_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = HeldDisk(monkeypatch)
    tables: dict[str, dict[str, object]] = {
        "gateway": {"durability": "fsync"},
        "websocket": {"connections_max": 1},
    }
    async with running_gateway(tmp_path, **tables) as at:
        disk.hold()
        try:
            slow = asyncio.create_task(update(at, insert("a")))
            assert await asyncio.to_thread(disk.asked.wait, 60)
            async with connect(at.subscribe) as gone:
                await tell(gone, {"subscribe": {"sparql": ALL}})

            async def is_gone() -> bool:
                try:
                    async with connect(at.subscribe):
                        return True
                except InvalidStatus:  # the only place is still taken
                    return False

            await until(is_gone)
            assert not slow.done()
        finally:
            disk.release()
        assert (await slow).status == 200

        async def ended() -> bool:
            state = await health(at)
            return (state["counters"]["subscribes"], state["subscriptions"]) == (1, 0)

        await until(ended)


@pytest.mark.parametrize("path", ["/", "/subscribe/", "/secure/subscribe"])
async def test_a_wrong_path_is_refused_and_the_right_one_named(gateway: Addresses, path: str) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await connect(gateway.subscribe.removesuffix("/subscribe") + path)
    assert caught.value.response.status_code == 404
    assert b"/subscribe" in (caught.value.response.body or b"")


async def test_a_parameter_of_the_address_is_refused_by_name(gateway: Addresses) -> None:
    for parameters in ("client=x", "access_token=SECRET&client=x", "client"):
        with pytest.raises(InvalidStatus) as caught:
            await connect(f"{gateway.subscribe}?{parameters}")
        assert caught.value.response.status_code == 400
        error = json.loads(caught.value.response.body or b"")
        assert error["error"] == "SPARQL11ProtocolException"
        assert f"unknown parameter {parameters.partition('=')[0]}: the address" in error["error_description"]
        assert "SECRET" not in error["error_description"]
    async with connect(gateway.subscribe + "?") as socket:
        await subscribe(socket, ALL)


# --- updates and queries over the socket ------------------------------------------------------------


async def test_an_update_is_answered_with_the_sequence_of_its_commit(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        answer = await ask(socket, {"update": {"sparql": insert("a"), "alias": "u"}})
        assert answer == {"updated": {"alias": "u", "sequence": 1}}
        assert await ask(socket, {"update": {"sparql": insert("b")}}) == {"updated": {"sequence": 2}}
        assert [row["s"] for row in await rows(at, ALL + " ORDER BY ?s")] == ["http://a", "http://b"]


async def test_a_batch_has_a_commit_and_an_answer_for_each_update(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (_, socket):
        first = await subscribe(socket, ALL)
        texts = [insert("a"), "INSERT oops", insert("c")]
        batch: list[Any] = [{"sparql": text, "alias": f"u{number}"} for number, text in enumerate(texts)]
        await tell(socket, {"updates": [*batch, {"alias": "u3"}, 5, {"sparql": insert("d"), "alias": "u4"}]})
        messages = [await hear(socket) for _ in range(9)]
        told = [message["notification"] for message in messages if "notification" in message]
        done = [message["updated"] for message in messages if "updated" in message]
        errors = [message for message in messages if "error" in message]
        assert [(body["sequence"], change(body)[0][0]["s"]) for body in told] == [
            (1, "http://a"),
            (2, "http://c"),
            (3, "http://d"),
        ]
        assert done == [{"alias": alias, "sequence": number} for number, alias in enumerate(("u0", "u2", "u4"), 1)]
        assert [error.get("alias", "") for error in errors] == ["u1", "u3", ""]
        answers = [message.get("updated", message) for message in messages if "notification" not in message]
        assert [body.get("alias", "") for body in answers] == ["u0", "u1", "u2", "u3", "", "u4"]
        assert await events_until_unsubscribed(socket, first["spuid"]) == []


async def test_a_message_for_which_the_queue_has_no_room_is_refused_whole(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path, gateway={"queue_max": 10}) as (at, socket):
        await tell(
            socket, {"updates": [{"sparql": insert(f"s{number}"), "alias": f"u{number}"} for number in range(11)]}
        )
        refused = [await hear(socket) for _ in range(11)]
        assert [(answer["alias"], answer["status_code"]) for answer in refused] == [(f"u{n}", 429) for n in range(11)]
        await tell(socket, {"update": {"sparql": insert("a"), "alias": "u"}})
        assert await hear(socket) == {"updated": {"alias": "u", "sequence": 1}}
        assert [row["s"] for row in await rows(at, ALL)] == ["http://a"]


async def test_answers_that_may_come_together_come_in_one_message(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (_, socket):
        texts = [insert("a"), "INSERT oops", insert("c")]
        members = [{"sparql": text, "alias": f"u{number}", "together": True} for number, text in enumerate(texts)]
        answers: list[Any] = []
        await tell(socket, {"updates": members})
        while len(answers) < 3:  # a busy gateway may send them in several groups
            message = await hear(socket)
            answers += message.get("answers", [message])
        assert [answers[0], answers[2]] == [
            {"updated": {"alias": "u0", "sequence": 1}},
            {"updated": {"alias": "u2", "sequence": 2}},
        ]
        assert (answers[1]["alias"], answers[1]["status_code"]) == ("u1", 400)
        await tell(socket, {"update": {"sparql": insert("d"), "alias": "u3", "together": True}})
        assert await hear(socket) == {"updated": {"alias": "u3", "sequence": 3}}


async def test_a_query_is_answered_with_its_results(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        await update(at, insert("a", "x"))
        answer = await ask(socket, {"query": {"sparql": ALL, "alias": "q"}})
        assert set(answer) == {"answer"}
        assert answer["answer"]["alias"] == "q"
        assert values(answer["answer"]["results"]) == [{"s": "http://a", "o": "x"}]
        yes = await ask(socket, {"query": {"sparql": "ASK { <http://a> ?p ?o }"}})
        assert yes == {"answer": {"results": {"head": {}, "boolean": True}}}


async def test_a_query_sees_what_was_sent_before_it_and_nothing_after(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (_, socket):
        for number in range(4):  # in one go, without waiting
            await tell(socket, {"update": {"sparql": insert(str(number))}})
            await tell(socket, {"query": {"sparql": ALL, "alias": str(number)}})
        found: dict[str, int] = {}
        while len(found) < 4:
            message = await hear(socket)
            if "answer" in message:
                found[message["answer"]["alias"]] = len(values(message["answer"]["results"]))
        assert found == {"0": 1, "1": 2, "2": 3, "3": 4}


async def test_an_update_can_be_delayed(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        first = await subscribe(socket, ALL)
        asked = {"sparql": insert("later"), "alias": "u", "delay": "PT1H", "missed": "skip"}
        later = await ask(socket, {"update": asked})
        assert (later["updated"]["alias"], later["updated"]["sequence"]) == ("u", 1)
        await tell(socket, {"update": {"sparql": insert("soon"), "at": "2001-01-01T00:00:00Z"}})
        messages = [await hear(socket) for _ in range(2)]
        assert [next(iter(message)) for message in messages] == ["updated", "notification"]
        assert change(messages[1]["notification"])[0] == [{"s": "http://soon", "o": "1"}]
        [row] = (await http(at.delayed)).json["delayed"]
        assert (row["id"], row["missed"]) == (later["updated"]["delayed"], "skip")
        assert await events_until_unsubscribed(socket, first["spuid"]) == []


async def test_a_retry_under_the_same_request_id_has_one_effect(tmp_path: Path) -> None:
    fresh = "INSERT { ?new <http://p> 1 } WHERE { BIND(UUID() AS ?new) }"

    async with running_and_connected(tmp_path) as (at, socket):
        message = {"update": {"sparql": fresh, "alias": "u", "request_id": "r"}}
        answers = [await ask(socket, message) for _ in range(2)]
        assert answers == [{"updated": {"alias": "u", "sequence": 1}}] * 2
        assert len(await rows(at, ALL)) == 1


# --- limits -----------------------------------------------------------------------------------------


async def test_subscriptions_of_one_client_are_limited(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path, websocket={"subscriptions_per_client_max": 2}) as (_, socket):
        for alias in "abcd":  # in one go: those on their way count
            await tell(socket, {"subscribe": {"sparql": ALL, "alias": alias}})
        messages = [await hear(socket) for _ in range(4)]
        bodies = [message["notification"] for message in messages if "notification" in message]
        refused = [message for message in messages if "error" in message]
        assert sorted(body["alias"] for body in bodies) == ["a", "b"]
        assert [(error["alias"], error["error"]) for error in refused] == [
            ("c", "limit_exceeded"),
            ("d", "limit_exceeded"),
        ]
        await ask(socket, {"unsubscribe": {"spuid": bodies[0]["spuid"]}})
        assert (await subscribe(socket, ALL, "e"))["alias"] == "e"


async def test_connections_are_limited(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path, websocket={"connections_max": 1}) as (at, socket):
        with pytest.raises(InvalidStatus) as caught:
            await connect(at.subscribe)
        assert caught.value.response.status_code == 503
        assert (await subscribe(socket, ALL))["sequence"] == 0


@asynccontextmanager
async def slow_client(at: Addresses) -> AsyncIterator[ClientConnection]:
    """It sends no pings, whose answers it would not read either."""
    raw = await slow_socket(int(at.subscribe.rpartition(":")[2].partition("/")[0]))
    async with connect(
        at.subscribe, sock=raw, max_size=None, max_queue=1, close_timeout=1, ping_interval=None
    ) as socket:
        yield socket


SLOW = {"outbox_bytes_max": 200_000, "ping_s": 600}  # who does not read sees no pings, and takes its time
LONG = 20_000
"""Characters of a value: few of them are more than a slow client's outbox and its buffers take."""
CHANGE_ALL = "DELETE { ?s ?p ?o } INSERT { ?s ?p '%s' } WHERE { ?s ?p ?o }"


async def is_disconnected(socket: ClientConnection) -> Close | None:
    """What the gateway said about it."""
    with pytest.raises(ConnectionClosed) as closed:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                await socket.recv()
    return closed.value.rcvd


async def test_a_client_that_lets_too_much_wait_is_disconnected_and_the_others_go_on(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path, websocket=SLOW) as (at, socket):
        async with slow_client(at) as slow:
            await subscribe(slow, ALL)
            await subscribe(socket, ALL)
            for number in range(1, 60):
                await update(at, insert(str(number), str(number % 10) * 2 * LONG))
                assert (await notification(socket))["sequence"] == number
                if (await health(at))["subscriptions"] == 1:
                    break
            assert (await health(at))["subscriptions"] == 1, "the slow client is still there"
            told = await is_disconnected(slow)
            assert told is not None and told.code == CloseCode.TRY_AGAIN_LATER
            assert told.reason == "websocket.outbox_bytes_max is reached: read faster, or subscribe to less"
        await update(at, insert("end"))
        assert change(await notification(socket))[0] == [{"s": "http://end", "o": "1"}]


async def test_what_a_slow_client_did_not_read_in_time_is_told_as_one_change(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path, websocket=SLOW) as (at, socket):
        await update(at, insert("a", "x" * LONG))
        async with slow_client(at) as slow:
            known = values((await subscribe(slow, ALL))["addedResults"])
            await subscribe(socket, ALL)
            for number in range(1, 61):
                await update(at, CHANGE_ALL % (str(number % 10) * LONG))
                assert (await notification(socket))["sequence"] == number
            assert (await health(at))["counters"]["compositions"] > 0
            await update(at, CHANGE_ALL % "end")
            await tell(slow, {"query": {"sparql": "ASK {}", "alias": "end"}})
            sequence = 0
            while "answer" not in (message := await hear(slow)):
                body = message["notification"]
                added, removed = change(body)
                sequence += 1
                assert (body["sequence"], removed) == (sequence, known)
                known = added
            assert known == [{"s": "http://a", "o": "end"}]
            assert sequence < 61


@pytest.mark.parametrize("resume", [None, {"keep": "PT10M"}])
async def test_a_client_that_asks_is_told_the_commit_of_each_notification(
    tmp_path: Path, resume: dict[str, str] | None
) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        await update(at, insert("before"))
        asked = await subscribe(socket, ALL, commit=True, resume=resume)
        other = await subscribe(socket, ALL)
        assert "commit" not in asked
        for number in range(1, 4):
            sequence = (await update(at, insert(str(number)))).json["sequence"]
            told = {body["spuid"]: body for body in [await notification(socket), await notification(socket)]}
            assert told[asked["spuid"]]["commit"] == {"epoch": 1, "seq": sequence}
            assert "commit" not in told[other["spuid"]]
        for member in (False, "yes", None):
            await subscribe(socket, "SELECT ?s { ?s <http://q> ?o }", commit=member)
        await update(at, "INSERT DATA { <http://a> <http://q> 1 }")
        assert not any(["commit" in await notification(socket) for _ in range(3)])


# --- resuming ---------------------------------------------------------------------------------------

KEEP = {"keep": "PT10M"}
TELL_CLASS: dict[str, Any] = {"class": True}


def resuming(first: dict[str, Any], sequence: int) -> dict[str, Any]:
    """The member that goes on with a subscription."""
    return {**KEEP, "spuid": first["spuid"], "sequence": sequence}


async def away(at: Addresses, count: int = 1) -> None:
    """Waits until so many resumable subscriptions have nobody attached."""

    async def holds() -> bool:
        return bool((await health(at))["resumable"]["away"] == count)

    await until(holds)


async def told(socket: ClientConnection, count: int) -> list[tuple[int, str]]:
    """Sequence and added subject of so many notifications."""
    bodies = [await notification(socket) for _ in range(count)]
    return [(body["sequence"], change(body)[0][0]["s"].removeprefix("http://")) for body in bodies]


async def test_a_resumable_subscription_has_a_spuid_of_its_own_kind_and_says_for_how_long(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path, resume={"keep_s_max": 7200}) as (at, socket):
        first = await subscribe(socket, ALL, resume={"keep": "PT10M"})
        assert (first["sequence"], first["alias"], first["resume"]) == (0, "a", {"keep": "PT10M"})
        assert re.fullmatch(SPUID, first["spuid"])
        assert "reset" not in first
        capped = await subscribe(socket, ALL, resume={"keep": "P30D"}, **TELL_CLASS)
        assert (capped["resume"], capped["class"]) == ({"keep": "PT2H"}, "telescoped")
        assert "resume" not in await subscribe(socket, ALL, resume=None)
        await update(at, insert("a"))
        assert await told(socket, 3) == [(1, "a")] * 3
        listed = (await http(at.health.replace("/health", "/subscriptions"))).json
        assert listed["total"] == 3
        assert first["spuid"] not in json.dumps(listed)
        assert first["spuid"][:28] + "…" in {row["spuid"] for row in listed["subscriptions"]}


async def test_whoever_comes_back_is_told_what_it_missed_and_then_what_comes(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        await update(at, insert("0"))
        first = await subscribe(socket, ALL, resume=KEEP)
        await update(at, insert("1"))
        assert await told(socket, 1) == [(1, "1")]
        socket.transport.abort()
        await away(at)
        for number in range(2, 5):
            await update(at, insert(str(number)))
        for seen in (1, 3, 4):  # those behind `seen` did not arrive, though they may have been sent
            async with connect(at.subscribe) as again:
                message = {"sparql": ALL, "alias": "b", "resume": resuming(first, seen)}
                answer = await ask(again, {"subscribe": message})
                assert answer == {"resumed": {"spuid": first["spuid"], "alias": "b", "sequence": 4}}
                assert await told(again, 4 - seen) == [(number, str(number)) for number in range(seen + 1, 5)]
            await away(at)
        async with connect(at.subscribe) as again:
            await ask(again, {"subscribe": {"sparql": ALL, "resume": resuming(first, 4)}})
            await update(at, insert("5"))
            assert await told(again, 1) == [(5, "5")]
        assert (await health(at))["counters"]["resumed"] == 4


async def test_it_goes_on_after_the_gateway_was_restarted(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as at, connect(at.subscribe) as socket:
        await update(at, insert("0"))
        first = await subscribe(socket, ALL, resume=KEEP)
        ended = await subscribe(socket, ALL, resume=KEEP)
        limited = await subscribe(socket, ALL + " LIMIT 3", resume=KEEP)
        await ask(socket, {"unsubscribe": {"spuid": ended["spuid"]}})
        await update(at, insert("1"))
        await update(at, insert("2"))
    async with running_gateway(tmp_path) as at, connect(at.subscribe) as socket:
        await away(at)
        await update(at, insert("3"))
        answer = await ask(socket, {"subscribe": {"sparql": ALL, "resume": resuming(first, 1)}})
        assert answer == {"resumed": {"spuid": first["spuid"], "sequence": 3}}
        assert await told(socket, 2) == [(2, "2"), (3, "3")]
        for gone, reason in ((ended, "no subscription"), (limited, "LIMIT without ORDER BY")):
            fresh = await subscribe(socket, ALL + " LIMIT 3", resume=resuming(gone, 0))
            assert (fresh["sequence"], len(values(fresh["addedResults"]))) == (0, 3)
            assert reason in fresh["reset"]
        assert (await health(at))["counters"]["resets"] == 2


async def test_columns_of_select_star_stay_those_of_the_text_over_a_restart(tmp_path: Path) -> None:
    star, columns = "SELECT * { ?s ?p ?o OPTIONAL { ?o <http://q> ?a } }", ["s", "p", "o", "a"]
    async with running_gateway(tmp_path) as at, connect(at.subscribe) as socket:
        first = await subscribe(socket, star, resume=KEEP)
        assert first["addedResults"]["head"]["vars"] == first["removedResults"]["head"]["vars"] == columns
        await update(at, insert("1"))
        assert (await notification(socket))["addedResults"]["head"]["vars"] == columns
    async with running_gateway(tmp_path) as at, connect(at.subscribe) as socket:
        await away(at)
        await update(at, insert("2"))
        answer = await ask(socket, {"subscribe": {"sparql": star, "resume": resuming(first, 1)}})
        assert answer == {"resumed": {"spuid": first["spuid"], "sequence": 2}}
        await update(at, insert("3"))
        for _ in range(2):
            body = await notification(socket)
            assert body["addedResults"]["head"]["vars"] == body["removedResults"]["head"]["vars"] == columns


async def test_whoever_cannot_go_on_begins_anew_and_is_told_why(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path, resume={"outbox_bytes_max": 2000}) as (at, socket):
        first = await subscribe(socket, ALL, resume=KEEP)
        for number in range(20):
            await update(at, insert(str(number)))
        assert len(await told(socket, 20)) == 20
        other = "SELECT ?s { ?s <http://p> ?o }"
        unknown = {"spuid": "sepa://subscription/unknown"}
        spuids = {first["spuid"]}
        second = await subscribe(socket, ALL, resume=KEEP)
        for text, resume, reason in (
            (ALL, resuming(unknown, 1), "no subscription of this client has that spuid"),
            (other, resuming(first, 20), "another query"),
            (ALL, resuming(second, 1), "last notification has the sequence 0"),
            (ALL, resuming(first, 1), "no longer retained"),
        ):
            fresh = await subscribe(socket, text, "new", resume=resume)
            assert reason in fresh["reset"]
            assert (fresh["sequence"], fresh["alias"], fresh["resume"]) == (0, "new", KEEP)
            assert len(values(fresh["addedResults"])) == 20
            assert fresh["spuid"] not in spuids
            spuids.add(fresh["spuid"])
        # What the client cannot go on with on this connection has ended in favour of the new ones.
        await update(at, insert("end"))
        assert [sequence for sequence, _ in await told(socket, 4)] == [1, 1, 1, 1]
        assert (await health(at))["subscriptions"] == 4


async def test_a_subscription_is_taken_over_from_another_connection_but_not_from_the_same(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        first = await subscribe(socket, ALL, resume=KEEP)
        async with connect(at.subscribe) as other:
            message = {"subscribe": {"sparql": ALL, "alias": "b", "resume": resuming(first, 0)}}
            for _ in range(2):
                answer = await ask(other, message)
                assert answer == {"resumed": {"spuid": first["spuid"], "alias": "b", "sequence": 0}}
            error = await hear(socket)
            assert (error["error"], error["alias"], error["spuid"]) == ("sid_not_found", "a", first["spuid"])
            await update(at, insert("1"))
            assert await told(other, 1) == [(1, "1")]
            # Nothing more of it here, and it is none of this connection's business any more.
            refused = await ask(socket, {"unsubscribe": {"spuid": first["spuid"], "alias": "u"}})
            assert (refused["error"], refused["alias"]) == ("sid_not_found", "u")
        await away(at)
        answer = await ask(socket, {"unsubscribe": {"spuid": first["spuid"]}})
        assert answer == {"unsubscribed": {"spuid": first["spuid"]}}
        assert (await health(at))["subscriptions"] == 0


async def test_a_subscription_whose_client_stays_away_for_too_long_ends(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path) as (at, socket):
        await subscribe(socket, ALL, resume={"keep": "PT0S"})
        await subscribe(socket, ALL)
        await socket.close()

        async def ended() -> bool:
            return bool((await health(at))["subscriptions"] == 0)

        await until(ended)
        assert (await health(at))["sequence"] == 2  # it is on record


async def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    clock = "SELECT ?s (<http://lamplighter.example/ns/gateway#clock>() AS ?t) { ?s ?p ?o }"
    wrong: list[tuple[str, object, str, int]] = [
        (ALL, {}, "Exception", 400),
        (ALL, "PT1M", "Exception", 400),
        (ALL, {"keep": "soon"}, "SPARQL11ProtocolException", 400),
        (ALL, {"keep": "PT1M", "spuid": "x"}, "Exception", 400),
        (ALL, {"keep": "PT1M", "sequence": 1}, "Exception", 400),
        (ALL, {"keep": "PT1M", "spuid": "x", "sequence": -1}, "Exception", 400),
        ("SELECT oops", KEEP, "parsing failed", 400),
        (clock, KEEP, "unsupported", 400),
    ]

    async with running_and_connected(tmp_path, resume={"subscriptions_max": 1}) as (at, socket):
        for text, resume, code, status in wrong:
            answer = await ask(socket, {"subscribe": {"sparql": text, "alias": "x", "resume": resume}})
            assert (answer.get("error"), answer.get("status_code"), answer.get("alias")) == (code, status, "x"), resume
        await subscribe(socket, ALL, resume=KEEP)
        answer = await ask(socket, {"subscribe": {"sparql": ALL, "resume": KEEP}})
        assert answer["error"] == "limit_exceeded"
        assert "resume.subscriptions_max = 1" in answer["error_description"]
        state = await health(at)
        assert (state["subscriptions"], state["sequence"]) == (1, 1)


async def test_a_resumable_client_that_is_too_slow_is_disconnected_with_nothing_composed(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path, websocket=SLOW) as (at, socket):
        await update(at, insert("a", "x" * LONG))
        async with slow_client(at) as slow:
            first = await subscribe(slow, ALL, resume=KEEP)
            for number in range(60):
                await update(at, CHANGE_ALL % (str(number % 10) * LONG))
            await is_disconnected(slow)
        assert (await health(at))["counters"]["compositions"] == 0
        fresh = await subscribe(socket, ALL, resume=resuming(first, 0))
        # It may have been ended already, since nobody can go on with it.
        assert re.search("no longer retained|no subscription of this client", fresh["reset"])
        assert change(fresh)[0] == [{"s": "http://a", "o": "9" * LONG}]


async def test_much_that_was_missed_at_once_is_no_reason_to_be_disconnected(tmp_path: Path) -> None:
    async with running_and_connected(tmp_path, websocket={"outbox_bytes_max": 500_000}) as (at, socket):
        firsts = [await subscribe(socket, ALL, resume=KEEP) for _ in range(4)]
        await socket.close()
        await away(at, 4)
        for number in range(1, 9):
            await update(at, insert(str(number), "x" * 50_000))
        async with connect(at.subscribe) as again:
            for first in firsts:
                await tell(again, {"subscribe": {"sparql": ALL, "resume": resuming(first, 0)}})
            await update(at, insert("9"))
            sequences: dict[str, list[int]] = {}
            while sum(len(found) for found in sequences.values()) < 4 * 9:
                message = await hear(again)
                if "notification" in message:
                    body = message["notification"]
                    sequences.setdefault(body["spuid"], []).append(body["sequence"])
            assert sequences == {first["spuid"]: list(range(1, 10)) for first in firsts}


# --- stress: exact counts (SEPA protocol 6.5) -------------------------------------------------------

GRAPH = "http://sepatest"
RANDOM = (
    f"DELETE WHERE {{ GRAPH <{GRAPH}> {{ <http://s> <http://p> ?o }} }} ; "
    f"INSERT {{ GRAPH <{GRAPH}> {{ <http://s> <http://p> ?new }} }} "
    "WHERE { BIND(IRI(CONCAT('http://random/', STRUUID())) AS ?new) }"
)
RANDOM_QUERY = f"SELECT ?o {{ GRAPH <{GRAPH}> {{ <http://s> <http://p> ?o }} }}"


async def events_of(at: Addresses, subscribers: int, publish: Callable[[], Awaitable[None]]) -> int:
    """How many notifications the subscribers of RANDOM_QUERY get in all, the first ones included."""
    clients = [await connect(at.subscribe, ping_interval=None) for _ in range(subscribers)]
    try:
        spuids = [(await subscribe(client, RANDOM_QUERY))["spuid"] for client in clients]
        await publish()
        counts = 0
        for client, spuid in zip(clients, spuids, strict=True):
            bodies = await events_until_unsubscribed(client, spuid)
            assert [body["sequence"] for body in bodies] == list(range(1, len(bodies) + 1))
            counts += 1 + len(bodies)
        return counts
    finally:
        for client in clients:
            await client.close()


@pytest.mark.parametrize("count", [3, *(pytest.param(count, marks=pytest.mark.faults) for count in (5, 10))])
async def test_n_publishers_and_n_subscribers_give_exactly_n_times_n_times_ten_events(
    gateway: Addresses, count: int
) -> None:

    async def publisher() -> None:
        for _ in range(10):
            assert (await update(gateway, RANDOM)).status == 200

    async def publish() -> None:
        await asyncio.gather(*(publisher() for _ in range(count)))

    assert await events_of(gateway, count, publish) == count + count * count * 10


async def test_malformed_updates_neither_notify_nor_stall(gateway: Addresses) -> None:

    async def publisher(text: str, status: int) -> None:
        for _ in range(4):
            assert (await update(gateway, text)).status == status

    async def publish() -> None:
        good = [publisher(RANDOM, 200) for _ in range(4)]
        bad = [publisher("DELETE { oops", 400) for _ in range(4)]
        await asyncio.gather(*good, *bad)

    async with asyncio.timeout(TIMEOUT_S):
        assert await events_of(gateway, 4, publish) == 68


async def test_a_long_message_comes_in_fragments_and_is_one_message(gateway: Addresses) -> None:
    """Each is copied as a whole on its way to the socket, and nobody else is served meanwhile."""
    rows_ = " . ".join(f"<http://s{number}> <http://p> '{number} {'é' * 1000}'" for number in range(300))
    await update(gateway, f"INSERT DATA {{ {rows_} }}")
    async with connect(gateway.subscribe, max_size=None) as socket:
        for message in ({"query": {"sparql": ALL, "alias": "a"}}, {"subscribe": {"sparql": ALL, "alias": "a"}}):
            await tell(socket, message)
            parts = [part async for part in socket.recv_streaming()]
            assert len(parts) > 2 and max(map(len, parts)) <= PART_BYTES
            [body] = json.loads("".join(parts)).values()
            found = body.get("results") or body["addedResults"]
            assert len(found["results"]["bindings"]) == 300
        await tell(socket, {"query": {"sparql": "ASK { ?s ?p 1 }", "alias": "b"}})
        assert (await hear(socket))["answer"]["results"]["boolean"] is False


async def test_a_query_has_no_longer_answer_than_may_wait_for_all_clients(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, websocket={"port": 0, "unsent_bytes_max": 32 * 1024 * 1024}) as gateway:
        await update(gateway, f"INSERT DATA {{ <http://s> <http://q> '{'x' * 400_000}' }}")
        values_ = " ".join(map(str, range(100)))
        async with connect(gateway.subscribe, max_size=None) as socket:
            text = f"SELECT ?o {{ <http://s> <http://q> ?o VALUES ?n {{ {values_} }} }}"
            answer = await ask(socket, {"query": {"sparql": text, "alias": "a"}})
            assert answer["error"] == "limit_exceeded", answer
            assert "websocket.unsent_bytes_max = 33554432" in answer["error_description"]


async def test_answers_of_all_clients_are_no_longer_together_but_for_short_ones() -> None:
    gate = SimpleNamespace(settings=SimpleNamespace(unsent_bytes_max=100), answers=0, answers_bytes=0)
    goes_on = [asyncio.Event() for _ in range(3)]

    class Parts:
        def __init__(self, sizes: Sequence[int]) -> None:
            self.sizes = sizes

        async def chunks(self) -> AsyncGenerator[bytes, None]:
            for size, event in zip(self.sizes, goes_on, strict=True):
                yield b"x" * size
                await event.wait()

    found = [
        asyncio.create_task(_Connection._chunks(SimpleNamespace(_gate=gate), Parts(sizes)))  # type: ignore[arg-type]
        for sizes in ((60, 30, 1), (5, 5, 1), (30, 30, 1))
    ]
    for event in goes_on:
        for _ in range(5):
            await asyncio.sleep(0)
        event.set()
    outcomes = await asyncio.gather(*found, return_exceptions=True)
    assert isinstance(outcomes[0], QueueFullError) and "websocket.unsent_bytes_max = 100" in str(outcomes[0])
    assert [sum(map(len, outcome)) for outcome in outcomes[1:] if isinstance(outcome, list)] == [11, 61]
    assert gate.answers == gate.answers_bytes == 0
