"""All places of a lake, in an order in which every step can be repeated after a kill; and the audit record.

The tombstone of a gateway comes first, so nothing of it enters while the rest is removed. Landed files go before
bronze, so that `ingest` does not read them again; bronze goes before what is made from it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from lamplighter.cloud_sync.destinations import Destination
from lamplighter.cloud_sync.fleet.collection.forgetting import forget_gateway
from lamplighter.cloud_sync.fleet.deletion import landed, notified, pushed, rewriting, subject
from lamplighter.cloud_sync.fleet.deletion.selection import OfGateway, OutdatedRecords, Selection
from lamplighter.cloud_sync.fleet.deletion.subject import OfSubject
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.delta_log import DELTA_TABLES, follow_all
from lamplighter.cloud_sync.fleet.lake.forgotten import FOLDER, ForgottenGateways
from lamplighter.cloud_sync.fleet.lake.tables import SCHEMAS
from lamplighter.cloud_sync.fleet.tables.bronze import unread
from lamplighter.engine.errors import ConfigurationError

RESULTS = "results"
Counts = dict[str, int]
Say = Callable[[str], None]
PUSHED, SENT, AHEAD = "orders of push", "sent orders", "rows ahead"


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`<lake>/deletions/<time>-<number>.json`. gateway, subject: keyed hash (lake.forgotten); before: of a retention,
    RFC 3339.

    removed: rows, lines and files by place. ended: None while it runs, or if it was killed; a repetition has a record
    of its own. complete: whether all sinks could be reached.
    """

    v: int = 1
    began: str
    ended: str | None = None
    gateway: str | None = None
    subject: str | None = None
    before: str | None = None
    removed: Counts = {}
    complete: bool = True


def counts(
    lake: Lake, selection: Selection, say: Say = lambda line: None, destination: Destination | None = None
) -> Counts:
    """What a removal would remove: rows of tables, lines of notifications, and files.

    destination: that of sync, with the rows that came ahead of segments; None: they are not in reach.
    """
    found: Counts = {kind: len(landed.selected_files(lake, kind, selection)) for kind in ("segments", "snapshots")}
    if isinstance(selection, OfSubject):
        found["segments"] = len(selection.segments)
    if isinstance(selection, OfGateway):
        found["quarantine"] = len(lake.names("quarantine", selection.gateway))
    for name in SCHEMAS:
        found[name] = rewriting.rows_to_remove(lake, name, selection)
    if isinstance(selection, OutdatedRecords):
        found["facts"] = rewriting.collapse(lake, selection, dry_run=True)
    found["dead letters"] = notified.remove_dead_letters(lake, selection, dry_run=True)
    found["delivered files"], _ = notified.remove_delivered(lake, selection, say, dry_run=True)
    if isinstance(selection, OfGateway):
        found[SENT] = pushed.remove_sent_orders(lake, selection, dry_run=True)
    found[PUSHED] = pushed.change_orders(lake, selection, dry_run=True)
    if destination is not None:
        gateways = pushed.gateways_ahead(lake, selection)
        found[AHEAD], _ = pushed.remove_ahead(destination, selection, gateways, say, dry_run=True)
    found[RESULTS] = len(lake.fs.find(lake.path(RESULTS))) if lake.names(RESULTS) else 0
    return found


def forget(
    lake: Lake, gateway: str, say: Say, now: Callable[[], datetime], destination: Destination | None = None
) -> AuditRecord:
    """Removes a gateway, and keeps it out from now on. Hold all locks of the lake."""
    selection = OfGateway(gateway)
    forgotten = ForgottenGateways.of(lake)
    forgotten.write(lake, gateway, _text(now()))
    return _remove(
        lake, selection, AuditRecord(began=_text(now()), gateway=forgotten.hash(gateway)), say, now, destination
    )


