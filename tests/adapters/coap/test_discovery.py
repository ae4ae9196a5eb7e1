from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyoxigraph import Store

from lamplighter.adapters.coap.discovery import Proposal, propose
from lamplighter.adapters.coap.links import LINKS_MAX, Link, parse_links
from lamplighter.adapters.devices.device import Device
from lamplighter.adapters.devices.kinds import KINDS
from lamplighter.adapters.devices.registry import Registry
from lamplighter.adapters.devices.stored import check_record
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.engine.terms import literal
from tests.support.tables import each_row

BASE = "coap://192.0.2.7"
REGISTRY = Registry("http://gateway.example/")


def found(text: str, **named: str) -> Proposal:
    return propose(parse_links(text.encode()), **{"base": BASE, "place": "/.well-known/core"} | named)


def device(text: str, **named: str) -> Device:
    proposal = found(text, **named)
    assert proposal.device is not None, proposal.problems
    assert not proposal.problems
    return proposal.device


def sensor(text: str) -> dict[str, Any]:
    one = device(text).sensors
    assert len(one) == 1
    return one[0].table


def command(text: str) -> dict[str, Any]:
    one = device(text)
    assert len(one.actuators) == 1
    assert one.sensors == ()
    return one.actuators[0].command


def reason(text: str, **named: str) -> str:
    proposal = found(text, **named)
    assert proposal.device is None
    return proposal.problems[0].reason


def test_a_device_is_identified_by_host_and_port() -> None:
    assert device("</a>").identity == "coap/192.0.2.7~5683"
    assert device("</a>", base="coap://lamp.local:61616").identity == "coap/lamp.local~61616"
    one = device("</a>", base="coap://[2001:db8::7]")
    assert (one.id, one.name, one.broker) == ("2001=db8==7~5683", "2001:db8::7", "coap://[2001:db8::7]")


def test_a_registered_device_is_identified_by_its_endpoint_wherever_it_is() -> None:
    one = device("</a>", endpoint="lamp-7")
    assert (one.id, one.name, one.broker) == ("lamp-7", "lamp-7", BASE)
    assert device("</a>", endpoint="lamp-7", base="coap://192.0.2.8").id == "lamp-7"


def test_no_endpoint_takes_the_identity_of_another_device() -> None:
    names = [("192.0.2.7~5683", ""), ("lamp", "a"), ("lamp", "b"), ("lamp@a", ""), ("lamp", ""), ("a\u00e4", "")]
    ids = {device("</a>").id, *(device("</a>", endpoint=ep, sector=d).id for ep, d in names)}
    assert len(ids) == 7


def test_a_temperature_sensor_is_read_with_its_unit() -> None:
    one = device('</sensors/temp>;rt="temperature-c";if="core.s";title="Attic";obs')
    assert one.sensors[0].kind == "gateway:temperature"
    assert one.sensors[0].label == "Attic"
    assert one.sensors[0].table == {
        "resource": "coap://192.0.2.7/sensors/temp",
        "property": "gateway:temperature",
        "payload": "number",
        "unit": "Cel",
        "label": "Attic",
        "sensor": "sensor/coap/192.0.2.7~5683/sensors.temp",
        "feature": "device/coap/192.0.2.7~5683",
        "platform": "device/coap/192.0.2.7~5683",
    }


@each_row(
    ("attributes", "property_", "payload"),
    [
        ("rt=temperature", "gateway:temperature", "number"),
        ('rt="unknown Humidity"', "gateway:humidity", "number"),
        ("if=motion", "gateway:motion", "boolean"),
        ("rt=light-lux", "gateway:illuminance", "number"),
        ("rt=air_quality", "gateway:airQuality", "text"),
        ("rt=event", "gateway:event", "text"),
        ("rt=light;if=core.s", "property/x.y", "text"),
        ("rt=ticks", "property/x.y", "text"),
        ("", "property/x.y", "text"),
    ],
)
def test_resource_types_are_kinds(attributes: str, property_: str, payload: str) -> None:
    table = sensor(f"</x/y>;{attributes}" if attributes else "</x/y>")
    assert (table["property"], table["payload"]) == (property_, payload)
    if payload == "boolean":
        assert set(table["on"]) & set(table["off"]) == set()


