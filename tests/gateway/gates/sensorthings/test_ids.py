"""Ids and IRIs lead to each other."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.engine.errors import MalformedRequestError
from lamplighter.engine.terms import iri
from lamplighter.gateway.gates.sensorthings.ids import id_of, term_of
from tests.support.tables import each_row

BASE = "http://gateway.example/"
_CHARACTERS = st.characters(exclude_characters='<>"{}|^`\\', exclude_categories=("Cc", "Cs", "Zs"), min_codepoint=0x21)


def test_ids_are_short_and_readable() -> None:
    assert id_of(f"{BASE}street/3/sensor-1", BASE) == "street~3~sensor-1"
    assert id_of(f"{BASE}s/2026-11-26T10:00:00+01:00/0", BASE) == "s~2026-11-26T10:00:00!2B01:00~0"
    assert id_of("urn:x:é", BASE) == "!!urn:x:!C3!A9"


@given(st.one_of(st.just(""), st.just(BASE)), st.text(_CHARACTERS, min_size=1, max_size=30))
def test_each_iri_has_an_id_that_is_safe_in_urls_and_topics(base: str, rest: str) -> None:
    value = base + rest
    one = id_of(value, BASE)
    assert re.fullmatch(r"[A-Za-z0-9._:~!-]+", one)
    assert term_of(one, BASE) == iri(value)


@given(st.text(max_size=20))
def test_a_text_is_the_id_of_one_iri_or_none(text: str) -> None:
    try:
        found = term_of(text, BASE)
    except MalformedRequestError:
        return
    assert id_of(found[1:-1], BASE) == text


@each_row("text", ["", "!", "!!", "a!b", "!zz", "a/b", "!41", "!FF", "!!http:~~gateway.example~a", "a" * 5_000])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(MalformedRequestError, match="is no id"):
        term_of(text, BASE)
