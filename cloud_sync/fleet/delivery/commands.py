"""`lamplighter-fleet subscriptions deliver` and `status`. No Spark."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from lamplighter.cloud_sync.destinations import renewed_destination
from lamplighter.cloud_sync.fleet.delivery.cursors import Cursors
from lamplighter.cloud_sync.fleet.delivery.dead_letters import DEAD
from lamplighter.cloud_sync.fleet.delivery.match_table import MatchTable
from lamplighter.cloud_sync.fleet.delivery.parts import BLOCKING_MAX, DeliveryParts
from lamplighter.cloud_sync.fleet.delivery.runner import FleetDelivery, read_states
from lamplighter.cloud_sync.fleet.delivery.sent_orders import OrderDesk, SendsOrders
from lamplighter.cloud_sync.fleet.delivery.sinks import SinkThreads, opener
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.batches import comparison_counts
from lamplighter.cloud_sync.fleet.lake.locks import DELIVERY, writing
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.subcommands import add_group, add_lake_command, printable
from lamplighter.cloud_sync.fleet.subscriptions.registry import SubscriptionRegistry
from lamplighter.cloud_sync.orders import Orders, signing_key
from lamplighter.cloud_sync.settings import storage_options
from lamplighter.cloud_sync.status import age
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.tables import count_text, text_table

EVERY_S = 1.0
GIVE_UP_H = 24.0
_HOUR_S = 3600.0
_GATEWAYS_SHOWN = 5


def add_commands(commands: Any) -> None:
    """Declares the subcommands of `subscriptions` that deliver."""
    group = add_group(commands, "subscriptions", "SPARQL queries over the events of all gateways")
    deliver = add_lake_command(group, "deliver", "deliver notifications to the sinks", _deliver)
    deliver.add_argument(
        "--every", type=float, default=EVERY_S, metavar="S", help="look for new matches every S seconds (default: 1)"
    )
    deliver.add_argument("--once", action="store_true", help="deliver what waits, and end; for schedulers")
    deliver.add_argument(
        "--give-up",
        type=float,
        default=GIVE_UP_H,
        metavar="H",
        help="hours after which a notification goes to the dead letters (default: 24)",
    )
    deliver.add_argument(
        "--allow-private", action="store_true", help="webhooks may have private and loopback addresses"
    )
    deliver.add_argument("--orders", metavar="URL", help="destination of sync where updates for gateways go")
    deliver.add_argument("--orders-key", type=Path, metavar="FILE", help="private key that signs these updates")
    deliver.add_argument("--orders-options", metavar="FILE", default="", help="options file of that destination")
    deliver.add_argument("--metrics", type=Path, metavar="FILE", help="write the outcome for Prometheus at the end")
    status = add_lake_command(group, "status", "show how far each sink is", _status)
    status.add_argument("--json", action="store_true", help="one JSON object per line")


async def deliver(
    lake: Lake,
    *,
    every_s: float | None = EVERY_S,
    give_up_s: float = GIVE_UP_H * _HOUR_S,
    allow_private: bool = False,
    orders: SendsOrders | None = None,
) -> list[str]:
    """Delivers the notifications of a lake until SIGTERM or SIGINT.

    Raises BusyError if another process does, LockLostError if one has begun because this one did not renew its lock.

    every_s: None: delivers what waits, and returns; then the lines of `FleetDelivery.once` are returned.
    """
    registry = SubscriptionRegistry(lake)
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(writing(lake, "subscriptions deliver", DELIVERY))
        reader, writer, answers = (stack.enter_context(ThreadPoolExecutor(1)) for _ in range(3))
        threads = SinkThreads(BLOCKING_MAX)
        stack.callback(threads.close)
        table = MatchTable(lake, time.monotonic)
        desk = None if orders is None else OrderDesk(orders, lake)
        parts = DeliveryParts(
            lake=lake,
            table=table,
            cursors=Cursors(lake, table.last(), held.token(DELIVERY)),
            make=opener(threads, allow_private=allow_private, desk=desk),
            reading=reader,
            writing=writer,
            answering=answers,
            give_up_s=give_up_s,
            check_lock=held.check,
            desk=desk,
        )
        delivery = FleetDelivery(parts, lambda: registry.all("active", "paused", "removed"))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, delivery.stop)
            stack.callback(loop.remove_signal_handler, number)
        if every_s is None:
            return await delivery.once()
        await delivery.run(every_s)
        return []


def _deliver(arguments: argparse.Namespace) -> int:
    """Exit code 1, with --once: something was not delivered; stderr names the sinks."""
    for name, value in (("--every", arguments.every), ("--give-up", arguments.give_up)):
        if not value > 0:
            raise ConfigurationError(f"{name}: takes a number greater than 0")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with contextlib.ExitStack() as stack:
        orders = None
        if arguments.orders is not None:
            if arguments.orders_key is None:
                raise ConfigurationError("--orders: needs --orders-key, the private key that signs the updates")
            options = partial(storage_options, arguments.orders_options, Path())
            to = stack.enter_context(contextlib.closing(renewed_destination(arguments.orders, options)))
            orders = Orders(to, signing_key(arguments.orders_key))
        undelivered = asyncio.run(
            deliver(
                Lake(arguments.lake),
                every_s=None if arguments.once else arguments.every,
                give_up_s=arguments.give_up * _HOUR_S,
                allow_private=arguments.allow_private,
                orders=orders,
            )
        )
    for line in undelivered:
        print(f"lamplighter-fleet subscriptions: {printable(line)}", file=sys.stderr)
    return 1 if undelivered else 0


def _status(arguments: argparse.Namespace) -> int:
    """Exit code 1: matches could not be read; stderr names the files."""
    lake = Lake(arguments.lake)
    states = read_states(lake)
    if states is None:
        raise ConfigurationError(
            f"lake {arguments.lake!r}: nothing was delivered yet; run `lamplighter-fleet subscriptions deliver "
            f"{arguments.lake}`"
        )
    told, ahead = list(states.damaged), {}
    try:
        ahead = comparison_counts(table(lake, "matches").live())
    except ConfigurationError as error:  # a damaged manifest
        told += [] if str(error) in told else [str(error)]
    for line in told:
        print(f"lamplighter-fleet subscriptions: {printable(line)}", file=sys.stderr)
    code = 1 if told or any(one.unread for one in states.sinks) else 0
    if arguments.json:
        for one in states.sinks:
            print(json.dumps({**msgspec.to_builtins(one), "at": states.at}))
        if ahead:
            print(json.dumps({"ahead": ahead}))
        return code
    now = time.time()
    rows = [
        (
            f"{one.subscription}/{one.sink}",
            one.kind,
            one.state,
            *map(str, (one.delivered, one.waiting, one.dead)),
            "-" if one.last_success is None else f"{age(now - one.last_success)} ago",
            "; ".join(
                [one.last_error] * (one.state == "retrying" or (one.kind == "update" and one.dead > 0))
                + [f"{unread} not read" for unread in one.unread]
                + [f"{count_text(one.unanswered, 'order')} without an answer"] * (one.unanswered > 0)
            ),
        )
        for one in states.sinks
    ]
    names = ("sink", "kind", "state", "delivered", "waiting", "dead", "last success", "error")
    title = f"{count_text(len(rows), 'sink')}, as of {age(now - states.at)} ago"
    print(text_table(title, names, rows, len(rows), len(rows)))
    for one in states.sinks:
        if one.behind:
            print(f"{one.subscription}/{one.sink} passes gateways that answer no orders: {_names(one.behind)}")
        if one.full:
            folder = lake.path(*DEAD, one.subscription, one.sink)
            print(f"{one.subscription}/{one.sink} keeps no further dead letters: move or remove files of {folder}")
    if ahead:
        outcomes = ", ".join(f"{number} {outcome}" for outcome, number in ahead.items())
        print(f"ahead of the segments, compared with Spark: {outcomes}")
    return code


def _names(gateways: list[str]) -> str:
    shown = ", ".join(gateways[:_GATEWAYS_SHOWN])
    return shown if len(gateways) <= _GATEWAYS_SHOWN else f"{shown} and {len(gateways) - _GATEWAYS_SHOWN} others"
