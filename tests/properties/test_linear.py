"""The time for a text of a client is linear in its length: each kind of token, repeated, behind each that does not end.

A ratio of 4 for each doubling is quadratic. The processor time of this thread is measured, and the best of some
attempts counts, so that a busy machine changes little.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from starlette.requests import Request

from lamplighter.engine.client.inboxes import inbox_in_links
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.protocol import requests
from lamplighter.engine.protocol.jsap import parse
from lamplighter.engine.sparql.clauses import listed_variables, parts
from lamplighter.engine.sparql.forced_bindings import bind
from lamplighter.engine.sparql.lexer import tokens
from lamplighter.engine.sparql.plain_updates import plain_data, plain_modification
from lamplighter.engine.sparql.requests import parse_query, parse_update, query_outline
from lamplighter.engine.sparql.skeletons import TEXT_MAX, Lifter
from lamplighter.engine.terms import Term
from lamplighter.gateway.gates.http import negotiation
from lamplighter.gateway.gates.http.sparql import _RELATIVE
from lamplighter.gateway.state.delayed import at_moment, delay_us
from lamplighter.gateway.state.resumption import depends_on_order
from tests.support.linear import RATIO_MAX, growth

BEGINNINGS = ["", '"', "'", '"""', "'''", "<", "_:", "#", "@", "?", "a", ":", "\\", "(<", "VALUES ?x {"]
"""What a text begins with: nothing, or a token that does not end."""
TOKENS = ["a", "a.", "a-", "é.", "_:", "_:a.", ":", ":a.", "a:", ".", "1", "1.", "1e", ".1", "@a-", "-", "?a", "^"]
TOKENS += ['"', "'", '\\"', "\\'", "\\", '"""', "'''", '"""\n\\', "'''\n\\", '"\n\\', "<", "<a", "<a>", "<a ", "<<("]
TOKENS += ["(", "{", "[", "(<a>", "(<?b#>", ")", "#", "# a\n", " ", "%", ":%41", ":\\.", "&", "|", "!", ",", ";"]
TOKENS += ["\x00", "SELECT ", "VALUES ", "(?a<?b&&c>d"]
REQUESTS = ["", "SELECT * { ?s ?p ", "INSERT DATA { <a:a> <a:b> ", "PREFIX a:<b:b> ", "SELECT * { FILTER(1 "]
PHRASES = ["PREFIX a:<b:b> ", "INSERT DATA {} ;", "<a:a> <a:b> <a:c> . ", '"a" ,', "1 , ", "{} ", '"a"@en ,', "\\u0041"]
PHRASES += ["BASE <a:b> ", "[] , ", "_:a , ", "# \n1 , "]
TERM: Term = "<http://e/x>"


def drained(text: str) -> None:
    for _ in tokens(text):
        pass


def lifted(text: str) -> None:
    for _ in range(20):  # the text is short
        with suppress(ValueError):
            Lifter(lambda prologue, raw: raw).lift(text)


def messages(text: str) -> None:
    for _ in range(20):
        requests(text)
        requests('{"update":' + text)
        requests('{"updates":[' + text)
        requests(json.dumps({"subscribe": {"sparql": text, "alias": text}}))
        requests(json.dumps({text: {"query": text}}))


def profiles(text: str) -> None:
    for document in (text, json.dumps({"namespaces": {text: text}}), json.dumps({"updates": {text: {"sparql": text}}})):
        with suppress(GatewayError):
            parse(document.encode())
    profile = parse(json.dumps({"updates": {"U": {"sparql": text, "forcedBindings": {"a": {"value": ""}}}}}).encode())
    with suppress(GatewayError):
        profile.update_text("U", {"a": TERM})
        profile.update_text("U", {}, {"a": [text, "b"]})


def accept(text: str) -> None:
    header = text.encode("latin-1", "ignore")
    request = Request(
        {"type": "http", "scheme": "http", "raw_path": b"/", "headers": [(b"accept", header), (b"host", header)]}
    )
    for _ in range(5):
        with suppress(GatewayError):
            negotiation.negotiate(request, ["text/csv", "application/sparql-results+json"])
        with suppress(GatewayError):
            negotiation.request_iri(request)


def links(text: str) -> None:
    for end in ("", '"', "<"):
        inbox_in_links(text + end)


def edited(text: str) -> None:
    bind(text, {"a": TERM})
    parts(text)
    listed_variables(text)
    depends_on_order(text)


def asked(text: str) -> None:
    for ask in (query_outline, parse_query, parse_update):
        with suppress(GatewayError):
            ask(text)


def plain(text: str) -> None:
    plain_data(text)
    plain_modification(text)


def times(text: str) -> None:
    for read in (delay_us, at_moment):
        for beginning in ("", "P", "PT", "2030-01-01T08:00:00."):
            for _ in range(100):
                with suppress(GatewayError):
                    read(beginning + text)


ENTRANCES: dict[str, tuple[Callable[[str], object], list[str], list[str], int]] = {
    "tokens": (drained, BEGINNINGS, TOKENS, 2_000_000),
    "constants": (lifted, ["", '"', "<", "?"], TOKENS, TEXT_MAX),
    "edits": (edited, ["", '"', "SELECT * { "], TOKENS, 1_000_000),
    "plain updates": (plain, ["INSERT DATA { ", "DELETE { ", "INSERT { } WHERE { "], TOKENS + PHRASES, TEXT_MAX),
    "requests": (asked, REQUESTS, TOKENS + PHRASES, 1_000_000),
    "relative IRIs": (_RELATIVE.search, ["", "<", "<a"], TOKENS, 4_000_000),
    "messages": (messages, ["", "{", '"'], [*TOKENS, '{"a":', "{},", '{"sparql":"a"},', "9e9"], 200_000),
    "profiles": (profiles, ["", "{", "SELECT * { "], [*TOKENS, '{"a":'], 200_000),
    "headers": (accept, [""], [*TOKENS, "a/b,", "*/*,", "q=1;", ";q=0.5,", "a/b;q=0.5,", "a.", "a:1"], 500_000),
    "links": (links, ["", "<a>"], ["<", "<a>;b=", "<a>;b ", '<a>;b="', ";b=<a>", "<a>,", ";a", "<a>; "], 100_000),
    "times": (times, [""], [*TOKENS, "1D", "1H", "0"], 500_000),
}


SLOW = "tokens", "requests", "constants", "messages", "edits", "relative IRIs", "profiles"
"""They are run with the faults, so that `make test` takes less than ten minutes."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.faults] * (name in SLOW)) for name in ENTRANCES]
)
def test_the_time_is_linear(name: str) -> None:
    run, beginnings, pieces, characters_max = ENTRANCES[name]
    slow = {}
    for beginning in beginnings:
        for piece in pieces:
            ratio = growth(run, lambda count, b=beginning, p=piece: b + p * count, characters_max)  # type: ignore[misc]
            if ratio >= RATIO_MAX:
                slow[beginning + piece] = round(ratio, 2)
    assert not slow
