"""`lamplighter-fleet subscriptions push`: orders gateways to evaluate what they can. No Spark."""

from __future__ import annotations

import argparse
import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

from lamplighter.cloud_sync.destinations import renewed_destination
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.locks import PUSH, writing
from lamplighter.cloud_sync.fleet.subcommands import add_group, add_lake_command, printable
from lamplighter.cloud_sync.fleet.subscriptions.match_command import stop_event
from lamplighter.cloud_sync.fleet.subscriptions.push import Push, PushSummary
from lamplighter.cloud_sync.orders import Orders, signing_key
from lamplighter.cloud_sync.settings import storage_options
from lamplighter.engine.errors import ConfigurationError, UpstreamError
from lamplighter.engine.tables import count_text


def add_commands(commands: Any) -> None:
    """Declares `subscriptions push`."""
    group = add_group(commands, "subscriptions", "SPARQL queries over the events of all gateways")
    parser = add_lake_command(group, "push", "order gateways to evaluate the subscriptions that they can", _run_push)
    parser.add_argument("--orders", metavar="URL", required=True, help="destination of sync where orders go")
    parser.add_argument("--orders-key", type=Path, metavar="FILE", required=True, help="private key that signs them")
    parser.add_argument("--orders-options", metavar="FILE", default="", help="options file of that destination")
    parser.add_argument("--every", type=float, metavar="S", help="repeat every S seconds until interrupted")


def _run_push(arguments: argparse.Namespace) -> int:
    """Exit code 1: a gateway has refused a subscription, could not be told, or a record is broken; stderr has which."""
    every_s = arguments.every
    if every_s is not None and not 0 < every_s < float("inf"):
        raise ConfigurationError(f"--every {every_s}: use seconds greater than 0")
    lake = Lake(arguments.lake)
    options = partial(storage_options, arguments.orders_options, Path())
    with (
        contextlib.closing(renewed_destination(arguments.orders, options)) as to,
        writing(lake, "subscriptions push", PUSH),
        stop_event() as stopping,
    ):
        push = Push(lake, Orders(to, signing_key(arguments.orders_key)))
        if every_s is None:
            return _print_summary(push.once())
        before: PushSummary | None = None
        while not stopping.is_set():
            before = _push_again(push, before)
            stopping.wait(every_s)
    return 0


def _push_again(push: Push, before: PushSummary | None) -> PushSummary | None:
    """One run of many; what did not change is not told again."""
    try:
        summary = push.once()
    except (UpstreamError, OSError) as error:
        print(f"lamplighter-fleet subscriptions: {printable(str(error))}", file=sys.stderr, flush=True)
        return before
    if summary.sent or before is None or summary != before._replace(sent=0):
        _print_summary(summary)
    return summary


def _print_summary(summary: PushSummary) -> int:
    print(
        f"{count_text(summary.sent, 'order')} sent; on gateways: {summary.confirmed} confirmed, "
        f"{summary.unanswered} not answered, {len(summary.refused)} refused",
        flush=True,
    )
    lines = [f"subscription {one.subscription}, gateway {one.gateway}: {one.hindrance}" for one in summary.refused]
    for line in (*lines, *summary.faults):
        print(f"lamplighter-fleet subscriptions: {printable(line)}", file=sys.stderr, flush=True)
    return 1 if lines or summary.faults else 0
