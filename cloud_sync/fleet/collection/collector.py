"""Lands shipped objects in the lake: checked, each record once, with an answer for each object.

Good objects land in ``segments/<gateway>/``, in files without common records. Others go to ``quarantine/<gateway>/``
with a file that has the reason. The collector is crash-safe. One collector works on a lake at a time. If several lakes
collect from one source, only one of them should answer.

A round gives each gateway one turn, bounded in objects, bytes and time, so no gateway delays the others. A faulty
object or folder affects only itself.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import sys
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from lamplighter.cloud_sync.answers import LANDED as LANDED_ANSWER
from lamplighter.cloud_sync.answers import REFUSED, RESERVED, SEAL, SNAPSHOTS, CollectorAnswer, stem_of_seal
from lamplighter.cloud_sync.destinations import Destination, StoredObject, renewed_destination
from lamplighter.cloud_sync.destinations.base import SMALL_BYTES_MAX
from lamplighter.cloud_sync.fleet.collection.landing import Landing
from lamplighter.cloud_sync.fleet.collection.ledger import (
    ANSWERED,
    KNOWN,
    LANDED,
    QUARANTINED,
    UNANSWERED,
    Object,
    Quarantined,
)
from lamplighter.cloud_sync.fleet.collection.manifest import Manifest
from lamplighter.cloud_sync.fleet.collection.missing import MissingRecords
from lamplighter.cloud_sync.fleet.collection.segment_check import (
    CHAIN,
    CONFLICT,
    EPOCH_MAX,
    GATEWAY,
    Bounds,
    is_time,
    printable,
    sealed_range,
)
from lamplighter.cloud_sync.fleet.lake.forgotten import ForgottenGateways
from lamplighter.cloud_sync.fleet.subcommands import add_command
from lamplighter.cloud_sync.settings import storage_options
from lamplighter.cloud_sync.status import age
from lamplighter.engine.change_log import SUFFIX
from lamplighter.engine.errors import ChangeLogError, ConfigurationError, GatewayError, UpstreamError
from lamplighter.engine.tables import count_text

# Interval of full listings, where listing only the end of a folder is cheaper.
FULL_S = 3600.0
SETTLE_OBJECTS = 100
# Number of failed objects that ends a gateway's turn, because its folder may be unreachable.
FAILURES_MAX = 10
# Names by which a page overlaps the last one, so that the objects of one stem are not separated.
_OVERLAP = 64
_STEM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ ()+-]{0,149}")
# The last epoch with its number of digits. The names of the next epoch sort before it.
_LAST_OF_ITS_LENGTH = re.compile("9+-")
_ANSWERS = {LANDED: LANDED_ANSWER, KNOWN: LANDED_ANSWER, QUARANTINED: REFUSED}
_PROGRESS_S = 2.0


class CollectionSummary(Counter[str]):
    """Counters of a round: ``landed``, ``known``, ``quarantined``, ``snapshots``, ``incomplete`` (an object without its
    seal, or a seal without its object), ``ignored`` (unknown names), ``released`` (from quarantine), ``failed`` (could
    not be read or answered), ``left`` (gateways with more objects than one turn takes), ``forgotten`` (gateways whose
    data is kept out), ``gateways``, ``bytes``."""

    def __str__(self) -> str:
        names = (
            "landed",
            "known",
            "quarantined",
            "snapshots",
            "incomplete",
            "ignored",
            "released",
            "failed",
            "left",
            "forgotten",
        )
        told = [
            count_text(self[name], "snapshot") if name == "snapshots" else f"{self[name]} {name}"
            for name in names
            if self[name] or name == "landed"
        ]
        return f"{count_text(self['gateways'], 'gateway')}, {self['bytes'] / 1e6:.1f} MB read: {', '.join(told)}"


Progress = Callable[[CollectionSummary], None]


class TurnLimits(NamedTuple):
    """Limits of one gateway's turn: objects read, their bytes, seconds. The first object that exceeds one is the last.

    entries_max: names of a folder in memory.
    """

    objects_max: int = 1000
    bytes_max: int = 1024**3
    seconds_max: float = 60.0
    entries_max: int = 100_000


@dataclass
class _TurnBudget:
    """What a gateway has used of its turn. summary: of the round; until: by the clock."""

    gateway: str
    limits: TurnLimits
    clock: Callable[[], float]
    summary: CollectionSummary
    progress: Progress | None
    until: float = field(init=False)
    objects: int = 0
    bytes: int = 0
    failures: int = 0
    left: bool = False

    def __post_init__(self) -> None:
        self.until = self.clock() + self.limits.seconds_max

    @property
    def over(self) -> bool:
        return (
            self.objects >= self.limits.objects_max
            or self.bytes >= self.limits.bytes_max
            or self.failures >= FAILURES_MAX
            or (self.objects > 0 and self.clock() >= self.until)
        )


class Collector:
    """Collects from one source into one lake, as a context manager. Raises UpstreamError if another one is running.

    problems: one line for each object or folder that could not be read or answered in the last round.
    """

    def __init__(
        self,
        source: Destination,
        lake: Path,
        *,
        bounds: Bounds | None = None,
        limits: TurnLimits | None = None,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._lake = lake
        self._bounds = bounds or Bounds()
        self._limits = limits or TurnLimits()
        self._wall = wall
        self._monotonic = monotonic
        self.problems: list[str] = []
        self._answered: list[str] = []
        # By gateway: how many objects in quarantine are still to be checked again, and the last one that was.
        self._unchecked: dict[str, int] = {}
        self._checked: dict[str, tuple[int, int, str]] = {}
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Collector:
        with self._disk(), contextlib.ExitStack() as opened:
            self._lake.mkdir(parents=True, exist_ok=True)
            lock = opened.enter_context(_lock_file(self._lake / "collector.lock"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UpstreamError(f"{self._lake}: another collector is running; wait for it, or stop it") from error
            self.manifest = Manifest(self._lake, write=True)
            opened.callback(self.manifest.close)
            opened.callback(self._source.close)
            self._landing = Landing(self._lake, self.manifest, self._bounds, self._wall)
            self._landing.recover()
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    def collect(self, progress: Progress | None = None, *, full: bool = False) -> CollectionSummary:
        """Runs a round: one turn for each gateway. full: list every folder from its beginning.

        Raises UpstreamError if the source cannot be reached, ChangeLogError for errors of the lake's disk. Errors of
        single folders are in `problems`.
        """
        summary = CollectionSummary()
        self.problems = []
        with self._disk():
            gateways = self._source.folders()
            forgotten = ForgottenGateways.of_folder(self._lake)
            unanswered: dict[str, list[tuple[str, Object]]] = {}
            for path, found in self.manifest.unanswered_objects():
                unanswered.setdefault(path.partition("/")[0], []).append((path, found))
            for gateway in gateways:
                if gateway in RESERVED:
                    continue
                if not GATEWAY.fullmatch(gateway):
                    summary["ignored"] += 1
                    continue
                if gateway in forgotten:
                    summary["forgotten"] += 1
                    continue
                summary["gateways"] += 1
                budget = _TurnBudget(gateway, self._limits, self._monotonic, summary, progress)
                try:
                    self._collect_gateway(budget, unanswered.get(gateway, []), full)
                except UpstreamError as error:
                    self._fail(error, budget)
                summary["left"] += budget.left
            self._settle()
        return summary

    def _collect_gateway(self, budget: _TurnBudget, unanswered: list[tuple[str, Object]], full: bool) -> None:
        gateway, summary = budget.gateway, budget.summary
        for path, found in unanswered:
            if not budget.over:
                self._try_answer(path, found, budget)
        landed = summary["landed"]
        self._collect_folder(gateway, full, budget)
        self._collect_folder(f"{gateway}/{SNAPSHOTS}", full, budget)
        if summary["landed"] != landed:
            self._unchecked.pop(gateway, None)  # it may be what others wait for
        self._release(budget)
        if summary["landed"] != landed:
            self._settle()  # what has landed is in the landing log before the turns of the others

    def _release(self, budget: _TurnBudget) -> None:
        """Checks again what waits in quarantine for others, until a pass over all of it releases nothing.

        A turn continues where the last one ended. A collector that has just begun checks all: the one before it may
        have been killed, or may have had other rules.
        """
        gateway = budget.gateway
        if self._unchecked.get(gateway) == 0:
            return
        kept = [one for one in self.manifest.quarantined_objects(gateway) if one.kind in (CHAIN, CONFLICT)]
        kept.sort(key=_order)
        begin = bisect_right(kept, self._checked.get(gateway, (0, 0, "")), key=_order)
        waiting = deque(kept[begin:] + kept[:begin])
        left = min(len(waiting), self._unchecked.get(gateway, len(waiting)))
        while left > 0 and not budget.over:
            one = waiting.popleft()
            budget.objects += 1
            left -= 1
            self._checked[gateway] = _order(one)
            if not self._retry([one]):
                waiting.append(one)
                continue
            budget.summary["released"] += 1
            left = len(waiting)
            # The one before it is proved by it, and that behind it comes next anyway.
            seal = sealed_range(one.seal, gateway)
            before = next((other for other in waiting if seal is not None and other.sha256 == seal.previous), None)
            if before is not None:
                waiting.remove(before)
                waiting.appendleft(before)
        self._unchecked[gateway] = left
        budget.left = budget.left or (left > 0 and budget.failures < FAILURES_MAX)

    def _fail(self, error: UpstreamError, budget: _TurnBudget) -> None:
        budget.failures += 1
        budget.summary["failed"] += 1
        self.problems.append(str(error))

    def _try_answer(self, path: str, found: Object, budget: _TurnBudget) -> None:
        """Writes an answer. A failure is retried in the next round."""
        try:
            self._answer(path, found)
        except UpstreamError as error:
            self._fail(error, budget)

    def retry(self) -> int:
        """Checks everything in quarantine again. Returns the number of released objects. Raises as `collect`."""
        with self._disk():
            count = self._retry(self.manifest.quarantined_objects())
            self._settle()
        return count

    def _collect_folder(self, folder: str, full: bool, budget: _TurnBudget) -> None:
        summary = budget.summary
        now = self._wall()
        settled, full_at = self.manifest.settled_listing(folder)
        page = self.manifest.page(folder)
        # The name of a late object sorts before settled ones. Look for it only if records are missing.
        if (
            full
            or not self._source.lists_from
            or not 0 <= now - full_at < FULL_S
            or _LAST_OF_ITS_LENGTH.match(settled)
            or self._lacks_something(folder)
        ):
            settled, full_at = "", now
        begin = max(settled, page)
        listed = self._source.entries(folder, begin, self._limits.entries_max)
        entries = {entry.name: entry for entry in listed}
        more = len(listed) >= self._limits.entries_max
        known = self.manifest.objects(folder, begin, listed[-1].name if more else None)
        unsettled = page > settled
        stems = {stem for name in entries if (stem := _stem(name)) is not None}
        in_order = len({stem.find("-") for stem in stems}) <= 1  # otherwise epoch 10 sorts before epoch 9
        for stem in sorted(stems):
            seal, data = entries.get(stem + SEAL), entries.get(stem + SUFFIX)
            if budget.over:
                budget.left = budget.failures < FAILURES_MAX
                break
            if not _STEM.fullmatch(stem):
                summary["ignored"] += 1
            elif seal is None or data is None:
                summary["incomplete"] += 1
                unsettled = True
            else:
                try:
                    settles = self._collect_object(f"{folder}/{stem}", seal, data, known.get(stem), entries, budget)
                    unsettled = unsettled or not settles
                except UpstreamError as error:
                    self._fail(error, budget)
                    unsettled = True
                if not unsettled:
                    settled = data.name
            if budget.progress is not None:
                budget.progress(summary)
        else:
            page = listed[-_OVERLAP].name if more else ""
            budget.left = budget.left or more
        with self.manifest.transaction():
            self.manifest.set_page(folder, page)
            self.manifest.set_settled(folder, settled if in_order else "", full_at)

    def _lacks_something(self, folder: str) -> bool:
        return "/" not in folder and any(not gap.said for gap in self.manifest.gaps(folder))

    def _collect_object(
        self,
        path: str,
        seal: StoredObject,
        data: StoredObject,
        known: Object | None,
        entries: dict[str, StoredObject],
        budget: _TurnBudget,
    ) -> bool:
        """False if the object has gone since the listing. One that appears there again must be listed."""
        summary = budget.summary
        version = f"{seal.version}/{data.version}/{data.size}"
        if known is not None and known.version == version:
            if known.answered == ANSWERED and path.rpartition("/")[2] + _ANSWERS[known.outcome] not in entries:
                budget.objects += 1
                self._answer(path, known)  # the answer was removed
            return True
        content = self._source.get(path + SEAL) if seal.size <= SMALL_BYTES_MAX else b""
        if content is None:
            return False
        budget.objects += 1
        with self._source.open(path + SUFFIX) as chunks:
            if chunks is None:
                return False
            incoming, size = self._landing.receive(chunks)
        summary["bytes"] += size
        budget.bytes += size
        found = self._landing.land(budget.gateway, path, version, incoming, content)
        summary["snapshots" if found.outcome == LANDED and path.count("/") > 1 else found.outcome] += 1
        if found.answered == UNANSWERED:
            self._try_answer(path, found, budget)
        return True

    def _retry(self, kept: list[Quarantined]) -> int:
        released = self._landing.retry(kept)
        for path, found in released:
            self._answer(path, found)
        return len(released)

    def _answer(self, path: str, found: Object) -> None:
        answer = CollectorAnswer(found.sha256, found.at, found.reason)
        self._source.put(path + _ANSWERS[found.outcome], msgspec.json.encode(answer) + b"\n")
        self._answered.append(path)
        if len(self._answered) >= SETTLE_OBJECTS:
            self._settle()

    def _settle(self) -> None:
        """Records the answers and moves since the last call. After a kill they are repeated, with the same effect."""
        with self.manifest.transaction():
            self.manifest.set_answered(self._answered)
        self._answered.clear()
        self._landing.settle()

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place = Path(error.filename) if error.filename else self._lake
            raise ChangeLogError(str(error.strerror), path=place, hint="check the lake's disk") from error


def _lock_file(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644), "wb")


def _order(one: Quarantined) -> tuple[int, int, str]:
    """Segments in their order, so that each is behind the one that it waits for; then snapshots."""
    seal = sealed_range(one.seal, one.path.partition("/")[0])
    return (EPOCH_MAX + 1, 0, one.file) if seal is None else (seal.epoch, seal.first, one.file)


def _stem(name: str) -> str | None:
    return name.removesuffix(SUFFIX) if name.endswith(SUFFIX) else stem_of_seal(name)


# --- commands ---------------------------------------------------------------------------------------------


def add_commands(subparsers: Any) -> None:
    """Declares `collect`, `status`, `gaps` and `quarantine`."""
    collect = add_command(subparsers, "collect", "check shipped segments and land them in the lake")
    collect.add_argument(
        "source", metavar="SOURCE", help="destination of the gateways: a folder, or a URL such as s3://"
    )
    collect.add_argument("lake", metavar="LAKE", type=lake_folder, help="the lake: a folder")
    collect.add_argument("--options", default="", metavar="FILE", help="TOML file with the options of the source")
    collect.add_argument("--every", type=float, metavar="S", help="repeat every S seconds until stopped")
    collect.add_argument("--full", action="store_true", help="list all objects, to find late segments everywhere")
    collect.set_defaults(run=_collect)

    status = add_command(subparsers, "status", "show the progress of each gateway")
    status.add_argument("lake", metavar="LAKE", type=lake_folder, help="the lake: a folder")
    status.add_argument("--json", action="store_true", help="one JSON object per line")
    status.set_defaults(run=_status)

    gaps = add_command(subparsers, "gaps", "list records that have not landed")
    gaps.add_argument("lake", metavar="LAKE", type=lake_folder, help="the lake: a folder")
    gaps.add_argument("--gateway", metavar="GW", help="only this gateway")
    gaps.add_argument("--json", action="store_true", help="one JSON object per line")
    gaps.set_defaults(run=_gaps)

    quarantine = add_command(subparsers, "quarantine", "list quarantined objects with the reasons")
    quarantine.add_argument("lake", metavar="LAKE", type=lake_folder, help="the lake: a folder")
    quarantine.add_argument("--json", action="store_true", help="one JSON object per line")
    quarantine.add_argument(
        "--retry", metavar="SOURCE", help="check all of them again, and answer the gateways at SOURCE"
    )
    quarantine.add_argument("--options", default="", metavar="FILE", help="TOML file with the options of the source")
    quarantine.set_defaults(run=_quarantine)


def lake_folder(text: str) -> Path:
    """The folder of a lake, from a path or a `file:` URL. Raises ArgumentTypeError."""
    parts = urlsplit(text)
    if parts.scheme not in ("", "file"):
        raise argparse.ArgumentTypeError(f"{text}: the collector needs a folder; mount the lake, and name its folder")
    return Path(unquote(parts.path)) if parts.scheme else Path(text)


def _collector(source: str, lake: Path, options: str) -> Collector:
    return Collector(renewed_destination(source, partial(storage_options, options, Path())), lake)


def _collect(arguments: argparse.Namespace) -> int:
    if arguments.every is not None and arguments.every <= 0:
        raise ConfigurationError("--every: takes a number of seconds greater than 0")
    told = 0.0

    def progress(summary: CollectionSummary) -> None:
        nonlocal told
        if time.monotonic() - told >= _PROGRESS_S:
            told = time.monotonic()
            print(f"collecting: {summary}", file=sys.stderr, flush=True)

    failed = False
    with _collector(arguments.source, arguments.lake, arguments.options) as collector:
        while True:
            told = begun = time.monotonic()
            left = False
            try:
                summary = collector.collect(progress, full=arguments.full)
                print(f"collected: {summary}", flush=True)
                left = summary["left"] > 0
                for problem in collector.problems:
                    failed = True
                    print(f"lamplighter-fleet collect: {problem}", file=sys.stderr, flush=True)
            except GatewayError as error:
                if arguments.every is None:
                    raise
                print(f"lamplighter-fleet collect: {error}", file=sys.stderr, flush=True)
            if left:
                continue
            if arguments.every is None:
                return 1 if failed else 0
            time.sleep(max(0.0, arguments.every - (time.monotonic() - begun)))


def _status(arguments: argparse.Namespace) -> int:
    with contextlib.closing(Manifest(arguments.lake)) as manifest:
        found = manifest.arrivals()
    if arguments.json:
        for one in found:
            print(json.dumps(one.__dict__))
        return 0
    now = datetime.now(UTC)
    heading = (
        *("GATEWAY", "UP TO", "RECORDED", "LANDED", "RECORDS", "MISSING", "LOST", "QUARANTINED", "SNAPSHOT"),
        *["FORKED FROM"] * any(one.forked for one in found),
    )
    rows = [
        (
            one.gw,
            _place((one.epoch, one.last)),
            _ago(one.ts, now),
            _ago(one.at, now),
            *map(str, (one.records, one.missing, one.lost, one.quarantined)),
            _place(one.snapshot),
            *[one.forked] * any(other.forked for other in found),
        )
        for one in found
    ]
    _print_table([heading, *rows])
    print(f"{count_text(len(found), 'gateway')}, {count_text(sum(one.records for one in found), 'record')}")
    return 0


def _place(place: tuple[int | None, int | None] | None) -> str:
    return "-" if place is None or place[0] is None else f"{place[0]}/{place[1]}"


def _ago(time: str | None, now: datetime) -> str:
    if time is None:
        return "-"
    # Earlier versions accepted segments without a valid time.
    return f"{age((now - datetime.fromisoformat(time)).total_seconds())} ago" if is_time(time) else "?"


def _gaps(arguments: argparse.Namespace) -> int:
    with contextlib.closing(Manifest(arguments.lake)) as manifest:
        found = manifest.gaps(arguments.gateway)
    if arguments.json:
        for gap in found:
            print(json.dumps(gap.__dict__))
        return 0
    rows = [
        (gap.gw, _epochs(gap), str(gap.first), _number_text(gap.last), _number_text(_records(gap)), _why(gap))
        for gap in found
    ]
    _print_table([("GATEWAY", "EPOCH", "FIRST", "LAST", "RECORDS", "WHY"), *rows])
    print(f"{count_text(len(found), 'gap')}, {count_text(sum(_records(gap) or 0 for gap in found), 'record')}")
    return 0


def _epochs(gap: MissingRecords) -> str:
    return str(gap.epoch) if gap.last_epoch is None else f"{gap.epoch}-{gap.last_epoch}"


def _records(gap: MissingRecords) -> int | None:
    return None if gap.last is None else gap.last - gap.first + 1


def _number_text(number: int | None) -> str:
    return "?" if number is None else str(number)


def _why(gap: MissingRecords) -> str:
    return f"the gateway says: {printable(gap.reason)}" if gap.said else gap.reason


def _quarantine(arguments: argparse.Namespace) -> int:
    if arguments.retry:
        with _collector(arguments.retry, arguments.lake, arguments.options) as collector:
            print(f"released: {collector.retry()}", file=sys.stderr)
    with contextlib.closing(Manifest(arguments.lake)) as manifest:
        found = manifest.quarantined_objects()
    if arguments.json:
        for one in found:
            print(json.dumps({name: value for name, value in one.__dict__.items() if name != "seal"}))
        return 0
    _print_table([("AT", "FILE", "WHY"), *((one.at, one.file, one.reason) for one in found)])
    print(f"{len(found)} in quarantine")
    return 0


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
