import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyoxigraph import Literal, NamedNode, Quad, Store

from lamplighter.adapters.literals import ERROR, FALSE, TRUE, UNKNOWN
from lamplighter.adapters.mapping import (
    PAYLOAD_BYTES_MAX,
    TEXT_CHARS_MAX,
    TOPIC_BYTES_MAX,
    Mapping,
    load_mapping,
)
from lamplighter.adapters.mapping.rules import new_rules
from lamplighter.adapters.model.descriptions import description_update
from lamplighter.adapters.model.latest import reading_update
from lamplighter.adapters.model.readings import Reading
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import XSD, Term, lexical, literal
from lamplighter.ontology.vocabulary import LIGHTING, QUDT, RDF_TYPE, RDFS_LABEL, SOSA, UNIT
from tests.support.amounts import AMOUNTS
from tests.support.mapping_rules import readings, rules
from tests.support.places import ROOT
from tests.support.tables import each_row

BASE = "http://gateway.example/"
NOON = datetime(2026, 11, 21, 12, 0, 0, 5, tzinfo=UTC)
LATER = NOON + timedelta(seconds=30)
STREET = load_mapping(ROOT / "mapping", BASE)


def mapping_of(folder: Path, text: str) -> Mapping:
    (folder / "rules.toml").write_text(text, encoding="utf-8")
    return load_mapping(folder, BASE)


