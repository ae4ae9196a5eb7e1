"""The bounded queue of what waits for one client."""

from __future__ import annotations

import asyncio

from gateway.outbox import Outbox
from tests.running_gateway import go


def test_messages_come_out_in_the_order_in_which_they_went_in() -> None:
    async def test() -> None:
        outbox = Outbox(100)
        for message in (b"one", b"two", b"three"):
            outbox.put(message)
        assert [await outbox.get() for _ in range(3)] == [b"one", b"two", b"three"]

    go(test)


def test_get_waits_for_a_message() -> None:
    async def test() -> None:
        outbox = Outbox(100)
        for message in (b"first", b"second"):  # also when it was empty again in between
            waiting = asyncio.create_task(outbox.get())
            await asyncio.sleep(0)
            assert not waiting.done()
            outbox.put(message)
            assert await waiting == message

    go(test)


def test_it_holds_exactly_its_limit() -> None:
    outbox = Outbox(10)
    outbox.put(b"x" * 4)
    outbox.put(b"x" * 6)
    assert not outbox.overflowed.is_set()
    outbox.put(b"x")
    assert outbox.overflowed.is_set()


def test_what_was_taken_makes_room() -> None:
    async def test() -> None:
        outbox = Outbox(10)
        for _ in range(5):
            outbox.put(b"x" * 10)
            await outbox.get()
        assert not outbox.overflowed.is_set()

    go(test)


def test_one_message_alone_may_be_larger_than_the_limit_but_nothing_behind_it() -> None:
    async def test() -> None:
        outbox = Outbox(10)
        outbox.put(b"x" * 1000)
        assert not outbox.overflowed.is_set()
        assert len(await outbox.get()) == 1000
        outbox.put(b"y" * 1000)
        outbox.put(b"z")
        assert outbox.overflowed.is_set()

    go(test)


def test_after_an_overflow_nothing_is_added_so_there_is_no_gap() -> None:
    async def test() -> None:
        outbox = Outbox(10)
        outbox.put(b"x" * 10)
        outbox.put(b"lost")
        assert await outbox.get() == b"x" * 10
        outbox.put(b"after")
        waiting = asyncio.create_task(outbox.get())
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()

    go(test)
