"""Long results of subscriptions: others have their turn while data is indexed and text is made; both are limited."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from lamplighter.engine.matching.cts import Cts
from lamplighter.engine.protocol import Results
from lamplighter.gateway.gates import outbox
from tests.support.running_gateway import TIMEOUT_S, ask, hear, rows, running_gateway, tell, update

ALL = "SELECT ?s ?o { ?s <http://p> ?o }"
COUNT = 6000
"""Rows that are long to write, and quads that are many to index."""


def inserted(count: int, value: str = "1") -> str:
    return "INSERT DATA {" + " ".join(f"<http://{number}> <http://p> '{value}' ." for number in range(count)) + "}"


async def test_an_update_is_answered_while_quads_are_indexed_for_a_subscription_which_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, begun, fill_some = False, asyncio.Event(), Cts.fill_some

    def held(cts: Cts, predicate: Any, *, by_object: bool) -> bool:
        """Comes to its end only when the update was answered."""
        begun.set()
        if fill_some(cts, predicate, by_object=by_object):
            return answered
        return False

    monkeypatch.setattr(Cts, "fill_some", held)
    async with running_gateway(tmp_path) as at, connect(at.subscribe, max_size=None) as socket:
        await update(at, inserted(COUNT))
        await tell(socket, {"subscribe": {"sparql": ALL, "alias": "a"}})
        await begun.wait()
        for text in ("INSERT DATA { <http://new> <http://p> 2 }", "DELETE WHERE { <http://7> <http://p> ?o }"):
            assert (await update(at, text)).status == 200
        answered = True
        first = (await hear(socket))["notification"]
        found = {row["s"]["value"] for row in first["addedResults"]["results"]["bindings"]}
        assert len(found) == COUNT
        assert "http://new" in found and "http://7" not in found
        await update(at, "DELETE WHERE { <http://new> <http://p> ?o }")
        assert len((await hear(socket))["notification"]["removedResults"]["results"]["bindings"]) == 1


@pytest.mark.parametrize("resume", [None, {"keep": "PT10M"}])
async def test_an_update_is_answered_while_the_text_of_a_first_result_or_of_a_notification_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: dict[str, str] | None
) -> None:
    held, writing, write = asyncio.Event(), asyncio.Event(), outbox.write

    async def write_later(results: Results) -> None:
        writing.set()
        await held.wait()
        await write(results)

    monkeypatch.setattr(outbox, "write", write_later)
    async with running_gateway(tmp_path) as at, connect(at.subscribe, max_size=None) as socket:
        await update(at, inserted(COUNT))
        await tell(
            socket, {"subscribe": {"sparql": ALL, "alias": "a"} | ({} if resume is None else {"resume": resume})}
        )
        for sequence, texts in enumerate((["<http://new>"], ["<http://newer>", "<http://newest>"])):
            await writing.wait()
            for subject in texts:
                assert (await update(at, f"INSERT DATA {{ {subject} <http://q> 2 }}")).status == 200
            writing.clear()
            held.set()
            body = (await hear(socket))["notification"]
            assert (body["sequence"], len(body["addedResults"]["results"]["bindings"])) == (sequence, COUNT)
            held.clear()
            if not sequence:
                assert (await update(at, "DELETE { ?s ?p ?o } INSERT { ?s ?p 3 } WHERE { ?s ?p ?o }")).status == 200


async def test_characters_of_a_first_result_count_in_each_row_and_have_a_limit(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path, limits={"result_characters_max": 10_000}) as at,
        connect(at.subscribe) as socket,
    ):
        await update(at, f"INSERT DATA {{ <http://a> <http://big> '{'x' * 500}' }}")
        await update(at, inserted(10))
        for pattern in (
            "?s <http://p> ?o . ?a <http://big> ?b",
            "?s (<http://p>/<http://p>?)* ?o . ?a <http://big> ?b",
        ):
            assert "notification" in await ask(socket, {"subscribe": {"sparql": f"SELECT ?b {{ {pattern} }} LIMIT 9"}})
        await update(at, inserted(30))
        for pattern in (
            "?s <http://p> ?o . ?a <http://big> ?b",
            "?s (<http://p>/<http://p>?)* ?o . ?a <http://big> ?b",
        ):
            answer = await ask(socket, {"subscribe": {"sparql": f"SELECT ?b {{ {pattern} }}", "alias": "a"}})
            assert (answer["error"], answer["alias"]) == ("limit_exceeded", "a")
            assert "limits.result_characters_max = 10000" in answer["error_description"]
            assert "select fewer variables" in answer["error_description"]


async def test_a_notification_with_too_many_characters_ends_its_subscription_and_the_commit_stands(
    tmp_path: Path,
) -> None:
    async with (
        running_gateway(tmp_path, limits={"result_characters_max": 600_000}) as at,
        connect(at.subscribe) as socket,
        connect(at.subscribe) as other,
        asyncio.timeout(TIMEOUT_S),
    ):
        text = "SELECT ?s ?b { ?s <http://p> 'v' . ?s <http://big> ?b }"
        spuid = (await ask(socket, {"subscribe": {"sparql": text, "alias": "a"}}))["notification"]["spuid"]
        await ask(other, {"subscribe": {"sparql": "SELECT ?s { ?s <http://p> 'v' }", "alias": "b"}})
        await update(at, f"INSERT {{ ?s <http://big> '{'x' * 9000}' }} WHERE {{ ?s <http://p> 'v' }}")
        big = " ".join(f"<http://{number}> <http://big> '{'x' * 9000}' ." for number in range(80))
        await update(at, f"INSERT DATA {{ {big} }}")
        assert (await update(at, inserted(80, "v"))).status == 200
        answer = await hear(socket)
        assert (answer["error"], answer["spuid"]) == ("limit_exceeded", spuid)
        assert "a notification has more than limits.result_characters_max = 600000" in answer["error_description"]
        assert len((await hear(other))["notification"]["addedResults"]["results"]["bindings"]) == 80
        assert len(await rows(at, "SELECT ?s { ?s <http://p> 'v' }")) == 80
