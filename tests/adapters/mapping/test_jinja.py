"""Templates: those that are usual in Home Assistant with what they give, and those that nobody may write."""

from __future__ import annotations

import json
import random
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from lamplighter.adapters.mapping import CommandTable, Mapping, StreamRule, StreamTable, command_rule
from lamplighter.adapters.mapping.command_payloads import command_payload, command_text
from lamplighter.adapters.mapping.jinja import DEPTH_MAX, NODES_MAX, TEMPLATE_CHARS_MAX, payload_text, value_template
from lamplighter.adapters.mapping.payloads import AbsentError, Payload
from lamplighter.adapters.model.readings import Reading
from lamplighter.adapters.mqtt.discovery.homeassistant_templates import value_place
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import lexical, literal
from lamplighter.ontology.vocabulary import PREFIXES
from tests.support.amounts import Amounts
from tests.support.tables import each_row

CLOCK = "they need the time"
USUAL: list[tuple[str, Any, str]] = [
    ("{{ value_json.temperature | round(1) }}", {"temperature": 21.5}, "21.5"),
    ("{{ value_json.temperature * 1.8 + 32 }}", {"temperature": 20}, "68.0"),
    ("{{ (value_json.power / 10) | round(1) }}", {"power": 1234}, "123.4"),
    ("{{ value | float / 1000 }}", "2500", "2.5"),
    ("{{ value_json.a + value_json.b }}", {"a": 1.5, "b": 2}, "3.5"),
    ("{{ 'ON' if value_json.occupancy else 'OFF' }}", {"occupancy": True}, "ON"),
    ("{{ 'ON' if value_json.state == 'open' else 'OFF' }}", {"state": "closed"}, "OFF"),
    ("{% if value_json.power > 5 %}ON{% else %}OFF{% endif %}", {"power": 5.1}, "ON"),
    ("{{ value_json.get('temperature', 0) }}", {}, "0"),
    ("{{ value_json['sensors'][-1].temp }}", {"sensors": [{"temp": 1}, {"temp": 2}]}, "2"),
    ("{{ value.split(',')[0] }}", "12.5,40", "12.5"),
    ("{{ value.split(';')[1] | float }}", "a;40", "40.0"),
    ("{{ {0: 'off', 1: 'heat'}[value_json.value] | default('off') }}", {"value": 1}, "heat"),
    ("{{ (value_json.value / 99 * 100) | round(0) }}", {"value": 99}, "100"),
    ("{{ value_json.battery | int > 20 }}", {"battery": "19.7"}, "False"),
    ("{{ value_json['update']['state'] == 'available' }}", {"update": {"state": "available"}}, "True"),
    ("{{ iif(value_json.alarm, 'ON', 'OFF') }}", {"alarm": False}, "OFF"),
    ("{% set words = {'0': 'idle', '1': 'run'} %}{{ words.get(value, 'unknown') }}", "2", "unknown"),
    ("{{ value_json.rssi | int | abs }}", {"rssi": "-71"}, "71"),
    ("{{ value | lower | replace(' ', '_') }}", "Away Mode", "away_mode"),
    ("{{ (value | int / 255 * 100) | round | int }}", "128", "50"),
    ("{{ value_json.a if value_json.a is defined else value_json.b }}", {"b": 7}, "7"),
    ("{% if 'temp' in value_json %}{{ value_json.temp }}{% endif %}", {"temp": 3}, "3"),
    ("{{ value_json.uptime // 3600 }}", {"uptime": 7300}, "2"),
    ("{{ value[0:4] }}", "1234567", "1234"),
    ("{{ '%.2f' | format(value_json.x) }}", {"x": 1.005}, "1.00"),
    ("{{ value_json.bits | int | bitwise_and(4) > 0 }}", {"bits": 6}, "True"),
    ("{{ value_json.t | float(0) | multiply(0.1) | round(1) }}", {"t": "215"}, "21.5"),
    ("{{ (now() - timedelta(seconds=value_json.uptime)).isoformat() }}", {"uptime": 5}, CLOCK),
    ("{% for one in value_json %}{{ one }}{% endfor %}", [1], "loops have no bound"),
]
"""Thirty templates, payloads and what they give. The last two are refused, for the reason that stands there."""


def given(template: str, payload: Any) -> str:
    """What a rule reads."""
    place = value_place(template)
    member = ".".join(map(str, place.path)) or None
    table = StreamTable(topic="a", property="gateway:event", payload="text", member=member, template=place.template)
    rule = StreamRule(table, prefixes=PREFIXES, base_iri="http://e/", place="rule")
    data = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
    (found,) = Mapping([rule]).readings("a", data, retained=False, received=datetime(2030, 1, 1, tzinfo=UTC))
    assert isinstance(found, Reading), found
    return lexical(found.value)


@each_row(("template", "payload", "value"), USUAL[:-2])
def test_usual_templates(template: str, payload: Any, value: str) -> None:
    assert given(template, payload) == value


