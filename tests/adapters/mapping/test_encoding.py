"""CBOR and SenML that are written."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.adapters.mapping import cbor, senml
from lamplighter.adapters.mapping.payloads import Found, Number
from lamplighter.engine.errors import PayloadError
from tests.support.mapping_rules import NOON
from tests.support.tables import each_row

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
DOCUMENTS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**64), 2**64 - 1), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=20,
)


def plain(item: Any) -> Any:
    """A document whose numbers are Python's."""
    if isinstance(item, dict):
        return {key: plain(member) for key, member in item.items()}
    if isinstance(item, list):
        return [plain(one) for one in item]
    return float(item) if isinstance(item, Number) else item


@given(DOCUMENTS)
def test_written_document_is_read_again(document: Any) -> None:
    try:
        data = cbor.encode(document)
    except PayloadError:
        return
    assert plain(cbor.decode(data)) == document


@each_row(
    ("document", "data"),
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (1000, "1903e8"),
        (2**64 - 1, "1bffffffffffffffff"),
        (-1, "20"),
        (-(2**64), "3bffffffffffffffff"),
        (1.5, "f93e00"),
        (Number("100000.0"), "fa47c35000"),
        (1.1, "fb3ff199999999999a"),
        (False, "f4"),
        (True, "f5"),
        (None, "f6"),
        ("ü", "62c3bc"),
        ({"a": 1, "b": [2, 3]}, "a26161016162820203"),
        ([1] * 25, "9819" + "01" * 25),
    ],
)
def test_examples_of_the_specification(document: Any, data: str) -> None:
    """RFC 8949, appendix A."""
    assert cbor.encode(document).hex() == data


@each_row(
    ("document", "reason"),
    [(2**64, "64 bits"), (math.inf, "out of range"), ([[[[[[[[[[1]]]]]]]]]], "8 levels")],
)
def test_documents_that_are_refused(document: Any, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        cbor.encode(document)


@given(
    st.from_regex(r"([A-Za-z0-9][A-Za-z0-9:./_-]{0,9})", fullmatch=True),
    st.one_of(st.booleans(), st.integers(-(2**60), 2**60), st.decimals("-1e9", "1e9", places=3).map(Number), TEXTS),
    st.sampled_from(["senml+json", "senml+cbor"]),
)
def test_written_pack_is_read_again(name: str, value: Found, form: str) -> None:
    data = senml.encode(name, value, form)
    [(read_name, _, found, _, _)] = senml.records(data, NOON)
    assert read_name == name
    if isinstance(value, Number):
        assert float(found) == float(value)
    else:
        assert (found, type(found)) == (value, type(value))


def test_pack_without_a_name() -> None:
    assert json.loads(senml.encode("", True, "senml+json")) == [{"vb": True}]
    assert senml.encode("", "ON", "senml+cbor").hex() == "81a103624f4e"
