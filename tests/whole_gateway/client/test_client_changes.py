"""`SparqlEndpoint.follow_changes` against a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lamplighter.engine.client import DatasetChange, RefusedError, SparqlEndpoint
from lamplighter.engine.errors import ConfigurationError
from tests.support.brokers import free_port
from tests.support.change_replica import Replica
from tests.support.running_gateway import TIMEOUT_S, running_gateway, update

ON: dict[str, object] = {"enabled": True}


async def until_end(changes: AsyncIterator[DatasetChange], replica: Replica, end: int) -> list[str]:
    """Applies changes until the dataset has a number. Returns the reasons of resets."""
    resets = []
    async with asyncio.timeout(TIMEOUT_S):
        async for change in changes:
            if change.reset is not None:
                resets.append(change.reset)
            replica.change(change)
            if change.position is not None and any(f'"{end}"' in quad[2] for quad in replica.content[0]):
                break
    return resets


async def test_a_follower_goes_on_by_itself_over_restarts_and_begins_anew_where_it_must(tmp_path: Path) -> None:
    port, replica = free_port(), Replica()
    tables = {"http": {"port": port}, "changes": ON}
    async with SparqlEndpoint(f"http://127.0.0.1:{port}", timeout_s=TIMEOUT_S) as endpoint:
        changes = endpoint.follow_changes()
        for number in range(3):
            async with running_gateway(tmp_path, **tables) as gateway:
                follows = asyncio.create_task(until_end(changes, replica, number))
                text = f"INSERT DATA {{ GRAPH <http://g/{number}> {{ <http://s> <http://p> {number}, '\u2028\x85' }} }}"
                assert (await update(gateway, text)).status == 200
                assert await follows == (["the follower begins"] if number == 0 else [])
                kept = replica.position
        async with running_gateway(tmp_path / "other", **tables) as gateway:  # as if the log were lost
            assert (await update(gateway, "INSERT DATA { <http://s> <http://p> 9 }")).status == 200
            [reset] = await until_end(changes, replica, 9)
            assert "lost or replaced" in reset
            assert {quad[:2] for quad in replica.content[0]} == {("<http://s>", "<http://p>")}
            assert replica.content[1] == set()
        async with running_gateway(tmp_path, **tables) as gateway:
            other = endpoint.follow_changes(after=kept)
            assert (await update(gateway, "INSERT DATA { <http://s> <http://p> 10 }")).status == 200
            assert await until_end(other, Replica(), 10) == []


async def test_what_is_no_change_feed_is_an_error(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        async with SparqlEndpoint(gateway.page) as endpoint:
            with pytest.raises(RefusedError, match="404"):
                await anext(endpoint.follow_changes())
        async with SparqlEndpoint(query_url=gateway.query) as endpoint:
            with pytest.raises(ConfigurationError, match="give base"):
                await anext(endpoint.follow_changes())
