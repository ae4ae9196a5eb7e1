"""Hostile messages through adapter, mapping and model into an engine: none breaks the stream, and each is counted."""

from __future__ import annotations

from tests.support.fuzzed_stream import feed

MESSAGES, SEED = 3_000, 17


async def test_hostile_messages_do_not_break_the_stream() -> None:
    await feed(MESSAGES, SEED)
