"""The command ``lamplighter apps``: the applications of a running gateway, and changes without a restart."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lamplighter.engine.client.files import read_file
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.tables import count_text
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.console import confirm, print_result, shorten, table
from lamplighter.gateway.cli.endpoint import add_reach_options, call_gateway
from lamplighter.gateway.cli.options import add_confirmation, add_json, add_mode
from lamplighter.gateway.texts import printable


def add_apps_commands(command: Adder) -> None:
    apps = command("apps", _list)
    apps.set_defaults(json=False)
    modes = apps.add_subparsers(title="subcommands", metavar="SUBCOMMAND", dest="mode")
    listing = add_mode(modes, "list", "list the applications (also without a subcommand)", _list)
    show = add_mode(modes, "show", "print an application as a JSAP document", _show)
    show.add_argument("name", metavar="NAME", help="of an application")
    put = add_mode(modes, "put", "add an application, or replace a stored one; it runs at once", _put)
    put.add_argument("name", metavar="NAME", help="of the application")
    put.add_argument("file", type=Path, help="its JSAP file")
    put.add_argument("--check", action="store_true", help="only check it; nothing is changed")
    remove = add_mode(modes, "remove", "end a stored application", _remove)
    remove.add_argument("name", metavar="NAME", help="of a stored application")
    add_confirmation(remove)
    add_json(apps, "the applications")
    for parser, what in (
        (listing, "the applications"),
        (show, "the application with its state"),
        (put, "what was done"),
        (remove, "what was done"),
    ):
        add_json(parser, what, below=True)
    for parser in (apps, *modes.choices.values()):
        add_reach_options(parser)


def call_for_json(options: argparse.Namespace, method: str, path: str, content: bytes | None = None) -> dict[str, Any]:
    """The JSON object that the gateway answers. Raises UpstreamError, RefusedError."""
    headers = None if content is None else {"Content-Type": "application/json"}
    with call_gateway(options, method, path, content, headers) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def path_of(name: str) -> str:
    return f"/applications/{quote(name, safe='')}"


_TITLES = ("NAME", "ORIGIN", "STATE", "REACTIONS", "MADE FROM", "PROBLEM")


def _list(options: argparse.Namespace) -> int:
    listing = call_for_json(options, "GET", "/applications")
    rows = [
        (
            one["name"],
            one["origin"],
            one["state"],
            str(one["reactions"]),
            one["template"] or "",
            "" if one["problem"] is None else shorten(one["problem"]),
        )
        for one in listing["applications"]
    ]
    none = "no applications; `lamplighter init TEMPLATE --run` makes one"
    print_result(options, listing, table([_TITLES, *rows]).splitlines() if rows else none)
    return 0


def _show(options: argparse.Namespace) -> int:
    found = call_for_json(options, "GET", path_of(options.name))
    print_result(options, found, json.dumps(found["profile"], indent=2, ensure_ascii=False))
    return 0


def _put(options: argparse.Namespace) -> int:
    try:
        document = read_file(options.file)
    except OSError as error:
        raise ConfigurationError(f"{options.file}: {error.strerror}") from error
    done = call_for_json(options, "PUT", path_of(options.name) + ("?check=true" if options.check else ""), document)
    print_result(options, done, "it has no faults" if options.check else put_text(done))
    return 0 if done["problem"] is None else 1


def put_text(done: dict[str, Any]) -> str:
    """What became of an application that was put. done: the answer."""
    name = done["name"]
    if done["problem"] is not None:
        return f"{name} is stored and {done['state']}: {printable(done['problem'])}"
    if not done["changed"]:
        return f"{name} is unchanged, and {done['state']}"
    return f"{name} {'runs' if done['created'] else 'runs in its new version'} since record {done['record']}"


def _remove(options: argparse.Namespace) -> int:
    if not confirm(f"Remove the application {printable(options.name)}?", yes=options.yes):
        return 1
    done = call_for_json(options, "DELETE", path_of(options.name))
    line = f"{done['name']} ended with record {done['record']}"
    if done["delayed"]:
        line += f"; {count_text(done['delayed'], 'delayed update')} of it pending, which `lamplighter timers` lists"
    print_result(options, done, line)
    return 0
