"""The index never misses a subscription that an event matches, and names each once."""

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from lamplighter.cloud_sync.fleet.sparql.supported import FleetQuery, fleet_query, required_patterns
from lamplighter.cloud_sync.fleet.subscriptions.index import (
    BranchEntry,
    IndexedBranch,
    candidates,
    entries,
    gateways_regex,
)
from lamplighter.cloud_sync.fleet.subscriptions.records import SubscriptionRecord
from lamplighter.engine.sparql.algebra import Constant, Variable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW = datetime(2026, 6, 1, tzinfo=UTC)
TYPE = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>"
EVENT = """
    gw STRING, epoch INT, seq BIGINT, change STRING, graph STRING,
    triples ARRAY<STRUCT<s: STRING, p: STRING, o: STRING, new: BOOLEAN>>, late BOOLEAN
"""


class Subscription(NamedTuple):
    record: SubscriptionRecord
    query: FleetQuery


def subscription(name: str, query: str, **members: Any) -> Subscription:
    record = SubscriptionRecord(id=name, query=query, created=NOW, changed=NOW, **members)
    return Subscription(record, fleet_query(query))


def keys(query: str, *others: str) -> list[tuple[str | None, ...]]:
    """The keys of a query's branches, when the others are subscribed too."""
    rows = entries([subscription("a", query), *(subscription(f"b{n}", text) for n, text in enumerate(others))])
    return [row.branch[:3] for row in rows if row.subscription == "a"]


P = "PREFIX : <http://e/> "


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("?s ?p ?o", [("*", None, None)]),
        ("?s ?p 1", [("*", None, None)]),
        ("?s :p ?o", [("p", "<http://e/p>", None)]),
        (":s :p ?o", [("sp", "<http://e/s>", "<http://e/p>")]),
        ("?s :p ?o . ?s :q :o", [("po", "<http://e/q>", "<http://e/o>")]),
        (":s :p ?o . ?s :q :o", [("po", "<http://e/q>", "<http://e/o>")]),
        ("?s a :T . ?s :q :o", [("po", "<http://e/q>", "<http://e/o>")]),
        ("?s a :T . :s :q ?o", [("sp", "<http://e/s>", "<http://e/q>")]),
        ("?s a :T . ?s :q ?o", [("po", TYPE, "<http://e/T>")]),
        ("{ ?s :p 1 } UNION { ?s :q ?o }", [
            ("po", "<http://e/p>", '"1"^^<http://www.w3.org/2001/XMLSchema#integer>'), ("p", "<http://e/q>", None)
        ]),
        ("?s :p ?o OPTIONAL { ?s :q :o }", [("p", "<http://e/p>", None)]),
    ],
)  # fmt: skip
def test_the_most_selective_key_is_chosen(where: str, expected: list[tuple[str | None, ...]]) -> None:
    assert keys(f"{P} ASK {{ {where} }}") == expected


def test_of_equal_keys_the_one_of_fewer_subscriptions_is_chosen() -> None:
    query = f"{P} ASK {{ ?s :property :co2 ; :sensor :s1 }}"
    others = [f"{P} ASK {{ ?s :property :co2 ; :sensor :s{number} }}" for number in range(2, 5)]
    assert keys(query, *others) == [("po", "<http://e/sensor>", "<http://e/s1>")]


def test_an_entry_names_what_is_needed_besides_the_key() -> None:
    query = f"{P} ASK {{ GRAPH :g {{ :s :p ?v . ?x :q :o . ?x :r ?v }} }}"
    [row] = entries([subscription("a", query, gateways=("gw-*",), changes="both", version=3)])
    assert row == BranchEntry(
        branch=IndexedBranch(
            *("po", "<http://e/q>", "<http://e/o>", "<http://e/g>"),
            ["<http://e/s>"],
            ["<http://e/p>", "<http://e/r>"],
            [],
        ),
        earlier=[],
        subscription="a",
        version=3,
        shape=fleet_query(query).shape,
        constants=list(fleet_query(query).constants),
        changes="both",
        gateways=gateways_regex(["gw-*"]),
    )


# --- events, generated


class Event(NamedTuple):
    gw: str
    epoch: int
    seq: int
    change: str
    graph: str | None
    triples: list[tuple[str, str, str, bool]]
    late: bool = False


