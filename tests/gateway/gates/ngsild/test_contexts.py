"""Names and IRIs by contexts, which are never fetched."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from lamplighter.engine.errors import ConfigurationError, LimitExceededError, MalformedRequestError
from lamplighter.gateway.gates.ngsild.contexts import CORE, DEFAULT, NGSI, PLAIN, ContextNames, KnownContexts
from lamplighter.gateway.gates.ngsild.problems import UnknownContextError
from tests.support.tables import each_row

KNOWN = KnownContexts({}, Path())


def test_a_name_without_a_definition_is_had_back() -> None:
    assert PLAIN.expand("temperature", "") == DEFAULT + "temperature"
    assert PLAIN.compact(DEFAULT + "temperature") == "temperature"
    assert PLAIN.expand("location", "") == NGSI + "location" and PLAIN.compact(NGSI + "location") == "location"
    assert PLAIN.compact(DEFAULT + "a b") == DEFAULT + "a b" and PLAIN.compact(DEFAULT + "location") != "location"


def test_definitions_prefixes_and_vocabulary() -> None:
    context = [
        CORE,
        {"@vocab": "http://v/", "p": "http://p/", "a": "p:x", "b": {"@id": "a"}, "id": "@id", "none": None},
    ]
    names = KNOWN.names(context)
    expanded = {name: names.expand(name, "") for name in ("a", "b", "p:y", "c", "urn:x:y", "http://h/i", "location")}
    assert expanded == {
        "a": "http://p/x",
        "b": "http://p/x",
        "p:y": "http://p/y",
        "c": "http://v/c",
        "urn:x:y": "urn:x:y",
        "http://h/i": "http://h/i",
        "location": NGSI + "location",
    }


def test_a_compact_name_expands_to_its_iri() -> None:
    random = Random(1)
    words = ("a", "b", "location", "x-y", "http", "urn")
    for _ in range(500):
        spaces = ("http://a/", "urn:x:", DEFAULT, NGSI)
        terms = {random.choice(words): random.choice(spaces) + random.choice(words) for _ in range(4)}
        names = ContextNames(terms, random.choice(("http://a/", DEFAULT)))
        value = random.choice(spaces) + random.choice(words)
        compact = names.compact(value)
        if compact != value or compact.partition(":")[0] not in terms:
            assert names.expand(compact, "") == value, (terms, value)


@each_row(
    ("context", "error"),
    [
        ("http://h/c.jsonld", UnknownContextError),
        ([{"@import": "http://h/c"}], UnknownContextError),
        (5, MalformedRequestError),
        ({"a": "b c"}, MalformedRequestError),
        ({"a": "b", "b": "a"}, MalformedRequestError),
        ({"a": "http://h/> } ;"}, MalformedRequestError),
        ({"@vocab": "x"}, MalformedRequestError),
        ([CORE] * 20, LimitExceededError),
        ({f"a{number}": "http://h/" for number in range(6_000)}, LimitExceededError),
    ],
)
def test_wrong_contexts_are_refused(context: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        KNOWN.names(context)


@each_row("text", ["{", '{"@context": "http://h/other"}', None])
def test_wrong_files_stop_the_start(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "c.jsonld").write_text(text)
    with pytest.raises(ConfigurationError, match=r"ngsild.contexts: 'http://h/c'"):
        KnownContexts({"http://h/c": "c.jsonld"}, tmp_path)
