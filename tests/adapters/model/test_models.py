"""The models "latest" and "event", against a store."""

from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from pyoxigraph import NamedNode, Store

from lamplighter.adapters.model.event import EventModel
from lamplighter.adapters.model.latest import LatestModel
from lamplighter.adapters.model.readings import Reading
from lamplighter.engine.terms import literal
from lamplighter.ontology.vocabulary import GATEWAY, QUDT, RDF_TYPE, SOSA
from tests.support.mapping_rules import NOON, readings, rules

MAPPING = rules(
    '[[stream]]\ntopic = "t"\npayload = "number"\nproperty = "ex:p"\nunit = "Cel"\nmember = "v"\ntime = "member t"'
)
PLAIN = rules('[[stream]]\ntopic = "t"\npayload = "number"\nproperty = "ex:p"')
PREFIXES = f"PREFIX sosa: <{SOSA}> PREFIX gateway: <{GATEWAY}> PREFIX qudt: <{QUDT}> "


def reading(value: int, at: int = 0, **more: bool) -> Reading:
    [found] = readings(PLAIN, "t", str(value), received=NOON + timedelta(seconds=at), **more)
    return found


def rows(store: Store, query: str) -> list[tuple[str, ...]]:
    return sorted(tuple(term.value for term in row) for row in store.query(PREFIXES + query))  # type: ignore[union-attr]


def write(store: Store, model: LatestModel | EventModel, *found: Reading) -> None:
    for one in found:
        for text in model.updates(one):
            store.update(text)


def live(store: Store) -> list[str]:
    """Values of the live events, in order of their times."""
    query = (
        "SELECT ?t ?v { GRAPH ?g { ?s gateway:liveObservation ?o . ?o sosa:hasSimpleResult ?v ; sosa:resultTime ?t } }"
    )
    return [value for _, value in rows(store, query)]


# latest


ABSENT = """SELECT ?n ?t { ?o gateway:nilReason ?n OPTIONAL { ?o sosa:resultTime ?time }
  FILTER NOT EXISTS { ?o sosa:hasSimpleResult ?v } BIND(COALESCE(?time, "none") AS ?t) }"""
PRESENT = "SELECT ?v { ?o sosa:hasSimpleResult ?v FILTER NOT EXISTS { ?o gateway:nilReason ?n } }"


def nil(word: str, at: int = 0, **more: bool) -> Reading:
    [found] = readings(PLAIN, "t", word, received=NOON + timedelta(seconds=at), **more)
    return found


def test_absent_value_has_a_reason_in_place_of_the_result_until_the_next_value() -> None:
    store, model = Store(), LatestModel()
    write(store, model, reading(1), nil("unavailable", 5))
    assert rows(store, ABSENT) == [("unknown", "2026-11-21T12:00:05Z")]
    write(store, LatestModel(), reading(2, 6))  # a process that does not know what the last one wrote
    assert rows(store, PRESENT) == [("2",)]
    write(store, model, nil("nan", 7), nil("nan", 8), reading(3, 9))
    assert rows(store, PRESENT) == [("3",)]


def test_absent_value_that_is_retained_has_no_time_and_changes_nothing_twice() -> None:
    store, model = Store(), LatestModel()
    write(store, model, reading(1), nil("null", retained=True))
    assert rows(store, ABSENT) == [("unknown", "none")]
    before = set(store)
    write(store, model, nil("null", 9, retained=True))
    assert set(store) == before


def test_quantity_has_no_number_without_a_value() -> None:
    store, model = Store(), LatestModel()
    quantity = rules('[[stream]]\ntopic = "t"\npayload = "number"\nproperty = "ex:p"\nresult = "quantity"')
    for word in ("1", "nil"):
        write(store, model, *readings(quantity, "t", word))
    assert rows(store, "SELECT ?v { ?o qudt:numericValue ?v }") == []