def test_of_thirty_usual_templates_two_are_refused() -> None:
    assert len(USUAL) == 30
    for template, _, _ in USUAL[-2:]:
        with pytest.raises(ValueError, match="not supported"):
            value_template(template)


@each_row(
    ("template", "payload", "value"),
    [
        ("{{ value | round(0, 'half') }}", "2.5", "2"),
        ("{{ value | round(1, 'half') }}", "2.4", "2.5"),
        ("{{ value_json | bool }}", "21.5", "True"),
        ("{{ '1.0' | bool(default='no') ~ value }}", "1", "no1"),
        ("{{ value_json.l | bool('no') }}", {"l": [1]}, "no"),
        ("{{ value | title }}", "living_room (east)", "Living_room (East)"),
        ("{{ '%.1f' % value_json.t }}", {"t": 21.46}, "21.5"),
        ("{{ '%05.1f' % value_json }}", "3", "003.0"),
        ("{{ 'a' in value_json.missing or value_json.b }}", {"b": 2}, "2"),
        ("{{ 7 // 2 ~ '/' ~ -7 // 2 ~ '/' ~ value_json / 2 }}", "7", "3/-4/3.5"),
        ("{{ 'on' if '0' and value else 'off' }}", "1", "on"),
        ("{{ value_json.a | default(5) }}", {"a": None}, "None"),
        ("{{ value_json.a | default(5, true) }}", {"a": None}, "5"),
    ],
)
def test_meanings_are_those_of_home_assistant(template: str, payload: Any, value: str) -> None:
    data = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
    assert payload_text(value_template(template), Payload(data)) == value


@each_row(
    ("template", "payload"),
    [
        ("{{ value_json.a | float(0) * 2 }}", {}),
        ("{{ value_json.a | int(0) + 1 }}", {}),
        ("{{ value_json.a | round(1, default=0) ~ '' }}", {}),
        ("{{ (value_json.a if is_number(value_json.a) else 0) + 1 }}", {}),
        ("{{ value_json.a | max }}", {}),
        ("{{ value_json.a in 'on' }}", {}),
        ("{{ value_json.a.b }}", {}),
        ("{{ value_json.a + 1 }}", {"b": 1}),
        ("{{ value_json.a | float }}", {}),
        ("{{ value_json.a | is_defined }}", {}),
        ("{{ value_json.a if value_json.id == 2 }}", {"a": 1, "id": 1}),
        ("{% if value_json.a is number %}{{ value_json.a }}{% endif %}", {"a": "x"}),
        ("{{ value_json.a }}", "no JSON"),
        ("{{ value_json[0] }}", {}),
    ],
)
def test_a_payload_without_the_value_is_no_fault(template: str, payload: Any) -> None:
    data = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
    with pytest.raises(AbsentError):
        payload_text(value_template(template), Payload(data))


@each_row(
    ("template", "payload", "reason"),
    [
        ("{{ value | float }}", "x", "not a number"),
        ("{{ 1 / value_json }}", "0", "ZeroDivisionError"),
        ("{{ value_json < 1 }}", '"a"', "TypeError"),
        ("{{ value_json }}", "[1]", "a list or an object"),
        ("{{ value_json * 3 }}", '"a"', "no number"),
        ("{{ value.split('') }}", "a", "ValueError"),
        ("{{ value | int ** 65 }}", "9", "exponent"),
        ("{{ value | int ** 64 * value | int ** 64 }}", "9999", "too large"),
        ("{{ '%s' | format(value_json) }}", "{}", "a list or an object"),
        ("{{ value % 2 }}", "%1000000000d", "another form"),
        ("{{ value_json in 5 }}", "1", "no such items"),
        ("{{ 'on' if value_json in '123' else 'off' }}", "1", "no such items"),
        ("{{ value_json | max }}", "1", "no list"),
        ("{{ value_json.get('a', 0) }}", "1", "no object"),
        ("{{ value is divisibleby(2) }}", "%1000000000d", "no number"),
        ("{{ value is even }}", "%1000000000d", "no number"),
        ("{{ value | format(2) }}", "%1000000000d", "another form"),
        ("{{ value | replace('', value) }}", "a" * 2_000, "8192 characters"),
        ("{{ value ~ value ~ value ~ value ~ value }}", "a" * 2_000, "8192 characters"),
        ("{% set a = [value, value] %}{% set a = [a, a] %}{{ a }}", "x", "a list or an object"),
        ("{{ (0 - value | int) ** 0.5 }}", "4", "real number"),
    ],
)
def test_a_template_that_fails_is_a_fault_of_the_payload(template: str, payload: str, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason) as failed:
        payload_text(value_template(template), Payload(payload.encode()))
    assert not isinstance(failed.value, AbsentError) and (len(payload) < 9 or payload not in str(failed.value))


