"""What the mapping keeps of topics, records and births is bounded: whoever may publish chooses them."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lamplighter.adapters.mapping import Births, Mapping
from tests.support.mapping_rules import readings, rule, rules


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """Checks the bytes that are taken and not given back."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[0] < count
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("members", [1, 10])
def test_long_topics_take_bounded_memory(members: int) -> None:
    items = [{"member": f"m{number}", "optional": True} for number in range(members)]
    mapping = Mapping([rule({"topic": "{a}/{b#}", "property": "ex:p", "payload": "number", "read": items})])
    with at_most(32_000_000):
        for number in range(3_000 // members):
            readings(mapping, f"{'é' * 500}{number}/b", b'{"m0":1}')


def test_topics_without_a_rule_take_bounded_memory() -> None:
    mapping = rules('[[stream]]\ntopic = "a"\npayload = "number"\nproperty = "ex:p"')
    with at_most(32_000_000):
        for number in range(50_000):
            readings(mapping, f"{number:x}", b"1")


def test_records_of_long_names_take_bounded_memory() -> None:
    mapping = rules('[[stream]]\ntopic = "{a}"\npayload = "number"\nproperty = "ex:p"\nmember = "{m}"')
    with at_most(32_000_000):
        for number in range(20):
            members = {f"{'é' * 240}{number}.{member}": 1 for member in range(120)}
            readings(mapping, "é" * 500, json.dumps(members, ensure_ascii=False).encode())


def test_births_of_many_metrics_take_bounded_memory() -> None:
    births = Births()
    metrics = b"".join(
        b"\x12" + bytes([len(metric)]) + metric
        for number in range(4_000)
        for metric in [b"\x0a\x04" + f"{number:04}".encode() + b"\x10" + bytes([number % 128 | 128, number // 128])]
    )
    with at_most(32_000_000):
        for node in range(40):
            births.records(f"spBv1.0/g/NBIRTH/{node}", metrics)
    names = births.records("spBv1.0/g/NDATA/39", b"\x12\x05\x10\x85\x01\x50\x07")
    assert [(name, value) for name, _, value, _, _ in names] == [("0133", 7)]
