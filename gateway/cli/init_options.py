"""The options of `init`: a command for each template, with what this template can follow and switch."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lamplighter.gateway.cli.endpoint import add_reach_options
from lamplighter.gateway.cli.options import add_json
from lamplighter.gateway.templates.catalogue import TEMPLATES, Template
from lamplighter.gateway.templates.options import Option, options_of

_METAVARS = {"duration": "TIME", "time": "TIME", "number": "NUMBER", "text": "TEXT"}


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
        "A device is the name that people gave it, an id such as kitchen, or an IRI. On a terminal the command asks "
        "for what is missing.",
    )
    one.set_defaults(command=run)
    one.add_argument("--config", type=Path, default=argparse.SUPPRESS, help="as for all commands")
    one.add_argument("--name", default=name, help=f"name of the application (default: {name})")
    one.add_argument("--run", action="store_true", help="put it into the running gateway, and write no files")
    one.add_argument("--force", action="store_true", help="overwrite existing files, or replace what runs")
    add_json(one, "the files and the next commands, or what was put,")
    add_reach_options(one)
    titles = {
        "what": "what the application switches, and when",
        "time": "local time",
        "brightness": "brightness by local time",
        "hand": "a device that the gateway has not discovered",
    }
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options_of(template):
        group = groups.get(option.group)
        if group is None:
            group = groups[option.group] = one.add_argument_group(titles[option.group])
        _declare_option(group, option)


def _declare_option(group: argparse._ArgumentGroup, option: Option) -> None:
    text = option.help + ("; repeatable" if option.repeatable else "")
    if option.default is not None:
        text += f" (default: {option.default})"
    group.add_argument(
        f"--{option.name}",
        dest=value_name(option),
        action="append" if option.repeatable else "store",
        choices=option.choices or None,
        metavar=None if option.choices else _METAVARS.get(option.type, "NAME"),
        help=text,
    )


def value_name(option: Option) -> str:
    """Where the parsed options have its value."""
    return option.name.replace("-", "_")
