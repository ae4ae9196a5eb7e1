"""The language of SPARQL 1.2 and of RDF 1.2 documents: what is accepted, and what is refused as bad syntax."""

from __future__ import annotations

import pyoxigraph as ox
import pytest

from lamplighter.engine import Engine
from lamplighter.engine.errors import RequestSyntaxError
from tests.rdf12.cases import PREFIXES, SYNTAX, SyntaxCase
from tests.rdf12.reading import request
from tests.support.tables import each_row


def _text(case: SyntaxCase) -> str:
    if case.form in ("query", "update"):
        return request(case.text)
    return PREFIXES + case.text if case.form in ("text/turtle", "application/trig") else case.text


def _accepted_by_the_store(case: SyntaxCase) -> bool:
    store = ox.Store()
    try:
        if case.form == "query":
            store.query(_text(case))
        elif case.form == "update":
            store.update(_text(case))
        else:
            store.load(_text(case), ox.RdfFormat.from_media_type(case.form))
    except SyntaxError:
        return False
    return True


@each_row("case", SYNTAX, ids=lambda case: case.name)
def test_language_is_that_of_the_specification(case: SyntaxCase) -> None:
    accepted = _accepted_by_the_store(case)
    assert (accepted == case.accepted) != bool(case.known), f"the store is right now: {case.known}"
    text = _text(case)
    with Engine() as engine:
        sends = {
            "query": (engine.query, engine.subscribe),
            "update": (engine.update,),
        }.get(case.form, (lambda document: engine.load(document.encode(), case.form),))
        for send in sends:
            if accepted:
                if not (send == engine.subscribe and "CONSTRUCT" in text):
                    send(text)
            else:
                with pytest.raises(RequestSyntaxError):
                    send(text)
        assert accepted or engine.quad_count == 0
