"""`lamplighter-fleet subscriptions`: add, list, show, pause, resume, remove and replace. No Spark."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.subcommands import add_group, add_lake_command, printable, small_text
from lamplighter.cloud_sync.fleet.subscriptions.records import (
    QUERY_CHARACTERS_MAX,
    FilesSink,
    MqttSink,
    Sink,
    SubscriptionRecord,
    WebhookSink,
)
from lamplighter.cloud_sync.fleet.subscriptions.registry import SubscriptionRegistry
from lamplighter.engine.client.files import toml_document
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.tables import count_text, text_table

SINK_FILE_BYTES_MAX = 131_072

_TO = re.compile(r"(?:([a-z0-9][a-z0-9-]{0,63})=)?(files|webhook|mqtt):(.+)", re.S)
_COLUMNS = ("id", "state", "version", "changes", "gateways", "sinks", "query")


def add_commands(commands: Any) -> None:
    """Declares `subscriptions` and what it can do with records."""
    group = add_group(commands, "subscriptions", "SPARQL queries over the events of all gateways")
    add = _record_command(group, "add", "register a subscription", _add)
    _add_members(add, query_needed=True)
    add.add_argument(
        "--begin",
        choices=("now", "all"),
        default="now",
        help="events that land from now on, or also those of the whole lake (default: now)",
    )
    listing = add_lake_command(group, "list", "list the subscriptions", _list)
    listing.add_argument("--removed", action="store_true", help="also those that were removed")
    listing.add_argument("--json", action="store_true", help="one JSON object per line")
    show = _record_command(group, "show", "show one subscription", _show)
    show.add_argument("--json", action="store_true", help="the record as JSON")
    _record_command(group, "pause", "events that are matched before resume are not notified", _pause)
    _record_command(group, "resume", "end a pause", _resume)
    _record_command(group, "remove", "end a subscription; its id keeps its versions", _remove)
    replace = _record_command(group, "replace", "change what is given; another query makes a new version", _replace)
    _add_members(replace, query_needed=False)
    replace.add_argument("--all-gateways", action="store_true", help="events of all gateways")
    replace.add_argument("--no-sinks", action="store_true", help="deliver to nothing; matches stay in the lake")


def _record_command(group: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> Any:
    parser = add_lake_command(group, name, text, run)
    parser.add_argument("id", metavar="ID", help="the subscription: up to 64 of a-z, 0-9 and -")
    return parser


def _add_members(parser: argparse.ArgumentParser, *, query_needed: bool) -> None:
    query = parser.add_mutually_exclusive_group(required=query_needed)
    query.add_argument("--query", metavar="TEXT", help="the SPARQL query, SELECT or ASK")
    query.add_argument("--query-file", type=Path, metavar="FILE", help="file with the query")
    parser.add_argument(
        "--changes",
        choices=("added", "deleted", "both"),
        help="events of added quads, of deleted quads, or both (default: added)",
    )
    parser.add_argument(
        "--gateway",
        action="append",
        default=[],
        metavar="PATTERN",
        help="events of these gateways, such as 'gw-7*'; repeatable (default: all)",
    )
    parser.add_argument(
        "--to",
        action="append",
        default=[],
        type=sink_of_text,
        metavar="[NAME=]SINK",
        help="files:FOLDER-OR-URL, webhook:URL or mqtt:HOST[:PORT]/TOPIC; repeatable",
    )
    parser.add_argument(
        "--sink-file",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="TOML file with a sink that needs more, such as a password file; repeatable",
    )


# --- sinks


def sink_of_text(text: str) -> Sink:
    """The sink of a `--to`. A folder becomes an absolute path. Raises ArgumentTypeError."""
    found = _TO.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write files:FOLDER-OR-URL, webhook:URL or mqtt:HOST[:PORT]/TOPIC, or use --sink-file"
        )
    name, kind, where = found.groups()
    members: dict[str, Any] = {"name": name or kind}
    try:
        if kind == "mqtt":
            return msgspec.convert({**members, "kind": kind, **_broker(where)}, MqttSink)
        if kind == "webhook":
            return msgspec.convert({**members, "kind": kind, "url": where}, WebhookSink)
        return msgspec.convert({**members, "kind": kind, "url": _folder(where, Path())}, FilesSink)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def _broker(where: str) -> dict[str, Any]:
    """Raises ValueError."""
    place, _, topic = where.partition("/")
    parts = urlsplit(f"//{place}")
    if "@" in place:
        raise ValueError("user name and password need a --sink-file with username and password_file")
    members = {"broker": parts.hostname or "", "topic": topic}
    return members if parts.port is None else {**members, "port": parts.port}


def _folder(where: str, beside: Path) -> str:
    return where if "://" in where else str((beside / Path(where).expanduser()).absolute())


def sink_of_file(path: Path) -> Sink:
    """The sink that a TOML file describes, with the members of its record. Raises ConfigurationError.

    Names of files are absolute, or relative to the file's folder. A plain name of a file that is not there is the name
    of a credential.
    """
    text = small_text(path, SINK_FILE_BYTES_MAX)
    try:
        members = toml_document(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: not TOML: {error}; correct the file") from error
    folder = path.absolute().parent
    for key, value in members.items():
        if key.endswith("_file") and isinstance(value, str) and value:
            near = folder / value
            members[key] = str(near) if "/" in value or near.exists() else value
    if members.get("kind") == "files" and isinstance(members.get("url"), str):
        members["url"] = _folder(members["url"], folder)
    try:
        sink: Sink = msgspec.convert(members, Sink)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: {error}; docs/fleet-subscriptions.md lists the members") from error
    return sink


# --- running


def _registry(arguments: argparse.Namespace) -> SubscriptionRegistry:
    return SubscriptionRegistry(Lake(arguments.lake))


def _query(arguments: argparse.Namespace) -> str | None:
    if arguments.query_file is None:
        query: str | None = arguments.query
        return query
    return small_text(arguments.query_file, QUERY_CHARACTERS_MAX)


def _sinks(arguments: argparse.Namespace) -> list[Sink]:
    return [*arguments.to, *map(sink_of_file, arguments.sink_file)]


def _add(arguments: argparse.Namespace) -> int:
    record = _registry(arguments).add(
        arguments.id,
        _query(arguments) or "",
        changes=arguments.changes or "added",
        gateways=arguments.gateway,
        begin=arguments.begin,
        deliver=_sinks(arguments),
    )
    return _print_state(record)


def _replace(arguments: argparse.Namespace) -> int:
    sinks = _sinks(arguments)
    if arguments.all_gateways and arguments.gateway:
        raise ConfigurationError("--all-gateways: give it or --gateway, not both")
    if arguments.no_sinks and sinks:
        raise ConfigurationError("--no-sinks: give it or --to and --sink-file, not both")
    record = _registry(arguments).replace(
        arguments.id,
        query=_query(arguments),
        changes=arguments.changes,
        gateways=arguments.gateway if arguments.gateway or arguments.all_gateways else None,
        deliver=sinks if sinks or arguments.no_sinks else None,
    )
    return _print_state(record)


def _pause(arguments: argparse.Namespace) -> int:
    return _print_state(_registry(arguments).pause(arguments.id))


def _resume(arguments: argparse.Namespace) -> int:
    return _print_state(_registry(arguments).resume(arguments.id))


def _remove(arguments: argparse.Namespace) -> int:
    return _print_state(_registry(arguments).remove(arguments.id))


def _print_state(record: SubscriptionRecord) -> int:
    sinks = ", ".join(sink.name for sink in record.deliver) or "no sink"
    print(f"subscription {record.id} is {record.state}, version {record.version}, to {sinks}")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    """Exit code 1: a record is broken; stderr names it."""
    states = ("active", "paused", "removed") if arguments.removed else ("active", "paused")
    found = _registry(arguments).all(*states)
    if arguments.json:
        for record in found.records:
            print(json.dumps(msgspec.to_builtins(record)))
    else:
        count = len(found.records)
        title = f"lake {arguments.lake}: {count_text(count, 'subscription')}"
        print(text_table(title, _COLUMNS, map(_row, found.records), count, count))
    for broken in found.broken:
        print(f"lamplighter-fleet subscriptions: {printable(broken.reason)}", file=sys.stderr)
    return 1 if found.broken else 0


def _row(record: SubscriptionRecord) -> tuple[str, ...]:
    return (
        record.id,
        record.state,
        str(record.version),
        record.changes,
        " ".join(record.gateways) or "all",
        " ".join(sink.name for sink in record.deliver) or "none",
        " ".join(record.query.split()),
    )


def _show(arguments: argparse.Namespace) -> int:
    record = _registry(arguments).get(arguments.id)
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(record), indent=2))
        return 0
    lines = [
        f"subscription {record.id}: {record.state}, version {record.version}",
        f"created: {_moment(record.created)}, changed: {_moment(record.changed)}",
        f"events: {record.changes}, of {' '.join(record.gateways) or 'all gateways'}, begin: {record.begin}",
        *(f"sink {sink.name}: {json.dumps(msgspec.to_builtins(sink))}" for sink in record.deliver),
        "query:",
        *record.query.splitlines(),
    ]
    print("\n".join(map(printable, lines)))
    return 0


def _moment(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
