"""Rules that are triples: rows in, rules and updates out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from pyoxigraph import Literal, NamedNode, Store

from lamplighter.adapters.mapping import Mapping
from lamplighter.adapters.mapping.dataset_rules import QUERY, RULES_MAX, DatasetRules, forget_problems
from lamplighter.adapters.mapping.rules import TOPIC_READS_MAX, changed_reads
from lamplighter.adapters.model.event import EventModel
from lamplighter.adapters.model.latest import LatestModel
from lamplighter.adapters.specs import Kind
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import XSD, Term, iri, lexical, literal
from lamplighter.ontology.vocabulary import GATEWAY, QUDT, RDFS, RULE, SOSA
from tests.support.mapping_rules import BASE, NOON, readings, values
from tests.support.tables import each_row

GOOD = {"stream": {"topic": "attic/t", "payload": "number", "property": "gateway:temperature", "scale": 0.1}}
COMMAND = {
    "command": {
        "topic": "lamp/set",
        "values": {"true": "ON", "false": "OFF"},
        "state": {"topic": "lamp", "member": "state"},
    }
}


def row(name: str, rule: Any) -> tuple[Term, Term]:
    return iri(f"{BASE}mapping/{name}"), literal(rule if isinstance(rule, str) else json.dumps(rule))


def replaced(rules: DatasetRules, rows: Iterable[tuple[Term, Term]]) -> None:
    for _ in rules.replace(rows):
        pass


def test_rules_are_made_in_portions() -> None:
    rules = DatasetRules(BASE)
    steps = [len(rules.streams()) for _ in rules.replace([row(str(number), GOOD) for number in range(250)])]
    assert steps == [100, 200, 250]


def test_rules_are_applied_and_forgotten() -> None:
    rules = DatasetRules(BASE)
    replaced(rules, [row("b", GOOD), row("a", COMMAND)])
    assert [rule.place for rule in rules.streams()] == [f"<{BASE}mapping/b>"]
    assert values(Mapping(rules.streams()), "attic/t", "215") == {"attic/t": "21.5"}
    assert [command.table.topic for command in rules.commands()] == ["lamp/set"]
    assert rules.problems() == {}
    rules.change([], [row("b", GOOD)])
    assert rules.streams() == []


def test_rule_that_stays_is_the_same_object() -> None:
    rules = DatasetRules(BASE)
    replaced(rules, [row("a", GOOD)])
    [before] = rules.streams()
    replaced(rules, [row("a", GOOD), row("b", GOOD)])
    assert rules.streams()[0] is before


@each_row(
    ("rule", "reason"),
    [
        ("{", "not JSON"),
        ("[" * 5000, "not JSON"),
        ("[]", "one member"),
        ({"stream": GOOD["stream"], "command": {}}, "one member"),
        ({"stream": []}, "no table"),
        ({"stream": 1}, "no table"),
        ({"availability": 1}, "unknown member 'availability'"),
        ({"strem": GOOD["stream"]}, "unknown member 'strem'"),
        ({"stream": GOOD["stream"] | {"topik": 1}}, "topik"),
        ({"stream": GOOD["stream"] | {"topic": "a/{x}/{x}"}}, "captures a name twice"),
        ({"stream": GOOD["stream"] | {"scale": "NaN"}}, "scale"),
        ({"stream": GOOD["stream"] | {"dead_band": "NaN"}}, "dead_band"),
        ({"stream": GOOD["stream"] | {"sensor": "http://{x}/"}}, "not captured"),
        ({"stream": GOOD["stream"] | {"pattern": "(a+)+"}}, "too many steps"),
        ({"stream": GOOD["stream"] | {"time_zone": "../../etc/passwd"}}, "time_zone"),
        ({"stream": {"topic": "a", "property": "gateway:x", "words": {"a": 10**65}}}, "words"),
        ({"stream": {"topic": "a", "property": "gateway:x", "words": {"a": "x" * 9000}}}, "words"),
        ({"command": {"topic": "a/+"}}, "without +"),
        ({"command": {"topic": "$SYS/a"}}, "a $ at the start"),
        ("x" * 70_000, "characters"),
    ],
)
def test_faulty_rule_is_a_problem_of_its_node(rule: Any, reason: str) -> None:
    rules = DatasetRules(BASE)
    replaced(rules, [row("bad", rule), row("good", GOOD)])
    [(mapping, text)] = rules.problems().items()
    assert mapping == f"<{BASE}mapping/bad>"
    assert reason in text
    assert len(rules.streams()) == 1


def test_problem_is_in_the_dataset_as_long_as_it_lasts() -> None:
    store, rules = Store(), DatasetRules(BASE)

    def follow() -> set[str]:
        replaced(rules, [(str(found[0]), str(found[1])) for found in store.query(QUERY)])  # type: ignore[union-attr, index]
        for update in rules.problem_updates():
            store.update(update)
        assert rules.problem_updates() == []
        return {quad.object.value for quad in store if quad.predicate.value == GATEWAY + "problem"}

    a = f"<{BASE}mapping/a>"
    store.update(
        f'INSERT DATA {{ {a} a <{GATEWAY}Mapping> ; <{GATEWAY}rule> "[]" ; <{GATEWAY}problem> "of a former process" }}'
    )
    store.update(forget_problems("mqtt"))
    [problem] = follow()
    assert "one member" in problem
    store.update(f"DELETE WHERE {{ {a} <{GATEWAY}rule> ?r }}")
    store.update(f"INSERT DATA {{ {a} <{GATEWAY}rule> {row('a', GOOD)[1]} }}")
    assert follow() == set()
    assert len(rules.streams()) == 1


RESOURCE = {"stream": {"resource": "coap://lamp/t", "payload": "number", "property": "gateway:temperature"}}
PATH = {"stream": {"path": "readings/{n}", "payload": "text", "property": "gateway:x"}}
SWITCH = {"command": {"resource": "coap://lamp/on", "content_format": "json", "reassert_s": 30}}


def test_each_adapter_has_the_rules_and_problems_of_its_kind() -> None:
    faulty = {"stream": RESOURCE["stream"] | {"poll_s": 0.1}}
    both = {"stream": RESOURCE["stream"] | {"topic": "a"}}
    rows = [row("a", GOOD), row("b", RESOURCE), row("c", PATH), row("d", SWITCH), row("e", "{"), row("f", faulty)]
    rows += [row("g", both), row("h", {"stream": {"payload": "text"}}), row("i", "x" * 70_000), row("j", {"stream": 1})]
    mqtt, coap = DatasetRules(BASE), DatasetRules(BASE, kind="coap")
    for rules in (mqtt, coap):
        replaced(rules, rows)
    assert len(mqtt.streams()) == 1 and not any(mqtt.resources())
    found = coap.resources()
    assert [rule.resource for rule in found.resources] == ["coap://lamp/t"]
    assert [rule.table.path for rule in found.paths] == ["readings/{n}"]
    assert [rule.place for rule in found.commands] == [f"<{BASE}mapping/d>"]
    assert coap.streams() == [] and coap.commands() == []
    assert {name[-2] for name in mqtt.problems()} == set("eghij")
    assert {name[-2] for name in coap.problems()} == {"f"}
    assert "poll_s" in coap.problems()[f"<{BASE}mapping/f>"]


SCHEMES: dict[str, Kind] = {"coap": "coap", "http": "http-devices", "https": "http-devices", "modbus+tcp": "modbus"}
OF_RESOURCES: list[Kind] = ["coap", "http-devices", "modbus"]


def of_scheme(scheme: str, **keys: object) -> list[dict[str, object]]:
    stream = RESOURCE["stream"] | {"resource": f"{scheme}://Lamp/1/2"} | keys
    return [{"stream": stream}, {"command": {"resource": f"{scheme.upper()}://lamp/1/2", "state": False} | keys}]


@each_row("scheme", SCHEMES)
def test_the_scheme_of_a_resource_says_which_adapter_a_rule_is_for(scheme: str) -> None:
    rows = [row(str(number), rule) for number, rule in enumerate(of_scheme(scheme))]
    for kind in (None, *OF_RESOURCES):
        rules = DatasetRules(BASE) if kind is None else DatasetRules(BASE, kind=kind)
        replaced(rules, rows)
        assert sum(map(len, rules.resources())) == (2 if kind == SCHEMES[scheme] else 0)
        assert not rules.problems() and not rules.streams() and not rules.commands()


@each_row("scheme", [*SCHEMES, "ftp", "coaps", ""])
def test_a_faulty_rule_is_a_problem_of_one_adapter(scheme: str) -> None:
    rows = [row(str(number), rule) for number, rule in enumerate(of_scheme(scheme, unknown=1))]
    found = {kind: DatasetRules(BASE, kind=kind) for kind in ("mqtt", *OF_RESOURCES)}  # type: ignore[arg-type]
    for rules in found.values():
        replaced(rules, rows)
    assert {kind: len(rules.problems()) for kind, rules in found.items() if rules.problems()} == {
        SCHEMES.get(scheme, "coap"): 2
    }


def test_adapter_leaves_the_problems_of_the_other_one() -> None:
    node, faulty = f"<{BASE}mapping/a>", ["{", json.dumps({"stream": RESOURCE["stream"] | {"poll_s": 0}})]
    store, mqtt, coap = Store(), DatasetRules(BASE), DatasetRules(BASE, kind="coap")
    store.update(f"INSERT DATA {{ {node} a <{GATEWAY}Mapping> }}")

    def said() -> list[str]:
        return sorted(quad.object.value[:5] for quad in store if quad.predicate.value == GATEWAY + "problem")

    for rules in (mqtt, coap):
        rules.change([(node, literal(text)) for text in faulty], [])
        for update in rules.problem_updates():
            store.update(update)
    assert said() == ["<http", "CoAP:"]
    store.update(forget_problems("mqtt"))
    assert said() == ["CoAP:"]
    coap.change([], [(node, literal(faulty[1]))])
    mqtt.change([(node, literal("["))], [])
    for update in [*mqtt.problem_updates(), *coap.problem_updates()]:
        store.update(update)
    assert said() == ["<http"]
    store.update(forget_problems("coap"))
    assert said() == ["<http"]


def test_number_of_rules_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RULES_MAX >= 10_000
    monkeypatch.setattr("lamplighter.adapters.mapping.dataset_rules.RULES_MAX", 2)
    rules = DatasetRules(BASE)
    replaced(rules, [row(name, GOOD) for name in "abc"])
    assert len(rules.streams()) == 2
    assert list(rules.problems().values()) == ["there are more than 2 rules"]


def test_topics_manager_of_the_paper() -> None:
    """Roffia 2018, 5.4: a topic is mapped to an observation whose quantity value gets the number in the payload."""
    rules = DatasetRules(BASE)
    table = {
        "topic": "pepoli/6lowpan/network/NODO1/Temperature",
        "payload": "number",
        "pattern": "(-?[0-9]+(?:\\.[0-9]+)?)",
        "property": "gateway:temperature",
        "observation": "http://monitor.example/ns#Pepoli-6lowpan-Nodo1-Temperature",
        "feature": "http://monitor.example/ns#Pepoli",
        "label": "Temperature",
        "unit": "unit:DEG_C",
        "result": "quantity",
    }
    mapping, rule = row("pepoli", {"stream": table})
    replaced(rules, [(mapping, rule)])
    [reading] = readings(Mapping(rules.streams()), str(table["topic"]), "T:21.75;node=1")
    store, model = Store(), LatestModel()
    store.update(f"INSERT DATA {{ {mapping} <{RULE}> {rule} }}")
    for update in [model.description(reading.stream), *model.updates(reading)]:
        store.update(update)
    query = f"""
        PREFIX sosa: <{SOSA}> PREFIX qudt: <{QUDT}> PREFIX rdfs: <{RDFS}>
        SELECT ?observation ?location ?label ?value ?unit WHERE {{
          ?observation a sosa:Observation ; sosa:hasFeatureOfInterest ?location ; sosa:resultTime ?at ;
            sosa:hasResult ?q . ?q qudt:hasUnit ?unit ; qudt:numericValue ?value .
          ?stream rdfs:label ?label }}"""
    [found] = store.query(query)  # type: ignore[misc]
    assert [lexical(str(term)) for term in found] == [  # type: ignore[union-attr]
        table["observation"],
        table["feature"],
        "Temperature",
        "21.75",
        "http://qudt.org/vocab/unit/DEG_C",
    ]


@each_row("made", [LatestModel, lambda: EventModel(2, 10)], ids=["latest", "event"])
@each_row("retained", [False, True])
def test_no_reading_is_written_by_a_rule_that_is_gone(
    made: Callable[[], LatestModel | EventModel], retained: bool
) -> None:
    model = made()
    rules, (mapping, rule) = DatasetRules(BASE), row("attic", GOOD)
    replaced(rules, [(mapping, rule)])
    [reading] = readings(Mapping(rules.streams()), "attic/t", "215", retained=retained)
    store = Store()
    texts = [model.description(reading.stream), *model.updates(reading), *model.updates(reading)]
    for text in texts:
        store.update(text)
    assert len(store) == 0
    store.update(f"INSERT DATA {{ {mapping} <{RULE}> {rule}, 'another' }}")
    before = len(store)
    for text in texts:
        store.update(text)
    assert len(store) > before
    assert any(store.quads_for_pattern(None, None, Literal("21.5", datatype=NamedNode(f"{XSD}decimal"))))


def test_a_rule_that_was_removed_and_came_back_is_described_again() -> None:
    """Its streams went with it, and the adapter may see both changes at once."""
    rules = DatasetRules(BASE)
    replaced(rules, [row("a", GOOD), row("b", GOOD)])
    before = rules.streams()
    rules.change([], [row("a", GOOD)])
    rules.change([row("a", GOOD)], [])
    assert changed_reads(before, rules.streams()) == {f"<{BASE}mapping/a>"}


def test_slow_topics_of_many_rules_are_bounded_together() -> None:
    slow = {"topic": "{x:" + "a?" * 22 + "b}/#", "payload": "number", "property": "gateway:x"}
    rows = [
        row("a", {"stream": slow}),
        row("b", {"stream": slow}),
        row("c", {"command": COMMAND["command"] | {"state": slow}}),
    ]
    rules = DatasetRules(BASE)
    replaced(rules, rows)
    assert [rule.place for rule in rules.streams()] == [f"<{BASE}mapping/a>"]
    assert set(rules.problems()) == {row(name, "")[0] for name in "bc"}
    rules.change([], rows)
    rules.change(rows[1:2], [])
    assert len(rules.streams()) == 1 and not rules.problems(), "the others are gone"


def test_values_of_one_topic_are_bounded_over_all_rules() -> None:
    items = [{"member": f"m{number}"} for number in range(200)]
    stream = {"topic": "#", "payload": "number", "property": "gateway:x", "read": items}
    rules = DatasetRules(BASE)
    replaced(rules, [row(f"{number}", {"stream": stream}) for number in range(9)])
    document = json.dumps({f"m{number}": 1 for number in range(200)})
    found = Mapping(rules.streams()).readings("a", document.encode(), retained=False, received=NOON)
    assert len(found) == TOPIC_READS_MAX + 1
    assert sum(isinstance(one, PayloadError) for one in found) == 1


def test_patterns_of_one_topic_are_bounded_over_all_rules() -> None:
    stream = {"topic": "#", "payload": "number", "property": "gateway:x", "pattern": "a?" * 14 + "b", "sensor": "s"}
    rules = DatasetRules(BASE)
    replaced(rules, [row(f"{number:02}", {"stream": stream}) for number in range(50)])
    found = Mapping(rules.streams()).readings("a", b"1", retained=False, received=NOON)
    assert len(found) < 25 and "take too long" in str(found[0])
