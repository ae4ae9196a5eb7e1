"""`lamplighter-fleet query` answers what the store answers over a replay of the same change logs."""

import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyoxigraph as ox
import pytest
from msgspec.structs import replace

from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.tables.bronze import ingest
from lamplighter.engine.change_log import Record
from tests.cloud_sync.fleet.events.description_oracle import completed_events
from tests.support.fleet_events import BASE, commit
from tests.support.fleet_matches import rows_of_event
from tests.support.small_lake import write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = f"PREFIX : <{BASE}> PREFIX sosa: <http://www.w3.org/ns/sosa/> "
READINGS = PREFIX + "SELECT ?p ?v { ?o sosa:observedProperty ?p ; sosa:hasSimpleResult ?v FILTER(?v > 1) }"
STREAM = (
    ":s a gateway:Stream ; gateway:liveObservation :o . :o sosa:madeBySensor :n ; sosa:observedProperty :warmth . "
    ":n :in _:box . _:box :label 'box' ."
)
GW_1 = [
    commit(1, a=STREAM + ":o sosa:hasSimpleResult 1 ."),
    commit(2, d=":o sosa:hasSimpleResult 1 .", a=":o sosa:hasSimpleResult 5 ."),
    commit(3, a="GRAPH :g { :x sosa:observedProperty :damp ; sosa:hasSimpleResult 9 }"),
    commit(4, d=":o sosa:hasSimpleResult 5 .", a=":o sosa:hasSimpleResult 6 . GRAPH :g { :x :next :o }"),
    commit(5, a=":o :broken true ."),
    commit(6, d=":o sosa:hasSimpleResult 6 .", a=":o sosa:hasSimpleResult 7 ."),
]
GW_2 = [
    commit(1, gw="gw-2", a=":o sosa:hasSimpleResult 3 . :n :in _:box . _:box :label 'other box' ."),
    commit(2, gw="gw-2", a=":o :broken true ."),
]
LOST = [commit(7, gw="gw-3", a=":o :broken true .")]


