"""A match as JSON."""

import json

import pyoxigraph as ox
import pytest

from lamplighter.cloud_sync.fleet.delivery.notifications import START, Match, MatchNotification, time_text
from lamplighter.engine.errors import PayloadError
from tests.cloud_sync.fleet.delivery.made_up_matches import match

MILLISECONDS = 1_782_907_200_123


def body(**members) -> dict:
    row = match(**{"ts": MILLISECONDS, **members})
    return json.loads(MatchNotification(Match(**row), START).body)


def test_a_match_of_an_event_that_exceeds_a_bound_says_so() -> None:
    assert body(incomplete=True)["incomplete"] is True
    assert "incomplete" not in body(incomplete=False)


def test_a_notification_has_all_that_the_document_says() -> None:
    rows = [
        ["<http://x/s>", '"20.5"^^<http://www.w3.org/2001/XMLSchema#decimal>', '"lampe \\"A\\""@fr'],
        ["_:b0", None, '"a\\u0041"'],
    ]
    found = body(gw="gw-7", seq=17, graph="<http://g>", variables=["s", "v", "l"], rows=rows, request="r-1", late=True)
    assert found == {
        "id": "hot/1/gw-7/1/17/added/1dc76564a483b6fc",
        "subscription": "hot",
        "version": 1,
        "gateway": "gw-7",
        "epoch": 1,
        "sequence": 17,
        "graph": "http://g",
        "time": "2026-07-01T12:00:00.123Z",
        "trusted": True,
        "late": True,
        "change": "added",
        "request": "r-1",
        "results": {
            "head": {"vars": ["s", "v", "l"]},
            "results": {
                "bindings": [
                    {
                        "s": {"type": "uri", "value": "http://x/s"},
                        "v": {
                            "type": "literal",
                            "value": "20.5",
                            "datatype": "http://www.w3.org/2001/XMLSchema#decimal",
                        },
                        "l": {"type": "literal", "value": 'lampe "A"', "xml:lang": "fr"},
                    },
                    {"s": {"type": "bnode", "value": "b0"}, "l": {"type": "literal", "value": "aA"}},
                ]
            },
        },
    }
    # Another reader of the format.
    read = ox.parse_query_results(json.dumps(found["results"]).encode(), format=ox.QueryResultsFormat.JSON)
    assert [[None if term is None else str(term) for term in row] for row in read] == [
        rows[0],
        ["_:b0", None, '"aA"'],
    ]


def test_an_ask_is_a_boolean() -> None:
    found = body(form="ASK", variables=[], rows=[])
    assert found["results"] == {"head": {}, "boolean": True}
    assert found["graph"] is None


def test_ids_differ_in_each_part() -> None:
    rows = [
        match(),
        match("warm"),
        match(version=2),
        match(gw="gw-2"),
        match(epoch=2),
        match(seq=2),
        match(change="deleted"),
        match(graph="<http://g>"),
        match(graph="_:g"),
    ]
    assert len({MatchNotification(Match(**row), START).id for row in rows}) == len(rows)
    again = match(late=True, rows=[["<http://other>"]], ts=None)
    assert MatchNotification(Match(**again), START).id == MatchNotification(Match(**match()), START).id


@pytest.mark.parametrize(
    "term", ["", "x", "<x", '"x', '"x"^^', "_:", '"\\ud800"', "<<( <a> <b> )>>", "<<( <a> <b> <c>"]
)
def test_what_is_no_term_is_said(term: str) -> None:
    with pytest.raises(PayloadError, match="notification hot/1/gw-1/1/1/"):
        body(rows=[[term]])


def test_triple_terms_are_written() -> None:
    found = body(rows=[['<<( <http://a> <http://b> "c" )>>']])["results"]["results"]["bindings"][0]["s"]
    assert found["value"]["object"] == {"type": "literal", "value": "c"}


def test_times() -> None:
    assert time_text(0) == "1970-01-01T00:00:00.000Z"
    assert time_text(-1) == "1969-12-31T23:59:59.999Z"
    assert time_text(10**17) is None
    assert body(ts=None)["time"] is None
