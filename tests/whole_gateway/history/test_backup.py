"""Backup and restore over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest
from websockets.asyncio.client import connect

from lamplighter.gateway.disk import TEMPORARY
from lamplighter.gateway.history import backup, restoring
from lamplighter.gateway.log import snapshots as writing
from tests.support.forks import forks, stuck_streams
from tests.support.gateway_parts import (
    rewritten,
)
from tests.support.running_gateway import health, hear, http, running_gateway, tell, until
from tests.support.running_gateway import update as http_update


@pytest.mark.parametrize("store", ["in memory", "on disk"])
async def test_the_way_there_and_back_over_http(tmp_path: Path, store: str) -> None:
    tables = {} if store == "in memory" else {"store": {"path": str(tmp_path / "store")}}
    query = "SELECT ?s ?o { ?s <urn:p> ?o }"
    async with running_gateway(tmp_path, **tables) as addresses, connect(addresses.subscribe) as socket:
        base = addresses.query.removesuffix("/query")
        await http_update(addresses, "INSERT DATA { <urn:a> <urn:p> 1 , 2 . GRAPH <urn:g> { <urn:a> <urn:q> _:b } }")
        await http_update(addresses, "CLEAR ALL", delay="PT1H", request_id="r")
        answer = await http(f"{base}/backup")
        assert (answer.status, answer.media_type) == (200, "application/zstd")
        assert '-1-000000000002.ndjson.zst"' in answer.headers["content-disposition"]
        path = tmp_path / "backup.ndjson.zst"
        made = backup.save(path, [answer.body])
        assert (made.quads, made.timers, made.bytes) == (3, 1, len(answer.body))
        await tell(socket, {"subscribe": {"sparql": query, "alias": "q"}})
        assert len((await hear(socket))["notification"]["addedResults"]["results"]["bindings"]) == 2
        await http_update(addresses, "DELETE DATA { <urn:a> <urn:p> 1 } ; INSERT DATA { <urn:b> <urn:p> 3 }")
        await hear(socket)

        done = await http(f"{base}/restore", "POST", path.read_bytes())
        assert done.status == 200, done.body
        assert done.json == {
            "place": made.place,
            "sequence": 4,
            "removed": 1,
            "added": 1,
            "cancelled": 1,
            "delayed": 1,
            "applications": 0,
        }
        told = (await hear(socket))["notification"]
        assert told["sequence"] == 2

        def rows(member: str) -> list[tuple[str, str]]:
            return [(row["s"]["value"], row["o"]["value"]) for row in told[member]["results"]["bindings"]]

        assert rows("addedResults") == [("urn:a", "1")]
        assert rows("removedResults") == [("urn:b", "3")]
        status = await health(addresses)
        assert (status["quads"], status["delayed"], status["sequence"]) == (3, 1, 6)
        again = await http_update(addresses, "CLEAR ALL", delay="PT1H", request_id="r")
        assert again.json["sequence"] == 2, "request ids stay"
        assert not list((tmp_path / "data" / "snapshots").glob(f"*{TEMPORARY}"))


async def test_what_is_damaged_too_large_or_newer_is_refused_and_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(tmp_path) as addresses:
        base = addresses.query.removesuffix("/query")
        await http_update(addresses, "INSERT DATA { <urn:a> <urn:p> 1 , 2 }")
        await http_update(addresses, "CLEAR ALL", delay="PT1H")
        content = (await http(f"{base}/backup")).body
        await http_update(addresses, "CLEAR ALL")

        async def refused(sent: bytes, status: int, said: str) -> None:
            answer = await http(f"{base}/restore", "POST", sent)
            assert answer.status == status, answer.body
            assert said in answer.json["error_description"]
            found = await health(addresses)
            assert (found["sequence"], found["quads"], found["delayed"]) == (3, 0, 1)

        await refused(b"", 400, "breaks off")
        await refused(b"no zstd at all", 400, "decompressed")
        await refused(content[:-1], 400, "damaged")
        await refused(content[: len(content) // 2], 400, "damaged")
        await refused(content + b"x", 400, "after its end")
        await refused(content + content, 400, "after its end")
        chance = Random(7)
        for _ in range(15):
            flipped = bytearray(content)
            flipped[chance.randrange(20, len(content))] ^= 0xFF
            await refused(bytes(flipped), 400, "damaged")
        path = tmp_path / "newer"
        path.write_bytes(content)
        rewritten(path, [], v=2)
        await refused(path.read_bytes(), 400, "version 2")
        monkeypatch.setattr(restoring, "RESTORE_BYTES_MAX", len(content) - 1)
        await refused(content, 403, "at most")
        monkeypatch.undo()
        assert (await http(f"{base}/restore")).status == 405
        assert (await http(f"{base}/restore", "POST", content)).status == 200
        assert (await health(addresses))["quads"] == 2


async def test_two_backups_at_once_are_one_too_many_and_the_next_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = tmp_path / "go on"

    def waits(*arguments: Any) -> None:
        while not go_on.exists():
            pass  # one that sleeps is not told from one that waits for a lock wherever the kernel hides that
        writing.write(*arguments)

    monkeypatch.setattr("lamplighter.gateway.loop.restore.write", waits)
    async with running_gateway(tmp_path) as addresses:
        url = addresses.query.removesuffix("/query") + "/backup"
        await http_update(addresses, "INSERT DATA { <urn:s> <urn:p> 1 }")
        first = asyncio.create_task(http(url))

        async def begun() -> bool:
            return bool(forks())

        await until(begun)
        assert [answer.status for answer in await asyncio.gather(*(http(url) for _ in range(3)))] == [429] * 3
        go_on.touch()
        assert (await first).status == 200
        assert (await http(url)).status == 200


async def test_backup_and_restore_go_on_with_another_fork_when_one_waits_for_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(tmp_path) as addresses:
        url = addresses.query.removesuffix("/query")
        await http_update(addresses, "INSERT DATA { <urn:s> <urn:p> 1 }")
        begun = stuck_streams(monkeypatch, 2)
        answer = await http(f"{url}/backup")
        assert (answer.status, begun) == (200, [True, True, False])
        assert backup.save(tmp_path / "b", [answer.body]).quads == 1
        await http_update(addresses, "INSERT DATA { <urn:s> <urn:p> 2 }")
        begun = stuck_streams(monkeypatch, 2)
        done = await http(f"{url}/restore", "POST", answer.body)
        assert (done.status, begun) == (200, [True, True, False])
        assert (done.json["removed"], (await health(addresses))["quads"]) == (1, 1)

        begun = stuck_streams(monkeypatch, 12)
        refused = [await http(f"{url}/backup"), await http(f"{url}/restore", "POST", answer.body)]
        assert len(begun) == 12
        for one in refused:
            assert one.status == 500 and "try again" in one.json["error_description"]
        assert (await http(f"{url}/backup")).status == 200, "neither stands in the way of the next one"
        assert (await http(f"{url}/restore", "POST", answer.body)).status == 200
