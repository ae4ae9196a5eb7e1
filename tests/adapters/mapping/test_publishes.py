"""`[[publish]]` rules: rows of a query's result -> topics and payloads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lamplighter.adapters.mapping import PublishRule, PublishTable, load_mapping, publish_rule
from lamplighter.adapters.mapping.constructs import graph_query
from lamplighter.adapters.mapping.publishes import (
    GraphChange,
    Messages,
    PublishedResult,
    Topics,
    graph_payload,
    row_payload,
)
from lamplighter.engine import Engine
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import XSD, Bag, Term, iri, literal
from lamplighter.ontology.vocabulary import PREFIXES, TEMPERATURE
from tests.support.places import ROOT
from tests.support.tables import each_row

BASE = "http://gateway.example/"
ROOMS = "SELECT ?room ?value WHERE { ?room gateway:x ?value }"
GRAPH = "CONSTRUCT { ?s a <http://e/Room> ; gateway:x ?o } WHERE { ?s gateway:y ?o }"


def rule(query: str = ROOMS, topic: str = "rooms/{room}", **keys: Any) -> PublishRule:
    permitted: Sequence[str] = keys.pop("permitted", ("#",))
    table = msgspec.convert({"query": query, "topic": topic} | keys, PublishTable)
    return publish_rule(table, prefixes=PREFIXES, base_iri=BASE, place="rule", permitted=permitted)


def number(value: object) -> Term:
    return literal(str(value), datatype=XSD + ("decimal" if "." in str(value) else "integer"))


def rows(*found: tuple[str, object]) -> Bag:
    return Bag(("room", "value"), [(literal(name), number(value)) for name, value in found])


NONE = rows()


def sent(topics: Topics) -> dict[str, list[str]]:
    assert topics.errors == []
    found = {}
    for topic, one in topics.waiting.items():
        assert isinstance(one, Messages)
        found[topic] = [payload.decode() for payload in one.payloads]
    return found


def test_a_row_that_enters_is_a_json_object_on_its_topic_and_old_rows_give_nothing() -> None:
    result = PublishedResult(rule())
    assert sent(result.take(0, rows(("hall", 1)), NONE)) == {}
    changed = result.take(1, rows(("hall", "2.5"), ("attic", 3)), rows(("hall", 1)))
    assert sent(changed) == {
        "rooms/attic": ['{"room": "attic", "value": 3}'],
        "rooms/hall": ['{"room": "hall", "value": 2.5}'],
    }


def test_rows_that_changed_while_the_gateway_was_away_are_published_then() -> None:
    result = PublishedResult(rule(removed="gone"))
    result.take(0, rows(("hall", 1), ("attic", 2)), NONE)
    again = result.take(0, rows(("hall", 1), ("cellar", 3)), NONE)
    assert sent(again) == {"rooms/cellar": ['{"room": "cellar", "value": 3}'], "rooms/attic": ["gone"]}


def test_a_row_that_leaves_is_published_only_if_the_rule_says_so_and_nothing_replaces_it() -> None:
    for removed, wanted in ((None, {}), ("", {"rooms/attic": [""]}), ("no {value}", {"rooms/attic": ["no 2"]})):
        result = PublishedResult(rule(**({} if removed is None else {"removed": removed})))
        result.take(0, rows(("hall", 1), ("attic", 2)), NONE)
        assert sent(result.take(1, NONE, rows(("attic", 2)))) == wanted
        [(_, payloads)] = sent(result.take(2, rows(("hall", 5)), rows(("hall", 1)))).items()
        assert payloads == ['{"room": "hall", "value": 5}']


def test_all_rows_of_one_commit_are_sent_to_one_topic() -> None:
    result = PublishedResult(rule(topic="alerts", payload="{room}"))
    result.take(0, NONE, NONE)
    assert sent(result.take(1, rows(("b", 1), ("a", 1)), NONE)) == {"alerts": ["a", "b"]}


def test_a_second_occurrence_of_a_row_is_no_new_row() -> None:
    result = PublishedResult(rule(removed=""))
    result.take(0, rows(("hall", 1)), NONE)
    assert sent(result.take(1, rows(("hall", 1)), NONE)) == {}
    assert sent(result.take(2, NONE, rows(("hall", 1)))) == {}
    assert sent(result.take(3, NONE, rows(("hall", 1)))) == {"rooms/hall": [""]}


def test_retained_messages_are_brought_up_to_date_at_a_start_and_follow_the_rows() -> None:
    result = PublishedResult(rule(topic="first/{value}", payload="{room}", retain=True, removed=""))
    assert sent(result.take(0, rows(("hall", 1), ("attic", 1)), NONE)) == {"first/1": ["hall"]}
    assert sent(result.take(1, NONE, rows(("hall", 1)))) == {"first/1": ["attic"]}
    assert sent(result.take(2, NONE, rows(("attic", 1)))) == {"first/1": [""]}


def test_the_example_of_the_street_publishes_temperatures(tmp_path: Path) -> None:
    example = (ROOT / "mapping" / "street.toml").read_text().partition("#     [[publish]]\n")[2]
    lines = [line.removeprefix("#     ") for line in example.splitlines()]
    (tmp_path / "street.toml").write_text("\n".join(["[[publish]]", *lines]))
    [one] = load_mapping(tmp_path, BASE).publishes
    engine = Engine()
    result = PublishedResult(one)
    subscription = engine.subscribe(one.select)
    result.take(0, subscription.first, Bag(subscription.first.variables))
    commit = engine.update(
        "PREFIX sosa: <http://www.w3.org/ns/sosa/> INSERT DATA { <x:o> sosa:hasSimpleResult 8.5 ; "
        f"sosa:observedProperty <{TEMPERATURE}> ; sosa:hasFeatureOfInterest <{BASE}post/3> }}"
    )
    [notification] = commit.notifications
    assert sent(result.take(1, notification.added, notification.removed)) == {"temperatures/3": ["8.5"]}


@each_row(
    ("term", "topic"),
    [
        (literal("hall"), "rooms/hall"),
        (literal("a/+/#%\0é"), "rooms/a%2F%2B%2F%23%25%00é"),
        (iri(BASE + "room/hall"), "rooms/room%2Fhall"),
        (iri("http://e/r"), "rooms/http:%2F%2Fe%2Fr"),
        (number(5), "rooms/5"),
    ],
)
def test_a_value_is_one_level_of_the_topic(term: Term, topic: str) -> None:
    assert rule().topic({"room": term}) == topic


@each_row(
    ("topic", "row", "reason"),
    [
        ("rooms/{room}", {}, "not bound"),
        ("rooms/{room}", {"room": literal("")}, "empty"),
        ("rooms/{room}", {"room": "_:b"}, "neither"),
        ("rooms/{room}", {"room": literal("x" * 2_000)}, "bytes"),
        ("{room}/x", {"room": literal("$SYS")}, "not permitted"),
        ("{room}/x", {"room": literal("lamplighter")}, "not permitted"),
    ],
)
def test_rows_without_a_topic(topic: str, row: dict[str, Term], reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        rule(topic=topic).topic(row)
    result = PublishedResult(rule(topic=topic))
    result.take(0, NONE, NONE)
    [error] = result.take(1, Bag(("room",), [(row.get("room"),)]), NONE).errors
    assert reason in str(error)


@each_row(
    ("template", "payload"),
    [
        ("{json}", '{"n": 2.5, "s": "a\\"b", "i": "http://e/x"}'),
        ('{"n": {n}, "s": {json:s}}', '{"n": 2.5, "s": "a\\"b"}'),
        ("{s} {u}|{json:u} {i} {other} {json:other} {}", 'a"b |null http://e/x {other} {json:other} {}'),
    ],
)
def test_payload_of_a_row(template: str, payload: str) -> None:
    row = {"n": number("2.5"), "s": literal('a"b'), "i": iri("http://e/x")}
    assert row_payload(template, ["n", "s", "i", "u"], row).decode() == payload


def test_a_value_is_no_template() -> None:
    row = {"a": literal("{b}"), "b": literal("{json}")}
    assert row_payload("{a}{b}", ["a", "b"], row) == b"{b}{json}"


def test_a_message_that_is_too_large_is_refused() -> None:
    with pytest.raises(PayloadError, match="bytes"):
        row_payload("{a}", ["a"], {"a": literal("x" * 70_000)})


def graph_rows(*found: tuple[str, int]) -> Bag:
    return Bag(("s", "o"), [(iri(f"http://e/{name}"), number(value)) for name, value in found])


def triples(*lines: str) -> str:
    return "".join(f"{line} .\n" for line in lines)


CLASS = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type> <http://e/Room>"
X = "<http://lamplighter.example/ns/gateway#x>"
INTEGER = "^^<http://www.w3.org/2001/XMLSchema#integer>"


def test_the_triples_that_a_commit_adds_are_one_message() -> None:
    one = rule(GRAPH, "graph", removed="gone\n{triples}")
    assert one.select.endswith("SELECT ?s ?o  WHERE { ?s gateway:y ?o }")
    result = PublishedResult(one)
    assert result.take(0, graph_rows(("a", 1)), graph_rows()).waiting == {}
    [(topic, change)] = result.take(1, graph_rows(("a", 2), ("b", 3)), graph_rows(("a", 1))).waiting.items()
    assert topic == "graph"
    assert [payload.decode() for payload in change.encode(one.table)] == [
        "gone\n" + triples(f'<http://e/a> {X} "1"{INTEGER}'),
        triples(f'<http://e/a> {X} "2"{INTEGER}', f'<http://e/b> {X} "3"{INTEGER}', f"<http://e/b> {CLASS}"),
    ]


def test_triples_that_wait_are_joined() -> None:
    a, b, c = (("<x:a>", "<x:p>", f"<x:{name}>") for name in "abc")
    first = GraphChange(frozenset({a}), frozenset({b}))
    assert first.followed_by(GraphChange(frozenset({b}), frozenset({c}))) == GraphChange(frozenset({a}), frozenset({c}))
    assert first.followed_by(GraphChange(frozenset({b}), frozenset({a}))) == GraphChange(frozenset(), frozenset())


def test_triples_that_leave_give_a_message_only_if_there_are_some_and_a_template_for_them() -> None:
    some, none = frozenset({("<x:a>", "<x:p>", "<x:b>")}), frozenset[tuple[str, str, str]]()
    for removed, left, messages in (("gone", some, 1), ("gone", none, 0), (None, some, 0)):
        assert len(GraphChange(left, none).encode(rule(GRAPH, "graph", removed=removed).table)) == messages


@pytest.mark.parametrize("text", ["CONSTRUCT", "CONSTRUCT WHERE", "CONSTRUCT GRAPH { ?s ?p ?o }"])
def test_a_construct_query_that_breaks_off_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write CONSTRUCT"):
        graph_query(text)


def test_the_retained_message_of_a_graph_has_all_triples() -> None:
    result = PublishedResult(rule("CONSTRUCT { ?s gateway:x ?o } WHERE { ?s gateway:y ?o }", "graph", retain=True))
    lines = [f'<http://e/{name}> {X} "{value}"{INTEGER}' for name, value in (("a", 1), ("b", 2))]
    assert sent(result.take(0, graph_rows(("a", 1)), graph_rows())) == {"graph": [triples(lines[0])]}
    assert sent(result.take(1, graph_rows(("b", 2)), graph_rows())) == {"graph": [triples(*lines)]}
    assert sent(result.take(2, graph_rows(), graph_rows(("a", 1), ("b", 2)))) == {"graph": [""]}


@each_row(
    ("query", "select", "template"),
    [
        (
            "CONSTRUCT { ?s :p 'x'@en , 5, 1.5 ; a ?c . } FROM <g:g> WHERE { ?s a ?c }",
            "SELECT ?s ?c  FROM <g:g> WHERE { ?s a ?c }",
            [
                ("?s", "<x:p>", '"x"@en'),
                ("?s", "<x:p>", f'"5"{INTEGER}'),
                ("?s", "<x:p>", '"1.5"^^<http://www.w3.org/2001/XMLSchema#decimal>'),
                ("?s", "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>", "?c"),
            ],
        ),
        ("construct where { ?s :p ?o }", "SELECT ?s ?o where { ?s :p ?o }", [("?s", "<x:p>", "?o")]),
        (
            'CONSTRUCT { <x:s> :p "a\\"}\'\\u00e9"^^:t . ?s :p true } # }\n{ ?s ?p ?o }',
            "SELECT ?s  # }\n{ ?s ?p ?o }",
            [
                ("<x:s>", "<x:p>", '"a\\"}\'é"^^<x:t>'),
                ("?s", "<x:p>", '"true"^^<http://www.w3.org/2001/XMLSchema#boolean>'),
            ],
        ),
    ],
)
def test_a_construct_query_is_a_select_query_and_a_template(
    query: str, select: str, template: list[tuple[str, str, str]]
) -> None:
    one = rule("PREFIX : <x:>\n" + query, "graph")
    assert one.select.split("PREFIX : <x:>\n")[1] == select
    assert one.graph is not None
    assert list(one.graph.template) == template


@each_row(
    ("query", "keys", "reason"),
    [
        ("ASK { ?s ?p ?o }", {}, "SELECT or a CONSTRUCT"),
        ("", {}, "SELECT or a CONSTRUCT"),
        ("BASE <x:> SELECT * { ?s ?p ?o }", {}, "BASE"),
        ("CONSTRUCT { _:b ?p ?o } WHERE { ?s ?p ?o }", {"topic": "g"}, "cannot be read at"),
        ("CONSTRUCT { ?s ?p [] } WHERE { ?s ?p ?o }", {"topic": "g"}, "cannot be read at"),
        ("CONSTRUCT { ?s x:p ?o } WHERE { ?s ?p ?o }", {"topic": "g"}, "'x:' is not declared"),
        ("CONSTRUCT { ?s ?p } WHERE { ?s ?p ?o }", {"topic": "g"}, "no whole triple"),
        ("CONSTRUCT { ?s ?p ?o ?s ?p ?o } WHERE { ?s ?p ?o }", {"topic": "g"}, "before"),
        ("CONSTRUCT { ?s <x:p> . ?s <x:q> ?o } WHERE { ?s ?p ?o }", {"topic": "g"}, "cannot be read at '.'"),
        ("CONSTRUCT { ?s <x:p> ?o , . ?s <x:q> ?o } WHERE { ?s ?p ?o }", {"topic": "g"}, "cannot be read at '.'"),
        ("CONSTRUCT { 'x' <x:p> ?o } WHERE { ?s ?p ?o }", {"topic": "g"}, "the literal 'x' as subject"),
        ("CONSTRUCT { ?s 5 ?o } WHERE { ?s ?p ?o }", {"topic": "g"}, "the literal 5 as predicate"),
        ("CONSTRUCT { ?s <x:p> ?o ; , ?s } WHERE { ?s ?p ?o }", {"topic": "g"}, "cannot be read at ','"),
        ("CONSTRUCT { ?s ?p ?o", {"topic": "g"}, "closing brace"),
        ("CONSTRUCT { <x:a> <x:b> <x:c> } WHERE { ?s ?p ?o }", {"topic": "g"}, "no variable"),
        (GRAPH, {}, "without {name}"),
        (GRAPH, {"topic": "g", "retain": True, "removed": ""}, "all triples"),
        (ROOMS, {"topic": "rooms/+"}, "without"),
        (ROOMS, {"topic": "rooms/{room"}, "braces"),
        (ROOMS, {"topic": "$SYS/{room}"}, "not permitted"),
        (ROOMS, {"topic": "lamplighter/{room}"}, "not permitted"),
        (ROOMS, {"topic": "/".join("x" * 70)}, "levels"),
        (ROOMS, {"permitted": ()}, "mqtt.publish"),
        (ROOMS, {"permitted": ("rooms", "rooms/hall", "+/+/+")}, "mqtt.publish"),
        (ROOMS + " " * 20_000, {}, "characters"),
    ],
)
def test_faulty_rules(query: str, keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^rule: ") as raised:
        rule(query, **keys)
    assert reason in str(raised.value)


@each_row("permitted", ["rooms/+", "#", "+/#", "rooms/#"])
def test_a_permitted_filter_covers_all_topics_of_a_rule(permitted: str) -> None:
    assert rule(permitted=(permitted,)).filter == "rooms/+"


def test_templates_with_many_slots_do_not_multiply_long_values() -> None:
    long = {"a": literal("/" * 50_000)}
    begun = time.thread_time()
    with pytest.raises(PayloadError, match="has more than 1024 bytes"):
        rule(query="SELECT ?a { ?a ?b ?c }", topic="t/" + "{a}" * 300).topic(long)
    with pytest.raises(PayloadError, match="more than 65536 bytes"):
        row_payload("{a}" * 5_000, ["a"], long)
    with pytest.raises(PayloadError, match="more than 65536 bytes"):
        row_payload("{json}" * 5_000, ["a"], long)
    with pytest.raises(PayloadError, match="more than 65536 bytes"):
        row_payload("{a}", ["a"], {"a": literal("/" * 10_000_000)})
    with pytest.raises(PayloadError, match="more than 65536 bytes"):
        graph_payload("{triples}" * 5_000, [(iri("x:s"), iri("x:p"), literal("x" * 50_000))])
    assert time.thread_time() - begun < 1