def test_what_libcoap_lists_is_proposed() -> None:
    text = (
        '</>;title="General Info";ct=0,</time>;if="clock";rt="ticks";title="Internal Clock";ct=0;obs,</async>;ct=0,'
        '</lamp>;ct=0;title="Dynamic";obs'
    )
    one = device(text)
    assert [(part.key, part.table["accept"]) for part in one.sensors] == [
        ("async", "text"),
        ("lamp", "text"),
        ("time", "text"),
    ]


@each_row(
    ("ct", "accept", "payload"),
    [
        ("0", "text", "number"),
        ("50 0", "text", "number"),
        ("60 50", "json", "number"),
        ("60", "cbor", "number"),
        ("112 110", "senml+json", "senml"),
        ("112", "senml+cbor", "senml"),
        ("99 0", "text", "number"),
        ("x 0", "text", "number"),
    ],
)
def test_the_content_format_is_chosen(ct: str, accept: str, payload: str) -> None:
    table = sensor(f'</t>;rt=temperature;ct="{ct}"')
    assert (table["accept"], table["payload"]) == (accept, payload)


def test_without_a_content_format_none_is_asked_for() -> None:
    assert "accept" not in sensor("</t>;rt=temperature")


@each_row(
    ("path", "property_", "payload", "resource"),
    [
        ("/3303/0/5700", "gateway:temperature", "number", "/3303/0/5700"),
        ("/3303/0", "gateway:temperature", "number", "/3303/0/5700"),
        ("/3301/12/5700", "gateway:illuminance", "number", "/3301/12/5700"),
        ("/3302/0", "gateway:occupancy", "boolean", "/3302/0/5500"),
        ("/3305/0", "gateway:power", "number", "/3305/0/5800"),
        ("/3342/0/5500", "gateway:input", "boolean", "/3342/0/5500"),
        ("/3302/0/5501", "gateway:counter", "number", "/3302/0/5501"),
        ("/3300/0/5700", "property/3300.0.5700", "number", "/3300/0/5700"),
        ("/3303/0/5701", "property/3303.0.5701", "text", "/3303/0/5701"),
    ],
)
def test_ipso_paths_are_kinds(path: str, property_: str, payload: str, resource: str) -> None:
    table = sensor(f"<{path}>")
    assert table["property"] == property_
    assert table["payload"] == payload
    assert table["resource"] == BASE + resource
    assert table["accept"] == "text"


def test_a_value_in_tlv_is_chosen_by_its_path() -> None:
    table = sensor('</3303/0/5700>;ct="11542 11543"')
    assert (table["payload"], table["member"], table["accept"]) == ("lwm2m", "3303/0/5700", "lwm2m+tlv")


def test_a_light_of_ipso_is_switched_and_dimmed() -> None:
    one = device("</3311/0/5850>,</3311/0/5851>")
    assert [(part.key, part.kind) for part in one.actuators] == [
        ("3311.0.5850", "gateway:light"),
        ("3311.0.5851", "gateway:brightness"),
    ]
    assert one.actuators[0].command == {
        "resource": "coap://192.0.2.7/3311/0/5850",
        "actuator": "actuator/coap/192.0.2.7~5683/3311.0.5850",
        "content_format": "text",
        "values": {"true": "1", "false": "0"},
    }
    dimmer = one.actuators[1]
    assert (dimmer.minimum, dimmer.maximum, dimmer.command["maximum"]) == (0, 100, 100)


def test_a_switch_in_tlv_takes_booleans() -> None:
    table = command("</3306/0/5850>;ct=11542")
    assert (table["content_format"], table["values"]) == ("lwm2m+tlv", {"true": "true", "false": "false"})


@each_row(
    ("attributes", "kind", "form"),
    [
        ("if=core.a;rt=light", "light", "text"),
        ("if=core.a;rt=light;ct=50", "light", "json"),
        ('if="core.a x";rt="x lock"', "lock", "text"),
    ],
)
def test_an_actuator_is_known_by_its_interface(attributes: str, kind: str, form: str) -> None:
    one = device(f"</a/1>;{attributes}")
    assert one.actuators[0].kind == f"gateway:{kind}"
    assert one.actuators[0].command["content_format"] == form
    assert "values" not in one.actuators[0].command


def test_an_actuator_of_no_known_kind_is_offered_under_its_path() -> None:
    assert device("</a/1>;if=core.a;rt=temperature").actuators[0].kind == "property/a.1"