SUBJECTS = [f"<http://e/s{number}>" for number in range(4)]
PREDICATES = [*(f"<http://e/p{number}>" for number in range(4)), TYPE]
OBJECTS = [*SUBJECTS, '"1"^^<http://www.w3.org/2001/XMLSchema#integer>', '"x"@en', '"\\"q\\""']
GRAPHS = [None, "<http://e/g0>", "<http://e/g1>"]
GATEWAYS = ["gw-1", "gw-2", "gw-21", "other"]


def generated_events(chance: random.Random, count: int) -> Iterator[Event]:
    for seq in range(count):
        triples = {tuple(map(chance.choice, (SUBJECTS, PREDICATES, OBJECTS))) for _ in range(chance.randint(1, 5))}
        yield Event(
            gw=chance.choice(GATEWAYS),
            epoch=1,
            seq=seq,
            change=chance.choice(("added", "added", "deleted")),
            graph=chance.choice(GRAPHS),
            triples=[(s, p, o, place == 0 or chance.random() < 0.5) for place, (s, p, o) in enumerate(triples)],
        )


def generated_query(chance: random.Random) -> str:
    def part(terms: list[str], name: str) -> str:
        return chance.choice(terms) if chance.random() < 0.45 else f"?{name}{chance.randint(0, 2)}"

    def patterns() -> str:
        count = chance.randint(1, 3)
        text = " . ".join(f"{part(SUBJECTS, 'n')} {part(PREDICATES, 'p')} {part(OBJECTS, 'n')}" for _ in range(count))
        if chance.random() < 0.25:
            return f"GRAPH {chance.choice(['<http://e/g0>', '<http://e/g1>', '?g'])} {{ {text} }}"
        return text

    shape = chance.random()
    if shape < 0.3:
        where = " UNION ".join(f"{{ {patterns()} }}" for _ in range(chance.randint(2, 3)))
    elif shape < 0.5:
        where = f"{patterns()} OPTIONAL {{ ?n0 {chance.choice(PREDICATES)} ?other }}"
    elif shape < 0.6:
        where = f"VALUES ?n0 {{ {chance.choice(SUBJECTS)} }} {patterns()}"
    else:
        where = patterns()
    return f"ASK {{ {where} }}"


def has_solution(patterns: tuple[Any, ...], constants: tuple[str, ...], event: Event) -> bool:
    """Whether triples of the event fit all patterns at once, with equal terms for equal variables."""
    for triples in product(event.triples, repeat=len(patterns)):
        bound: dict[str, str] = {}

        def fits(part: Any, term: str | None, bound: dict[str, str] = bound) -> bool:
            if term is None:
                return False
            if isinstance(part, Variable):
                return bound.setdefault(part.name, term) == term
            return term == (constants[part.number] if isinstance(part, Constant) else part)

        if all(
            all(map(fits, pattern[:3], triple[:3])) and (pattern.graph is None or fits(pattern.graph, event.graph))
            for pattern, triple in zip(patterns, triples, strict=True)
        ):
            return True
    return False


def needs(one: Subscription, event: Event) -> bool:
    """Whether the event can have a match: FILTER, OPTIONAL and VALUES only take solutions away, or extend them."""
    if one.record.changes not in ("both", event.change):
        return False
    gateways = one.record.gateways
    if gateways and not any(fnmatchcase(event.gw, pattern) for pattern in gateways):
        return False
    return any(has_solution(branch, one.query.constants, event) for branch in required_patterns(one.query))


def frame_of(spark: "SparkSession", events: list[Event]) -> "DataFrame":
    """EVENT and `late`, by JSON: a list of rows would start Python workers."""
    members = [
        {**event._asdict(), "triples": [dict(zip(("s", "p", "o", "new"), one, strict=True)) for one in event.triples]}
        for event in events
    ]
    return spark.range(1).selectExpr(f"inline(from_json({quoted(json.dumps(members))}, 'ARRAY<STRUCT<{EVENT}>>'))")


def quoted(text: str) -> str:
    """A literal of Spark SQL."""
    return "r'" + text.replace("'", "\\u0027") + "'"


def found_by_index(spark: "SparkSession", events: list[Event], subscriptions: list[Subscription]) -> list[Any]:
    frame = frame_of(spark, events)
    found = candidates(frame, entries(subscriptions))
    assert found.columns == [*frame.columns, "subscription", "version", "shape", "constants"]
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert "Exchange hashpartitioning" not in plan and "Aggregate" not in plan
    return list(found.collect())


