"""The monitoring figures (SEPA protocol 5.4): as JSON, and the seven lines of the paper on the terminal."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

from lamplighter.gateway.addresses import Addresses
from tests.support.brokers import free_port
from tests.support.commands import command
from tests.support.running_gateway import ask, hear, http, query, running_gateway, tell, until, update

TIMED = {"count", "current", "min", "average", "max"}


async def figures(at: Addresses) -> dict[str, Any]:
    answer = await http(at.health.replace("/health", "/figures"))
    assert (answer.status, answer.media_type) == (200, "application/json")
    return dict(answer.json)


async def test_the_beans_count_what_was_asked_and_answered(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, gateway={"queue_max": 50}) as at, connect(at.subscribe) as socket:
        before = await figures(at)
        assert before["scheduler"] | {"max_pending": 0} == {
            "requests": 0,
            "updates": 0,
            "queries": 0,
            "subscribes": 0,
            "unsubscribes": 0,
            "pending": 0,
            "pending_by_class": {"alarm": 0, "control": 0, "normal": 0, "bulk": 0},
            "max_pending": 0,
            "queue_size": 50,
            "rejected": 0,
            "refused": 0,
        }
        spuids = []
        for text in ("SELECT ?s { ?s <http://p> ?o }", "SELECT ?x { ?x <http://p> ?y }"):
            spuids.append((await ask(socket, {"subscribe": {"sparql": text}}))["notification"]["spuid"])
        await update(at, "INSERT DATA { <http://a> <http://p> 1 }")
        for _ in spuids:
            assert "notification" in await hear(socket)
        await update(at, "DELETE DATA { <http://nobody> <http://p> 1 }")
        assert (await update(at, "NOT SPARQL")).status == 400
        await query(at, "ASK {}")
        await tell(socket, {"unsubscribe": {"spuid": spuids[0]}})
        assert "unsubscribed" in await hear(socket)
        assert "error" in await ask(socket, {"unsubscribe": {"spuid": "nobody's"}})
        assert "error" in await ask(socket, "neither")
        await http(at.health.replace("/health", "/nowhere"), "POST")
        await http(at.query, "OPTIONS")
        found = await figures(at)

        assert found["scheduler"] | {"max_pending": 0} == before["scheduler"] | {
            "requests": 7,
            "updates": 3,
            "queries": 1,
            "subscribes": 2,
            "unsubscribes": 1,
            "max_pending": 0,
            "refused": 2,
        }
        assert found["scheduler"]["max_pending"] >= 1
        timings = {
            "processing": found["updates"]["processing_ms"],
            "store update": found["updates"]["store_ms"],
            "store query": found["queries"]["store_ms"],
            "spu manager": found["spu_manager"]["processing_ms"],
        }
        counts = {"processing": 3, "store update": 2, "store query": 1, "spu manager": 1}
        assert {name: timing["count"] for name, timing in timings.items()} == counts
        for timing in timings.values():
            assert set(timing) == TIMED
            assert 0 < timing["min"] <= timing["average"] <= timing["max"]
            assert timing["min"] <= timing["current"] <= timing["max"]
        assert timings["processing"]["max"] > timings["store update"]["max"]

        manager = {name: value for name, value in found["spu_manager"].items() if name != "processing_ms"}
        assert manager == {
            "spus": 1,
            "subscribers": 1,
            "max_subscribers": 2,
            "application_subscriptions": 0,
            "subscribes": 2,
            "unsubscribes": 1,
            "ended": 0,
        }
        assert found["http"]["errors"] == {"SPARQL11ProtocolException": 1, "not_found": 1, "cors_error": 1}
        assert found["http"]["requests"] == before["http"]["requests"] + 6
        told = found["websocket"]
        assert (told["sockets"], told["max_sockets"], told["messages"]) == (1, 1, 5)
        assert (told["subscribed"], told["unsubscribed"], told["notifications"]) == (2, 1, 2)
        assert sum(told["errors"].values()) == 2
        assert (told["disconnected"], found["log"]["commits"]) == (0, 1)


async def test_the_engine_says_version_up_time_and_addresses(gateway: Addresses) -> None:
    first = (await figures(gateway))["engine"]
    assert first["addresses"] == vars(gateway)
    assert re.fullmatch(r"\d+\.\d+\.\d+", first["version"])
    assert re.fullmatch(r"P(\d+D)?T[\d.HMS]+", first["up_time"])
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:.]+Z", first["started"])
    assert first["secure"] is False
    assert (first["status"], first["problems"]) == ("ok", [])
    assert first["resident_bytes"] > 10_000_000
    async with connect(gateway.subscribe):
        second = (await figures(gateway))["engine"]
        assert second["up_time_s"] > first["up_time_s"] >= 0
        assert second["started"] == first["started"]

        async def counted() -> bool:
            """Both ends are in this process. The gateway's end of an earlier request may not be closed yet."""
            return bool((await figures(gateway))["engine"]["open_files"] == first["open_files"] + 2)

        await until(counted, "two more open files")

    async def closed() -> bool:
        found = await figures(gateway)
        return (found["websocket"]["sockets"], found["websocket"]["max_sockets"]) == (0, 1)

    await until(closed)


async def test_the_command_prints_the_seven_lines_of_the_paper_and_what_is_limited(tmp_path: Path) -> None:
    config = tmp_path / "lamplighter.toml"

    async def run(*options: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(command, "status", "--config", config, *options)

    port = free_port()
    config.write_text(f"[http]\nport = {port}\n")
    async with running_gateway(tmp_path, http={"port": port}) as at:
        await update(at, "INSERT DATA { <http://a> <http://p> 1 }")
        done = await run()
        assert (done.returncode, done.stderr) == (0, "")
        head, *lines = done.stdout.splitlines()
        assert re.fullmatch(r"Lamplighter \d+\.\d+\.\d+, gw-[0-9a-f]{8}: ok", head)
        timed = r"\d+\.\d{3} ms on average, \d+\.\d{3} to \d+\.\d{3} ms"
        expected = (
            r"all 6 components are ok: engine, log, disk, clock, security, devices",
            "",
            r"up-time +0 days 00:00:\d\d",
            r"processed requests +1",
            r"waiting requests +0 \(alarm 0, control 0, normal 0, bulk 0\), at most \d+",
            r"subscriptions +0 of clients \(at most 0\), 0 of applications",
            r"store query +none yet",
            rf"store update +{timed}",
            rf"update processing +{timed}",
            rf"SPU manager +{timed}",
            rf"loop held +{timed}",
            r"most of a quota +none used",
        )
        for line, pattern in zip(lines, expected, strict=True):
            assert re.fullmatch(pattern, line), line
        assert '"scheduler"' in (await run("--json")).stdout
    done = await run()
    assert done.returncode == 3
    assert done.stderr.startswith("lamplighter: no gateway answers at http://127.0.0.1:")


async def test_the_root_lists_the_paths_and_the_address_of_subscriptions(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, http={"port": 0, "update_path": "/sparql/update"}) as at:
        text = (await http(at.health.replace("/health", "/"))).body.decode()
        assert "\n  /sparql/update    SPARQL 1.1 update (POST)" in text
        assert text.endswith(f"\nSubscribe over WebSocket at {at.subscribe}\n")
