"""The command ``lamplighter names``: what can be named, for people and for the completion of shells."""

from __future__ import annotations

import argparse

from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.console import print_json, shorten, table
from lamplighter.gateway.cli.endpoint import add_reach_options
from lamplighter.gateway.cli.names import directory_of
from lamplighter.gateway.cli.options import add_json
from lamplighter.gateway.devices.directory import KINDS
from lamplighter.gateway.texts import printable

_TITLES = ("KIND", "NAME", "ROOM", "ID")
COMPLETED_MAX = 1000  # names that a shell is offered


def add_names_command(command: Adder) -> None:
    names = command("names", _names)
    names.add_argument("search", nargs="?", default="", metavar="TEXT", help="a part of a name, id or room")
    names.add_argument("--kind", action="append", choices=KINDS, help="only these; repeatable")
    names.add_argument("--room", metavar="NAME", help="only in this room")
    names.add_argument("--plain", action="store_true", help="print the names alone, one a line")
    add_json(names, "the names")
    add_reach_options(names)


def _names(options: argparse.Namespace) -> int:
    found = directory_of(options).select(options.kind or KINDS, room=options.room, search=options.search)
    if options.json:
        print_json({"total": len(found), "names": [one.members() for one in found]})
    elif options.plain:
        for name in list(dict.fromkeys(one.name for one in found))[:COMPLETED_MAX]:
            print(printable(name))
    elif found:
        rows = [(one.kind, shorten(one.name), shorten(one.room or ""), shorten(one.id)) for one in found]
        print(table([_TITLES, *rows]), end="")
    else:
        print("nothing has such a name")
    return 0
