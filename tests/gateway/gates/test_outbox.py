"""The outbox: a bounded queue of messages for one client."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.engine.client.sending import LongMessage
from lamplighter.engine.protocol import Results, results_message
from lamplighter.engine.terms import Bag, Binding
from lamplighter.gateway.gates import outbox as outbox_module
from lamplighter.gateway.gates.outbox import Message, Outbox, SendBudget, SequenceCounter
from lamplighter.gateway.state.client_budgets import ClientBudgets


async def test_messages_come_out_in_the_order_in_which_they_went_in() -> None:
    outbox = Outbox(100)
    for message in (b"one", b"two", b"three"):
        outbox.put(message)
    assert [await outbox.get() for _ in range(3)] == [b"one", b"two", b"three"]


async def test_get_waits_for_a_message() -> None:
    outbox = Outbox(100)
    for message in (b"first", b"second"):  # also when it was empty again in between
        waiting = asyncio.create_task(outbox.get())
        await asyncio.sleep(0)
        assert not waiting.done()
        outbox.put(message)
        assert await waiting == message


def test_it_holds_exactly_its_limit() -> None:
    outbox = Outbox(10)
    outbox.put(b"x" * 4)
    outbox.put(b"x" * 6)
    assert not outbox.overflowed.is_set()
    outbox.put(b"x")
    assert outbox.overflowed.is_set()


async def test_what_was_taken_makes_room() -> None:
    outbox = Outbox(10)
    for _ in range(5):
        outbox.put(b"x" * 10)
        await outbox.get()
    assert not outbox.overflowed.is_set()


async def test_one_message_alone_may_be_larger_than_the_limit_but_nothing_behind_it() -> None:
    outbox = Outbox(10)
    outbox.put(b"x" * 1000)
    assert not outbox.overflowed.is_set()
    assert len(await outbox.get()) == 1000
    outbox.put(b"y" * 1000)
    outbox.put(b"z")
    assert outbox.overflowed.is_set()


async def test_after_an_overflow_nothing_comes_out_so_there_is_no_gap() -> None:
    outbox = Outbox(10)
    outbox.put(b"x" * 10)
    outbox.put(b"lost")
    outbox.put(b"after")
    assert await taken(outbox) is None
    assert outbox.waiting_bytes == 0


# --- at once ---------------------------------------------------------------


class Socket:
    """What goes out at once, and by `get`, in one order. ready: whether it takes messages at once."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.at_once = 0
        self.ready = True

    def take(self, message: bytes) -> bool:
        if self.ready:
            self.sent.append(message)
            self.at_once += 1
        return self.ready

    async def read(self, outbox: Outbox) -> None:
        while True:
            self.sent.append(await outbox.get())


async def test_a_message_goes_out_at_once_only_if_no_other_waits() -> None:
    socket = Socket()
    outbox = Outbox(10_000, replay_bytes_max=100, at_once=socket.take)
    outbox.put(b"1")  # nobody waits for it yet
    reader = asyncio.create_task(socket.read(outbox))
    await asyncio.sleep(0)
    assert (socket.sent, socket.at_once) == ([b"1"], 0)
    outbox.put(b"2")
    assert (socket.sent[-1], socket.at_once) == (b"2", 1)
    socket.ready = False
    outbox.put(b"3")
    socket.ready = True
    outbox.put(b"4")  # behind the one that waits
    outbox.replay(iter([b"5"]), 1)
    outbox.put(b"6")
    assert socket.at_once == 1
    for _ in range(3):
        await asyncio.sleep(0)
    assert socket.sent == [b"1", b"2", b"3", b"4", b"5", b"6"]
    outbox.put(b"7")
    assert (socket.sent[-1], socket.at_once) == (b"7", 2)
    outbox.close()
    outbox.put(b"8")
    assert socket.sent[-1] == b"7"
    reader.cancel()


async def test_notifications_that_go_out_at_once_are_numbered_with_those_that_wait() -> None:
    socket, numbering = Socket(), SequenceCounter("one")
    outbox = Outbox(10_000, at_once=socket.take)
    reader = asyncio.create_task(socket.read(outbox))
    await asyncio.sleep(0)
    for ready in (True, False, True, False, True, True):
        socket.ready = ready
        outbox.notify(numbering, added(ROWS[0]))
        if ready:
            await asyncio.sleep(0)
    reader.cancel()
    assert [json.loads(message)["notification"]["sequence"] for message in socket.sent] == [1, 2, 3, 4, 5, 6]
    assert socket.at_once == 2


# --- notifications ----------------------------------------------------------------------------------

ROWS: list[Binding] = [(f"<http://{name}>", None) for name in "abcd"]


def bag(rows: Iterable[Binding] = ()) -> Bag:
    return Bag(("s", "o"), rows)


def added(*rows: Binding) -> Results:
    return Results(bag(rows), bag())


