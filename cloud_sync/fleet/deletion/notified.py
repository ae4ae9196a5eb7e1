"""Notifications outside the table `matches`: dead letters, and files of the sinks of kind `files`."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from lamplighter.cloud_sync.destinations import Destination, destination
from lamplighter.cloud_sync.fleet.deletion.selection import OfGateway, Selection
from lamplighter.cloud_sync.fleet.delivery.cursors import forget_gateway
from lamplighter.cloud_sync.fleet.delivery.runner import STATES
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.subscriptions.records import FilesSink
from lamplighter.cloud_sync.fleet.subscriptions.registry import SubscriptionRegistry
from lamplighter.engine.client.files import read_text, toml_document
from lamplighter.engine.errors import ConfigurationError, GatewayError

_DEAD = ("subscriptions", "dead")


def remove_dead_letters(lake: Lake, selection: Selection, *, dry_run: bool = False) -> int:
    """Removes lines from the dead letters. Returns their number."""
    found = 0
    root = lake.path(*_DEAD)
    for path in sorted(lake.fs.find(root)) if lake.fs.exists(root) else []:
        parts = str(path).removeprefix(f"{root}/").split("/")
        kept, removed = _split_lines(lake.fs.cat_file(path), selection)
        found += removed
        if removed and not dry_run:
            if kept:
                lake.write(kept, *_DEAD, *parts)
            else:
                lake.fs.rm_file(path)
    return found


def remove_recipient(lake: Lake, selection: OfGateway) -> None:
    """Takes a gateway out of the files of `deliver`: what it has missed, and errors of its orders."""
    forget_gateway(lake, selection.gateway)
    states = lake.path(*STATES)
    if lake.fs.exists(states) and selection.gateway.encode() in lake.fs.cat_file(states):
        lake.fs.rm_file(states)  # the next `deliver` writes it


def remove_delivered(
    lake: Lake, selection: Selection, say: Callable[[str], None], *, dry_run: bool = False
) -> tuple[int, bool]:
    """Removes lines from the files that sinks of kind `files` have written. Returns their number, and whether all sinks
    could be read.
    """
    # A file stays under its name, even if it is empty now: a destination has no deletion.
    found, whole = 0, True
    for record in SubscriptionRegistry(lake).all("active", "paused", "removed").records:
        for sink in record.deliver:
            if isinstance(sink, FilesSink):
                try:
                    with _open_destination(sink) as there:
                        found += _remove_lines(there, record.id, selection, dry_run=dry_run)
                except GatewayError as error:
                    whole = False
                    say(f"sink {sink.name} of subscription {record.id}: {error}; its files stay as they are")
            elif not dry_run:
                say(f"sink {sink.name} of subscription {record.id}: what it has received is not in reach")
    return found, whole


@contextlib.contextmanager
def _open_destination(sink: FilesSink) -> Iterator[Destination]:
    options: dict[str, Any] = {}
    if sink.options_file:
        try:
            options = toml_document(read_text(sink.options_file))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigurationError(f"{sink.options_file}: {error}; run this where the sinks are delivered") from error
    with contextlib.closing(destination(sink.url, options)) as there:
        yield there


def _remove_lines(there: Destination, subscription: str, selection: Selection, *, dry_run: bool) -> int:
    found = 0
    for entry in there.entries(subscription):
        name = f"{subscription}/{entry.name}"
        with there.open(name) as chunks:
            kept, removed = _split_lines(b"".join(chunks or ()), selection)
        found += removed
        if removed and not dry_run:
            there.put(name, kept)
    return found


def _split_lines(content: bytes, selection: Selection) -> tuple[bytes, int]:
    """The lines that stay, and the number of others."""
    lines = content.splitlines(keepends=True)
    kept = [line for line in lines if not _is_removed(line, selection)]
    return b"".join(kept), len(lines) - len(kept)


def _is_removed(line: bytes, selection: Selection) -> bool:
    """line: a notification, or a dead letter with one or with a match; that of an order, or of what one
    gateway has missed, names that gateway too."""
    try:
        told = msgspec.json.decode(line)
        of = told.get("notification") or told.get("match") or told
        to = told["order"]["gateway"] if "order" in told else told.get("to", "")
        return selection.notification(of) or (isinstance(selection, OfGateway) and to == selection.gateway)
    except (msgspec.MsgspecError, AttributeError, KeyError, TypeError):
        return False  # not ours