def test_each_event_that_can_match_is_a_candidate_once(spark: "SparkSession") -> None:
    chance = random.Random(1)
    events = list(generated_events(chance, 100))
    subscriptions = [
        subscription(
            f"s{number}",
            generated_query(chance),
            version=number + 1,
            changes=chance.choice(("added", "added", "deleted", "both")),
            gateways=chance.choice(((), (), ("gw-2*",), ("other", "gw-[!2]"))),
        )
        for number in range(100)
    ]
    rows = found_by_index(spark, events, subscriptions)
    found = {(row["subscription"], row["seq"]) for row in rows}
    assert len(found) == len(rows), "an event is a candidate of a subscription once"
    wanted = {(one.record.id, event.seq) for one in subscriptions for event in events if needs(one, event)}
    assert wanted, "the generator makes matches"
    assert wanted - found == set()

    by_id = {one.record.id: one for one in subscriptions}
    by_seq = {event.seq: event for event in events}
    for row in rows:
        one, event = by_id[row["subscription"]], by_seq[row["seq"]]
        assert (row["version"], row["shape"]) == (one.record.version, one.query.shape)
        assert row["constants"] == list(one.query.constants)
        assert one.record.changes in ("both", event.change)
        assert [tuple(triple) for triple in row["triples"]] == event.triples
    # Not exact, but it has to leave out most of what does not match.
    assert len(found) <= len({(one.record.id, event.seq) for one in subscriptions for event in events}) / 4


def test_without_subscriptions_no_event_is_a_candidate(spark: "SparkSession") -> None:
    assert found_by_index(spark, list(generated_events(random.Random(3), 5)), []) == []


def test_what_the_event_has_not_is_no_candidate(spark: "SparkSession") -> None:
    event = Event("gw-1", 1, 0, "added", "<http://e/g0>", [("<http://e/s0>", "<http://e/p0>", "<http://e/s1>", True)])
    queries = {
        "yes": "?s <http://e/p0> ?o",
        "object": "?s <http://e/p0> ?o . ?x ?p <http://e/s0>",
        "subject": "?s <http://e/p0> ?o . <http://e/s1> ?p ?o",
        "predicate": "?s <http://e/p0> ?o . ?s <http://e/p1> ?o",
        "pair": "?s <http://e/p0> <http://e/s0>",
        "graph": "GRAPH <http://e/g1> { ?s <http://e/p0> ?o }",
        "named": "GRAPH ?g { ?s <http://e/p0> ?o }",
        "star": "GRAPH <http://e/g1> { ?s ?p ?o }",
    }
    subscriptions = [subscription(name, f"ASK {{ {where} }}") for name, where in queries.items()]
    rows = found_by_index(spark, [event, event._replace(seq=1, graph=None)], subscriptions)
    assert sorted((row["subscription"], row["seq"]) for row in rows) == [("named", 0), ("yes", 0), ("yes", 1)]


# --- patterns of gateways

NAMES = ["", "gw-1", "gw-21", "gw.1", "GW-1", "a]b", "a-b", "a&b", "[x]", "a\nb", "^", "\\d", "é", "gw-1\n"]
PATTERNS = [
    *("*", "?", "gw-*", "gw-?", "*1", "gw-[12]", "gw-[!2]*", "gw-[0-9][0-9]", "[x]", "[[]x]", "a[]]b", "a[!]]b"),
    *("a[a-]b", "a[+--]b", "a[z-a]b", "a[!z-a]b", "a[&&b]b", "[", "[]", "[!]", "a.b", "gw.1", "^", "\\d", "[\\d]"),
    *("[^]", "é", "[é]", "a*b", "**", "[a-c-e]", "[!!]", "a?b", "(gw", "gw|x", "{1}"),
]


def test_patterns_mean_what_fnmatch_says(spark: "SparkSession") -> None:
    rows = [
        {"name": name, "pattern": pattern, "regex": gateways_regex([pattern])}
        for name, pattern in product(NAMES, PATTERNS)
    ]
    schema = "'ARRAY<STRUCT<name: STRING, pattern: STRING, regex: STRING>>'"
    found = spark.range(1).selectExpr(f"inline(from_json({quoted(json.dumps(rows))}, {schema}))")
    found = found.selectExpr("name", "pattern", "name RLIKE regex AS found")
    wrong = [tuple(row) for row in found.collect() if row["found"] != fnmatchcase(row["name"], row["pattern"])]
    assert wrong == []


def test_several_patterns_are_alternatives() -> None:
    assert gateways_regex([]) is None
    assert gateways_regex(["a*", "b"]) == r"^(?:a(?s:.*)|b)\z"
