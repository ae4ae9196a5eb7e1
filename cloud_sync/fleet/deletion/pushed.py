"""Pushed subscriptions: the last orders in the lake, and what gateways have sent ahead to the destination of sync."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lamplighter.cloud_sync.answers import AHEAD
from lamplighter.cloud_sync.destinations import Destination
from lamplighter.cloud_sync.early_notifications import EarlyNotification
from lamplighter.cloud_sync.fleet.deletion.selection import OfGateway, OutdatedRecords, Selection
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.subscriptions.early_objects import OBJECT_BYTES_MAX
from lamplighter.cloud_sync.fleet.subscriptions.push import read_pushed, write_pushed
from lamplighter.engine.client.files import json_document
from lamplighter.engine.errors import ConfigurationError, UpstreamError

_AT_ONCE = 1000
_SENT = "subscriptions", "orders.json"


def change_orders(lake: Lake, selection: Selection, *, dry_run: bool = False) -> int:
    """Removes or changes orders in `pushed.json`. Returns their number. Raises ConfigurationError if it is damaged."""
    before = read_pushed(lake)
    after = [selection.order(one) for one in before]
    changed = sum(one != other for one, other in zip(before, after, strict=True))
    if changed and not dry_run:
        write_pushed(lake, [one for one in after if one is not None])
    return changed


def remove_sent_orders(lake: Lake, selection: OfGateway, *, dry_run: bool = False) -> int:
    """Removes orders of update sinks to a gateway, and those of its events, from the list of those without an answer.
    Returns their number. Raises ConfigurationError if it is damaged."""
    path = lake.path(*_SENT)
    try:
        content = json_document(lake.fs.cat_file(path))
        kept = [one for one in content["orders"] if one["gateway"] != selection.gateway]
        kept = [one for one in kept if not selection.has(one["source"])]
        removed = len(content["orders"]) - len(kept)
    except FileNotFoundError:
        return 0
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path}: damaged: {error}; remove it, and run the command again") from error
    if removed and not dry_run:
        lake.write(msgspec.json.encode({**content, "orders": kept}) + b"\n", *_SENT)
    return removed


def sent_ahead(lake: Lake, selection: Selection) -> bool:
    """Whether gateways that a selection is about were told to send notifications ahead, or have sent some."""
    gateways = {one.gateway for one in read_pushed(lake)}
    gateways |= {gateway for batch in table(lake, "matches").all() for gateway in batch.ahead}
    return selection.gateway in gateways if isinstance(selection, OfGateway) else bool(gateways)


def remove_ahead(
    to: Destination, selection: Selection, gateways: list[str], say: Callable[[str], None], *, dry_run: bool = False
) -> tuple[int, bool]:
    """Removes lines from the objects `ahead/<gateway>/` of a destination. Returns their number, and whether all
    objects could be read.

    gateways: whose objects are looked through. Raises UpstreamError.
    """
    # An object stays under its name, even if it is empty now: a destination has no deletion.
    found, whole = 0, True
    for gateway in gateways:
        after = ""
        while entries := to.entries(f"{AHEAD}/{gateway}", after, _AT_ONCE):
            after = entries[-1].name
            for one in entries:
                name = f"{AHEAD}/{gateway}/{one.name}"
                try:
                    content = _content(to, name)
                except UpstreamError as error:
                    say(f"{error}; it stays as it is")
                    whole = False
                    continue
                lines = content.splitlines(keepends=True)
                kept = [line for line in lines if not _is_removed(line, gateway, selection)]
                found += len(lines) - len(kept)
                if len(kept) < len(lines) and not dry_run:
                    to.put(name, b"".join(kept))
    return found, whole


def gateways_ahead(lake: Lake, selection: Selection) -> list[str]:
    """The gateways whose objects ahead of segments a selection may be about."""
    if isinstance(selection, OfGateway):
        return [selection.gateway]
    if isinstance(selection, OutdatedRecords):
        return sorted(selection.cuts)
    named = {gateway for batch in table(lake, "matches").all() for gateway in batch.ahead}
    return sorted({one.gateway for one in read_pushed(lake)} | named | set(lake.names("segments")))


def _content(to: Destination, name: str) -> bytes:
    data = to.get(name, OBJECT_BYTES_MAX + 1) or b""  # it may have gone since the listing
    if len(data) > OBJECT_BYTES_MAX:
        raise UpstreamError(f"{to.url}/{name}: it has more than {OBJECT_BYTES_MAX} bytes; remove it")
    return data


def _is_removed(line: bytes, gateway: str, selection: Selection) -> bool:
    """Of a gateway that is removed, lines that are no notifications go too."""
    if isinstance(selection, OfGateway):
        return True
    try:
        return selection.ahead(gateway, msgspec.json.decode(line, type=EarlyNotification))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
