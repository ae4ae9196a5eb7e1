"""`lamplighter-fleet forget` and `retain`. They need no Spark."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lamplighter.cloud_sync.destinations import Destination, destination
from lamplighter.cloud_sync.fleet.collection.forgetting import collector_stopped
from lamplighter.cloud_sync.fleet.deletion import removal
from lamplighter.cloud_sync.fleet.deletion.cuts import cuts_before
from lamplighter.cloud_sync.fleet.deletion.selection import OfGateway, OutdatedRecords
from lamplighter.cloud_sync.fleet.lake import Lake, locks
from lamplighter.cloud_sync.fleet.lake.folder import gateway_of
from lamplighter.cloud_sync.fleet.lake.forgotten import ForgottenGateways
from lamplighter.cloud_sync.fleet.subcommands import add_lake_command
from lamplighter.cloud_sync.settings import storage_options
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.terms import is_iri

DAYS_MAX = 36_500
_TABLES = locks.BRONZE, locks.SILVER, locks.MATCHES, locks.DELIVERY, locks.PUSH


def add_commands(commands: Any) -> None:
    """Declares `forget` and `retain`."""
    forget = add_lake_command(commands, "forget", "remove the data of a gateway, or about a subject", _forget)
    what = forget.add_mutually_exclusive_group(required=True)
    what.add_argument("--gateway", metavar="GW", help="all data of a gateway, which is kept out from then on")
    what.add_argument("--subject", metavar="IRI", help="all quads that name an IRI, and its streams and observations")
    forget.add_argument("--lift", action="store_true", help="let the gateway's data in again; removes nothing")
    retain = add_lake_command(commands, "retain", "remove data that is older than a time", _retain)
    age = retain.add_mutually_exclusive_group(required=True)
    age.add_argument("--days", type=_days, metavar="N", help="remove what is older than N days")
    age.add_argument("--before", type=_moment, metavar="TIME", help="such as 2026-06-01T00:00Z; UTC without a zone")
    retain.add_argument(
        "--without-state",
        action="store_true",
        help="also remove records that `state` needs, because no later snapshot is old enough",
    )
    for parser in (forget, retain):
        parser.add_argument("--dry-run", action="store_true", help="print what would be removed, and remove nothing")
        parser.add_argument("--yes", action="store_true", help="confirm: removed data cannot be restored")
        parser.add_argument(
            "--orders", metavar="URL", help="destination of sync: also remove rows that gateways sent ahead of segments"
        )
        parser.add_argument("--orders-options", metavar="FILE", default="", help="options file of that destination")


def _days(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= DAYS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: write a number of days from 1 to {DAYS_MAX}")
    return int(text)


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write it as 2026-06-01T00:00Z") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _forget(arguments: argparse.Namespace) -> int:
    if arguments.subject is not None:
        return _forget_subject(arguments)
    lake, gateway = Lake.existing(arguments.lake), arguments.gateway
    if not gateway or "/" in gateway or gateway.startswith("."):
        raise ConfigurationError(f"--gateway {gateway!r}: not a gateway's name; use one such as gw-7f3a0c11")
    if gateway_of(gateway) != gateway:
        raise ConfigurationError(
            f"--gateway {gateway!r}: a history of a gateway; {gateway_of(gateway)} is forgotten with all of them"
        )
    with _alone(lake, "forget"), _destination(arguments) as to:
        if arguments.lift:
            forgotten = ForgottenGateways.of(lake)
            if gateway not in forgotten:
                raise ConfigurationError(f"--gateway {gateway}: it is not forgotten; correct the name")
            forgotten.lift(lake, gateway)
            print("lifted: the gateway's data is collected again")
            return 0
        if _is_preview(arguments, lake, removal.counts(lake, OfGateway(gateway), _say, to)):
            return 0
        return _tell(removal.forget(lake, gateway, _say, lambda: datetime.now(UTC), to))


def _forget_subject(arguments: argparse.Namespace) -> int:
    lake, iri = Lake.existing(arguments.lake), arguments.subject
    if not is_iri(f"<{iri}>"):
        raise ConfigurationError(f"--subject {iri!r}: not an IRI; write it whole and without brackets")
    if arguments.lift:
        raise ConfigurationError(
            "--lift: a subject is not kept out, so there is nothing to lift; use it with --gateway"
        )
    with _alone(lake, "forget"), _destination(arguments) as to:
        selection = removal.trace_subject(lake, iri)
        if _is_preview(arguments, lake, removal.counts(lake, selection, _say, to)):
            return 0
        return _tell(removal.forget_subject(lake, selection, _say, lambda: datetime.now(UTC), to))


def _retain(arguments: argparse.Namespace) -> int:
    lake = Lake.existing(arguments.lake)
    before = arguments.before or datetime.now(UTC) - timedelta(days=arguments.days)
    with _alone(lake, "retain"), _destination(arguments) as to:
        found = cuts_before(lake, before, without_state=arguments.without_state)
        for gateway in found.kept:
            _say(
                f"gateway {gateway}: its old records stay, because no snapshot is older than {before:%Y-%m-%d} and "
                "newer than they are; wait for one, or use --without-state"
            )
        selection = OutdatedRecords(found.cuts)
        if _is_preview(arguments, lake, removal.counts(lake, selection, _say, to)):
            return 0
        code = _tell(removal.retain(lake, selection, before, _say, lambda: datetime.now(UTC), to))
        return 1 if found.kept else code


@contextlib.contextmanager
def _alone(lake: Lake, command: str) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        if lake.local:
            held.enter_context(collector_stopped(Path(lake.path())))
        held.enter_context(locks.writing(lake, command, *_TABLES))
        yield


@contextlib.contextmanager
def _destination(arguments: argparse.Namespace) -> Iterator[Destination | None]:
    """The destination of sync, if it is named."""
    if arguments.orders is None:
        yield None
        return
    options = storage_options(arguments.orders_options, Path())
    with contextlib.closing(destination(arguments.orders, options)) as to:
        yield to


def _is_preview(arguments: argparse.Namespace, lake: Lake, counts: removal.Counts) -> bool:
    """Prints the counts of a dry run. Raises ConfigurationError if a real one is not confirmed."""
    if arguments.dry_run:
        for name, count in counts.items():
            print(f"{name:16} {count:>12,}")
        return True
    if not arguments.yes:
        raise ConfigurationError(
            f"lake {lake.url!r}: {sum(counts.values()):,} rows and files would be removed and "
            "could not be restored; look with --dry-run, then add --yes"
        )
    return False


def _tell(record: removal.AuditRecord) -> int:
    print(f"removed {sum(record.removed.values()):,} rows and files")
    return 0 if record.complete else 1


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