def rule(folder: Path, **keys: Any) -> Mapping:
    """A mapping of one rule; the topic is t/{x} and the payload a text unless keys say otherwise."""
    keys = {"topic": "t/{x}", "property": "lighting:presence", "payload": "text"} | keys
    return mapping_of(folder, "[[stream]]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in keys.items()))


def _toml(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


def results(
    mapping: Mapping, topic: str, payload: bytes, *, retained: bool = False, received: datetime = NOON
) -> list[Reading | PayloadError]:
    return mapping.readings(topic, payload, retained=retained, received=received)


def only(mapping: Mapping, topic: str, payload: bytes, *, retained: bool = False, received: datetime = NOON) -> Reading:
    """The one reading of a message that one rule covers; its error is raised."""
    (found,) = results(mapping, topic, payload, retained=retained, received=received)
    if isinstance(found, PayloadError):
        raise found
    return found


def value(mapping: Mapping, payload: bytes) -> str:
    return only(mapping, "t/1", payload).value


# What the street's messages become


def test_street_presence_becomes_one_described_observation() -> None:
    reading = only(STREET, "street/7/presence", b"ON")
    store = Store()
    store.update(description_update(reading.stream))
    store.update(reading_update(reading))

    def gw(path: str) -> NamedNode:
        return NamedNode(BASE + path)

    def sosa(name: str) -> NamedNode:
        return NamedNode(SOSA + name)

    a, presence = NamedNode(RDF_TYPE), NamedNode(LIGHTING + "presence")
    stream = gw("stream/sensor/7/presence;lighting:presence;post/7")
    observation = gw("observation/sensor/7/presence;lighting:presence;post/7")
    sensor, post = gw("sensor/7/presence"), gw("post/7")
    ours = "http://lamplighter.example/ns/gateway#"
    assert set(store) == {
        Quad(post, a, sosa("Platform")),
        Quad(post, a, sosa("FeatureOfInterest")),
        Quad(post, sosa("hosts"), sensor),
        Quad(sensor, a, sosa("Sensor")),
        Quad(sensor, sosa("observes"), presence),
        Quad(presence, a, sosa("ObservableProperty")),
        Quad(stream, a, NamedNode(ours + "Stream")),
        Quad(stream, NamedNode(ours + "mqttTopic"), Literal("street/7/presence")),
        Quad(stream, NamedNode(ours + "liveObservation"), observation),
        Quad(stream, NamedNode(RDFS_LABEL), Literal("presence at post 7")),
        Quad(observation, a, sosa("Observation")),
        Quad(observation, sosa("madeBySensor"), sensor),
        Quad(observation, sosa("observedProperty"), presence),
        Quad(observation, sosa("hasFeatureOfInterest"), post),
        Quad(observation, sosa("hasSimpleResult"), Literal(True)),
        Quad(
            observation,
            sosa("resultTime"),
            Literal("2026-11-21T12:00:00.000005Z", datatype=NamedNode(XSD + "dateTime")),
        ),
    }


def test_unit_is_described_on_the_stream() -> None:
    reading = only(STREET, "street/7/temperature", b"21.5")
    store = Store()
    store.update(description_update(reading.stream))
    unit = NamedNode(UNIT + "DEG_C")
    stream = NamedNode(lexical(reading.stream.iri))
    assert Quad(stream, NamedNode(QUDT + "hasUnit"), unit) in store
    assert Quad(unit, NamedNode(RDF_TYPE), NamedNode(QUDT + "Unit")) in store


def test_description_is_idempotent() -> None:
    store = Store()
    text = description_update(only(STREET, "street/7/presence", b"1").stream)
    store.update(text)
    once = set(store)
    store.update(text)
    assert set(store) == once


def test_next_reading_replaces_value_and_time() -> None:
    store = Store()
    store.update(reading_update(only(STREET, "street/7/temperature", b"21.5")))
    store.update(reading_update(only(STREET, "street/7/temperature", b"21", received=LATER)))
    assert sorted(str(quad.object) for quad in store) == [
        f'"2026-11-21T12:00:30.000005Z"^^<{XSD}dateTime>',
        f'"21"^^<{XSD}integer>',
    ]


def test_same_value_gets_a_new_time() -> None:
    store = Store()
    store.update(reading_update(only(STREET, "street/7/presence", b"1")))
    before = set(store)
    store.update(reading_update(only(STREET, "street/7/presence", b"1", received=LATER)))
    assert len(store) == 2
    assert len(set(store) - before) == 1


@each_row(
    ("topic", "stored", "replayed", "changes"),
    [
        ("street/7/presence", b"true", b"on", False),
        ("street/7/presence", b"true", b"off", True),
        ("street/7/presence", None, b"off", True),
        ("street/7/temperature", b"1.50", b"1.5", False),
        ("street/7/temperature", b"1.5", b"15e-1", True),
    ],
)
def test_retained_message_changes_only_another_value(
    topic: str, stored: bytes | None, replayed: bytes, changes: bool
) -> None:
    store = Store()
    if stored is not None:
        store.update(reading_update(only(STREET, topic, stored)))
    before = set(store)
    reading = only(STREET, topic, replayed, retained=True, received=LATER)
    store.update(reading_update(reading))
    assert (set(store) != before) == changes
    assert len(store) == 2
    fresh = any(quad.predicate.value == SOSA + "resultTime" for quad in store)
    assert fresh != changes, "a retained value has no result time, since nobody knows when it was taken"


def test_readings_of_one_kind_have_one_text_shape() -> None:
    def shape(topic: str, payload: bytes) -> str:
        reading = only(STREET, topic, payload, received=LATER if payload == b"2" else NOON)
        text = reading_update(reading)
        return text.replace(reading.value, "V").replace(reading.time, "T").replace(reading.stream.observation, "O")

    assert shape("street/7/temperature", b"2") == shape("street/8/temperature", b"1.5e3")


def test_result_time_is_utc() -> None:
    tokyo = datetime(2026, 11, 21, 21, tzinfo=timezone(timedelta(hours=9)))
    assert lexical(only(STREET, "street/7/presence", b"1", received=tokyo).time) == "2026-11-21T12:00:00.000000Z"


# Topics


@each_row(
    ("pattern", "topic", "covered"),
    [
        ("t/{x}", "t/1", True),
        ("t/{x}", "t/1/2", False),
        ("t/{x}", "t", False),
        ("t/{x}", "T/1", False),
        ("t/+/{x}", "t/any/1", True),
        ("+/{x}", "t/1", True),
        ("+/{x}", "$SYS/1", False),
        ("$SYS/{x}", "$SYS/1", True),
        ("/t/{x}", "/t/1", True),
    ],
)
def test_topic_is_covered(tmp_path: Path, pattern: str, topic: str, covered: bool) -> None:
    assert bool(results(rule(tmp_path, topic=pattern), topic, b"x")) == covered


@each_row("topic", ["t/", "t/.", "t/..", "t/" + "x" * TOPIC_BYTES_MAX, "", "t/\ud800"])
def test_topic_that_makes_no_good_iri_is_refused(tmp_path: Path, topic: str) -> None:
    with pytest.raises(PayloadError, match="topic"):
        only(rule(tmp_path), topic, b"x")


def test_defaults_come_from_the_topic(tmp_path: Path) -> None:
    stream = only(rule(tmp_path, topic="home/+/{x}"), "home/my room/temp", b"x").stream
    assert stream.sensor == f"<{BASE}sensor/home/my%20room/temp>"
    assert stream.feature == f"<{BASE}feature/home/my%20room>"
    assert stream.platform == f"<{BASE}platform/home/my%20room>"
    assert stream.unit is None and stream.label is None


def test_full_iris_and_declared_prefixes_are_taken(tmp_path: Path) -> None:
    mapping = mapping_of(
        tmp_path,
        """
        [prefixes]
        ex = "http://example.org/ns#"
        [[stream]]
        topic = "t/{x}"
        property = "ex:rain"
        unit = "http://example.org/ns#mm"
        payload = "number"
        feature = "https://example.org/place/{x}#it"
        """,
    )
    stream = only(mapping, "t/a b", b"1").stream
    assert stream.property == "<http://example.org/ns#rain>"
    assert stream.unit == "<http://example.org/ns#mm>"
    assert stream.feature == "<https://example.org/place/a%20b#it>"


def test_one_message_gives_a_reading_per_rule_and_an_error_in_the_place_of_a_broken_one(tmp_path: Path) -> None:
    mapping = mapping_of(
        tmp_path,
        """
        [[stream]]
        topic = "z/{x}"
        property = "lighting:temperature"
        payload = "number"
        member = "temperature"
        [[stream]]
        topic = "z/+"
        property = "lighting:presence"
        payload = "boolean"
        member = "occupancy"
        """,
    )
    assert mapping.filters == ("z/+",)
    first, second = results(mapping, "z/1", b'{"temperature": 3.0, "occupancy": false}')
    assert isinstance(first, Reading) and isinstance(second, Reading)
    assert (lexical(first.value), lexical(second.value)) == ("3.0", "false")
    assert first.stream.iri != second.stream.iri
    first, second = results(mapping, "z/1", b'{"temperature": 3.0}')
    assert isinstance(first, Reading) and isinstance(second, PayloadError)


def test_filter_that_another_covers_is_not_subscribed(tmp_path: Path) -> None:
    topics = ["a/{x}", "a/b", "a/+", "a/b/c", "+/b", "$SYS/b"]
    text = "".join(f"[[stream]]\ntopic='{t}'\nproperty='lighting:presence'\npayload='text'\n" for t in topics)
    assert mapping_of(tmp_path, text).filters == ("a/+", "a/b/c", "+/b", "$SYS/b")


def test_different_streams_have_different_iris(tmp_path: Path) -> None:
    mapping = rule(tmp_path, topic="{a}/{b}", sensor="{a}", feature="{b}")
    topics = ["a/b", "b/a", "a;/b", "a/;b", "a%3B/b", "A/b", "a;lighting:presence/b"]
    assert len({only(mapping, topic, b"x").stream.iri for topic in topics}) == len(topics)


def test_stream_iri_does_not_depend_on_how_the_property_is_written(tmp_path: Path) -> None:
    short = only(rule(tmp_path), "t/1", b"x").stream.iri
    full = only(rule(tmp_path, property=LIGHTING + "presence"), "t/1", b"x").stream.iri
    assert short == full


# Payloads


@each_row(
    ("payload", "kind"),
    [
        (b"21", "integer"),
        (b"-0", "integer"),
        (b"+7", "integer"),
        (b" 21\r\n", "integer"),
        (b"21.0", "decimal"),
        (b".5", "decimal"),
        (b"5.", "decimal"),
        (b"1e3", "double"),
        (b"-1.5E-3", "double"),
    ],
)
def test_number_keeps_its_kind_and_spelling(tmp_path: Path, payload: bytes, kind: str) -> None:
    term = value(rule(tmp_path, payload="number"), payload)
    assert term == f'"{payload.decode().strip()}"^^<{XSD}{kind}>'
    assert len(list(Store().query(f"SELECT * {{ FILTER(isNumeric({term})) }}"))) == 1  # type: ignore[arg-type]


@each_row(
    "payload",
    [
        b"Infinity",
        b"-inf",
        b"1e999",
        b"1,5",
        b"0x10",
        b"1 2",
        b"",
        b" ",
        b"true",
        b"\xff",
        b"1" * 65,
        "٣".encode(),
    ],
)
def test_payload_that_is_no_number_is_refused(tmp_path: Path, payload: bytes) -> None:
    with pytest.raises(PayloadError):
        value(rule(tmp_path, payload="number"), payload)


@each_row(
    ("payload", "expected"),
    [
        (b"true", True),
        (b"True", True),
        (b"ON", True),
        (b"1", True),
        (b"false", False),
        (b"Off", False),
        (b"0\n", False),
    ],
)
def test_boolean_spellings(tmp_path: Path, payload: bytes, expected: bool) -> None:
    assert value(rule(tmp_path, payload="boolean"), payload) == f'"{str(expected).lower()}"^^<{XSD}boolean>'


@each_row("payload", [b"2", b"yes", b"", b"{}", b"1.0", b"nothing"])
def test_payload_that_is_no_boolean_is_refused(tmp_path: Path, payload: bytes) -> None:
    with pytest.raises(PayloadError):
        value(rule(tmp_path, payload="boolean"), payload)


@each_row(
    ("kind", "payload", "expected"),
    [
        ("number", b'{"battery": {"level": 80}}', f'"80"^^<{XSD}integer>'),
        ("number", b'{"battery": {"level": 80.10}}', f'"80.10"^^<{XSD}decimal>'),
        ("number", b'{"battery": {"level": 8E1}}', f'"8E1"^^<{XSD}double>'),
        ("number", b'{"battery": {"level": "80"}}', f'"80"^^<{XSD}integer>'),
        ("boolean", b'{"battery": {"level": true}}', f'"true"^^<{XSD}boolean>'),
        ("boolean", b'{"battery": {"level": 0}}', f'"false"^^<{XSD}boolean>'),
        ("boolean", b'{"battery": {"level": "ON"}}', f'"true"^^<{XSD}boolean>'),
        ("text", b'{"battery": {"level": "full"}}', '"full"'),
        ("text", b'{"battery": {"level": 1}}', '"1"'),
        ("text", b'{"battery": {"level": 1.50}}', '"1.50"'),
        ("text", b'{"battery": {"level": false}}', '"false"'),
    ],
)
def test_json_member_is_read(tmp_path: Path, kind: str, payload: bytes, expected: str) -> None:
    assert value(rule(tmp_path, payload=kind, member="battery.level"), payload) == expected


@each_row(
    ("kind", "payload"),
    [
        ("number", b"80"),
        ("number", b"{"),
        ("number", b'{"battery": 80}'),
        ("number", b'{"battery": {}}'),
        ("number", b'{"battery": {"level": [1]}}'),
        ("number", b'{"battery": {"level": NaN}}'),
        ("number", b'{"battery": {"level": 1e999}}'),
        ("number", b'{"battery": {"level": true}}'),
        ("number", b"[" * 30_000),
        ("text", rb'{"battery": {"level": "\ud800"}}'),
    ],
)
def test_broken_json_payload_is_refused(tmp_path: Path, kind: str, payload: bytes) -> None:
    with pytest.raises(PayloadError) as raised:
        value(rule(tmp_path, payload=kind, member="battery.level"), payload)
    assert "1e999" not in str(raised.value)


@each_row(
    ("keys", "payload", "expected"),
    [
        ({"payload": "number"}, b"NaN", UNKNOWN),
        ({"payload": "number"}, b" nil ", UNKNOWN),
        ({"payload": "number", "scale": 0.1}, b"None", UNKNOWN),
        ({"payload": "number"}, b"unavailable", UNKNOWN),
        ({"payload": "boolean"}, b"null", UNKNOWN),
        ({"payload": "boolean"}, b"Unknown", UNKNOWN),
        ({"payload": "boolean", "off": ["none"]}, b"none", FALSE),
        ({"payload": "text"}, b"unknown", literal("unknown")),
        ({"payload": "text", "no_value": ["unknown"]}, b"unknown", UNKNOWN),
        ({"payload": "number", "no_value": ["999", "-127"]}, b"999.0", ERROR),
        ({"payload": "number", "no_value": ["999", "-127"], "scale": 0.5}, b"-127.00", ERROR),
        ({"payload": "number", "no_value": ["999"], "scale": 0.5}, b"1998", literal("999.0", datatype=f"{XSD}decimal")),
        ({"payload": "number", "no_value": ["999"], "member": "t"}, b'{"t": 999}', ERROR),
        ({"payload": "number", "no_value": ["n/a"], "member": "t"}, b'{"t": "n/a"}', UNKNOWN),
        ({"payload": "number", "member": "t"}, b'{"t": null}', UNKNOWN),
        ({"payload": "text", "member": "t.u"}, b'{"t": {"u": null}}', UNKNOWN),
    ],
)
def test_absence_of_a_value(tmp_path: Path, keys: dict[str, Any], payload: bytes, expected: Term) -> None:
    assert value(rule(tmp_path, **keys), payload) == expected


@each_row(
    ("keys", "message"),
    [
        ({"no_value": []}, "no_value = .*write 1 to"),
        ({"off_delay_s": 5, "payload": "number"}, "off_delay_s: is for"),
        ({"off_delay_s": 5, "payload": "boolean", "time": "property t"}, "off_delay_s: counts from the arrival"),
        ({"expire_after_s": 5, "member": "a", "time": "member b"}, "expire_after_s: counts from the arrival"),
        ({"expire_after_s": 0}, "Expected `float` > 0"),
    ],
)
def test_faulty_keys_of_values_that_end(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        rule(tmp_path, **keys)


ALSO = """
[[stream]]
topic = "stat/plug/POWER"
payload = "boolean"
property = "lighting:presence"
also = [{topic = "tele/plug/STATE", member = "POWER"}, {topic = "stat/plug/STATUS11", member = "StatusSTS.POWER"}]
"""


def test_value_has_one_stream_on_all_its_topics(tmp_path: Path) -> None:
    mapping = mapping_of(tmp_path, ALSO)
    messages = (
        ("stat/plug/POWER", b"ON"),
        ("tele/plug/STATE", b'{"POWER": "ON"}'),
        ("stat/plug/STATUS11", b'{"StatusSTS": {"POWER": "ON"}}'),
    )
    found = [only(mapping, topic, payload) for topic, payload in messages]
    assert {one.value for one in found} == {TRUE}
    assert len({one.stream for one in found}) == 1 and found[0].stream.topic == "stat/plug/POWER"
    assert sorted(mapping.filters) == sorted(topic for topic, _ in messages)
    assert results(mapping, "tele/plug/STATE", b'{"Uptime": 5}') == []
    assert [rule.filter for rule in new_rules(mapping.readers, mapping_of(tmp_path, ALSO).readers)] == []


@each_row(
    "keys",
    [
        'topic = "t/{x}"\npayload = "number"\nalso = [{topic = "u"}]',
        'topic = "t/#"\npayload = "number"\nalso = [{topic = "u"}]',
        'topic = "t"\npayload = "senml"\nalso = [{topic = "u"}]',
        'topic = "t"\npayload = "number"\nmember = "{n}.v"\nalso = [{topic = "u"}]',
        'topic = "t"\npayload = "number"\nalso = [{topic = "u/+"}]',
        'topic = "t"\npayload = "number"\nalso = [{topic = "u/{x}"}]',
        'topic = "t"\npayload = "number"\nread = [{member = "a"}]\nalso = [{topic = "u"}]',
        'topic = "t"\npayload = "number"\nalso = [' + '{topic = "u"}, ' * 9 + "]",
    ],
)
def test_further_topics_are_for_one_value_of_one_topic(tmp_path: Path, keys: str) -> None:
    with pytest.raises(ConfigurationError, match="also: write "):
        mapping_of(tmp_path, f'[[stream]]\nproperty = "lighting:presence"\n{keys}')


def test_payload_size_is_bounded(tmp_path: Path) -> None:
    mapping = rule(tmp_path, payload="boolean")
    assert value(mapping, b"1".rjust(PAYLOAD_BYTES_MAX)) == f'"true"^^<{XSD}boolean>'
    with pytest.raises(PayloadError, match="bytes"):
        value(mapping, b"1".rjust(PAYLOAD_BYTES_MAX + 1))


def test_topic_length_is_bounded(tmp_path: Path) -> None:
    mapping = rule(tmp_path, topic="{x}")
    for size in (1, TOPIC_BYTES_MAX):
        assert only(mapping, "x" * size, b"1").value == '"1"'
    [error] = results(mapping, "x" * (TOPIC_BYTES_MAX + 1), b"1")
    assert isinstance(error, PayloadError)
    assert f"topic does not have 1 to {TOPIC_BYTES_MAX} bytes" in str(error)


@each_row("keys", [{}, {"no_value": ["none"]}])
def test_text_length_is_bounded(tmp_path: Path, keys: dict[str, Any]) -> None:
    mapping = rule(tmp_path, **keys)
    assert value(mapping, b"x" * TEXT_CHARS_MAX) == '"' + "x" * TEXT_CHARS_MAX + '"'
    with pytest.raises(PayloadError, match="characters"):
        value(mapping, b"x" * (TEXT_CHARS_MAX + 1))


# No topic and no payload gets out of its place

LEVEL = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="/"), max_size=20) | st.sampled_from(
    ["> } ; DROP ALL #", '"', "\\", "\\u003E", "a>b", "<", "%3E", "%", "\n", "\x00", "?x", "é☃", "\\"]
)
TEXT = st.text(max_size=40) | st.sampled_from(
    [
        '" } ; DROP ALL #',
        '\\"',
        "\\",
        "\\u0022",
        "\\\\u0022 }",
        '"""',
        "\r\n",
        "\x00",
        "'",
        "@en",
        "\u2028",
        "\U0001f4a1",
    ]
)


@settings(max_examples=AMOUNTS.of(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(level='x> <urn:p> "o" } ; DROP ALL #', ignored="", text='" } ; DROP ALL #', retained=True)
@given(level=LEVEL, ignored=LEVEL, text=TEXT, retained=st.booleans())
def test_no_topic_or_payload_breaks_out_of_the_updates(
    tmp_path: Path, level: str, ignored: str, text: str, retained: bool
) -> None:
    mapping = rule(
        tmp_path, topic="t/+/{x}", sensor="s/{x}", platform="urn:example:{x}", label="label of {x}", unit="unit:NUM"
    )
    topic = f"t/{ignored}/{level}"
    (found,) = results(mapping, topic, text.encode(), retained=retained)
    if isinstance(found, PayloadError):
        assert not text or level in ("", ".", "..") or ignored in (".", "..")
        return
    bystander = Quad(NamedNode("http://x.example/"), NamedNode("http://x.example/"), Literal("stays"))
    store = Store()
    store.add(bystander)
    store.update(description_update(found.stream))
    store.update(reading_update(found))

    after = {(quad.subject.value, quad.predicate.value, quad.object.value) for quad in store}
    by_predicate = {quad.predicate.value: quad for quad in store}
    stream = by_predicate[QUDT + "hasUnit"].subject.value
    observation = by_predicate[SOSA + "hasSimpleResult"].subject.value
    sensor = by_predicate[SOSA + "observes"].subject.value
    platform = by_predicate[SOSA + "hosts"].subject.value
    feature = by_predicate[SOSA + "hasFeatureOfInterest"].object.value
    assert unquote(sensor.removeprefix(BASE + "s/")) == level and "/" not in sensor.removeprefix(BASE + "s/")
    assert unquote(platform.removeprefix("urn:example:")) == level
    assert feature == BASE + "feature/t" + encoded_behind_slash(ignored)
    ours = "http://lamplighter.example/ns/gateway#"
    presence = LIGHTING + "presence"
    assert after == {
        ("http://x.example/", "http://x.example/", "stays"),
        (platform, RDF_TYPE, SOSA + "Platform"),
        (platform, SOSA + "hosts", sensor),
        (sensor, RDF_TYPE, SOSA + "Sensor"),
        (sensor, SOSA + "observes", presence),
        (presence, RDF_TYPE, SOSA + "ObservableProperty"),
        (feature, RDF_TYPE, SOSA + "FeatureOfInterest"),
        (UNIT + "NUM", RDF_TYPE, QUDT + "Unit"),
        (stream, RDF_TYPE, ours + "Stream"),
        (stream, ours + "mqttTopic", topic),
        (stream, ours + "liveObservation", observation),
        (stream, QUDT + "hasUnit", UNIT + "NUM"),
        (stream, RDFS_LABEL, f"label of {level}"),
        (observation, RDF_TYPE, SOSA + "Observation"),
        (observation, SOSA + "madeBySensor", sensor),
        (observation, SOSA + "observedProperty", presence),
        (observation, SOSA + "hasFeatureOfInterest", feature),
        (observation, SOSA + "hasSimpleResult", text),
        (observation, ours + "timeProblem", "retained")
        if retained
        else (observation, SOSA + "resultTime", "2026-11-21T12:00:00.000005Z"),
    }
    # The live observation found again by the text, not only written.
    store.update(reading_update(only(mapping, topic, text.encode(), received=LATER, retained=retained)))
    times = {quad.object.value for quad in store if quad.predicate.value == SOSA + "resultTime"}
    assert times == (set() if retained else {"2026-11-21T12:00:30.000005Z"})


def encoded_behind_slash(level: str) -> str:
    """A level behind a slash, percent-encoded by hand; an empty one leaves nothing."""
    if not level:
        return ""
    kept = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
    return "/" + "".join(
        character if character in kept else "".join(f"%{byte:02X}" for byte in character.encode())
        for character in level
    )


# Rules


GOOD = {"topic": "t/{x}", "property": "lighting:presence", "payload": "text"}


@each_row(
    ("keys", "named"),
    [
        (GOOD | {"topik": "x"}, "topik"),
        ({"topic": "t/{x}", "property": "lighting:presence"}, "payload"),
        (GOOD | {"payload": "float"}, "payload"),
        (GOOD | {"topic": ""}, "topic"),
        (GOOD | {"topic": "t/#/x"}, "topic"),
        (GOOD | {"topic": "t/{x#}/x"}, "topic"),
        (GOOD | {"topic": "t/{x:(a+)+}"}, "topic"),
        (GOOD | {"topic": "t/post-{x}"}, "topic"),
        (GOOD | {"topic": "{x}/{x}"}, "topic"),
        (GOOD | {"topic": "$share/g/{x}"}, "topic"),
        (GOOD | {"property": "lightning:presence"}, "property"),
        (GOOD | {"property": "presence"}, "property"),
        (GOOD | {"property": "lighting:a b"}, "property"),
        (GOOD | {"property": "http://example.org/a>b"}, "property"),
        (GOOD | {"unit": "unit:%"}, "unit"),
        (GOOD | {"member": "a..b"}, "member"),
        (GOOD | {"sensor": "s/{y}"}, "sensor"),
        (GOOD | {"sensor": "/s/{x}"}, "sensor"),
        (GOOD | {"sensor": "s/../{x}"}, "sensor"),
        (GOOD | {"feature": "a b"}, "feature"),
        (GOOD | {"feature": "http://{x}/a"}, "feature"),
        (GOOD | {"feature": "http://a.example{x}/a"}, "feature"),
        (GOOD | {"feature": "urn:{x}:a"}, "feature"),
        (GOOD | {"platform": "p;{x}"}, "platform"),
        (GOOD | {"label": "of {y}"}, "label"),
    ],
)
def test_bad_rule_is_refused_with_file_number_and_key(tmp_path: Path, keys: dict[str, str], named: str) -> None:
    text = "[[stream]]\n" + "".join(f"{key} = '{value}'\n" for key, value in GOOD.items())
    text += "[[stream]]\n" + "".join(f"{key} = '{value}'\n" for key, value in keys.items())
    with pytest.raises(ConfigurationError) as raised:
        mapping_of(tmp_path, text)
    message = str(raised.value)
    place = f"{tmp_path / 'rules.toml'} line {len(GOOD) + 2}: stream 2: "
    assert message.startswith(place)
    assert named in message.removeprefix(place)


@each_row(
    "text",
    [
        "[[stream]",
        "[stream]\ntopic = 'x'",
        "[[streams]]",
        "[prefixes]\nex = 'example'",
        "[prefixes]\nsosa = 'http://e.example/'",
    ],
)
def test_bad_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"rules\.toml"):
        mapping_of(tmp_path, text)


@each_row("base", ["", "gateway/", "http://gateway.example/a", "http://gateway.example/ /", "ftp://a/"])
def test_bad_base_iri_is_refused(tmp_path: Path, base: str) -> None:
    with pytest.raises(ConfigurationError, match="base IRI"):
        load_mapping(tmp_path, base)


def test_folder_without_rules_gives_an_empty_mapping(tmp_path: Path) -> None:
    mapping = load_mapping(tmp_path / "none", BASE)
    assert mapping.filters == ()
    assert results(mapping, "t/1", b"1") == []


def test_rules_that_take_over_an_index_read_as_new_ones_do() -> None:
    made = {
        name: rules(
            f'[[stream]]\ntopic = "{topic}"\npayload = "number"\nproperty = "ex:{name}"\nsensor = "s/{name}"'
        ).rules[0]
        for name, topic in (("a", "t/1"), ("b", "t/+"), ("c", "#"), ("d", "t/1"), ("e", "u/{x}"))
    }
    topics = ("t/1", "t/2", "u/1", "v")

    def read(mapping: Mapping) -> list[list[str]]:
        return [[str(one.stream.sensor) for one in readings(mapping, topic, "1")] for topic in topics]

    current = Mapping([])
    for names in ("a", "ab", "ba", "dcab", "dc", "dce", "e", "ade", "", "cb"):
        chosen = [made[name] for name in names]
        current = Mapping(chosen, former=current)
        assert read(current) == read(Mapping(chosen)), names


@each_row(
    ("message", "values"),
    [
        ('{"id": 5, "model": "x", "t": 1.5}', ["1.5"]),
        ('{"id": "5", "model": "x", "t": 2}', ["2"]),
        ('{"id": 6, "model": "x", "t": 3}', []),
        ('{"id": null, "model": "x", "t": 3}', []),
        ('{"id": [5], "model": "x", "t": 3}', []),
        ('{"model": "x", "t": 3}', []),
        ('{"id": 5, "model": "x"}', []),
    ],
)
def test_where_chooses_messages_and_others_are_no_fault(message: str, values: list[str]) -> None:
    where = 'where = {id = 5, model = "x"}\nmember = "t"\n'
    mapping = rules(f'[[stream]]\ntopic = "a"\npayload = "number"\nproperty = "ex:p"\n{where}')
    found = mapping.readings("a", message.encode(), retained=False, received=NOON)
    assert [lexical(one.value) for one in found if isinstance(one, Reading)] == values
    assert all(isinstance(one, Reading) for one in found)
