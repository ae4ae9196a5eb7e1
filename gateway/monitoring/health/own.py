"""The components of the gateway itself: engine, log, disk, clock, sync, orders and security."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from lamplighter.cloud_sync.order_intake import STATE, OrderState, read_order_state
from lamplighter.cloud_sync.settings import SyncSettings
from lamplighter.cloud_sync.status import STATUS, Status, read_status
from lamplighter.engine.errors import ChangeLogError
from lamplighter.gateway.clock import Clock, iso
from lamplighter.gateway.log.data_folder import GONE, GONE_CURE
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.monitoring.health.components import Component, Reports, not_ok
from lamplighter.gateway.settings import Settings

ENGINE, LOG, DISK, CLOCK, SYNC, SECURITY = "engine", "log", "disk", "clock", "sync", "security"
ORDERS = "orders"

LITTLE_SHARE, LITTLE_BYTES = 0.05, 256 * 1024 * 1024  # the disk is degraded below both
NONE_SHARE, NONE_BYTES = 0.005, 16 * 1024 * 1024  # the disk has failed below both: a segment or snapshot may not fit
SYNC_LATE_S = 900.0  # the shipper is late if it has not run for this time and for three of its intervals
SYNC_WINDOW = timedelta(hours=26)  # the same with sync.window, in which it runs once a day
SYNC_FAILED = timedelta(days=1)  # a shipper that has failed for less is degraded: networks come and go
REFUSAL = timedelta(days=1)  # time for which the refusal of an order is shown
REASON_MAX = 300
_PROBLEM_S = 600.0  # a problem of the shipper is over if a complete run ended so long after it
CERTIFICATE_LEFT = timedelta(days=14)

_FREE = "free disk space, or mount the disk writable; the gateway tries again with each update"


class Validity(NamedTuple):
    """Of the gateway's certificate. file: where it is."""

    begins: datetime
    ends: datetime
    file: Path


class Space(NamedTuple):
    """Of a file system, in bytes."""

    free: int
    size: int
    read_only: bool


def disk_space(path: Path) -> Space:
    """Raises OSError."""
    found = os.statvfs(path)
    return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, bool(found.f_flag & os.ST_RDONLY))


