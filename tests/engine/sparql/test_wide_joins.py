"""Long runs of triples in parts: the same solutions, in less time of the store's optimizer."""

import random
from collections import Counter
from time import thread_time

import pyoxigraph as ox
import pytest

from lamplighter.engine.core import Engine
from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.sparql import wide_joins
from lamplighter.engine.sparql.requests import parse_query
from lamplighter.engine.sparql.wide_joins import JOINED_MAX, RUN_MAX, bounded_joins, in_parts
from tests.support.tables import each_row

STAR = " . ".join(f"?s <urn:p{number}> ?o{number}" for number in range(RUN_MAX + 2))

CONTAINERS = {
    "group": "{ RUN }",
    "ends with a dot": "{ RUN . }",
    "constant graph": "{ GRAPH <urn:g> { RUN } }",
    "any graph": "{ GRAPH ?g { RUN } }",
    "optional": "{ ?s a ?class OPTIONAL { RUN } }",
    "union": "{ { RUN } UNION { ?s a ?o0 } }",
    "minus": "{ ?s a ?class MINUS { RUN } }",
    "exists": "{ ?s a ?class FILTER EXISTS { RUN } }",
    "not exists": "{ ?s a ?class FILTER NOT EXISTS { RUN } }",
    "sub-select": "{ { SELECT ?s (COUNT(*) AS ?count) { RUN } GROUP BY ?s } ?s a ?class }",
    "filter behind it": "{ RUN FILTER(?o0 != ?o1) }",
    "filter before it": "{ FILTER(?o0 != ?o1) RUN }",
    "values": "{ VALUES ?s { <urn:s0> <urn:s1> } RUN }",
    "values behind it": "{ RUN VALUES (?s ?o0) { (<urn:s0> UNDEF) (<urn:s1> 1) } }",
    "bind": "{ RUN BIND(?o0 AS ?copy) RUN }",
    "order": "{ RUN } ORDER BY ?s ?o0 ?o1 ?o2",
}


def dataset(chance: random.Random) -> ox.Store:
    store = ox.Store()
    for graph in (ox.DefaultGraph(), ox.NamedNode("urn:g"), ox.NamedNode("urn:h")):
        for _ in range(25):
            subject = ox.NamedNode(f"urn:s{chance.randrange(3)}")
            if chance.random() < 0.2:
                predicate, value = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type", ox.NamedNode("urn:c")
                store.add(ox.Quad(subject, ox.NamedNode(predicate), value, graph))
            else:
                object_ = chance.choice([ox.Literal(chance.randrange(2)), ox.NamedNode(f"urn:s{chance.randrange(3)}")])
                store.add(ox.Quad(subject, ox.NamedNode(f"urn:p{chance.randrange(4)}"), object_, graph))
    return store


def run(chance: random.Random) -> str:
    """Triples with lists of verbs and objects, paths and constants."""
    sentences = []
    for _ in range(chance.randrange(2, 5)):
        subject = chance.choice(["?s", "?s", "?o0", "?o1", "<urn:s0>"])
        verbs = []
        for _ in range(chance.randrange(1, 3)):
            verb = chance.choice(["<urn:p0>", "<urn:p1>", "<urn:p2>", "a", "?p", "<urn:p0>/<urn:p1>", "^<urn:p2>"])
            objects = chance.choices(["?o0", "?o1", "?o2", "?s", "1", "<urn:s1>"], k=chance.choice([1, 1, 2]))
            verbs.append(f"{verb} {', '.join(objects)}")
        sentences.append(f"{subject} {' ; '.join(verbs)}")
    return " . ".join(sentences)


