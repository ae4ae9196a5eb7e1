"""Bodies in blocks, from both sides."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.adapters.coap.blocks import (
    BODIES_BYTES_MAX,
    BODIES_MAX,
    BODIES_OF_SOURCE_MAX,
    BODY_BYTES_MAX,
    PAUSE_S_MAX,
    Block,
    BlockError,
    BodyIn,
    BodyOut,
    PartialBodies,
    entity_tag,
    part,
)
from lamplighter.engine.errors import UpstreamError
from tests.support.tables import each_row


@given(st.binary(min_size=1, max_size=5000), st.integers(0, 6))
def test_the_parts_of_a_body_make_the_body(body: bytes, exponent: int) -> None:
    received, tag = BodyIn(), entity_tag(body)
    block, payload = part(body, 0, exponent)
    while not received.add(block, payload, tag):
        block, payload = part(body, received.next(exponent).number, exponent)
    assert received.body == body
    with pytest.raises(BlockError):
        part(body, block.number + 1, exponent)


@given(st.binary(min_size=1025, max_size=9000), st.integers(0, 6), st.booleans())
def test_a_receiver_chooses_smaller_blocks(body: bytes, exponent: int, hinted: bool) -> None:
    """By its answer to the first block, or by 4.13."""
    out, received, done = BodyOut(body), BodyIn(), False
    if hinted and exponent < 6:
        assert not out.answered("4.13", Block(0, False, exponent))
        assert out.block()[0].exponent == exponent
    while not done:
        block, payload = out.block()
        complete = received.add(block, payload)
        done = out.answered("2.04" if complete else "2.31", Block(block.number, not complete, exponent))
        assert done is complete
    assert received.body == body


def test_an_empty_body_has_one_part() -> None:
    assert part(b"", 0, 6) == (Block(0, False, 6), b"")


def test_a_body_begins_again_once_if_the_receiver_lost_blocks() -> None:
    out = BodyOut(b"x" * 3000)
    assert not out.answered("2.31", Block(0, True, 6))
    assert not out.answered("4.08", None)
    assert out.block()[0] == Block(0, True, 6)
    assert not out.answered("2.31", Block(0, True, 6))
    assert out.answered("4.08", None)


@pytest.mark.parametrize("option", [None, Block(7, True, 6)])
def test_a_receiver_that_takes_a_part_for_the_whole_is_an_error(option: Block | None) -> None:
    with pytest.raises(UpstreamError):
        BodyOut(b"x" * 3000).answered("2.04", option)


def test_the_answer_to_the_last_block_needs_no_option() -> None:
    out = BodyOut(b"x" * 1500)
    assert not out.answered("2.31", Block(0, True, 6))
    assert out.answered("2.04", None)


@each_row(
    ("blocks", "fault"),
    [
        ([(Block(0, True, 7), b"x" * 1024)], "size"),
        ([(Block(0, True, 2), b"x" * 63)], "size"),
        ([(Block(0, False, 2), b"x" * 65)], "size"),
        ([(Block(1, True, 2), b"x" * 64)], "gap"),
        ([(Block(0, True, 2), b"x" * 64), (Block(2, True, 2), b"x" * 64)], "gap"),
        ([(Block(0, True, 2), b"x" * 64), (Block(0, True, 2), b"x" * 64)], "gap"),
        ([(Block(n, True, 6), b"x" * 1024) for n in range(64)], "limit"),
        ([(Block(1 << 19, False, 6), b"")], "gap"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(blocks: list[tuple[Block, bytes]], fault: str) -> None:
    received = BodyIn()
    with pytest.raises(BlockError) as error:
        for block, payload in blocks:
            received.add(block, payload)
    assert error.value.fault == fault


def test_a_body_of_64_kib_in_the_smallest_blocks_is_taken() -> None:
    body, received = bytes(BODY_BYTES_MAX), BodyIn()
    assert any(received.add(*part(body, number, 0)) for number in range(4096))
    assert received.body == body


def test_an_answer_that_changes_during_its_transfer_is_refused() -> None:
    received = BodyIn()
    received.add(Block(0, True, 2), b"x" * 64, b"1")
    with pytest.raises(BlockError) as error:
        received.add(Block(1, False, 2), b"y", b"2")
    assert error.value.fault == "changed"


# What a server holds.


def upload(bodies: PartialBodies, source: str, name: str, body: bytes, at: float = 0.0, first: int = 0) -> bytes | None:
    found = None
    for number in range(first, -(-len(body) // 64)):
        found = bodies.add(source, name, *part(body, number, 2), at)
    return found


def test_bodies_of_several_sources_do_not_mix() -> None:
    bodies, one, two = PartialBodies(), bytes(range(200)), b"2" * 200
    for number in range(3):
        assert bodies.add("a", "x", *part(one, number, 2), 0.0) is None
        assert bodies.add("b", "x", *part(two, number, 2), 0.0) is None
    assert bodies.add("b", "x", *part(two, 3, 2), 0.0) == two
    assert bodies.add("a", "x", *part(one, 3, 2), 0.0) == one
    assert len(bodies) == 0


def test_a_body_may_begin_again_and_repeat_a_block() -> None:
    bodies, body = PartialBodies(), bytes(range(200))
    bodies.add("a", "x", *part(b"other" * 50, 0, 2), 0.0)
    for number in (0, 1, 1):
        assert bodies.add("a", "x", *part(body, number, 2), 0.0) is None
    assert upload(bodies, "a", "x", body, first=2) == body


def test_a_gap_drops_the_body() -> None:
    bodies, body = PartialBodies(), bytes(range(200))
    bodies.add("a", "x", *part(body, 0, 2), 0.0)
    with pytest.raises(BlockError):
        bodies.add("a", "x", *part(body, 2, 2), 0.0)
    assert len(bodies) == 0


def test_a_body_whose_sender_pauses_for_too_long_is_dropped() -> None:
    bodies, body = PartialBodies(), bytes(range(200))
    bodies.add("a", "x", *part(body, 0, 2), 0.0)
    with pytest.raises(BlockError):
        bodies.add("a", "x", *part(body, 1, 2), PAUSE_S_MAX)


def test_a_source_holds_few_bodies_and_the_oldest_goes() -> None:
    bodies, body = PartialBodies(), bytes(range(200))
    for n in range(BODIES_OF_SOURCE_MAX + 1):
        bodies.add("a", n, *part(body, 0, 2), float(n))
    assert len(bodies) == BODIES_OF_SOURCE_MAX
    with pytest.raises(BlockError):
        bodies.add("a", 0, *part(body, 1, 2), 10.0)
    assert upload(bodies, "a", 1, body, 10.0, first=1) == body


def test_all_sources_together_hold_few_bodies_and_bytes() -> None:
    bodies = PartialBodies()
    for n in range(2 * BODIES_MAX):
        bodies.add(n, "x", Block(0, True, 6), bytes(1024), float(n) / 100)
    assert len(bodies) == BODIES_MAX
    for number in range(63):
        for n in range(2 * BODIES_MAX - 40, 2 * BODIES_MAX):
            with suppress(BlockError):  # it was dropped before
                bodies.add(n, "x", Block(number, True, 6), bytes(1024), 2.0)
    assert len(bodies) <= BODIES_BYTES_MAX // (63 * 1024)
