"""Rules that are proposed for topics that no rule reads: each is a rule, and reads its message."""

from __future__ import annotations

import json
import tomllib
from decimal import Decimal
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.adapters.devices.kinds import KINDS
from lamplighter.adapters.mapping import Mapping, StreamRule, StreamTable
from lamplighter.adapters.mapping.proposals import VALUES_MAX, proposed_rule
from lamplighter.adapters.model.readings import Reading
from lamplighter.engine.terms import lexical
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.mapping_rules import BASE, NOON
from tests.support.tables import each_row


def readings(toml: str, topic: str, payload: bytes) -> dict[str, str]:
    """Local name of the property -> value, by the proposed rule."""
    [table] = tomllib.loads(toml, parse_float=Decimal)["stream"]
    rule = StreamRule(msgspec.convert(table, StreamTable), prefixes=PREFIXES, base_iri=BASE, place="line 1")
    found = Mapping([rule]).readings(topic, payload, retained=False, received=NOON)
    values = [one for one in found if isinstance(one, Reading)]
    assert len(values) == len(found), found
    return {lexical(one.stream.property).removeprefix(BASE): lexical(one.value) for one in values}


GATEWAY = PREFIXES["gateway"]


@each_row(
    ("topic", "payload", "kind", "values"),
    [
        ("attic/temperature", b" 21.50 ", "number", {f"{GATEWAY}temperature": "21.50"}),
        ("attic/co2", b"-4e2", "number", {"property/co2": "-4e2"}),
        ("Garage Door/Motion", b"ON", "boolean", {f"{GATEWAY}motion": "true"}),
        ("x/lamp (2)", b"false", "boolean", {"property/lamp-2": "false"}),
        (
            "rtl_433/x",
            b'{"id": "A", "temperature": 21.5, "ok": true, "a b": 1, "no": null, "in": {"power": 3, "t": {"u": 1}}}',
            "JSON: temperature, ok, in.power, in.t.u",
            {f"{GATEWAY}temperature": "21.5", "property/ok": "true", f"{GATEWAY}power": "3", "property/u": "1"},
        ),
    ],
)
def test_a_message_has_a_rule_that_reads_it(topic: str, payload: bytes, kind: str, values: dict[str, str]) -> None:
    found = proposed_rule(topic, payload, BASE, list(KINDS))
    assert found is not None
    assert found.kind == kind
    assert readings(found.toml, topic, payload) == values


@each_row(
    ("topic", "payload"),
    [
        ("x", b"hello"),
        ("x", b""),
        ("x", b"\xff"),
        ("x", b"[1, 2]"),
        ("x", b'{"a": "b"}'),
        ("x", b'{"a": {"b": {"c": {"d": 1}}}}'),
        ("x", b"[" * 100_000),
        ("x", b"1" * 40),
        ("x{y}", b"1"),
        ("x\ny", b"1"),
        ('x"y', b"1"),
        ("$SYS/broker/uptime", b"1"),
        ("lamplighter/adapter/canary", b"1"),
    ],
)
def test_others_have_none(topic: str, payload: bytes) -> None:
    assert proposed_rule(topic, payload, BASE, list(KINDS)) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e6, 1e6) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=30,
)


NAMES = st.text(max_size=8) | st.sampled_from(sorted(KINDS)) | st.from_regex(r"[A-Za-z_][\w-]{0,9}", fullmatch=True)
TOPICS = st.text(min_size=1, max_size=20) | st.from_regex(r"[a-z0-9]{1,5}(/[\w. :()%-]{1,9}){0,3}", fullmatch=True)


@given(TOPICS, st.dictionaries(NAMES, JSON | st.integers() | st.booleans(), min_size=1))
def test_every_proposed_rule_reads_its_message(topic: str, document: dict[str, Any]) -> None:
    payload = json.dumps(document).encode()
    found = proposed_rule(topic, payload, BASE, list(KINDS))
    if found is not None:
        assert 0 < len(readings(found.toml, topic, payload)) <= VALUES_MAX


@given(st.text(), st.binary(max_size=60))
def test_no_message_breaks_the_proposal(topic: str, payload: bytes) -> None:
    proposed_rule(topic, payload, BASE, list(KINDS))