@dataclass(eq=False, repr=False)
class OwnComponents:
    """Reads the state of the gateway's own parts. validity: of the certificate; None in plain mode."""

    _settings: Callable[[], Settings]
    _clock: Clock
    _log: LogWriter
    _reports: Reports
    _started_us: int
    validity: Validity | None = None
    _sync_seen: tuple[int, Status] | None = None
    _orders_seen: tuple[int, OrderState] | None = None

    def components(self) -> list[Component]:
        found = [self._report_of(ENGINE), self._log_state(), self._disk(), self._clock_state()]
        if self._settings().sync.destination:
            found.append(self._sync())
            if self._settings().sync.orders.key_file:
                found.append(self._orders())
        return [*found, self._security()]

    def has_damage(self) -> bool:
        """Whether data was lost or is wrong."""
        return bool(self._log.damage.reports() or self._reports.of(ENGINE) or self._reports.of(LOG))

    def refusal(self) -> str:
        """Why updates are refused now; empty if they are not."""
        if self._log.folder.gone:
            return GONE
        return self._log.refusing or ("" if self._log.broken is None else str(self._log.broken))

    def _report_of(self, name: str) -> Component:
        return self._reports.of(name) or Component(name=name)

    def _log_state(self) -> Component:
        refusal = self.refusal()
        if refusal:
            cure = GONE_CURE if self._log.folder.gone else _FREE
            return not_ok(LOG, "failed", f"updates are refused: {refusal}", cure)
        reported = self._reports.of(LOG)
        if reported is not None:
            return reported
        damage = self._log.damage.reports()
        if damage:
            more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
            cure = "see what was lost with `lamplighter verify`, then accept it with `lamplighter verify --accept`"
            return not_ok(LOG, "failed", f"{damage[-1].reason}{more}", cure)
        return Component(name=LOG)

    def _disk(self) -> Component:
        data = self._log.data
        try:
            space = disk_space(data)
        except OSError as error:
            return not_ok(DISK, "failed", f"{data}: {error.strerror}", "check that the disk is mounted")
        if space.read_only:
            cure = "check the disk (`dmesg`), and mount it writable"
            return not_ok(DISK, "failed", f"the file system of {data} is read-only", cure)
        left = f"{space.free / 2**20:,.0f} MiB of {space.size / 2**20:,.0f} MiB are free on the disk of {data}"
        cure = "free disk space, or set a smaller log.bytes_max"
        if space.free < min(NONE_SHARE * space.size, NONE_BYTES):
            return not_ok(DISK, "failed", left, cure)
        if space.free < min(LITTLE_SHARE * space.size, LITTLE_BYTES):
            return not_ok(DISK, "degraded", left, cure)
        return Component(name=DISK)

    def _clock_state(self) -> Component:
        if self._clock.trusted() or self._settings().gateway.clock_trusted == "never":
            return Component(name=CLOCK)
        reason = "the clock is not synchronised; delayed updates with `at` wait"
        cure = (
            "check the network and NTP (`timedatectl`). Without a time server, set gateway.clock_trusted: "
            '"always" if the machine has a clock that runs without power, else "never"'
        )
        return not_ok(CLOCK, "degraded", reason, cure)

    def _security(self) -> Component:
        validity, now = self.validity, self._clock.wall()
        if validity is None or not self._clock.trusted():
            return Component(name=SECURITY)
        cure = f"replace {validity.file} and its key, then restart the gateway"
        if now < validity.begins:
            return not_ok(SECURITY, "failed", f"the certificate is not valid before {_day(validity.begins)}", cure)
        if now > validity.ends:
            return not_ok(SECURITY, "failed", f"the certificate expired on {_day(validity.ends)}", cure)
        if now > validity.ends - CERTIFICATE_LEFT:
            return not_ok(SECURITY, "degraded", f"the certificate expires on {_day(validity.ends)}", cure)
        return Component(name=SECURITY)

    # --- sync ---

    def _sync(self) -> Component:
        settings, status = self._settings().sync, self._status()
        up_s = (self._clock.boottime_us() - self._started_us) / 1e6
        late = _late(settings)
        start = "start it: systemctl start lamplighter-sync.timer, or lamplighter sync run"
        if status is None:
            if up_s < late.total_seconds():
                return Component(name=SYNC)
            return not_ok(SYNC, "failed", "the shipper has never run", start)
        success = status.last_success or 0.0
        if status.last_error and (status.last_error_at or 0.0) >= success:
            lasting = (status.last_error_at or 0.0) - success >= SYNC_FAILED.total_seconds()
            cure = "check the network, sync.destination and sync.options_file; `lamplighter sync status` has details"
            return not_ok(SYNC, "failed" if lasting else "degraded", status.last_error, cure)
        now = self._clock.wall().timestamp()
        if self._clock.trusted() and up_s >= late.total_seconds() and now - status.at > late.total_seconds():
            return not_ok(SYNC, "failed", f"the shipper has not run since {_time(status.at)}", start)
        if status.problem and (status.problem_at or 0.0) > success - _PROBLEM_S:
            return not_ok(SYNC, "degraded", status.problem, "see `lamplighter sync status` and docs/ship.md")
        if status.refused:
            reason = f"the collector has refused segments: {status.refused:,}"
            return not_ok(SYNC, "degraded", reason, "see `lamplighter-fleet status` at the collector, and docs/ship.md")
        return Component(name=SYNC)

    def _orders(self) -> Component:
        """The orders of the fleet: degraded after a failed round, and for a day after a refusal."""
        try:
            state = self._order_state()
        except (ChangeLogError, OSError) as error:
            return not_ok(ORDERS, "failed", f"{error}"[:REASON_MAX], "see Orders in docs/ship.md; no order is executed")
        if state.error:
            cure = "`lamplighter sync status` has details, docs/ship.md the errors; orders wait"
            return not_ok(ORDERS, "degraded", state.error[:REASON_MAX], cure)
        if state.refused_at is not None and self._clock.wall().timestamp() - state.refused_at < REFUSAL.total_seconds():
            cure = "correct what the fleet sends, or the limits and permissions of its client here"
            return not_ok(ORDERS, "degraded", f"refused: {state.last_refusal}"[:REASON_MAX], cure)
        return Component(name=ORDERS)

    def _order_state(self) -> OrderState:
        """Read again when the file has changed. Raises ChangeLogError, OSError."""
        try:
            changed = (self._log.data / STATE).stat().st_mtime_ns
        except FileNotFoundError:
            return OrderState()
        if self._orders_seen is None or self._orders_seen[0] != changed:
            self._orders_seen = changed, read_order_state(self._log.data)
        return self._orders_seen[1]

    def _status(self) -> Status | None:
        """The progress of the shipper; None if it never ran. Read again when the file has changed."""
        try:
            changed = (self._log.data / STATUS).stat().st_mtime_ns
        except OSError:
            return None
        if self._sync_seen is None or self._sync_seen[0] != changed:
            self._sync_seen = changed, read_status(self._log.data)
        return self._sync_seen[1]


def _late(settings: SyncSettings) -> timedelta:
    late = timedelta(seconds=max(SYNC_LATE_S, 3 * settings.interval_s))
    return max(late, SYNC_WINDOW) if settings.window else late


def _time(seconds: float) -> str:
    return f"{iso(datetime.fromtimestamp(seconds, UTC))[:19]}Z"


def _day(moment: datetime) -> str:
    return moment.date().isoformat()
