from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyoxigraph
import pytest

from lamplighter.adapters.coap.adapter import settings_query
from lamplighter.adapters.coap.settings import DEFAULT_QUERY
from lamplighter.adapters.devices.desired import actuation_update, refusal_update
from lamplighter.adapters.devices.queried import QueriedRow
from lamplighter.adapters.resources.exchange import not_allowed
from lamplighter.engine.core import Engine
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import XSD, Term, iri, lexical, literal
from lamplighter.ontology import vocabulary
from tests.support.tables import each_row

LAMP = iri("http://street.example/lamp/1")
NOON = datetime(2026, 11, 21, 12, 0, 0, 250, tzinfo=UTC)


BUILT_IN = settings_query(DEFAULT_QUERY)
VARIABLES = ("actuator", "payload", "resource")


def command(row: dict[str, Term]) -> QueriedRow[Any]:
    return BUILT_IN.row(row)


def body(row: dict[str, Term]) -> bytes:
    found = command(row)
    sent: bytes = found.rule.body(found.state)
    return sent


def row(**changed: Term) -> dict[str, Term]:
    return {"actuator": LAMP, "resource": iri("coap://lamp-1.local/state"), "payload": literal("ON")} | changed


def test_a_row_becomes_a_command() -> None:
    found = command(row())
    assert (found.actuator, found.rule.resource, found.state) == (LAMP, "coap://lamp-1.local/state", literal("ON"))
    assert found.rule.device == "lamp-1.local"
    assert body(row()) == b"ON"


def test_the_payload_is_the_value_without_its_datatype() -> None:
    assert body(row(payload=literal("40", datatype=XSD + "integer"))) == b"40"
    assert body(row(payload=literal('a"b\n°', language="de"))) == 'a"b\n°'.encode()


def test_one_resource_has_one_spelling() -> None:
    for spelled in (iri, literal):
        assert command(row(resource=spelled("COAP://LAMP:5683/A"))).rule.resource == "coap://lamp/A"


