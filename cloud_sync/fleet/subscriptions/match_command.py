"""`lamplighter-fleet subscriptions match`: ingests what lands, and matches it."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamplighter.cloud_sync.destinations import Destination, renewed_destination
from lamplighter.cloud_sync.fleet import session
from lamplighter.cloud_sync.fleet.lake import Lake, locks
from lamplighter.cloud_sync.fleet.subcommands import add_group, add_lake_command
from lamplighter.cloud_sync.fleet.subscriptions.segment_order import ORDER_WAIT_S
from lamplighter.cloud_sync.fleet.tables.bronze import Ingest, ingest, keep_ingesting
from lamplighter.cloud_sync.settings import storage_options
from lamplighter.engine.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of a stream: Spark takes at most a tenth of the time for gateways with events that the driver cannot match.
SPARK_PAUSES = 9.0


def add_commands(commands: Any) -> None:
    """Declares `subscriptions match`."""
    group = add_group(commands, "subscriptions", "SPARQL queries over the events of all gateways")
    parser = add_lake_command(
        group, "match", "ingest what lands, and match its events with all subscriptions", _run_match
    )
    parser.add_argument(
        "--every", type=float, metavar="S", help="repeat every S seconds until interrupted (default: once)"
    )
    parser.add_argument(
        "--order-wait",
        type=float,
        default=ORDER_WAIT_S,
        metavar="S",
        help="how long a segment waits for missing ones before it (default: %(default).0f)",
    )
    parser.add_argument(
        "--orders", metavar="URL", help="destination of sync where gateways write matches ahead of their segments"
    )
    parser.add_argument("--orders-options", metavar="FILE", default="", help="options file of that destination")
    session.add_arguments(parser)


def _run_match(arguments: argparse.Namespace) -> int:
    for name in ("every", "order_wait"):
        value = getattr(arguments, name)
        if value is not None and not 0 <= value < float("inf"):
            raise ConfigurationError(f"--{name.replace('_', '-')} {value}: use seconds from 0 on")
    lake = Lake(arguments.lake)
    with ExitStack() as stack:
        ahead = None
        if arguments.orders is not None:
            options = partial(storage_options, arguments.orders_options, Path())
            ahead = stack.enter_context(closing(renewed_destination(arguments.orders, options)))
        spark = session.of_arguments(arguments, "match")
        held = stack.enter_context(locks.writing(lake, "subscriptions match", locks.BRONZE, locks.MATCHES))
        stopping = stack.enter_context(stop_event())
        if arguments.every is None:
            once(spark, lake, arguments.order_wait, ahead, held.check)
        else:
            keep_matching(spark, lake, arguments.every, arguments.order_wait, stopping, ahead, held.check)
    return 0


def once(
    spark: SparkSession,
    lake: Lake,
    order_wait_s: float,
    ahead: Destination | None = None,
    check_lock: Callable[[], None] = lambda: None,
) -> None:
    """Ingests and matches everything that has landed. ahead, check_lock: as `Matcher` has them."""
    from lamplighter.cloud_sync.fleet.subscriptions.matcher import Matcher

    ingest(spark, lake, say=_say)
    matcher = Matcher(spark, lake, order_wait_s=order_wait_s, say=_say, ahead=ahead, check_lock=check_lock)
    while matcher.advance() is not None:
        pass
    if matcher.waiting:
        _say(f"{matcher.waiting} segments wait for missing ones before them, {order_wait_s:g} s at most")


def keep_matching(
    spark: SparkSession,
    lake: Lake,
    every_s: float,
    order_wait_s: float,
    stopping: threading.Event,
    ahead: Destination | None = None,
    check_lock: Callable[[], None] = lambda: None,
) -> None:
    """Ingests and matches until it is told to stop. A thread ingests one batch while the one before is matched.

    Raises what ended the thread.
    """
    from lamplighter.cloud_sync.fleet.subscriptions.matcher import Matcher

    matcher = Matcher(
        spark, lake, order_wait_s=order_wait_s, say=_say, ahead=ahead, check_lock=check_lock, spark_pauses=SPARK_PAUSES
    )
    ended = threading.Event()
    with ThreadPoolExecutor(1, "ingest") as threads:
        ingesting = threads.submit(keep_ingesting, Ingest(lake, _say), every_s, ended, lambda: spark, spark)
        try:
            while not stopping.is_set() and not ingesting.done():
                if matcher.advance() is None:
                    stopping.wait(every_s / 4)
        finally:
            ended.set()
    ingesting.result()


@contextmanager
def stop_event() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set."""
    event = threading.Event()
    before = {number: signal.signal(number, lambda *_: event.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