def test_historical_reading_never_replaces_the_live_one() -> None:
    assert LatestModel().outdated(reading(1)._replace(historical=True))
    assert not EventModel(3, 10).outdated(reading(1)._replace(historical=True))


def test_event_without_a_value_has_the_reason() -> None:
    store = Store()
    write(store, EventModel(3, 10), nil("nil"))
    absent = "SELECT ?n { GRAPH ?g { ?s gateway:liveObservation ?o . ?o gateway:nilReason ?n } }"
    assert rows(store, absent) == [("unknown",)]


def test_mark_of_a_corrected_time_goes_with_the_next_good_one() -> None:
    store, model = Store(), LatestModel()
    marks = "SELECT ?p { ?o gateway:timeProblem ?p }"
    [future] = readings(MAPPING, "t", '{"v": 1, "t": "2030-01-01T00:00:00Z"}')
    [good] = readings(MAPPING, "t", '{"v": 1, "t": "2026-11-21T11:00:00Z"}')
    write(store, model, future)
    assert rows(store, marks) == [("future",)]
    write(store, LatestModel(), good)  # a process that does not know what the last one wrote
    assert rows(store, marks) == []
    write(store, model, good, future, good)
    assert rows(store, marks) == []
    assert len(store) == 2
    write(store, model, good._replace(value=literal("7"), retained=True, time_problem="retained"))
    assert rows(store, marks) == [("retained",)]
    write(store, model, good)
    assert rows(store, marks) == []


def test_text_of_readings_without_a_mark_stays_the_same_shape() -> None:
    model = LatestModel()
    first, second, third = (model.updates(reading(number, number))[0] for number in range(3))
    assert "timeProblem" in first and "timeProblem" not in second
    assert len(second) == len(third)


def test_repeated_event_leaves_and_enters() -> None:
    store, model = Store(), LatestModel()
    write(store, model, reading(1))
    clear, again = model.updates(reading(1, 5)._replace(again=True))
    store.update(clear)
    assert rows(store, "SELECT ?v { ?o sosa:hasSimpleResult ?v }") == []
    store.update(again)
    assert rows(store, "SELECT ?v { ?o sosa:hasSimpleResult ?v }") == [("1",)]
    assert len(store) == 2


@pytest.mark.parametrize("model", [LatestModel(), EventModel(3, 10)])
def test_quantity_has_number_and_unit(model: LatestModel | EventModel) -> None:
    mapping = rules('[[stream]]\ntopic = "t"\npayload = "number"\nproperty = "ex:p"\nunit = "Cel"\nresult = "quantity"')
    store = Store()
    for value in ("20", "21.5"):
        [found] = readings(mapping, "t", value)
        store.update(model.description(found.stream))
        write(store, model, found)
    where = "?o sosa:hasResult ?r . ?r a qudt:QuantityValue ; qudt:hasUnit ?u ; qudt:numericValue ?n"
    query = f"SELECT DISTINCT ?n ?u {{ {{ {where} }} UNION {{ GRAPH ?g {{ {where} }} }} }}"
    found_rows = rows(store, query)
    assert found_rows[-1] == ("21.5", "http://qudt.org/vocab/unit/DEG_C")
    assert len(found_rows) == (1 if isinstance(model, LatestModel) else 2)


def test_unknown_unit_is_flagged_on_the_stream() -> None:
    mapping = rules('[[stream]]\ntopic = "t"\npayload = "number"\nproperty = "ex:p"\nunit = "furlong"')
    [found] = readings(mapping, "t", "1")
    store = Store()
    store.update(LatestModel().description(found.stream))
    assert rows(store, "SELECT ?u { ?s a gateway:Stream ; gateway:unknownUnit ?u }") == [("furlong",)]
    assert rows(store, "SELECT ?u { ?s qudt:hasUnit ?u }") == []