def test_a_device_of_lwm2m_offers_its_objects_and_not_its_management() -> None:
    one = device('</>;rt="oma.lwm2m";ct=11543,</1/0>,</3/0>,</5>,</3303/0>,</3311/0>,</3303>')
    assert [part.key for part in one.sensors] == ["3303.0.5700"]
    assert [part.key for part in one.actuators] == ["3311.0.5850"]


def test_objects_may_lie_below_a_path() -> None:
    assert sensor('</lwm2m>;rt="oma.lwm2m",</lwm2m/3303/0>')["resource"] == f"{BASE}/lwm2m/3303/0/5700"


def test_a_value_is_offered_once_with_its_own_link_first() -> None:
    one = device('</3303/0>,</3303/0/5700>;title="Attic",</3303/0/5700>;title="b",<coap://192.0.2.7:5683/3303/0/5700>')
    assert [part.label for part in one.sensors] == ["Attic"]


def test_absolute_targets_of_the_device_are_its_own() -> None:
    for base, target in (
        (BASE, "coap://192.0.2.7:5683/t"),
        (BASE, "COAP://192.0.2.7/t"),
        ("coap://[2001:db8::7]:61616", "coap://[2001:DB8::7]:61616/t"),
    ):
        assert device(f"<{target}>", base=base).sensors[0].table["resource"] == f"{base}/t"


@each_row(
    "target",
    [
        "coap://192.0.2.8/t",
        "coap://192.0.2.7:61616/t",
        "coaps://192.0.2.7/t",
        "http://192.0.2.7/t",
        "coap://192.0.2.7.evil.example/t",
        "coap://user@192.0.2.8/t",
        "coap:///t",
        "urn:x:y",
    ],
)
def test_targets_of_other_hosts_are_refused(target: str) -> None:
    assert "another host" in reason(f"<{target}>")


@each_row(
    "target",
    [
        "t",
        "//192.0.2.8/t",
        "/../t",
        "/%2e%2e/t",
        "/%zz",
        "/%",
        "/%ff",
        "/%00",
        "/%0a",
        "/t#x",
        "coap://192.0.2.7:x/t",
        "coap://[::zz]/t",
        "/" + "a" * 600,
        "/" + "a" * 256,
        "/" + "a/" * 40,
    ],
)
def test_bad_targets_are_refused(target: str) -> None:
    assert 0 < len(reason(f"<{target}>")) <= 400


@each_row(
    ("target", "resource"),
    [
        ("/Malmö", "/Malm%C3%B6"),
        ("/Malm%c3%b6", "/Malm%C3%B6"),
        ("/a%2fb", "/a%2Fb"),
        ("/{x}", "/%7Bx%7D"),
        ("/a+b", "/a%2Bb"),
        ("/%61", "/a"),
        ("/t?a=1&b=%26", "/t?a=1&b=%26"),
    ],
)
def test_a_resource_has_one_spelling(target: str, resource: str) -> None:
    assert sensor(f"<{target}>")["resource"] == BASE + resource


def test_keys_are_different_for_different_resources() -> None:
    targets = ["/a/b", "/a.b", "/a_b", "/a%2Fb", "/a/b/", "/a?b", "//a".replace("//", "/x/"), "/ä", "/ö", "/a-b"]
    one = device(",".join(f"<{target}>" for target in targets))
    assert len({part.key for part in one.sensors}) == len(targets)


@each_row(
    "text",
    [
        "",
        "</>;ct=40",
        "</.well-known/core>;ct=40",
        "</.well-known/rd>",
        "</sensors>;ct=40",
        "</rd>;rt=core.rd",
        "</rd-lookup/ep>;rt=core.rd-lookup-ep",
        "</t>;rel=alternate",
        '</t>;anchor="/sensors/temp"',
        '</t>;anchor="coap://192.0.2.8/"',
        "</3303>",
        '</>;rt="oma.lwm2m",</1/0>',
    ],
)
def test_links_without_a_value_are_passed_over(text: str) -> None:
    assert found(text) == Proposal(None, [])


def test_hosted_links_may_say_so() -> None:
    assert sensor('</t>;rel=hosts;anchor="/"')["resource"] == f"{BASE}/t"


@each_row(
    ("text", "words"),
    [
        ("</t>;ct=42", "content formats are not read: 42"),
        ("</t>;ct=11542", "content formats are not read: 11542"),
        ("</t>;sz=65537", "larger"),
        ("</t>;sz=99999999999999999999", "larger"),
        ("</t>;if=core.b", "joins several"),
        ("</t>;if=core.ll", "joins several"),
    ],
)
def test_links_that_cannot_be_read_are_problems(text: str, words: str) -> None:
    assert words in reason(text)


