"""Contexts that are known without the network, and inboxes that targets advertise."""

from __future__ import annotations

import json
from typing import Any

import pyoxigraph as ox
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.engine.client.contexts import ACTIVITY_STREAMS, LDP, with_contexts
from lamplighter.engine.client.inboxes import INBOX, inbox_in_body, inbox_in_links
from lamplighter.engine.errors import LimitExceededError, RequestError, UnsupportedRequestError
from tests.support.tables import each_row

AS = f"{ACTIVITY_STREAMS}#"


def triples(document: Any) -> set[tuple[str, str]]:
    """Predicate and object of each triple."""
    data = json.dumps(with_contexts(document)).encode()
    parsed = ox.parse(data, format=ox.RdfFormat.JSON_LD, base_iri="http://e/")
    return {(quad.predicate.value, str(quad.object)) for quad in parsed}


def test_activity_streams_has_the_terms_of_its_vocabulary() -> None:
    found = triples(
        {
            "@context": "https://www.w3.org/ns/activitystreams",
            "id": "http://e/1",
            "type": "Create",
            "actor": "http://e/anna",
            "object": {"type": "Note", "content": "x", "nameMap": {"de": "y"}, "duration": "PT1S"},
            "published": "2026-11-21T02:00:00Z",
            "orderedItems": [],
            "inbox": "/in",
        }
    )
    assert (f"{AS}actor", "<http://e/anna>") in found
    assert ("http://www.w3.org/1999/02/22-rdf-syntax-ns#type", f"<{AS}Create>") in found
    assert (f"{AS}content", '"x"') in found
    assert (f"{AS}name", '"y"@de') in found
    assert (f"{AS}duration", '"PT1S"^^<http://www.w3.org/2001/XMLSchema#duration>') in found
    assert (f"{AS}published", '"2026-11-21T02:00:00Z"^^<http://www.w3.org/2001/XMLSchema#dateTime>') in found
    assert (f"{AS}items", "<http://www.w3.org/1999/02/22-rdf-syntax-ns#nil>") in found
    assert (INBOX, "<http://e/in>") in found


def test_schema_org_has_the_types_of_its_terms() -> None:
    document = {"@context": "https://schema.org", "url": "x", "name": "x", "datePublished": "2026-11-21", "foaf:a": 1}
    assert triples(document) == {
        ("http://schema.org/url", "<http://e/x>"),
        ("http://schema.org/name", '"x"'),
        ("http://schema.org/datePublished", '"2026-11-21"^^<http://schema.org/Date>'),
        ("http://xmlns.com/foaf/0.1/a", '"1"^^<http://www.w3.org/2001/XMLSchema#integer>'),
    }


@each_row(
    "name",
    [
        *("https://schema.org/", "http://schema.org", "http://schema.org/docs/jsonldcontext.jsonld"),
        *(
            ACTIVITY_STREAMS,
            f"{AS}",
            "http://www.w3.org/ns/activitystreams",
            f"{ACTIVITY_STREAMS}.jsonld",
            LDP,
            f"{LDP}#",
        ),
    ],
)
def test_spellings_of_known_contexts(name: str) -> None:
    document = {"@context": [name, {"x": "http://e/x"}], "x": 1}
    assert "http://e/x" in {predicate for predicate, _ in triples(document)}
    assert document["@context"][0] == name, "the argument is not modified"


@each_row(
    "document",
    [
        {"@context": "http://e/c"},
        {"@context": ["https://schema.example"]},
        {"@context": "ftp://schema.org"},
        {"a": [{"@context": "//e/c"}]},
        {"@context": {"@import": "http://e/c"}},
        {"@context": [{"a": {"@context": ["x", "http://e/c"]}}], "@version": 1.1},
        {"@context": {"a": {"@context": "http://e/c"}}},
        {"@context": {"a": {"@context": {"b": {"@context": "http://e/c"}}}}},
    ],
)
def test_other_contexts_are_refused_by_name(document: Any) -> None:
    with pytest.raises(UnsupportedRequestError, match="fetched"):
        with_contexts(document)


def test_number_of_contexts_is_bounded() -> None:
    with_contexts([{"@context": LDP}] * 16)
    with pytest.raises(LimitExceededError, match="16"):
        with_contexts([{"@context": LDP}] * 17)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["http://e/c", ACTIVITY_STREAMS]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["@context", "@id", "@import", "a", "@graph"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
def test_nothing_is_fetched_whatever_the_document(document: Any) -> None:
    """The parser has no loader of documents, so a context that got through would be its error about that."""
    try:
        triples(document)
    except RequestError:
        return
    except SyntaxError as error:
        assert "LoadDocumentCallback" not in str(error)


@each_row(
    ("header", "inbox"),
    [
        (f'</in>; rel="{INBOX}"', "/in"),
        (f"</in>;rel={INBOX}", "/in"),
        (f'<a>; rel="next", </in>; title="x, y; rel=z"; rel="type {INBOX}"', "/in"),
        (f'<>; REL="{INBOX}"', ""),
        (f'</in>; rel="not-{INBOX}"', None),
        (f'</in>; rev="{INBOX}"', None),
        (f"{INBOX}", None),
        ("", None),
        ("<" * 5000, None),
        ("<a>;" * 5000, None),
        ('<a>; x="' + "a" * 50_000, None),
        ('<a>; x="' * 10_000, None),
        ("<a>; x" + " " * 80_000 + "!", None),
    ],
)
def test_inbox_in_a_link_header(header: str, inbox: str | None) -> None:
    assert inbox_in_links(header) == inbox


@each_row(
    ("body", "media_type", "inbox"),
    [
        (f"<> <{INBOX}> <in> .", "text/turtle", "http://e/in"),
        (f"<#a> <{INBOX}> <in> .", "text/turtle;charset=utf-8", "http://e/in"),
        (f"<#a> <{INBOX}> <in> . <#b> <{INBOX}> <other> .", "text/turtle", None),
        (f"<> <{INBOX}> <in> . <#b> <{INBOX}> <other> .", "text/turtle", "http://e/in"),
        (f"<> <{INBOX}> 'in' .", "text/turtle", None),
        (f"<http://e/target> <{INBOX}> <http://e/in> .", "application/n-triples", "http://e/in"),
        ("<html>", "text/html", None),
        ("", "", None),
    ],
)
def test_inbox_in_a_body(body: str, media_type: str, inbox: str | None) -> None:
    assert inbox_in_body(body.encode(), media_type, "http://e/target") == inbox


@each_row(
    ("body", "media_type"),
    [(b"<", "text/turtle"), (b"\xff", "application/ld+json"), (b'{"@context": "http://e/"}', "application/ld+json")],
)
def test_a_body_that_cannot_be_read_is_an_error(body: bytes, media_type: str) -> None:
    with pytest.raises(RequestError):
        inbox_in_body(body, media_type, "http://e/target")