def removed(*rows: Binding) -> Results:
    return Results(bag(), bag(rows))


SIZE = len(added(ROWS[0]).members) + 128


async def taken(outbox: Outbox) -> bytes | None:
    """The next message, None if there is none."""
    waiting = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    if waiting.done():
        return waiting.result()
    waiting.cancel()
    await asyncio.wait([waiting])
    return None


async def told(outbox: Outbox) -> list[tuple[int, list[Binding], list[Binding]] | bytes]:
    """All that waits: sequence, added and removed rows of each notification, and other messages as they are."""
    found: list[tuple[int, list[Binding], list[Binding]] | bytes] = []
    while (message := await taken(outbox)) is not None:
        if message.startswith(b'{"notification"'):
            body = json.loads(message)["notification"]
            parts = [list(Bag.from_json(body[name]).rows) for name in ("addedResults", "removedResults")]
            found.append((body["sequence"], parts[0], parts[1]))
        else:
            found.append(message)
    return found


async def test_notifications_are_numbered_as_they_are_taken_out() -> None:
    outbox, one, other = Outbox(100_000), SequenceCounter("spuid-1"), SequenceCounter("spuid-2")
    outbox.notify(one, added(ROWS[0]))
    outbox.notify(other, added(ROWS[0]))
    outbox.notify(one, removed(ROWS[0]))
    bodies = [json.loads(await outbox.get())["notification"] for _ in range(3)]
    names = [(body["spuid"], body["sequence"]) for body in bodies]
    assert names == [("spuid-1", 1), ("spuid-2", 1), ("spuid-1", 2)]
    assert outbox.waiting_bytes == 0


async def test_what_a_slow_client_is_not_told_yet_becomes_one_net_notification_in_the_place_of_the_first() -> None:
    composings: list[None] = []
    outbox = Outbox(12 * SIZE, composed=lambda: composings.append(None))
    one, other, gone = (SequenceCounter(name) for name in ("one", "other", "gone"))
    outbox.put(b"before")
    outbox.notify(one, added(ROWS[0], ROWS[1], ROWS[1]))
    outbox.notify(gone, added(ROWS[0]))
    outbox.put(b"between")
    outbox.notify(other, added(ROWS[3]))
    outbox.notify(one, Results(bag([ROWS[2]]), bag([ROWS[1]])))
    outbox.notify(gone, removed(ROWS[0]))
    assert composings == []
    outbox.notify(one, removed(ROWS[0]))
    assert len(composings) == 1
    outbox.put(b"behind")
    assert await told(outbox) == [
        b"before",
        (1, [ROWS[1], ROWS[2]], []),
        b"between",
        (1, [ROWS[3]], []),
        b"behind",
    ]
    assert (one.sequence, other.sequence, gone.sequence) == (1, 1, 0)
    outbox.notify(gone, added(ROWS[0]))
    assert await told(outbox) == [(1, [ROWS[0]], [])]


async def test_composed_notifications_name_the_newest_commit_if_the_client_asked_for_it() -> None:
    outbox = Outbox(6 * SIZE)
    asked, other = SequenceCounter("asked", names_commits=True), SequenceCounter("other")
    for number in range(1, 4):
        for numbering in (asked, other):
            outbox.notify(numbering, Results(bag([ROWS[number]]), bag(), (2, number)))
    messages = [json.loads(await outbox.get())["notification"] for _ in range(2)]
    assert [message.get("commit") for message in messages] == [{"epoch": 2, "seq": 3}, None]
    assert outbox.waiting_bytes == 0


async def test_what_was_sent_before_stays_sent_and_the_rest_is_composed() -> None:
    outbox, one = Outbox(8 * SIZE), SequenceCounter("one")
    outbox.notify(one, added(ROWS[0]))
    outbox.notify(one, added(ROWS[1]))
    await outbox.get()
    for _ in range(10):
        outbox.notify(one, removed(ROWS[1]))
        outbox.notify(one, added(ROWS[1]))
    outbox.notify(one, removed(ROWS[1], ROWS[0]))
    assert not outbox.overflowed.is_set()
    messages = await told(outbox)
    assert [message[0] for message in messages] == list(range(2, 2 + len(messages)))
    assert len(messages) < 8


def test_a_client_that_lets_more_wait_than_can_be_composed_overflows() -> None:
    outbox, one = Outbox(10 * SIZE), SequenceCounter("one")
    for number in range(1000):
        outbox.notify(one, added((f"<http://{number}>", None)))
        assert outbox.waiting_bytes <= 10 * SIZE
        if outbox.overflowed.is_set():
            break
    assert outbox.overflowed.is_set()
    assert number > 20  # rows without an envelope each


