"""`lamplighter subscriptions` and `lamplighter timers`: what a running gateway holds for its clients."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from lamplighter.engine.errors import UpstreamError
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.console import print_result, shorten, table
from lamplighter.gateway.cli.endpoint import add_reach_options, call_gateway
from lamplighter.gateway.cli.options import add_mode
from lamplighter.gateway.texts import printable


def add_listing_commands(command: Adder) -> None:
    subscriptions = command("subscriptions", _subscriptions)
    subscriptions.add_argument("--json", action="store_true", help="print the JSON of GET /subscriptions")
    add_reach_options(subscriptions)
    timers = command("timers", _timers)
    timers.set_defaults(json=False)
    modes = timers.add_subparsers(title="subcommands", metavar="SUBCOMMAND", dest="mode")
    listed = add_mode(modes, "list", "list the pending delayed updates (also without a subcommand)", _timers)
    cancel = add_mode(modes, "cancel", "cancel delayed updates: they will not run", _cancel)
    cancel.add_argument("timer", nargs="+", metavar="ID", help="id of a delayed update, as `timers list` shows it")
    for parser, what in (
        (timers, "the JSON of GET /delayed"),
        (listed, "the JSON of GET /delayed"),
        (cancel, "the cancelled ids as JSON"),
    ):
        parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=f"print {what}")
        add_reach_options(parser)


def _print_listing(
    options: argparse.Namespace, member: str, titles: tuple[str, ...], row: Callable[[dict[str, Any]], tuple[str, ...]]
) -> None:
    """Prints the list of the running gateway at the path of that name. Raises UpstreamError."""
    try:
        with call_gateway(options, "GET", f"/{member}") as answer:
            listing = json.load(answer)
        items, total = listing[member], listing["total"]
    except (OSError, ValueError, KeyError) as error:
        raise UpstreamError(f"the gateway's answer is not a list: {error!r}") from error

    def lines() -> Iterator[str]:
        yield from table([titles, *map(row, items)]).splitlines()
        if total > len(items):
            yield f"and {total - len(items)} more"

    print_result(options, listing, lines())


# --- subscriptions -------------------------------------------------------------------------------------------


def _subscriptions(options: argparse.Namespace) -> int:
    _print_listing(options, "subscriptions", _TITLES, _row)
    return 0


_TITLES = (
    "SPUID",
    "CLASS",
    "US PER COMMIT",
    "MEASURED",
    "KEPT",
    "SHARED BY",
    "SINCE",
    "CLIENT",
    "REASON FOR RE-EVALUATION",
)


def _row(subscription: dict[str, Any]) -> tuple[str, ...]:
    price = subscription["price"]
    return (
        subscription["spuid"],
        subscription["class"],
        "" if price["us"] is None else f"{price['us']:.1f}",
        str(price["commits"]),
        str(price["kept"]),
        str(subscription["subscribers"]),
        (subscription["since"] or "")[:19],
        printable(subscription["client"]),
        _reason(subscription),
    )


def _reason(subscription: dict[str, Any]) -> str:
    """Why the store evaluates it, and since which commit if a plan followed it before."""
    reason, taken_over = printable(subscription["reason"]), subscription["taken_over"]
    return f"since commit {taken_over}: {reason}" if reason and taken_over is not None else reason


# --- timers --------------------------------------------------------------------------------------------------


def _timers(options: argparse.Namespace) -> int:
    _print_listing(options, "delayed", _TIMER_TITLES, _timer_row)
    return 0


def _cancel(options: argparse.Namespace) -> int:
    for timer in options.timer:
        with call_gateway(options, "DELETE", f"/delayed/{quote(timer, safe='')}") as answer:
            answer.read()
        if not options.json:
            print(f"cancelled {shorten(timer)}")
    if options.json:
        print(json.dumps({"cancelled": options.timer}))
    return 0


_TIMER_TITLES = ("ID", "DUE", "IN", "CAUSE", "STATE", "MISSED", "UPDATE")


def _timer_row(timer: dict[str, Any]) -> tuple[str, ...]:
    cause, in_s = timer["cause"], timer["in_s"]
    first = next((" ".join(line.split()) for line in timer["update"].splitlines() if line.strip()), "")
    return (
        timer["id"],
        f"{timer['due'][:19]}Z",
        "" if in_s is None else _span(in_s),
        "" if cause is None else shorten(f"{cause['kind']} {cause['id']}"),
        timer["state"],
        timer["missed"],
        shorten(first),
    )


def _span(seconds: float) -> str:
    """Days, hours, minutes and seconds, such as 1d 02:03:04; with a minus for the past."""
    whole = round(abs(seconds))
    days, clock = divmod(whole, 86_400)
    text = f"{clock // 3600:02}:{clock // 60 % 60:02}:{clock % 60:02}"
    return ("-" if seconds < 0 and whole else "") + (f"{days}d {text}" if days else text)