def solutions(store: ox.Store, text: str) -> Counter[object]:
    found = store.query(text)
    names = sorted(variable.value for variable in found.variables)  # type: ignore[union-attr]
    return Counter(tuple(str(row[name]) for name in names) for row in found)  # type: ignore[union-attr,index]


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_solutions_are_the_same(container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_joins, "RUN_MAX", 1)
    monkeypatch.setattr(wide_joins, "PART", 1)
    chance = random.Random(container)
    differ = 0
    for _ in range(60):
        store, triples = dataset(chance), run(chance)
        text = f"SELECT * {CONTAINERS[container].replace('RUN', triples + ' ', 1).replace('RUN', triples)}"
        parts = in_parts.__wrapped__(text)
        differ += "LATERAL" in parts
        assert solutions(store, parts) == solutions(store, text), text
    assert differ > 50


@pytest.mark.parametrize(
    "text",
    [
        f"CONSTRUCT {{ {STAR} }} WHERE {{ ?s ?p ?o }}",
        f"SELECT * {{ {STAR} . _:b <urn:p> ?o }}",
        f"SELECT * {{ {STAR} . ?s <urn:q> [] }}",
        f"SELECT * {{ {STAR} . ?s <urn:q> (1 2) }}",
        f"SELECT * {{ {STAR} . ?s <urn:q> 1 ~ ?r }}",
        f"SELECT * {{ {STAR} . ?s <urn:q> }}",
        f"SELECT * {{ {STAR} . ?s <urn:q>* ?o }}",
        f"SELECT * {{ {STAR} . ?s !<urn:q> ?o }}",
        f"SELECT * {{ VALUES ?s {{ {'<urn:a> ' * 3 * RUN_MAX} }} FILTER('....' + '{'.' * RUN_MAX}' = ?s) }}",
        "SELECT * { " + " . ".join(f"?s <urn:p{number}> ?o{number}" for number in range(RUN_MAX)) + " }",
    ],
)
def test_what_is_no_long_run_is_left_alone(text: str) -> None:
    assert in_parts(text) == text


def test_the_time_of_the_optimizer_is_bounded() -> None:
    store = ox.Store()
    for run in (
        " . ".join(f"?s <urn:p{number}> ?o{number}" for number in range(128)),
        "?s " + " ; ".join(f"<urn:p{number}> ?o{number}" for number in range(128)),
        "?s <urn:p> " + ", ".join(f"?o{number}" for number in range(128)),
    ):
        begun = thread_time()
        list(store.query(in_parts(f"SELECT * {{ {run} }}")))  # type: ignore[arg-type]
        assert thread_time() - begun < 0.25  # 1.9 s as a whole


JOINS = {
    "groups": lambda number: f"{{ ?s <urn:p{number}> ?o{number} }}",
    "graphs": lambda number: f"GRAPH <urn:g> {{ ?s <urn:p{number}> ?o{number} }}",
    "sub-selects": lambda number: f"{{ SELECT ?s {{ ?s <urn:p{number}> ?o{number} }} }}",
    "triples between conditions": lambda number: f"?s <urn:p{number}> ?o{number} . FILTER(?o{number} IN (1, 2))",
    "blank nodes": lambda number: f"?s <urn:p> [ <urn:q> {number} ] .",
    "labels": lambda number: f"_:b <urn:p{number}> ?o{number} .",
    "lists": lambda number: f"?s <urn:p> ({number}) .",
    "paths": lambda number: f"?s <urn:p{number}>* ?o{number} .",
    "sequences between conditions": lambda number: f"?s <urn:p>/<urn:q> ?o{number} . FILTER(true)",
    "values": lambda number: f"VALUES ?s {{ {number} }}",
    "reifiers": lambda number: f"?s ?p ?o ~ ?r{number} .",
}
APART = {
    "unions": lambda number: f"UNION {{ ?s <urn:p{number}> ?o{number} }}",
    "optionals": lambda number: f"OPTIONAL {{ ?s <urn:p{number}> ?o{number} }}",
    "subtractions": lambda number: f"MINUS {{ ?s <urn:p{number}> ?o{number} }}",
    "existence": lambda number: f"FILTER EXISTS {{ ?s <urn:p{number}> ?o{number} }}",
    "arguments": lambda number: f"FILTER(?o IN ({', '.join(map(str, range(number)))}))",
    "triples": lambda number: f"?s <urn:p{number}> ?o{number} .",
    "values": lambda number: "" if number else f"VALUES ?s {{ {'<urn:s> ' * 200} }}",
}