def test_next_description_replaces_unit_and_label() -> None:
    table = '[[stream]]\ntopic = "t"\npayload = "number"\nproperty = "ex:p"\nunit = "UNIT"\nlabel = "LABEL"\n'
    store, model = Store(), LatestModel()
    sizes = []
    for unit, label in (("Cel", "a"), ("Cel", "a"), ("furlong", "b"), ("K", "c")):
        [found] = readings(rules(table.replace("UNIT", unit).replace("LABEL", label)), "t", "1")
        store.update(model.description(found.stream))
        sizes.append(len(store))
    assert rows(store, "SELECT ?u { ?s a gateway:Stream ; qudt:hasUnit ?u }") == [("http://qudt.org/vocab/unit/K",)]
    assert rows(store, "SELECT ?u { ?s gateway:unknownUnit ?u }") == []
    assert rows(store, "SELECT ?l { ?s a gateway:Stream ; <http://www.w3.org/2000/01/rdf-schema#label> ?l }") == [
        ("c",)
    ]
    assert sizes[0] == sizes[1]


def sent(value: int, time: str, at: str = "12:00:00", **more: bool) -> Reading:
    """A reading with a time of its own. at: its arrival."""
    received = datetime.fromisoformat(f"2026-11-21T{at}Z")
    [found] = readings(MAPPING, "t", f'{{"v": {value}, "t": "{time}"}}', received=received, **more)
    return found


def take(store: Store, model: LatestModel, found: Reading) -> str:
    """The live value after a reading."""
    if not model.outdated(found):
        write(store, model, found)
    [[value]] = rows(store, "SELECT ?v { ?o sosa:hasSimpleResult ?v }")
    return value


def test_reading_with_an_older_time_of_its_own_does_not_replace_the_live_one() -> None:
    store, model = Store(), LatestModel()
    assert take(store, model, sent(1, "2026-11-21T11:00:00Z")) == "1"
    assert model.outdated(sent(2, "2026-11-21T10:59:59.999999Z"))
    assert model.outdated(sent(2, "2026-11-21T10:59:59Z", retained=True))
    assert take(store, model, sent(3, "2026-11-21T12:00:00+01:00")) == "3", "equal times: the later message"
    assert take(store, model, sent(4, "2026-11-21T11:00:01Z")) == "4"
    assert take(store, model, sent(5, "2026-11-21T11:00:00Z")) == "4"
    assert rows(store, "SELECT ?t { ?o sosa:resultTime ?t }") == [("2026-11-21T11:00:01Z",)]


def test_older_reading_of_the_next_process_does_not_replace_the_live_one() -> None:
    store = Store()
    assert take(store, LatestModel(), sent(1, "2026-11-21T11:00:00Z")) == "1"
    model = LatestModel()
    assert take(store, model, sent(2, "2026-11-21T10:00:00Z")) == "1"
    assert take(store, model, sent(3, "2026-11-21T11:30:00Z")) == "3"
    assert take(store, LatestModel(), sent(4, "2026-11-21T11:45:00Z")) == "4"


def test_times_with_a_problem_do_not_compare() -> None:
    store, model = Store(), LatestModel()
    assert take(store, model, sent(1, "2030-01-01T00:00:00Z")) == "1"  # live at its arrival, 12:00
    assert take(store, model, sent(2, "2026-11-21T11:00:00Z")) == "2"
    assert take(store, model, sent(3, "1970-01-01T00:00:00Z")) == "3"
    assert take(store, LatestModel(), sent(4, "2026-11-21T10:00:00Z")) == "4"


def test_live_time_after_the_arrival_was_written_with_a_wrong_clock() -> None:
    for next_model in (lambda model: model, lambda model: LatestModel()):
        store, model = Store(), LatestModel()
        assert take(store, model, sent(1, "2026-11-21T20:00:00Z", at="20:00:00")) == "1"
        assert take(store, next_model(model), sent(2, "2026-11-21T11:59:59Z", at="12:00:00")) == "2"


def test_times_of_arrival_do_not_compare() -> None:
    model = LatestModel()
    assert not model.outdated(reading(1, 10)) and not model.outdated(reading(2, 5))