@each_row(
    "base",
    [
        "coaps://192.0.2.7",
        "http://192.0.2.7",
        "coap://192.0.2.7/",
        "coap://192.0.2.7/x",
        "coap://[fe80::1%25eth0]",
        "coap://a b",
        "coap://LAMP",
        "coap://192.0.2.7:0",
        "coap://192.0.2.7:99999",
        "coap://[::zz]",
        "coap://{x}",
        "coap://224.0.1.187",
        "coap://[ff02::fd]",
        "coap://192.0..2",
        "coap://192.0.2.7:5683",
        "coap://" + "a" * 300,
        "",
    ],
)
def test_other_bases_are_problems(base: str) -> None:
    assert found("</t>", base=base).device is None
    assert len(found("</t>", base=base).problems) == 1


def test_parts_and_problems_are_bounded() -> None:
    many = propose([Link(f"/{number}x") for number in range(LINKS_MAX)], base=BASE, place="x")
    assert many.device is not None
    assert len(many.device.sensors) == 100
    assert len(many.problems) == 20
    long = propose([Link("/t", (("title", "x\x1b" * 5_000),))], base=BASE, place="x")
    assert long.device is not None
    assert len(long.device.sensors[0].label) <= 120
    assert long.device.sensors[0].label.isprintable()


def test_all_kinds_that_are_named_exist() -> None:
    text = ",".join(f"</{number}/0>" for number in range(3300, 3350))
    one = device(text)
    kinds = {part.kind.removeprefix("gateway:") for part in (*one.sensors, *one.actuators)}
    assert {kind for kind in kinds if not kind.startswith("property/")} <= set(KINDS)


def test_a_proposed_device_is_stored_adopted_and_described() -> None:
    one = device('</3303/0/5700>,</3311/0/5850>,</t>;rt=temperature-c,</u>;ct="112"', endpoint="lamp")
    store = Store()
    store.update(REGISTRY.announced(None, one, "ask") or "")
    entry = REGISTRY.entry([literal(one.to_json()), literal("proposed"), None, None])
    assert entry.device == one
    store.update(REGISTRY.adoption(entry))
    rules = REGISTRY.rules(one)
    commands = [rule["command"] for rule in rules.values() if "command" in rule]
    streams = {rule["stream"]["resource"]: rule["stream"] for rule in rules.values() if "stream" in rule}
    assert [table["resource"] for table in commands] == [f"{BASE}/3311/0/5850"]
    assert sorted(streams) == [f"{BASE}/3303/0/5700", f"{BASE}/t", f"{BASE}/u"]
    assert streams[f"{BASE}/u"]["accept"] == "senml+cbor"
    assert streams[f"{BASE}/u"]["read"][0]["property"] == "http://gateway.example/property/u"
    assert not any("accept" in read or "resource" in read for stream in streams.values() for read in stream["read"])


def test_rules_of_proposed_devices_are_those_of_the_adapter() -> None:
    text = (
        '</>;rt="oma.lwm2m",</3302/0/5500>,</3303/0>,</3303/1/5700>;ct=11542,</3303/2/5700>;ct=110,</3311/0/5850>,'
        "</3311/1/5850>;ct=11542,</3311/2/5850>;ct=50,</3311/3/5850>;ct=60,</3311/4/5850>;ct=112,</3311/0/5851>,"
        "</sensors/temp>;rt=temperature-c,</a/led>;if=core.a;rt=light,</m>;rt=motion;ct=60,</Malmö>,</a+b?c=d&e>,"
        '</{a}>,</$x>,</a//b/>,</time>;title="{x}";ct=0;obs'
    )
    for base in (BASE, "coap://[2001:db8::7]:61616", "coap://lamp.local"):
        one = device(text, base=base)
        rules = DatasetRules("http://gateway.example/", kind="coap")
        made = REGISTRY.rules(one)
        rules.change(
            [(f"<http://gateway.example/{path}>", literal(json.dumps(rule))) for path, rule in made.items()], ()
        )
        assert rules.problems() == {}
        assert len(rules.resources().resources) == len(one.sensors)
        assert len(rules.resources().commands) == len(one.actuators) == 7
        assert all(rule.resource.startswith(f"{base}/") for rule in rules.resources().resources)


