"""The last messages of devices: which clients the gateway asks for them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.protocol import MessagePlace
from lamplighter.gateway.state.messages import SOURCES_MAX, FoundMessages, MessageSource, MessageSources


def asked_for_nothing(number: int, places: Sequence[MessagePlace], unread: bool) -> None:
    raise AssertionError("it has left")


async def test_a_client_that_has_left_is_not_asked_and_gives_its_place_to_another_one() -> None:
    sources = MessageSources()
    clients = [MessageSource(asked_for_nothing) for _ in range(SOURCES_MAX)]
    for client in clients:
        sources.join(client, "")
    with pytest.raises(LimitExceededError):
        sources.join(MessageSource(asked_for_nothing), "")
    for client in clients:
        sources.leave(client)
    assert await sources.find([MessagePlace("topic")]) == FoundMessages([], sources=0, silent=0)
    sources.join(MessageSource(asked_for_nothing), "")
