from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.adapters.coap.admission import (
    ECHO_BYTES,
    REQUESTS_BURST,
    REQUESTS_PER_S,
    SOURCES_MAX,
    Origin,
    Rates,
    Verified,
    block_bytes,
)
from tests.support.tables import each_row

KEY = bytes(range(32))
LAMP = Origin(ip_address("192.0.2.7"), 5683)


class Clock:
    def __init__(self) -> None:
        self.now = 90.0

    def __call__(self) -> float:
        return self.now


def numbered(number: int) -> Origin:
    return Origin(ip_address(number + 1), 5683)


def test_a_source_that_repeats_its_echo_value_is_verified_for_ten_minutes() -> None:
    clock = Clock()
    verified = Verified(KEY, clock)
    value = verified.echo(LAMP)
    assert len(value) == ECHO_BYTES
    assert LAMP not in verified
    assert verified.repeated(LAMP, value)
    assert LAMP in verified
    clock.now += 599
    assert LAMP in verified
    clock.now += 1
    assert LAMP not in verified


def test_a_value_is_valid_in_its_slot_and_in_the_next_one() -> None:
    clock = Clock()
    verified = Verified(KEY, clock)
    value = verified.echo(LAMP)
    clock.now = 119.9
    assert verified.echo(LAMP) == value
    clock.now = 179.9
    assert verified.repeated(LAMP, value)
    assert verified.echo(LAMP) != value
    clock.now = 180.0
    assert not verified.repeated(LAMP, value)


@each_row(
    "source",
    [
        Origin(ip_address("192.0.2.8"), 5683),
        Origin(ip_address("192.0.2.7"), 5684),
        Origin(ip_address("2001:db8::7"), 5683),
        Origin(ip_address("192.0.2.75"), 683),
    ],
)
def test_the_value_of_one_source_does_not_serve_another(source: Origin) -> None:
    verified = Verified(KEY, Clock())
    assert not verified.repeated(source, verified.echo(LAMP))
    assert source not in verified


def test_values_of_another_key_and_other_lengths_are_refused() -> None:
    verified = Verified(KEY, Clock())
    value = verified.echo(LAMP)
    for wrong in (b"", value[:-1], value + b"\0", bytes(ECHO_BYTES), Verified(KEY[::-1], Clock()).echo(LAMP)):
        assert not verified.repeated(LAMP, wrong)
    assert LAMP not in verified


def test_zones_distinguish_link_local_sources_and_mapped_addresses_are_ipv4() -> None:
    verified = Verified(KEY, Clock())
    eth0, eth1 = (Origin(ip_address(f"fe80::1%{zone}"), 5683) for zone in ("eth0", "eth1"))
    assert not verified.repeated(eth1, verified.echo(eth0))
    assert verified.repeated(eth0, verified.echo(eth0))
    mapped = Origin(ip_address("::ffff:192.0.2.7"), 5683)
    assert verified.repeated(mapped, verified.echo(LAMP))
    assert LAMP in verified


def test_a_source_may_be_verified_by_its_security_context() -> None:
    verified = Verified(KEY, Clock())
    verified.add(LAMP)
    assert LAMP in verified


def test_the_source_that_was_not_heard_of_for_the_longest_time_is_forgotten() -> None:
    verified = Verified(KEY, Clock())
    for number in range(SOURCES_MAX):
        verified.add(numbered(number))
    assert numbered(0) in verified  # heard of now
    verified.add(numbered(SOURCES_MAX))
    assert numbered(1) not in verified
    assert numbered(0) in verified
    assert numbered(SOURCES_MAX) in verified


def test_a_short_key_is_a_fault_of_the_program() -> None:
    with pytest.raises(AssertionError):
        Verified(b"short", Clock())


def test_an_unverified_source_gets_three_times_its_request_or_the_safe_default() -> None:
    verified = Verified(KEY, Clock())
    assert [verified.answer_bytes_max(LAMP, size) for size in (4, 45, 46, 1_000)] == [136, 136, 138, 3_000]
    verified.add(LAMP)
    assert verified.answer_bytes_max(LAMP, 4) is None


@each_row(
    ("most", "other", "block"),
    [
        (136, 20, 64),
        (136, 72, 64),
        (136, 73, 32),
        (136, 120, 16),
        (136, 121, None),
        (136, 500, None),
        (3_000, 20, 1_024),
    ],
)
def test_a_large_answer_goes_in_blocks_that_fit(most: int, other: int, block: int | None) -> None:
    assert block_bytes(most, other) == block


@given(st.integers(0, 10_000), st.integers(0, 2_000))
def test_a_block_is_the_largest_that_fits(most: int, other: int) -> None:
    fitting = [size for size in (16, 32, 64, 128, 256, 512, 1_024) if size + other <= most]
    assert block_bytes(most, other) == max(fitting, default=None)


def test_a_source_has_a_burst_and_then_a_rate() -> None:
    clock = Clock()
    rates, address = Rates(clock), LAMP.address
    assert sum(rates.allows(address) for _ in range(1_000)) == REQUESTS_BURST
    clock.now += 0.5
    assert sum(rates.allows(address) for _ in range(1_000)) == 0.5 * REQUESTS_PER_S
    clock.now += 3_600
    assert sum(rates.allows(address) for _ in range(1_000)) == REQUESTS_BURST


def test_a_request_may_count_as_several() -> None:
    rates, address = Rates(Clock()), LAMP.address
    assert sum(rates.allows(address, 30) for _ in range(1_000)) == REQUESTS_BURST // 30
    assert sum(rates.allows(address) for _ in range(1_000)) == REQUESTS_BURST % 30


@each_row(
    ("one", "other", "shared"),
    [
        ("192.0.2.7", "192.0.2.8", False),
        ("192.0.2.7", "::ffff:192.0.2.7", True),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", False),
        ("fe80::1%eth0", "fe80::1%eth1", False),
    ],
)
def test_what_one_source_is(one: str, other: str, shared: bool) -> None:
    rates = Rates(Clock())
    while rates.allows(ip_address(one)):
        pass
    assert rates.allows(ip_address(other)) is not shared


def test_rates_are_remembered_of_a_bounded_number_of_sources() -> None:
    rates = Rates(Clock())
    for quiet in (1, 0):
        while rates.allows(numbered(quiet).address):
            pass
    for number in range(2, SOURCES_MAX + 1):
        assert rates.allows(numbered(number).address)
    assert not rates.allows(numbered(0).address)
    assert rates.allows(numbered(1).address)  # forgotten


@given(st.lists(st.floats(0, 2), max_size=300))
def test_no_source_exceeds_its_rate(pauses: list[float]) -> None:
    clock = Clock()
    rates, begin, allowed = Rates(clock), clock.now, 0
    for pause in pauses:
        clock.now += pause
        allowed += sum(rates.allows(LAMP.address) for _ in range(3))
        assert allowed <= REQUESTS_BURST + (clock.now - begin) * REQUESTS_PER_S + 1e-6