def trace_subject(lake: Lake, iri: str) -> OfSubject:
    """What `forget_subject` removes. Raises ConfigurationError if records of the lake could not be looked through."""
    left = unread(lake)
    if left:
        raise ConfigurationError(
            f"lake {lake.url!r}: {len(left)} landed segments are not in bronze, such as {left[0]}; run ingest, and "
            "remove those that it refuses"
        )
    landed.check_quarantine(lake, iri)
    ForgottenGateways.of(lake).write(lake)  # a repetition must have the same key
    return OfSubject(iri, subject.find_trace(lake, iri))


def forget_subject(
    lake: Lake, selection: OfSubject, say: Say, now: Callable[[], datetime], destination: Destination | None = None
) -> AuditRecord:
    """Removes a subject as `trace_subject` found it. Hold all locks of the lake."""
    return _remove(
        lake, selection, AuditRecord(began=_text(now()), subject=selection.trace.subject), say, now, destination
    )


def retain(
    lake: Lake,
    selection: OutdatedRecords,
    before: datetime,
    say: Say,
    now: Callable[[], datetime],
    destination: Destination | None = None,
) -> AuditRecord:
    """Removes what is up to the cuts. Hold all locks of the lake."""
    return _remove(lake, selection, AuditRecord(began=_text(now()), before=_text(before)), say, now, destination)


def _remove(
    lake: Lake,
    selection: Selection,
    record: AuditRecord,
    say: Say,
    now: Callable[[], datetime],
    destination: Destination | None,
) -> AuditRecord:
    name = f"{record.began.replace(':', '')}-{secrets.token_hex(4)}.json"
    record = msgspec.structs.replace(record, removed=counts(lake, selection, destination=destination))
    lake.write(msgspec.json.encode(record) + b"\n", FOLDER, name)
    # Before the manifests of `matches`: they tell who has sent ahead.
    whole = _remove_pushed(lake, selection, say, destination)
    if isinstance(selection, OfSubject):
        subject.begin(lake, selection.trace)
        landed.rewrite_landed(lake, selection)
    for kind in ("segments", "snapshots"):
        landed.remove_landed(lake, kind, selection)
    if isinstance(selection, OfGateway):
        landed.remove_folders(lake, selection)
        landed.forget_in_log(lake, selection)
        if lake.local:
            forget_gateway(Path(lake.path()), selection.gateway)
    for table in SCHEMAS:
        rewriting.rewrite(lake, table, selection)
        say(f"{table}: {record.removed[table]} rows removed")
    if isinstance(selection, OutdatedRecords):
        rewriting.collapse(lake, selection)
        rewriting.collapse_streams(lake, selection)
    follow_all(lake, DELTA_TABLES, say)
    if isinstance(selection, OfGateway):
        pushed.remove_sent_orders(lake, selection)
        notified.remove_recipient(lake, selection)
    notified.remove_dead_letters(lake, selection)
    whole &= notified.remove_delivered(lake, selection, say)[1]
    if lake.names(RESULTS):
        lake.fs.rm(lake.path(RESULTS), recursive=True)
        say(f"{RESULTS}: removed; run lamplighter-fleet jobs all {lake.url}")
    if isinstance(selection, OfSubject):
        subject.end(lake)
    record = msgspec.structs.replace(record, ended=_text(now()), complete=whole)
    lake.write(msgspec.json.encode(record) + b"\n", FOLDER, name)
    return record


def _remove_pushed(lake: Lake, selection: Selection, say: Say, destination: Destination | None) -> bool:
    """Removes what belongs to pushed subscriptions. Whether everything in reach could be read."""
    whole = True
    if destination is not None:
        gateways = pushed.gateways_ahead(lake, selection)
        _, whole = pushed.remove_ahead(destination, selection, gateways, say)
    elif pushed.sent_ahead(lake, selection):
        say("rows ahead of segments at the destination of sync stay; name it with --orders to remove them")
    pushed.change_orders(lake, selection)
    return whole


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