@each_row(
    ("place", "value"),
    [
        (["broker"], "coap://192.0.2.8"),
        (["broker"], "default"),
        (["sensors", 0, "table", "resource"], "coap://192.0.2.8/t"),
        (["sensors", 0, "table", "resource"], "coap://192.0.2.7"),
        (["sensors", 0, "table", "resource"], "coap://192.0.2.7/{x}"),
        (["sensors", 0, "table", "resource"], "coap://192.0.2.7/../t"),
        (["sensors", 0, "table", "resource"], None),
        (["sensors", 0, "table", "topic"], "#"),
        (["sensors", 0, "table", "path"], "x"),
        (["sensors", 0, "table", "broker"], "default"),
        (["actuators", 0, "command", "resource"], "{resource}"),
        (["actuators", 0, "command", "resource"], "coap://192.0.2.7.evil.example/t"),
        (["actuators", 0, "command", "query"], "SELECT * WHERE { ?actuator ?p ?state }"),
        (["actuators", 0, "command", "topic"], "x"),
        (["actuators", 0, "state"], {"property": "gateway:light", "resource": "coap://192.0.2.8/t"}),
        (["availability"], {"topics": []}),
    ],
)
def test_a_forged_record_is_refused(place: list[str | int], value: object) -> None:
    record = json.loads(device("</t>,</3311/0/5850>").to_json())
    check_record(Device.from_json(json.dumps(record)))
    part = record
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    with pytest.raises(ValueError, match=r"record|resource|base|path"):
        check_record(Device.from_json(json.dumps(record)))


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
WORDS = st.sampled_from(["core.s", "core.a", "oma.lwm2m", "temperature", "light", "0", "50", "11542 112", "x"]) | TEXTS
TARGETS = st.sampled_from(["/", "/3303/0", "/3311/0/5850", "/t", "coap://192.0.2.7/t", "coap://x/y", "/%C3"]) | TEXTS
LINKS = st.builds(
    Link,
    TARGETS | TEXTS.map(lambda text: f"/{text}"),
    st.lists(st.tuples(st.sampled_from(["rt", "if", "ct", "sz", "title", "rel", "anchor"]), st.none() | WORDS)).map(
        tuple
    ),
)


@given(st.lists(LINKS, max_size=6), TEXTS, TEXTS)
def test_any_links_are_a_device_that_is_stored_or_problems(some: list[Link], endpoint: str, sector: str) -> None:
    proposal = propose(some, base=BASE, place="/.well-known/core", endpoint=endpoint, sector=sector)
    if proposal.device is None:
        return
    check_record(proposal.device)
    assert Device.from_json(proposal.device.to_json()) == proposal.device
    Store().update(REGISTRY.announced(None, proposal.device, "all") or "")


def test_rules_of_a_proposed_device_are_taken() -> None:
    formats = ["0", "50", "60", "110", "112", "11542", "11543"]
    links = [f"<{path}>;ct={ct}" for ct in formats for path in (f"/3303/{ct}/5700", f"/3311/{ct}/5850", f"/t/{ct}")]
    links += [f'</switch/{ct}>;if="core.a";ct={ct}' for ct in formats]
    rules = DatasetRules("http://gateway.example/", kind="coap")
    made = REGISTRY.rules(found(",".join(links)).device or pytest.fail("no device"))
    rules.change([(f"<http://gateway.example/{path}>", literal(json.dumps(rule))) for path, rule in made.items()], ())
    assert rules.problems() == {}
    assert sum(map(len, rules.resources())) == len(made) > len(formats)


def test_resource_that_no_request_can_name_is_a_problem() -> None:
    assert "longer than 255 bytes" in reason(f"</{'a' * 256}>")


def test_what_is_left_out_of_links_is_told() -> None:
    texts = (
        '</a>;rt="temperature";frobnicate="1";obs;title="A"',
        '</>;rt="oma.lwm2m"',
        "</3303/0>",
        "</3391/0>",
        "</1/0>",
    )
    proposal = found(",".join(texts))
    assert not proposal.problems
    [problem] = proposal.left_out
    assert (problem.source, problem.device, problem.about) == ("coap", "coap/192.0.2.7~5683", "left out 1")
    said = problem.reason.removeprefix("not used: ").split("; ")
    assert said == ["/a: frobnicate", "/3391/0: an object without a known value"]
    assert not found('</a>;rt="temperature";obs').left_out
