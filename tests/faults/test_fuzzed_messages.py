"""100,000 hostile MQTT messages: none breaks the stream, and each is counted."""

from __future__ import annotations

import secrets

import pytest

from tests.support.fuzzed_stream import feed

pytestmark = pytest.mark.faults

MESSAGES = 100_000


async def test_a_hundred_thousand_hostile_messages_do_not_break_the_stream() -> None:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    await feed(MESSAGES, seed)
