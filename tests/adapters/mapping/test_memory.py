"""What the mapping keeps of topics, records and births is bounded: whoever may publish chooses them. `make test` has
lower bounds, and as much less to exceed them with."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lamplighter.adapters.mapping import Births, Mapping, sparkplug
from lamplighter.adapters.mapping import rules as rules_module
from tests.support.amounts import Amounts
from tests.support.mapping_rules import readings, rule, rules

BYTES_MAX = 32_000_000


@pytest.fixture(autouse=True)
def lower_bounds(monkeypatch: pytest.MonkeyPatch, amounts: Amounts) -> None:
    for module, name in ((rules_module, "CACHED_CHARS_MAX"), (sparkplug, "METRICS_ALL_MAX")):
        monkeypatch.setattr(module, name, amounts.of(getattr(module, name)))


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
def test_long_topics_take_bounded_memory(members: int, amounts: Amounts) -> None:
    items = [{"member": f"m{number}", "optional": True} for number in range(members)]
    mapping = Mapping([rule({"topic": "{a}/{b#}", "property": "ex:p", "payload": "number", "read": items})])
    with at_most(amounts.of(BYTES_MAX)):
        for number in range(amounts.of(3_000 // members)):
            readings(mapping, f"{'é' * 500}{number}/b", b'{"m0":1}')


def test_topics_without_a_rule_take_bounded_memory(amounts: Amounts) -> None:
    mapping = rules('[[stream]]\ntopic = "a"\npayload = "number"\nproperty = "ex:p"')
    with at_most(amounts.of(BYTES_MAX)):
        for number in range(amounts.of(50_000)):
            readings(mapping, f"{number:x}", b"1")


def test_records_of_long_names_take_bounded_memory(amounts: Amounts) -> None:
    mapping = rules('[[stream]]\ntopic = "{a}"\npayload = "number"\nproperty = "ex:p"\nmember = "{m}"')
    with at_most(amounts.of(BYTES_MAX)):
        for number in range(amounts.of(20)):
            members = {f"{'é' * 240}{number}.{member}": 1 for member in range(120)}
            readings(mapping, "é" * 500, json.dumps(members, ensure_ascii=False).encode())


def test_births_of_many_metrics_take_bounded_memory(amounts: Amounts) -> None:
    births, nodes = Births(), amounts.of(40)
    metrics = b"".join(
        b"\x12" + bytes([len(metric)]) + metric
        for number in range(4_000)
        for metric in [b"\x0a\x04" + f"{number:04}".encode() + b"\x10" + bytes([number % 128 | 128, number // 128])]
    )
    with at_most(amounts.of(BYTES_MAX)):
        for node in range(nodes):
            births.records(f"spBv1.0/g/NBIRTH/{node}", metrics)
    names = births.records(f"spBv1.0/g/NDATA/{nodes - 1}", b"\x12\x05\x10\x85\x01\x50\x07")
    assert [(one.name, one.found) for one in names] == [("0133", 7)]
