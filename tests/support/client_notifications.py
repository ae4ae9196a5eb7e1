"""What tests of the engine's client ask of a subscription."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from lamplighter.engine.client import EngineClient, Notification
from lamplighter.engine.terms import Bag
from tests.support.running_gateway import TIMEOUT_S


async def following(notifications: AsyncIterator[Notification]) -> Notification:
    async with asyncio.timeout(TIMEOUT_S):
        return await anext(notifications)


def subjects(notification: Notification) -> list[str]:
    return subjects_of(notification.added)


def subjects_of(bag: Bag) -> list[str]:
    return sorted(row[0] or "" for row in bag)


def cut(client: EngineClient) -> None:
    """The connection breaks."""
    assert client._socket is not None
    client._socket.transport.abort()