@each_row(
    ("resource", "reason"),
    [
        (literal("http://lamp/a"), "only coap://"),
        (literal("coap://lamp/\ud800"), "not a valid coap:"),
        ("_:b0", "neither"),
    ],
)
def test_a_resource_that_cannot_be_put_to_is_rejected(resource: Term, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        command(row(resource=resource))


@each_row(
    ("changed", "reason"),
    [
        ({"actuator": "_:b0"}, r"\?actuator is not an IRI"),
        ({"actuator": literal("lamp")}, r"\?actuator is not an IRI"),
        ({"payload": iri("http://street.example/ON")}, r"\?payload is not a literal"),
        ({"payload": literal("\ud800")}, r"\?payload cannot be written"),
    ],
)
def test_a_row_of_the_wrong_kind_is_rejected(changed: dict[str, Term], reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        command(row(**changed))


@each_row("name", VARIABLES)
def test_an_unbound_variable_is_named(name: str) -> None:
    binding = row()
    del binding[name]
    with pytest.raises(PayloadError, match=rf"\?{name} is unbound"):
        command(binding)


def test_variables_that_the_query_lacks_are_named() -> None:
    BUILT_IN.check(["payload", "room", "resource", "actuator"])
    with pytest.raises(ConfigurationError, match=r"no variable \?actuator, \?payload;"):
        BUILT_IN.check(["resource", "status"])


# The update, run by a store.


def live(store: pyoxigraph.Store) -> Iterator[tuple[str, str, str]]:
    for quad in store:
        yield str(quad.subject), str(quad.predicate), str(quad.object)


def actuation(result: Term, time: str) -> set[tuple[str, str, str]]:
    subject = iri("http://street.example/lamp/1/actuation")
    return {
        (subject, iri(vocabulary.RDF_TYPE), iri(vocabulary.ACTUATION)),
        (subject, iri(vocabulary.MADE_BY_ACTUATOR), LAMP),
        (subject, iri(vocabulary.HAS_SIMPLE_RESULT), result),
        (subject, iri(vocabulary.RESULT_TIME), literal(time, datatype=XSD + "dateTime")),
    }


def test_the_update_makes_one_live_actuation_and_replaces_it() -> None:
    store = pyoxigraph.Store()
    store.update(f"INSERT DATA {{ {LAMP} {iri(vocabulary.HAS_STATUS)} 'ON' }}")
    status = (LAMP, iri(vocabulary.HAS_STATUS), literal("ON"))

    store.update(actuation_update(LAMP, row()["payload"], NOON))
    assert set(live(store)) == {status} | actuation(literal("ON"), "2026-11-21T12:00:00.00025Z")

    later = NOON + timedelta(seconds=1)
    store.update(actuation_update(LAMP, literal("OFF"), later))
    assert set(live(store)) == {status} | actuation(literal("OFF"), "2026-11-21T12:00:01.00025Z")


def test_the_time_is_written_in_utc_with_microseconds() -> None:
    east = timezone(timedelta(hours=2))
    text = actuation_update(LAMP, literal("ON"), datetime(2026, 11, 21, 14, 0, 0, tzinfo=east))
    assert '"2026-11-21T12:00:00.000000Z"^^' in text


def test_a_payload_cannot_break_out_of_its_place() -> None:
    nasty = literal('ON" } ; DROP ALL ; INSERT DATA { <a:b> <a:c> "\\\n', language="en")
    store = pyoxigraph.Store()
    store.update(actuation_update(LAMP, nasty, NOON))
    results = [o for _, p, o in live(store) if p == iri(vocabulary.HAS_SIMPLE_RESULT)]
    assert [lexical(result) for result in results] == [lexical(nasty)]
    assert len(store) == 4


def test_the_default_query_finds_what_the_ontology_describes() -> None:
    store = pyoxigraph.Store()
    store.update(
        f"INSERT DATA {{ {LAMP} {iri(vocabulary.COAP_RESOURCE)} <coap://lamp/a> ; {iri(vocabulary.HAS_STATUS)} 'ON' }}"
    )
    solutions = store.query(DEFAULT_QUERY)
    assert isinstance(solutions, pyoxigraph.QuerySolutions)
    BUILT_IN.check([variable.value for variable in solutions.variables])
    rows = [{name: str(solution[name]) for name in VARIABLES} for solution in solutions]
    given = [command(found) for found in rows]
    assert [(one.actuator, one.rule.resource, one.state) for one in given] == [(LAMP, "coap://lamp/a", literal("ON"))]


def test_a_refusal_is_in_the_actuation_until_the_next_acknowledgement() -> None:
    store = pyoxigraph.Store()
    store.update(actuation_update(LAMP, literal("ON"), NOON))
    acknowledged = set(store)
    for _ in range(2):
        store.update(refusal_update(LAMP, not_allowed("coap://lamp-1.local/state", "coap")))
    [refusal] = set(store) - acknowledged
    assert acknowledged < set(store)
    assert refusal.predicate.value == vocabulary.REFUSED
    assert "coap.networks" in refusal.object.value
    store.update(actuation_update(LAMP, literal("ON"), NOON))
    assert set(store) == acknowledged


def test_default_query_is_maintained_incrementally_and_has_a_row_for_either_state() -> None:
    engine = Engine()
    subscription = engine.subscribe(DEFAULT_QUERY)
    assert subscription.spu_class == "telescoped"
    resource = "<http://e/lamp> <http://lamplighter.example/ns/gateway#coapResource> <coap://lamp/a>"
    engine.update(f"INSERT DATA {{ {resource} }}")
    for state, value in ((vocabulary.DESIRED_STATE, "true"), (vocabulary.HAS_STATUS, '"ON"')):
        [added] = engine.update(f"INSERT DATA {{ <http://e/lamp> <{state}> {value} }}").notifications
        [given] = added.added.bindings()
        assert body(given) == value.strip('"').encode()
        [removed] = engine.update(f"DELETE DATA {{ <http://e/lamp> <{state}> {value} }}").notifications
        assert removed.removed == added.added