async def test_notifications_of_too_many_rows_are_not_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "COMPOSED_ROWS_MAX", 3)
    outbox, small, large = Outbox(8 * SIZE), SequenceCounter("small"), SequenceCounter("large")
    outbox.notify(small, added(ROWS[0]))
    outbox.notify(large, added(*ROWS[:2]))
    outbox.notify(small, removed(ROWS[0]))
    outbox.notify(large, removed(*ROWS[:2]))
    outbox.notify(large, added(*ROWS[:2]))
    outbox.notify(large, removed(*ROWS[:2]))
    assert not outbox.overflowed.is_set()
    assert await told(outbox) == [
        (1, ROWS[:2], []),
        (2, [], ROWS[:2]),
        (3, ROWS[:2], []),
        (4, [], ROWS[:2]),
    ]


def test_a_client_that_lets_notifications_of_too_many_rows_wait_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "COMPOSED_ROWS_MAX", 7)
    outbox, one = Outbox(8 * SIZE), SequenceCounter("one")
    for _ in range(4):
        outbox.notify(one, added(*ROWS[:4]))
        outbox.notify(one, removed(*ROWS[:4]))
    assert outbox.overflowed.is_set()


def test_composing_is_paid_for_by_what_came_since_the_last_one() -> None:
    """The work of all composings together is linear in what was put."""
    looked_at = 0
    outbox, numberings = Outbox(400 * SIZE), [SequenceCounter(str(number)) for number in range(300)]

    def composed() -> None:
        nonlocal looked_at
        looked_at += 300

    outbox = Outbox(400 * SIZE, composed=composed)
    puts = 0
    for round_ in range(40):
        for numbering in numberings:  # the net of each is as long as one of its notifications
            outbox.notify(numbering, added(ROWS[0]) if round_ % 2 == 0 else removed(ROWS[0]))
            puts += 1
    assert not outbox.overflowed.is_set()
    assert 0 < looked_at <= 8 * puts


async def test_replays_do_not_count_against_the_limit_but_have_one_of_their_own() -> None:
    outbox = Outbox(10, replay_bytes_max=100)
    outbox.put(b"first")
    outbox.replay(iter([b"a" * 30, b"b" * 30]), 60)
    outbox.put(b"live")
    outbox.replay(iter([b"c" * 30]), 40)
    assert not outbox.overflowed.is_set()
    assert [(await outbox.get())[:5] for _ in range(5)] == [b"first", b"aaaaa", b"bbbbb", b"live", b"ccccc"]
    outbox.replay(iter([b"d" * 60]), 60)
    outbox.put(b"x" * 1000)  # alone, but for the replay
    assert not outbox.overflowed.is_set()
    outbox.replay(iter([b"e"]), 41)
    assert outbox.overflowed.is_set()


operations = st.lists(
    st.one_of(
        st.tuples(st.just("notify"), st.integers(0, 2), st.lists(st.sampled_from(ROWS), max_size=4), st.integers(0, 4)),
        st.tuples(st.just("put"), st.integers(1, 2 * SIZE)),
        st.tuples(st.just("get"), st.integers(1, 4)),
    ),
    max_size=60,
)


@given(operations, st.integers(2, 12))
async def test_whatever_comes_out_when_is_the_same_change_without_gaps_and_within_the_limit(
    steps: list[tuple[Any, ...]], places: int
) -> None:
    limit = places * SIZE
    outbox, numberings = Outbox(limit), [SequenceCounter(str(number)) for number in range(3)]
    truth: list[Counter[Binding]] = [Counter() for _ in numberings]
    known: list[Counter[Binding]] = [Counter() for _ in numberings]
    last = [0, 0, 0]
    plain_in: list[bytes] = []
    plain_out: list[bytes] = []

    def read(message: bytes) -> None:
        if message.startswith(b"plain"):
            plain_out.append(message)
            return
        body = json.loads(message)["notification"]
        place = int(body["spuid"])
        come, gone = (Bag.from_json(body[name]).counts for name in ("addedResults", "removedResults"))
        assert body["sequence"] == last[place] + 1
        last[place] += 1
        assert come or gone
        assert not come & gone
        assert gone <= known[place]
        known[place] = known[place] - gone + come

    for step in steps:
        if step[0] == "notify":
            _, place, rows, forgotten = step
            before = truth[place]
            after = Counter(list(before.elements())[forgotten:]) + Counter(rows)
            if before == after:
                continue
            truth[place] = after
            results = Results(bag((after - before).elements()), bag((before - after).elements()))
            outbox.notify(numberings[place], results)
        elif step[0] == "put":
            plain_in.append(b"plain%d" % len(plain_in) + b"x" * step[1])
            outbox.put(plain_in[-1])
        else:
            for _ in range(step[1]):
                message = await taken(outbox)
                if message is None:
                    break
                read(message)
        if outbox.overflowed.is_set():
            assert await taken(outbox) is None
            return
        assert outbox.waiting_bytes <= limit or len(outbox) == 1
    while (message := await taken(outbox)) is not None:
        read(message)
    assert known == truth
    assert plain_out == plain_in
    assert outbox.waiting_bytes == 0