def test_reading_that_repeats_compares_with_is_written() -> None:
    keeping = rules(
        '[[stream]]\ntopic = "t"\npayload = "number"\nproperty = "ex:p"\nmember = "v"\ntime = "member t"\n'
        'on_repeat = "ignore"'
    )
    model = LatestModel()
    [found] = readings(keeping, "t", '{"v": 1, "t": "2026-11-21T11:00:00Z"}')
    assert not model.outdated(found) and "FILTER" not in model.updates(found)[0]


# event


def test_each_reading_is_an_observation_in_a_graph_of_its_own() -> None:
    store, model = Store(), EventModel(3, 10)
    write(store, model, reading(1), reading(2), reading(3, 1))
    graphs = [graph.value for graph in store.named_graphs()]
    stream = "http://gateway.example/stream/sensor/t;http%3A%2F%2Fexample.org%2Fns%23p;feature/t"
    assert sorted(graphs) == [
        f"{stream}/2026-11-21T12:00:0{tail}" for tail in ("0.000000Z/0", "0.000000Z/1", "1.000000Z/0")
    ]
    for graph in store.named_graphs():
        quads = list(store.quads_for_pattern(None, None, None, graph))
        assert len(quads) == 7
        [link] = [quad for quad in quads if quad.subject == NamedNode(stream)]
        assert all(quad.subject == link.object for quad in quads if quad is not link)
    assert not list(store.quads_for_pattern(None, NamedNode(RDF_TYPE), NamedNode(SOSA + "Stream"), None))


def test_newest_readings_stay_live() -> None:
    store, model = Store(), EventModel(3, 10)
    for number in range(8):
        write(store, model, reading(number, number))
        assert live(store) == [str(n) for n in range(max(0, number - 2), number + 1)]


def test_next_process_removes_what_the_last_one_left() -> None:
    store = Store()
    for number in range(5):
        write(store, EventModel(4, 10), reading(number, number))  # each is the first of its process
    assert live(store) == ["1", "2", "3", "4"]
    model = EventModel(2, 10)
    for number in range(5, 9):
        write(store, model, reading(number, number))
        assert live(store) == [str(number - 1), str(number)]


def test_streams_do_not_remove_each_others_readings_and_their_number_is_bounded() -> None:
    mapping = rules('[[stream]]\ntopic = "t/{x}"\npayload = "number"\nproperty = "ex:p"')
    store, model = Store(), EventModel(2, 2)
    for at in range(4):
        for topic in ("t/1", "t/2", "t/3"):
            write(store, model, *readings(mapping, topic, str(at), received=NOON + timedelta(seconds=at)))
    assert live(store) == ["2"] * 3 + ["3"] * 3


def test_retained_value_of_a_live_reading_is_no_event() -> None:
    store, model = Store(), EventModel(3, 10)
    write(store, model, reading(1), reading(1, 5, retained=True))
    assert len(list(store.named_graphs())) == 1
    write(store, model, reading(2, 6, retained=True))
    assert rows(store, "SELECT ?v ?p { GRAPH ?g { ?o sosa:hasSimpleResult ?v ; gateway:timeProblem ?p } }") == [
        ("2", "retained")
    ]
    assert live(store) == ["1"]


def test_event_description_is_on_the_stream() -> None:
    store, model = Store(), EventModel(3, 10)
    store.update(model.description(reading(1).stream))
    assert len(rows(store, "SELECT ?s { ?s a gateway:Stream ; sosa:madeBySensor ?x ; sosa:observedProperty ?p }")) == 1
    assert rows(store, "SELECT ?o { ?s gateway:liveObservation ?o }") == []


def test_texts_of_following_events_have_one_shape() -> None:
    model = EventModel(2, 10)
    texts = [model.updates(reading(number, number))[0] for number in range(6)]
    assert [text.startswith("DROP SILENT GRAPH") for text in texts] == [False, False, True, True, True, True]
    assert all(len(one) == len(other) for one, other in pairwise(texts[2:]))