@pytest.mark.parametrize("kind", JOINS)
def test_joins_that_are_in_no_run_are_limited(kind: str) -> None:
    few, many = (" ".join(map(JOINS[kind], range(count))) for count in (10, JOINED_MAX + 1))
    bounded_joins(f"SELECT * {{ {few} }}")
    with pytest.raises(LimitExceededError, match="joined in one group"):
        bounded_joins(f"SELECT * {{ {many} }}")


@each_row("members", ["?o ", "1 ", "<urn:a>", "?o", "'a'", "-1", "true\n", ":a "])
def test_the_members_of_one_list_are_limited(members: str) -> None:
    bounded_joins(f"SELECT * {{ ?s ?p ({members * 20}) }}")
    with pytest.raises(LimitExceededError, match="joined in one group"):
        bounded_joins(f"SELECT * {{ ?s ?p ({members * (JOINED_MAX // 2 + 1)}) }}")


@each_row(
    "pattern",
    [
        "?s (<urn:p>) (MEMBERS)",
        "?s (<urn:p>)* (MEMBERS)",
        "[ <urn:q> 1 ] (<urn:p>)? (MEMBERS)",
        "FILTER(1 < 2) (MEMBERS) <urn:p> ?o",
        "OPTIONAL { ?s ?p ?o } (MEMBERS) <urn:p> ?o",
        "BIND(1 AS ?one) (MEMBERS) <urn:p> ?o",
        "VALUES ?v { 1 } (MEMBERS) <urn:p> ?o",
        "{ SELECT (1 AS ?x) (2 AS ?y) { ?s (<urn:p>)+ (MEMBERS) } }",
    ],
)
def test_a_list_is_found_behind_any_bracket(pattern: str) -> None:
    few, many = (f"SELECT * {{ {pattern.replace('MEMBERS', '?m ' * count)} }}" for count in (8, JOINED_MAX))
    bounded_joins(few)
    parse_query(few)
    for refused in (bounded_joins, parse_query):
        with pytest.raises(LimitExceededError):
            refused(many + " " * (refused is parse_query))


def test_expressions_side_by_side_are_no_lists() -> None:
    columns = " ".join(f"(STR(?s) IN (1, 2, {number}) AS ?c{number})" for number in range(40))
    modifiers = f"GROUP BY ?s HAVING (?s > 1) (?s < 2) ORDER BY (?s) ({' + '.join(['?s'] * 40)})"
    bounded_joins(f"SELECT ?s {columns} {{ ?s ?p ?o }} {modifiers}")


@pytest.mark.parametrize("kind", APART)
def test_what_is_not_joined_is_not_counted(kind: str) -> None:
    many = " ".join(map(APART[kind], range(JOINED_MAX + 20)))
    bounded_joins(f"SELECT * {{ {{ ?s <urn:p> ?o }} {many} }}")


def test_a_client_is_told_at_a_subscription_and_an_update_and_may_query() -> None:
    where = "{ " + " ".join(map(JOINS["groups"], range(JOINED_MAX + 1))) + " }"
    with Engine() as engine:
        with pytest.raises(LimitExceededError, match="joined in one group"):
            engine.subscribe(f"SELECT * {where}")
        with pytest.raises(LimitExceededError, match="joined in one group"):
            engine.update(f"INSERT {{ ?s <urn:new> 1 }} WHERE {where}")
        assert engine.subscription_count == 0


def test_the_short_form_of_construct_stays_whole() -> None:
    text = f"CONSTRUCT WHERE {{ {' . '.join(f'?s <urn:p{number}> ?o{number}' for number in range(RUN_MAX + 10))} }}"
    assert in_parts(text) == text
    long = text.replace("CONSTRUCT", "CONSTRUCT { ?s <urn:q> ?o1 }")
    assert in_parts(long) != long
