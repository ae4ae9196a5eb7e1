"""One command of a lamp: on/off, brightness, colour and transition together."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from lamplighter.adapters.mapping import CommandRule, CommandTable, command_rule
from lamplighter.adapters.mapping.lamp_commands import command_messages, merged_objects
from lamplighter.adapters.mqtt.discovery.light_templates import command_pieces
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import XSD, Term, literal
from lamplighter.ontology.vocabulary import PREFIXES

ON, OFF = (literal(word, datatype=XSD + "boolean") for word in ("true", "false"))
TEMPLATE = (
    "on{%- if brightness is defined -%},{{ brightness }}{%- endif -%}"
    "{%- if red is defined -%},{{ red }}-{{ green }}-{{ blue }}{%- endif -%}"
)


def number(text: str) -> Term:
    return literal(text, datatype=XSD + "decimal")


def made(topic: str, payload: str, **more: Any) -> CommandRule:
    table = msgspec.convert({"actuator": "actuator/x", "topic": topic, "payload": payload} | more, CommandTable)
    return command_rule(table, prefixes=PREFIXES, base_iri="http://e/", place="x line 1")


def part(topic: str, payload: str, name: str = "", role: str = "part", **more: Any) -> CommandRule:
    lamp = {"of": "lamp", "role": role, "name": name} | more.pop("lamp", {})
    return made(topic, payload, lamp=lamp, **more)


def sent(*together: tuple[CommandRule, Term]) -> list[tuple[str, str]]:
    return [(one.topic, one.payload.decode()) for one in command_messages(together)]


SWITCH = part("a/set", '{"state": "{value}"}', role="switch", values={"true": "ON", "false": "OFF"})
BRIGHTNESS = part("a/set", '{"brightness": {value}}')
TRANSITION = part("a/set", '{"transition": {value}}', role="transition")


def test_objects_for_one_topic_are_one_message() -> None:
    assert sent((SWITCH, ON), (BRIGHTNESS, number("50")), (TRANSITION, number("1.50"))) == [
        ("a/set", '{"state": "ON", "brightness": 50, "transition": 1.50}')
    ]
    assert sent((SWITCH, ON)) == [("a/set", '{"state": "ON"}')]


def test_inner_objects_are_merged() -> None:
    on = part("s/rpc", '{"method": "Light.Set", "params": {"id": 0, "on": {value}}}', role="switch")
    level = part("s/rpc", '{"method": "Light.Set", "params": {"id": 0, "brightness": {value}}}')
    assert sent((on, ON), (level, number("7"))) == [
        ("s/rpc", '{"method": "Light.Set", "params": {"id": 0, "on": true, "brightness": 7}}')
    ]


def test_objects_of_great_depth_are_not_followed() -> None:
    deep = b'{"a": ' * 5_000 + b"1" + b"}" * 5_000
    merged_objects(deep, deep)
    inner = b'{"a": ' * 20 + b'{"x": 1}' + b"}" * 20
    merged = merged_objects(inner, inner.replace(b"x", b"y"))
    assert merged is not None
    json.loads(merged)


def test_messages_to_several_topics_keep_their_order() -> None:
    together = [
        (part("cmnd/x/CT", "{value}", role="mode"), number("300")),
        (part("cmnd/x/Dimmer", "{value}"), number("50")),
        (part("cmnd/x/POWER", "{value}", role="switch", values={"true": "ON", "false": "OFF"}), ON),
    ]
    assert sent(*together) == [("cmnd/x/CT", "300"), ("cmnd/x/Dimmer", "50"), ("cmnd/x/POWER", "ON")]


def test_brightness_may_stand_for_on() -> None:
    switch = part("a/on", "{value}", role="switch", values={"true": "1", "false": "0"}, lamp={"unless": "brightness"})
    level = part("a/level", "{value}", name="brightness")
    assert sent((level, number("9")), (switch, ON)) == [("a/level", "9")]
    assert sent((switch, ON)) == [("a/on", "1")]
    assert sent((switch, OFF)) == [("a/on", "0")]


def of_template(template: str) -> tuple[CommandRule, CommandRule, CommandRule]:
    on = command_pieces(template)
    switch = part("t/set", "{value}", role="switch", values={"true": "on", "false": "off"}, lamp={"on": on})
    return (
        switch,
        part("t/set", "{value}", name="brightness", lamp={"on": on}),
        part("t/set", "{value}", name="rgb", role="mode", lamp={"on": on}),
    )


def test_template_is_filled_with_the_parts_that_the_command_has() -> None:
    switch, level, color = of_template(TEMPLATE)
    assert sent((switch, ON)) == [("t/set", "on")]
    assert sent((switch, ON), (level, number("50")), (color, literal("#ff8800"))) == [("t/set", "on,50,255-136-0")]
    assert sent((color, literal("1,2,3"))) == [("t/set", "on,1-2-3")]
    assert sent((switch, OFF), (level, number("50"))) == [("t/set", "off")]
    with pytest.raises(PayloadError, match="not a colour such as"):
        sent((color, literal("blue")))
    with pytest.raises(PayloadError, match="not a colour such as"):
        sent((color, literal("256,0,0")))


def test_template_has_a_part_on_the_scale_of_the_device() -> None:
    on = command_pieces(TEMPLATE)
    switch, _, _ = of_template(TEMPLATE)
    level = part("t/set", "{value}", name="brightness", lamp={"on": on}, scale=0.392156862745)
    assert sent((switch, ON), (level, number("50"))) == [("t/set", "on,128")]


def test_template_that_writes_json() -> None:
    switch, level, _ = of_template(
        '{"state":"on"{%- if brightness is defined -%}, "brightness": {{ brightness }}{%- endif -%}}'
    )
    assert sent((switch, ON)) == [("t/set", '{"state":"on"}')]
    assert sent((switch, ON), (level, number("7"))) == [("t/set", '{"state":"on", "brightness": 7}')]


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{{ states('x') }}",
        "{% for x in y %}{% endfor %}",
        "{% if brightness is defined %}on",
        "{% endif %}",
        "{% if brightness > 5 %}on{% endif %}",
        "{# comment #}",
        "{% if brightness is defined %}{% if red is defined %}x{% endif %}{% endif %}",
        "{{ unknown }}",
        "x" * 10_000,
    ],
)
def test_other_templates_are_refused(template: object) -> None:
    with pytest.raises(ValueError, match="template"):
        command_pieces(template)


def test_colour_may_be_written_by_its_components() -> None:
    color = part("a/set", '{"color": {"r": {red}, "g": {green}, "b": {blue}}}', name="rgb", role="mode")
    assert sent((color, literal("#0a0b0c"))) == [("a/set", '{"color": {"r": 10, "g": 11, "b": 12}}')]