@each_row(
    "template",
    [
        "{{ value.__class__ }}" + "{{ value.format(1) }}",
        "{{ value.mro() }}",
        "{{ ''.join(value) }}" + "{{ value | map('int') | list }}",
        "{{ range(9) }}{{ value }}",
        "{% macro a() %}{{ value }}{% endmacro %}",
        "{% include 'a' %}{{ value }}",
        "{% import 'a' as b %}{{ value }}",
        "{% set a, b = value %}{{ a }}",
        "{% filter upper %}{{ value }}{% endfilter %}",
        "{{ value | attr('x') }}",
        "{{ value | int(*value) }}",
        "{{ value | int(a=1) }}",
        "{{ value | round(1, 2, 3, 4, 5) }}",
        "{{ value is match('a') }}",
        "{{ value(1) }}",
        "{{ (value)() }}",
        "{{ other }}",
        "{{ 5 }}",
        "{{ value",
        "{{ 10 ** 99 }}{{ " + "9" * 100 + " }}{{ value }}",
        "{{ value }}" + " " * TEMPLATE_CHARS_MAX,
        "{{ " + "(" * 900 + "value" + ")" * 900 + " }}",
        "{{ " + "-" * (DEPTH_MAX + 1) + "value }}",
        "{{ value }}" * (NODES_MAX + 1),
        "{{ " + "9" * 1_990 + " }}",
        r"{{ '\ud800' ~ value }}",
    ],
)
def test_what_is_refused_when_the_rule_is_made(template: str) -> None:
    with pytest.raises(ValueError, match="template"):
        value_template(template)


def test_attributes_of_python_are_members_of_the_payload_only() -> None:
    template = value_template("{{ value_json.items.keys.__class__ }}")
    assert payload_text(template, Payload(b'{"items": {"keys": {"__class__": 5}}}')) == "5"
    with pytest.raises(AbsentError):
        payload_text(template, Payload(b"{}"))


@each_row(
    ("template", "state", "sent"),
    [
        ("{{ (position / 100 * 99) | round(0) }}", "50", "50"),
        ("{{ value * 2.55 }}", "10.0", "25.5"),
        ('{"t": {{ value }}, "on": {{ (value > 20) | lower }}}', "21", '{"t": 21, "on": true}'),
        ("{{ '%02x%02x%02x' | format(red, green, blue) }}", "#ff8800", "ff8800"),
        ("{% if value == 'heat' %}1{% else %}0{% endif %}", "heat", "1"),
    ],
)
def test_command_templates(template: str, state: str, sent: str) -> None:
    assert command_text(template, state) == sent
    rule = command_rule(CommandTable(topic="a", template=template), prefixes={}, base_iri="http://e/", place="rule")
    assert command_payload(rule, literal(state)) == sent.encode()


def test_a_rule_names_the_template_that_it_cannot_use() -> None:
    with pytest.raises(ConfigurationError, match=r"rule: template = .*'now'.*not supported"):
        StreamRule(
            StreamTable(topic="a", property="gateway:event", payload="text", template="{{ now }}"),
            prefixes=PREFIXES, base_iri="http://e/", place="rule",
        )  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"rule: template = .*not Jinja"):
        command_rule(CommandTable(topic="a", template="{{"), prefixes={}, base_iri="http://e/", place="rule")


PIECES = """
{{ }} {% %} ( ) [ ] { } . , : | ~ + - * / // % ** == < > != - if else elif endif set in is not and or
value value_json a b 0 1 -1 99999999999 0.5 'x' '' '%s' none true defined number int float round
replace split get join lower default format multiply tojson from_json max first iif = divisibleby
""".split()  # noqa: SIM905


def test_templates_at_random_end_nothing_and_take_no_time(amounts: Amounts) -> None:
    chance = random.Random(7)
    data = json.dumps({"a": ["x" * 100] * 100, "b": {"a": 2**70, "b": -0.5}, "x": None}).encode()
    understood = 0
    for _ in range(amounts.of(30_000)):
        usual = [piece for one, _, _ in chance.sample(USUAL, 2) for piece in one.split(" ")]
        pieces = chance.choices(PIECES, k=chance.randrange(1, 12)) if chance.random() < 0.3 else usual
        for _ in range(chance.randrange(3)):
            pieces[chance.randrange(len(pieces))] = chance.choice(PIECES)
        before = time.thread_time()
        try:
            template = value_template(" ".join(pieces))
        except ValueError:
            continue
        understood += 1
        for payload in (data, b"12.5", b"%99999999d"):
            with suppress(PayloadError):
                assert payload_text(template, Payload(payload))
        assert time.thread_time() - before < 1.0
    assert understood > 100


@each_row("template", ["{{ '" + "%00d" * 400 + "%!' | format(value) }}", "{{ value | format(1) }}"])
def test_a_format_that_is_none_takes_no_time(template: str) -> None:
    before = time.thread_time()
    with pytest.raises(PayloadError, match="another form"):
        payload_text(value_template(template), Payload(b"%00d" * 2_000 + b"%!"))
    assert time.thread_time() - before < 1.0