def box(send_budget: SendBudget) -> Outbox:
    return Outbox(1000, send_budget=send_budget)


async def test_what_waits_for_all_clients_is_bounded_and_the_slowest_is_closed() -> None:
    send_budget = SendBudget(3000)
    slow, fast, small, large = (box(send_budget) for _ in range(4))
    slow.put(b"x" * 1000)
    fast.put(b"x" * 1000)
    small.put(b"x")
    assert await slow.get()  # it is being sent, and counts
    assert await fast.get()
    fast.put(b"x" * 900)
    assert await fast.get()  # the first one was sent
    large.put(b"x" * 1000)
    assert not any(one.overflowed.is_set() for one in (slow, fast, small, large))
    large.put(b"x" * 1000)
    assert [one.overflowed.is_set() for one in (slow, fast, small, large)] == [False, False, False, True], "its own"
    box(send_budget).put(b"x" * 2000)
    assert [one.overflowed.is_set() for one in (slow, fast, small)] == [True, False, False]
    assert slow.exceeded == "websocket.unsent_bytes_max"


async def test_a_message_alone_may_exceed_the_share_of_its_client() -> None:
    shares, one, other = ClientBudgets(), Outbox(1_000_000), Outbox(1_000_000)
    for outbox in (one, other):
        shares.join("client", outbox, lambda: 3000)
    one.put(b"x" * 20_000)
    assert not one.overflowed.is_set()
    other.put(b"x" * 10_000)
    assert [one.overflowed.is_set(), other.overflowed.is_set()] == [True, False]


async def test_a_message_alone_may_exceed_what_waits_for_all() -> None:
    send_budget = SendBudget(3000)
    one = box(send_budget)
    one.put(b"x" * 10_000)
    assert len(await one.get()) == 10_000
    other = box(send_budget)
    other.put(b"x" * 10)
    assert one.overflowed.is_set()
    assert not other.overflowed.is_set()


async def test_a_closed_outbox_counts_nothing() -> None:
    send_budget = SendBudget(3000)
    ended = [box(send_budget) for _ in range(5)]
    for one in ended:
        one.put(b"x" * 1000)
        one.close()
        one.put(b"x" * 1000)
        one.notify(SequenceCounter("s"), Results(Bag(("o",), [('"x"',)]), Bag(("o",))))
    here = box(send_budget)
    for _ in range(3):
        here.put(b"x" * 300)
    assert await here.get()
    waiting = asyncio.create_task(here.get())
    await waiting
    assert not here.overflowed.is_set()


# --- long results -----------------------------------------------------------------------------------


def long_results(rows: int = 6000) -> Results:
    return Results(Bag(["s"], [(f"<urn:s{number}>",) for number in range(rows)]), Bag(["s"]))


def text(message: Message) -> bytes:
    return b"".join(message.parts) if isinstance(message, LongMessage) else message


async def test_the_text_of_long_results_is_made_while_others_go_on_and_nothing_overtakes_it() -> None:
    outbox, results, turns = Outbox(10**7), long_results(), 0
    outbox.put_long(results, lambda: LongMessage(results.parts), first=True)
    outbox.notify(numbering := SequenceCounter("sepa://1"), change := long_results(7000))
    outbox.put(b"last")

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(take_turns())
    first = await outbox.get()
    assert turns >= 5
    assert text(first) == long_results().members
    second = await outbox.get()
    assert turns >= 10
    assert text(second) == results_message("sepa://1", 1, change)
    assert (numbering.sequence, await outbox.get()) == (1, b"last")
    others.cancel()


async def test_long_first_results_count_in_the_sum_of_all_and_do_not_make_a_client_slow() -> None:
    budget = SendBudget(10**7)
    outbox, other = Outbox(1000, send_budget=budget), Outbox(1000, send_budget=budget)
    other.put(b"x")
    for _ in range(3):
        outbox.put_long(results := long_results(), lambda results=results: LongMessage(results.parts), first=True)
    outbox.put(b"y" * 400)
    outbox.put(b"z" * 600)
    assert not outbox.overflowed.is_set()
    assert budget._bytes == 1 + 1000 + 3 * (results.size + 128)
    for _ in range(3):
        assert len(await outbox.get()) > 100_000
    assert [len(await outbox.get()) for _ in range(2)] == [400, 600]
    outbox.put(b"")
    await outbox.get()
    assert budget._bytes == 1
    # As a notification it counts as any other.
    outbox.put_long(long_results(), lambda: b"", first=False)
    assert not outbox.overflowed.is_set()
    outbox.put(b"x")
    assert outbox.overflowed.is_set()
    assert budget._bytes == 1
