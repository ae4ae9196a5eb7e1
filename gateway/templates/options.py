"""The options of each template: the command `init` and the form of the page are made from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lamplighter.gateway.templates.catalogue import DailySpan, Template
from lamplighter.ontology.vocabulary import WEEKDAYS

Type = Literal["actuator", "sensor", "room", "duration", "number", "time", "choice", "text"]
Group = Literal["what", "time", "brightness", "hand"]
DIMMING = DailySpan("sunset", "07:00")


@dataclass(frozen=True)
class Option:
    """name: as on the command line, without the hyphens. group: what belongs together in a form. properties: of the
    sensors or actuators that fit, without the prefix; empty: any."""

    name: str
    type: Type
    help: str
    group: Group = "what"
    required: bool = False
    repeatable: bool = False
    default: str | None = None
    choices: Sequence[str] = ()
    properties: Sequence[str] = ()

    @property
    def label(self) -> str:
        return self.name.replace("-", " ")

    def members(self) -> dict[str, Any]:
        """For a form."""
        return {
            "name": self.name,
            "label": self.label,
            "help": self.help,
            "type": self.type,
            "group": self.group,
            "required": self.required,
            "repeatable": self.repeatable,
            "default": self.default,
            "choices": [{"value": one, "label": one} for one in self.choices] or None,
            "properties": list(self.properties) or None,
        }


def options_of(template: Template) -> list[Option]:
    """In the order of a form."""
    return [*_actuator(template), *_sensors(template), *_time(template), *_brightness(template), *_by_hand(template)]


def _actuator(template: Template) -> Iterator[Option]:
    yield Option(
        template.actuator,
        "actuator",
        f"the {template.actuator}",
        required=True,
        repeatable=True,
        properties=template.actuates,
    )
    for state, number in template.states.items():
        yield Option(state, "number", f"desired state while {state}", default=number)


def _sensors(template: Template) -> Iterator[Option]:
    if template.properties:
        observed = [one.removeprefix("gateway:") for one in template.properties]
        yield Option("room", "room", "the sensors of this room count")
        yield Option("sensor", "sensor", "this sensor counts", repeatable=True, properties=observed)
        yield Option(
            "unconfirmed",
            "choice",
            "whether a value counts from before the gateway, its broker or its device came back",
            default="count",
            choices=("count", "ignore"),
        )
    if template.delay is not None:
        name, default, text = template.delay
        yield Option(name, "duration", f"{text}, such as 30s or 5min", default=default)


def _time(template: Template) -> Iterator[Option]:
    if template.span is not None:
        yield from _span("from", "until", template.span, "time")
        yield _weekday("time")
    if template.lights:
        for name, text in (("only-from", "sunset"), ("only-until", "sunrise")):
            yield Option(name, "time", f"motion counts between these local times only, such as {text} or 07:00", "time")


def _brightness(template: Template) -> Iterator[Option]:
    if template.lights:
        dims = ("brightness",)
        group: Group = "brightness"
        yield Option("dimmer", "actuator", "its actuator of brightness", group, repeatable=True, properties=dims)
        yield Option("level", "number", "brightness", group, default="100")
        yield Option("dim-level", "number", "brightness while dimmed", group, default="40")
        yield from _span("dim-from", "dim-until", DIMMING, group)
        yield _weekday(group)


def _span(begin: str, end: str, default: DailySpan, group: Group) -> Iterator[Option]:
    for name, moment in ((begin, default.begins), (end, default.ends)):
        yield Option(name, "time", "local time such as 07:00, sunset or sunset-PT30M", group, default=moment)


def _weekday(group: Group) -> Option:
    return Option("weekday", "choice", "only if it begins on this day", group, repeatable=True, choices=WEEKDAYS)


def _by_hand(template: Template) -> Iterator[Option]:
    """A device that no adapter has discovered."""
    if template.properties:
        yield Option("topic", "text", "MQTT topic of a sensor, mapped by hand", "hand")
        yield Option("member", "text", "its JSON member with the value; without it the payload is the value", "hand")
        for word in template.words:
            yield Option(word, "text", f"a value that means {word}", "hand", repeatable=True)
    yield Option("coap", "text", "URI of its CoAP resource, such as coap://192.168.7.20/lamp", "hand")
    yield Option("command-topic", "text", "the MQTT topic for its commands", "hand")
    yield Option("command-payload", "text", "the message; {value} stands for the state", "hand")
    yield Option(
        "command-value",
        "text",
        "STATE=TEXT: what stands for a state in the message, such as true=ON",
        "hand",
        repeatable=True,
    )
