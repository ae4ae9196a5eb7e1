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
    Verified,
    block_bytes,
    network,
    request_rates,
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
    assert (network(ip_address(one)) == network(ip_address(other))) is shared


def test_a_source_has_a_burst_and_then_a_rate_as_long_as_it_is_remembered() -> None:
    rates, source = request_rates(), network(LAMP.address)
    assert sum(not rates.take(source, 0.0) for _ in range(1_000)) == REQUESTS_BURST
    assert sum(not rates.take(source, 0.5) for _ in range(1_000)) == 0.5 * REQUESTS_PER_S
    for number in range(1, SOURCES_MAX + 1):
        assert not rates.take(network(numbered(number).address), 0.5)
    assert len(rates) == SOURCES_MAX
