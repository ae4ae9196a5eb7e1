"""The options of `init`: a command for each template, with what this template can follow and switch."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lamplighter.gateway.cli.options import add_json
from lamplighter.gateway.cli.templates import TEMPLATES, DailySpan, Template
from lamplighter.gateway.local_time.periods import DAYS


def declare_templates(init: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    """run: what the commands do."""
    modes = init.add_subparsers(title="templates", required=True, dest="template", metavar="TEMPLATE")
    for name, template in TEMPLATES.items():
        _declare(modes, name, template, run)


def _declare(modes: Any, name: str, template: Template, run: Callable[[argparse.Namespace], int]) -> None:
    one: argparse.ArgumentParser = modes.add_parser(
        name,
        help=template.summary,
        description=f"{template.summary[0].upper()}{template.summary[1:]}. "
        "A device is a name, such as kitchen, or an IRI. On a terminal the command asks for what is missing.",
    )
    # A template that follows the time has no options of sensors.
    one.set_defaults(
        command=run, room=None, sensors=None, topic=None, member=None, true=None, false=None, unconfirmed="count"
    )
    one.add_argument("--config", type=Path, default=argparse.SUPPRESS, help="as for all commands")
    one.add_argument("--name", default=name, help=f"name of the files in apps/ and mapping/ (default: {name})")
    one.add_argument("--force", action="store_true", help="overwrite existing files")
    add_json(one, "the files and the next commands")
    what = one.add_argument_group("what the application switches, and when")
    actuator = template.actuator
    what.add_argument(
        f"--{actuator}", dest="actuators", action="append", metavar="NAME", help=f"the {actuator}; repeatable"
    )
    if template.properties:
        _declare_sensors(one, what, template)
    if template.delay is not None:
        option, default, text = template.delay
        what.add_argument(
            f"--{option}", dest="delay", default=default, metavar="TIME", help=f"{text}, such as 30s or 5min"
        )
    for state, number in template.states.items():
        what.add_argument(
            f"--{state}", default=number, metavar="NUMBER", help=f"desired state while {state} (default: {number})"
        )
    if template.span is not None:
        _declare_span(what, "from", "until", template.span)
    if template.dims:
        dim = one.add_argument_group("brightness by local time")
        dim.add_argument(
            "--dimmer", dest="dimmers", action="append", metavar="NAME", help="its actuator of brightness; repeatable"
        )
        dim.add_argument("--level", default="100", metavar="NUMBER", help="brightness (default: 100)")
        dim.add_argument("--dim-level", default="40", metavar="NUMBER", help="brightness while dimmed (default: 40)")
        _declare_span(dim, "dim-from", "dim-until", DailySpan("sunset", "07:00"))
    device = one.add_argument_group(f"how the {actuator} is told its state")
    device.add_argument("--coap", metavar="URI", help="URI of its CoAP resource, such as coap://192.168.7.20/lamp")
    device.add_argument("--command-topic", metavar="TOPIC", help="the MQTT topic for its commands")
    device.add_argument("--command-payload", metavar="TEXT", help="the message; {value} stands for the state")
    device.add_argument(
        "--command-value",
        dest="command_values",
        action="append",
        metavar="STATE=TEXT",
        help="what stands for a state in the message, such as true=ON; repeatable",
    )


def _declare_sensors(one: argparse.ArgumentParser, what: argparse._ArgumentGroup, template: Template) -> None:
    what.add_argument(
        "--room", metavar="NAME", help="the sensors of this room count: its name, as devices have it, or an IRI"
    )
    what.add_argument(
        "--sensor", dest="sensors", action="append", metavar="NAME", help="this sensor counts; repeatable"
    )
    what.add_argument(
        "--unconfirmed",
        choices=("count", "ignore"),
        default="count",
        help="whether a value counts from before the gateway, its broker or its device came back (default: count)",
    )
    sensor = one.add_argument_group("a sensor that publishes over MQTT, mapped by hand")
    sensor.add_argument("--topic", help="its topic")
    sensor.add_argument("--member", help="the JSON member with the value (default: the payload is the value)")
    for word, value in zip(template.words, ("true", "false"), strict=True):
        sensor.add_argument(f"--{word}", dest=value, action="append", metavar="WORD", help=f"a value that means {word}")


def _declare_span(group: argparse._ArgumentGroup, begin: str, end: str, default: DailySpan) -> None:
    for option, moment in ((begin, default.begins), (end, default.ends)):
        group.add_argument(
            f"--{option}",
            default=moment,
            metavar="TIME",
            help=f"local time such as 07:00, sunset or sunset-PT30M (default: {moment})",
        )
    group.add_argument(
        "--weekday", dest="weekdays", action="append", choices=DAYS, help="only if it begins on this day; repeatable"
    )