@pytest.fixture(scope="module")
def lake(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three gateways: record 5 of the first one has not arrived, nor have those before 7 of the third."""
    folder = tmp_path_factory.mktemp("queried")
    for records in (GW_1[:3], GW_1[3:4], GW_1[5:], GW_2, LOST):
        write_segment(folder / "segments" / records[0].gw, records)
    ingest(spark, Lake(str(folder)))
    return str(folder)


def _store(*logs: list[Record]) -> ox.Store:
    """The union of the datasets after these logs. A blank node is one of its gateway."""
    lines: set[str] = set()
    for log in logs:
        mine: dict[str, None] = {}
        for record in log:
            for quad in record.d:
                mine.pop(quad.to_nquads())
            mine.update(dict.fromkeys(quad.to_nquads() for quad in record.a))
        lines.update(line.replace("_:", f"_:{log[0].gw}") for line in mine)
    store = ox.Store()
    store.load("\n".join(lines).encode(), ox.RdfFormat.N_QUADS)
    return store


def _answer(text: str) -> Counter[tuple[tuple[str, str], ...]]:
    """The rows of SPARQL Query Results JSON, by Oxigraph's reader."""
    found = ox.parse_query_results(text.encode(), format=ox.QueryResultsFormat.JSON)
    return _bag(found)


def _bag(found: ox.QuerySolutions) -> Counter[tuple[tuple[str, str], ...]]:
    names = [variable.value for variable in found.variables]
    return Counter(tuple((name, str(row[name])) for name in names if row[name] is not None) for row in found)


def test_the_state_is_the_union_of_the_gateways_as_far_as_it_is_known(
    lake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", lake, READINGS, "--format", "json"]) == 1
    said = capsys.readouterr()
    assert _answer(said.out) == _bag(_store(GW_1[:4], GW_2).query(READINGS))
    assert "gateway gw-1: as of record 1/4 instead of 1/6, because records from 1/5 on are missing" in said.err
    assert "gateway gw-3: left out, because records from 1/1 on are missing" in said.err
    boxes = (
        PREFIX + "SELECT ?a ?b { ?n :in ?x . ?x :label ?a . OPTIONAL { GRAPH ?g { ?y :next ?o } } ?n :in/:label ?b }"
    )
    assert main(["query", lake, boxes, "--format", "json", "--gateway", "gw-[12]"]) == 0
    expected = _bag(_store(GW_1[:4], GW_2).query(boxes))
    assert _answer(capsys.readouterr().out) == expected
    assert sum(expected.values()) == 4


def test_each_gateway_alone_at_a_time(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["query", lake, READINGS.replace("SELECT", "SELECT ?o"), "--per-gateway", "--gateway", "gw-[12]"]
    assert main([*asked, "--at", "2026-06-01T00:00:02Z", "--format", "csv"]) == 0
    assert list(csv.reader(io.StringIO(capsys.readouterr().out))) == [
        ["gateway", "o", "p", "v"],
        ["gw-1", f"{BASE}o", f"{BASE}warmth", "5"],
    ]


def _named(record: Record) -> Record:
    """The record without the quads of blank nodes, which the oracle cannot describe."""
    return replace(record, a=tuple(quad for quad in record.a if "_:" not in quad.to_nquads()))


def test_the_history_has_the_matches_of_a_subscription(
    lake: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from lamplighter.cloud_sync.fleet.sparql.supported import fleet_query

    (tmp_path / "q.rq").write_text(READINGS)
    found = tmp_path / "found.json"
    asked = ["query", lake, "--file", str(tmp_path / "q.rq"), "--history", "--changes", "both", "--per-gateway"]
    assert main([*asked, "--format", "json", "-o", str(found)]) == 0
    document = json.loads(found.read_text())
    assert document["head"]["vars"] == ["gateway", "epoch", "sequence", "time", "p", "v"]
    rows = [{name: term["value"] for name, term in row.items()} for row in document["results"]["bindings"]]
    query = fleet_query(READINGS)
    everything = READINGS.replace("?p ?v {", "* {")
    expected = Counter(
        (key[0], str(key[2]), row[0], row[1])
        for log in ([*GW_1[:4], *GW_1[5:]], GW_2)
        for key, triples in completed_events(map(_named, log)).items()
        for row in rows_of_event(query, everything, key, triples) or ()
    )
    got = Counter(
        (row["gateway"], row["sequence"], f"<{row['p']}>", f'"{row["v"]}"^^<http://www.w3.org/2001/XMLSchema#integer>')
        for row in rows
    )
    assert got == expected
    assert sum(got.values()) == 6, "values 5, 5 deleted, 9, 6, 6 deleted, 7"
    assert rows[0]["time"] == "2026-06-01T00:00:02.000000Z"


def test_bounds_and_forms(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", lake, PREFIX + "SELECT * { ?s :in ?o }", "--gateway", "gw-[12]", "--limit-rows", "1"]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("1 row\ns ") and "there are more than 1 row; raise --limit-rows" in said.err
    assert main(["query", lake, PREFIX + "ASK { ?s :in ?o }", "--gateway", "gw-2", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"head": {}, "boolean": True}
    counted = PREFIX + "SELECT (COUNT(*) AS ?n) { ?o :broken true }"
    assert main(["query", lake, counted, "--history", "--per-gateway", "--format", "csv", "--gateway", "gw-[23]"]) == 0
    assert capsys.readouterr().out == "gateway,n\r\ngw-2,1\r\ngw-3,1\r\n"
    assert (
        main(
            ["query", lake, READINGS.replace("FILTER", "; :in ?x . ?x ?r ?b FILTER"), "--gateway", "gw-2", "--explain"]
        )
        == 0
    )
    assert [line.partition(": ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "star, one grouping by subject",
        "join, the predicate is a variable",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["SELECT * { ?s ?p ?o "], "line 1"),
        (["SELECT * { ?s ?p ?o\n FILTER EXISTS { ?o ?q ?x } }"], "line 2, column 9: EXISTS is not available in fleet"),
        ([], "give the query, or a file"),
        (["ASK { ?s ?p ?o }", "--format", "csv"], "write SELECT"),
        (["SELECT ?gateway { ?gateway ?p ?o }", "--per-gateway"], "another name"),
        (["SELECT * { ?s ?p ?o }", "--at", "noon"], "--at noon: write a time such as"),
        (["SELECT * { ?s ?p ?o }", "--at", "2026-01-01", "--history"], "the history has all times"),
        (["SELECT * { ?s ?p ?o }", "--changes", "both"], "add --history"),
        (["SELECT * { ?s ?p ?o }", "--limit-rows", "0"], "from 1 on"),
        (["SELECT * { ?s ?p ?o }"], "no records yet"),
    ],
)
def test_bad_input_is_said_without_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    (tmp_path / "bronze").mkdir()
    assert main(["query", str(tmp_path), *options]) == 2
    assert said in capsys.readouterr().err
