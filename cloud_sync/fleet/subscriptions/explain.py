"""`lamplighter-fleet explain`: where each subscription is evaluated, and why. No Spark."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.subcommands import add_lake_command, printable
from lamplighter.cloud_sync.fleet.subscriptions.push import confirmations, read_pushed
from lamplighter.cloud_sync.fleet.subscriptions.records import SubscriptionRecord
from lamplighter.cloud_sync.fleet.subscriptions.registry import SubscriptionRegistry
from lamplighter.engine.errors import ConfigurationError, RequestError
from lamplighter.engine.tables import count_text

if TYPE_CHECKING:
    from lamplighter.cloud_sync.fleet.subscriptions.index import BranchEntry
    from lamplighter.cloud_sync.fleet.subscriptions.planner import SubscriptionPlan

GATEWAYS_SHOWN = 5
_PLAN = "OSMA: the whole event in one row, without shuffle and state"
_KINDS = {"po": "predicate and object", "sp": "subject and predicate", "p": "predicate", "*": "none: every event"}


def add_commands(commands: Any) -> None:
    """Declares `explain`."""
    parser = add_lake_command(commands, "explain", "tell where subscriptions are evaluated, and why", _run_explain)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("id", metavar="ID", nargs="?", help="one subscription (default: all)")
    which.add_argument("--query", metavar="TEXT", help="a SPARQL query that is not registered")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")


def _run_explain(arguments: argparse.Namespace) -> int:
    """Exit code 1: a record or its query is broken; stderr names it."""
    lake = Lake(arguments.lake)
    registry = SubscriptionRegistry(lake)
    found = registry.all()
    records: Sequence[SubscriptionRecord] = found.records
    faults = [one.reason for one in found.broken]
    if arguments.query is not None:
        now = datetime.now(UTC)
        try:
            wanted = [SubscriptionRecord(id="query", query=arguments.query, created=now, changed=now)]
        except ValueError as error:
            raise ConfigurationError(f"--query: {error}") from error
        faults = []
    elif arguments.id is not None:
        wanted, faults = [registry.get(arguments.id)], []
    else:
        wanted = list(records)
    # The planner needs the store's library, which drivers of a cluster may not have.
    from lamplighter.cloud_sync.fleet.subscriptions.planner import plan

    gateways, orders = lake.gateways(), read_pushed(lake)
    for record in wanted:
        try:
            one = plan(record, gateways, confirmations(orders, record), records)
        except RequestError as error:
            if len(wanted) == 1:
                raise
            faults.append(f"subscription {record.id}: {error}; replace its query")
            continue
        print(json.dumps(_document(one)) if arguments.json else "\n".join(map(printable, _lines(one))))
    for fault in faults:
        print(f"lamplighter-fleet explain: {printable(fault)}", file=sys.stderr)
    return 1 if faults else 0


def _lines(one: SubscriptionPlan) -> Iterator[str]:
    record = one.record
    yield f"subscription {record.id}, version {record.version}: {_place(one)}"
    events = f"{record.changes}, of {' '.join(record.gateways) or 'all gateways'}, begin: {record.begin}"
    yield from _members("events", [events])
    yield from _members("because", one.reasons)
    if one.pushed is not None:
        yield from _members("on gateways", [one.pushed.text])
        yield from _members("waits", _waiting(one))
    yield from _members("required", [" . ".join(branch) for branch in one.patterns])
    yield from _members("index", [_key(row) for row in one.branches])
    yield from _members("shape", [one.query.shape])
    yield from _members("plan", [_PLAN])
    yield from _members("sinks", [" ".join(sink.name for sink in record.deliver) or "none"])


def _members(name: str, values: Sequence[str]) -> Iterator[str]:
    for number, value in enumerate(values):
        yield f"  {'' if number else name:<12} {value}"


def _place(one: SubscriptionPlan) -> str:
    if one.pushed is None:
        return "on Spark"
    ahead = sum(not gateway.reason for gateway in one.gateways)
    return (
        f"on {ahead} of {count_text(len(one.gateways), 'gateway')}, compared on Spark" if ahead else "on Spark so far"
    )


def _waiting(one: SubscriptionPlan) -> list[str]:
    """Why gateways do not tell their matches yet, by reason."""
    by_reason: dict[str, list[str]] = {}
    for gateway, reason in one.gateways:
        if reason:
            by_reason.setdefault(reason, []).append(gateway)
    return [f"{_some(names)}: {reason}" for reason, names in by_reason.items()]


def _some(names: Sequence[str]) -> str:
    more = len(names) - GATEWAYS_SHOWN
    return " ".join(names[:GATEWAYS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _key(row: BranchEntry) -> str:
    branch = row.branch
    terms = " ".join(term for term in (branch.one, branch.two) if term is not None)
    needed = zip(("subjects", "predicates", "objects"), map(len, branch[4:7]), strict=True)
    compared = ", ".join(count_text(number, name[:-1]) for name, number in needed if number)
    return " ".join(filter(None, (_KINDS[branch.kind], terms))) + (f"; compared: {compared}" if compared else "")


def _document(one: SubscriptionPlan) -> Mapping[str, object]:
    return {
        "subscription": one.record.id,
        "version": one.record.version,
        "pushed": None if one.pushed is None else one.pushed.text,
        "reasons": list(one.reasons),
        "gateways": {gateway.gateway: gateway.reason for gateway in one.gateways},
        "required": one.patterns,
        "index": [msgspec.to_builtins(row.branch) for row in one.branches],
        "shape": one.query.shape,
        "plan": "OSMA",
        "sinks": [sink.name for sink in one.record.deliver],
    }
