"""The subscription records of a lake: added, paused, replaced and removed while streams run. No Spark."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.landings import LandingLog
from lamplighter.cloud_sync.fleet.subscriptions.records import (
    Begin,
    Changes,
    Sink,
    State,
    SubscriptionRecord,
    UpdateSink,
)
from lamplighter.engine.client.files import json_document
from lamplighter.engine.client.state_files import NEWER_CURE, newer_format, with_unknown
from lamplighter.engine.errors import ConfigurationError, UpstreamError

# Subscriptions that are not removed.
SUBSCRIPTIONS_MAX = 10_000
RECORD_BYTES_MAX = 1_048_576
LOCK_TIMEOUT_S = 10.0

_FOLDER = ("subscriptions", "records")
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_ATTEMPTS = 5

# The record as it is (None: there is none) -> as it shall be. Raises ConfigurationError if it cannot be so.
Change = Callable[[SubscriptionRecord | None], SubscriptionRecord]


class BrokenRecord(NamedTuple):
    """A file that is no record. reason: names the file and the cure."""

    id: str
    reason: str


class Registered(NamedTuple):
    """All records of a lake, sorted by id, and the files that are none."""

    records: tuple[SubscriptionRecord, ...]
    broken: tuple[BrokenRecord, ...]


class SubscriptionRegistry:
    """The records in ``<lake>/subscriptions/records``. Nothing is read before the first call.

    Each record is written whole or not at all, so readers need no lock. Two writers:

    - On a local lake they take turns by a lock file (flock, which NFS has from version 4 on).
    - On S3 a record replaces only the one that it was made from (conditional PUT); the loser starts again.
    - On other object stores the last writer wins. Let one process write there.

    now: the time, for `created` and `changed`.
    """

    def __init__(self, lake: Lake, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._lake = lake
        self._now = now
        self._known: dict[str, tuple[str, SubscriptionRecord | BrokenRecord]] = {}

    # --- reading

    def get(self, name: str) -> SubscriptionRecord:
        """A record, also one that is removed. Raises ConfigurationError if there is none, or if it is broken."""
        found = self._read_record(_check_id(name))
        if found is None:
            raise ConfigurationError(self._unknown(name))
        if isinstance(found, BrokenRecord):
            raise ConfigurationError(found.reason)
        return found

    def all(self, *states: State) -> Registered:
        """The records in these states; without states those that are not removed.

        A broken record does not hide the others. Files that have not changed since the last call are not read again.
        """
        listed = self._file_versions()
        known = {}
        for name, mark in listed.items():
            before = self._known.get(name)
            if before is not None and before[0] == mark:
                known[name] = before
            elif (found := self._read_record(name)) is not None:
                known[name] = (mark, found)
        self._known = known
        wanted = states or ("active", "paused")
        found_now = [one for _, one in known.values()]
        return Registered(
            tuple(one for one in found_now if isinstance(one, SubscriptionRecord) and one.state in wanted),
            tuple(one for one in found_now if isinstance(one, BrokenRecord)),
        )

    # --- writing

    def add(
        self,
        name: str,
        query: str,
        *,
        changes: Changes = "added",
        gateways: Sequence[str] = (),
        begin: Begin = "now",
        deliver: Sequence[Sink] = (),
    ) -> SubscriptionRecord:
        """A new active subscription. The versions of a removed one of this id are continued. One that begins now sees
        what lands after this call.

        Raises ConfigurationError for an id that is in use, a value out of its bounds, and too many subscriptions;
        RequestError for a query or an update that is not SPARQL or not supported.
        """
        _check_texts(query, deliver)
        log = LandingLog(self._lake)
        landing = log.last() if begin == "now" and log.exists() else None

        def change(found: SubscriptionRecord | None) -> SubscriptionRecord:
            if found is not None and found.state != "removed":
                raise ConfigurationError(
                    f"subscription {name!r}: it exists; choose another id, or use replace to change it"
                )
            self._check_room()
            return self._record(
                id=name,
                version=1 if found is None else found.version + 1,
                query=query,
                changes=changes,
                gateways=gateways,
                begin=begin,
                landing=landing,
                deliver=deliver,
                created=self._now(),
            )

        return self._change(name, change)

    def pause(self, name: str) -> SubscriptionRecord:
        """It sees no events until it is resumed. Events in between are not matched later."""
        return self._set_state(name, "paused")

    def resume(self, name: str) -> SubscriptionRecord:
        """It sees events again."""
        return self._set_state(name, "active")

    def remove(self, name: str) -> SubscriptionRecord:
        """Ends a subscription. The record stays as a tombstone that keeps the version."""

        def change(found: SubscriptionRecord | None) -> SubscriptionRecord:
            record = self._existing(name, found)
            return record if record.state == "removed" else self._with_members(record, state="removed")

        return self._change(name, change)

    def replace(
        self,
        name: str,
        *,
        query: str | None = None,
        changes: Changes | None = None,
        gateways: Sequence[str] | None = None,
        deliver: Sequence[Sink] | None = None,
    ) -> SubscriptionRecord:
        """The subscription with other members; None keeps one. Another query or other changes make a new version.

        Nothing is written if nothing is different. The state stays. Raises as `add`.
        """
        _check_texts(query, deliver or ())

        def change(found: SubscriptionRecord | None) -> SubscriptionRecord:
            record = self._living(name, found)
            given = {"query": query, "changes": changes, "gateways": gateways, "deliver": deliver}
            wanted = self._with_members(record, **{key: value for key, value in given.items() if value is not None})
            if msgspec.structs.replace(wanted, changed=record.changed) == record:
                return record
            if (wanted.query, wanted.changes) == (record.query, record.changes):
                return wanted
            return self._with_members(wanted, version=record.version + 1)

        return self._change(name, change)

    # --- inside

    def _set_state(self, name: str, state: State) -> SubscriptionRecord:
        def change(found: SubscriptionRecord | None) -> SubscriptionRecord:
            record = self._living(name, found)
            return record if record.state == state else self._with_members(record, state=state)

        return self._change(name, change)

    def _existing(self, name: str, found: SubscriptionRecord | None) -> SubscriptionRecord:
        if found is None:
            raise ConfigurationError(self._unknown(name))
        return found

    def _living(self, name: str, found: SubscriptionRecord | None) -> SubscriptionRecord:
        record = self._existing(name, found)
        if record.state == "removed":
            raise ConfigurationError(f"subscription {name!r}: it was removed; add it again")
        return record

    def _unknown(self, name: str) -> str:
        return (
            f"subscription {name!r}: not in lake {self._lake.url!r}; "
            f"`lamplighter-fleet subscriptions list {self._lake.url}` lists those that are"
        )

    def _with_members(self, record: SubscriptionRecord, **members: Any) -> SubscriptionRecord:
        kept = {name: getattr(record, name) for name in record.__struct_fields__}
        return self._record(**{**kept, **members})

    def _record(self, **members: Any) -> SubscriptionRecord:
        """A record that changes now. Raises ConfigurationError for a value out of its bounds."""
        members["changed"] = self._now()
        try:
            return msgspec.convert(msgspec.to_builtins(members, builtin_types=(datetime,)), SubscriptionRecord)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"subscription {members['id']!r}: {error}") from error

    def _check_room(self) -> None:
        # Tombstones count as files, so that the records need not be read as long as there are few files.
        if len(self._file_versions()) >= SUBSCRIPTIONS_MAX and len(self.all().records) >= SUBSCRIPTIONS_MAX:
            raise ConfigurationError(
                f"lake {self._lake.url!r}: it has {SUBSCRIPTIONS_MAX} subscriptions, which is the limit; remove some"
            )

    def _file_versions(self) -> dict[str, str]:
        """id -> what the file system says about the file, which differs after each change. Sorted."""
        try:
            found = self._lake.fs.ls(self._lake.path(*_FOLDER), detail=True, refresh=True)
        except FileNotFoundError:
            return {}
        listed = {}
        for info in found:
            name, dot, ending = info["name"].rstrip("/").rpartition("/")[2].partition(".")
            if dot and ending == "json":
                listed[name] = str(info)
        return dict(sorted(listed.items()))

    def _read_record(self, name: str) -> SubscriptionRecord | BrokenRecord | None:
        """A record; None if there is no file."""
        path = self._path(name)
        try:
            data = self._lake.fs.cat_file(path, start=0, end=RECORD_BYTES_MAX + 1)
            if len(data) > RECORD_BYTES_MAX:
                raise ValueError(f"it has more than {RECORD_BYTES_MAX} bytes")
            read = json_document(data)
            if reason := newer_format(read):
                return BrokenRecord(name, f"{path}: {reason}; {NEWER_CURE}")
            record = msgspec.convert(read, SubscriptionRecord)
            if record.id != name:
                raise ValueError(f"its id is {record.id!r}")
        except FileNotFoundError:
            return None
        except (PermissionError, IsADirectoryError) as error:
            return BrokenRecord(name, f"{path}: {error.strerror}; it has to be a file that this user can read")
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            return BrokenRecord(name, f"{path}: its links lead in a circle; remove it")
        except (ValueError, RecursionError) as error:  # those of msgspec too
            return BrokenRecord(
                name, f"{path}: not a subscription record: {error}; correct the file, or restore it from a backup"
            )
        return record

    def _path(self, name: str) -> str:
        return self._lake.path(*_FOLDER, f"{name}.json")

    def _change(self, name: str, change: Change) -> SubscriptionRecord:
        _check_id(name)
        with self._exclusive():
            for _ in range(_ATTEMPTS):
                mark = self._lake.mark(*_FOLDER, f"{name}.json")
                found = self._read_record(name)
                if isinstance(found, BrokenRecord):
                    raise ConfigurationError(found.reason)
                record = change(found)
                if record == found:
                    return record
                # What a newer version has written besides stays.
                before = None if found is None else json_document(self._lake.fs.cat_file(self._path(name)))
                data = msgspec.json.format(msgspec.json.encode(with_unknown(record, before)), indent=2) + b"\n"
                if self._lake.write_if(data, mark, *_FOLDER, f"{name}.json") is not None:
                    return record
        raise UpstreamError(f"subscription {name!r}: others are changing it; run the command again")

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One writer at a time on a local lake. Raises UpstreamError if another one does not end."""
        if not self._lake.local:
            yield
            return
        from filelock import FileLock, Timeout

        path = Path(self._lake.path("subscriptions", "lock"))
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, timeout=LOCK_TIMEOUT_S)
        try:
            lock.acquire()
        except Timeout as error:
            raise UpstreamError(
                f"{path}: another process has been changing subscriptions for {LOCK_TIMEOUT_S:.0f} s; "
                "look for a stopped lamplighter-fleet, then run the command again"
            ) from error
        try:
            yield
        finally:
            lock.release()


def _check_id(name: str) -> str:
    if not _ID.fullmatch(name):
        raise ConfigurationError(
            f"subscription {name!r}: not an id; use up to 64 of a-z, 0-9 and -, beginning with a letter or digit"
        )
    return name


def _check_texts(query: str | None, deliver: Sequence[Sink]) -> None:
    """Raises RequestError for a query or an update that cannot be executed."""
    from lamplighter.cloud_sync.fleet.sparql.supported import fleet_query
    from lamplighter.engine.sparql.requests import parse_update

    if query is not None:
        fleet_query(query)
    for sink in deliver:
        if isinstance(sink, UpdateSink):
            parse_update(sink.update)
