"""The gateway's state: its health, its figures since the start, and the subscriptions.

The parts count; this module only reads.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from isodate import duration_isoformat

from lamplighter.cloud_sync.order_intake import STATE as ORDERS
from lamplighter.cloud_sync.order_intake import OrderState, read_order_state
from lamplighter.cloud_sync.status import STATUS, Status, read_status
from lamplighter.engine.core import Engine
from lamplighter.engine.errors import ChangeLogError
from lamplighter.engine.protocol import Priority
from lamplighter.engine.sharing import Usage
from lamplighter.gateway.clock import Clock, iso
from lamplighter.gateway.log.maintenance import LogMaintenance
from lamplighter.gateway.log.writer import LogWriter
from lamplighter.gateway.monitoring.brokers import Brokers
from lamplighter.gateway.monitoring.health.model import HealthModel
from lamplighter.gateway.monitoring.timings import Timings
from lamplighter.gateway.state.applications import Application
from lamplighter.gateway.state.client_budgets import ClientBudgets
from lamplighter.gateway.state.delayed import DelayedUpdates
from lamplighter.gateway.state.outcomes import Outcomes
from lamplighter.gateway.state.resumption import ResumableSubscriptions, public_spuid
from lamplighter.gateway.workers.dry_runs import DryRuns

LISTED_MAX = 1000  # subscriptions that are listed at once, in a few milliseconds


@dataclass
class Counters:
    """Figures since the start."""

    updates: int = 0
    queries: int = 0
    subscribes: int = 0
    unsubscribes: int = 0
    refused: int = 0
    queue_full: int = 0
    commits: int = 0
    notifications: int = 0
    reactions: int = 0
    delayed_fired: int = 0
    delayed_skipped: int = 0
    syncs: int = 0
    ended: int = 0
    resumed: int = 0
    resets: int = 0
    compositions: int = 0


@dataclass
class HighWaterMarks:
    """The most at one time since the start. waiting: requests; subscriptions: of clients; sockets: of WebSocket."""

    waiting: int = 0
    subscriptions: int = 0
    sockets: int = 0


@dataclass
class HttpCounters:
    """Counts of the HTTP gate. errors: answers by their code."""

    requests: int = 0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass
class WebsocketCounters:
    """Counts of the WebSocket gate. sockets: open ones; disconnected: too slow ones; errors: by their code."""

    sockets: int = 0
    messages: int = 0
    subscribed: int = 0
    unsubscribed: int = 0
    disconnected: int = 0
    errors: Counter[str] = field(default_factory=Counter)


class Subscriber(Protocol):
    """The owner of a subscription. client: text for people; since: when it began or was resumed."""

    client: str
    since: datetime | None


S = TypeVar("S", bound=Subscriber)


class Audited(Protocol):
    """Upkeep and its audit (`gateway.loop.upkeep`). rounds: complete audits; backlog: works that wait."""

    findings: int

    @property
    def rounds(self) -> int: ...

    @property
    def backlog(self) -> int: ...


class QueueFigures(Protocol):
    """The queue of the loop. waiting_by_class: by `Priority`; room: how many normal and bulk requests may wait."""

    @property
    def waiting(self) -> int: ...

    @property
    def waiting_by_class(self) -> Sequence[int]: ...

    @property
    def room(self) -> int: ...


class Subscribed(Protocol[S]):
    """The subscriptions of clients. sinks: of the plain ones, by the engine's spuid; usage: how many a client has."""

    @property
    def sinks(self) -> Mapping[str, S]: ...

    @property
    def resumables(self) -> ResumableSubscriptions[S]: ...

    @property
    def usage(self) -> Usage: ...


class Applied(Protocol):
    """The subscriptions of applications, by the engine's spuid."""

    @property
    def subscriptions(self) -> Mapping[str, tuple[Application, str]]: ...


@dataclass(frozen=True)
class Parts(Generic[S]):
    """The parts of the gateway that the figures are read from."""

    clock: Clock
    log: LogWriter
    log_keeper: LogMaintenance
    engine: Engine
    delayed: DelayedUpdates
    trials: DryRuns
    upkeep: Audited
    subscribers: Subscribed[S]
    applications: Applied
    queue: QueueFigures
    brokers: Brokers
    outcomes: Outcomes


class Figures(Generic[S]):
    """Reads the figures of one gateway, and keeps the counts of its gates. addresses: of the gates; secure: whether
    they require authentication. Both are set when the gates are open."""

    def __init__(
        self, counters: Counters, peaks: HighWaterMarks, timings: Timings, health: HealthModel, parts: Parts[S]
    ) -> None:
        self._counters = counters
        self._peaks = peaks
        self.timings = timings
        self.health = health
        self._parts = parts
        self._started, self._started_us = parts.clock.wall(), parts.clock.boottime_us()
        self.http = HttpCounters()
        self.http_connections, self.websocket_connections = Usage(), Usage()
        self.shares = ClientBudgets()  # by client: see `gateway.state.quotas`
        self.websocket = WebsocketCounters()
        self.addresses: Mapping[str, str] = {}
        self.secure = False
        self.machine: Callable[[], Mapping[str, float]] = dict  # of the board and its card
        self.adapters = parts.brokers.adapters  # connections of the gateway's own adapters, by kind
        self.adapter_services = parts.brokers.services

    def status(self) -> dict[str, Any]:
        parts = self._parts
        log, keeper = parts.log, parts.log_keeper
        return {
            **self._health_members(),
            "gateway": log.gateway,
            "epoch": log.epoch,
            "sequence": log.sequence,
            "clock_trusted": parts.clock.trusted(),
            "log": {
                "bytes": keeper.used,
                "snapshot": keeper.snapshot[1],
                "sealed": keeper.sealed,
                "evicted": keeper.evicted,
            },
            "quads": parts.engine.quad_count,
            "subscriptions": self._of_clients(),
            "application_subscriptions": len(parts.applications.subscriptions),
            "resumable": parts.subscribers.resumables.totals(),
            "subscription_classes": parts.engine.subscription_classes,
            "brokers": parts.brokers.members(),
            "coap": parts.brokers.coap(),
            "polled": parts.brokers.polled_reports(),
            "delayed": len(parts.delayed),
            "queue": parts.queue.waiting,
            "quotas": self._quotas(),
            "trials": parts.trials.runs,
            "renewals": parts.engine.store.renewals,
            "audit_rounds": parts.upkeep.rounds,
            "loop_held_ms_max": round(self.timings.loop_held.most * 1000, 3),
            "counters": dict(vars(self._counters)),
        }

    def _health_members(self) -> dict[str, Any]:
        """status: of the gateway as a whole; problems: the components that are not ok, one a line."""
        components = self.health.components()
        return {
            "status": self.health.overall(components),
            "problems": [one.problem() for one in components if not one.well],
            "components": [one.members() for one in components],
        }

    def _applications(self) -> dict[str, dict[str, int]]:
        return {
            name: {"reactions": found.reactions, "failed": found.failed, "refused": found.refused}
            for name, found in self._parts.outcomes.applications.items()
        }

    def _shacl(self) -> dict[str, int] | None:
        """shapes: those that others refer to included; violations: that the dataset has. None without validation."""
        found = self._parts.engine.validation
        return None if found is None else {"shapes": found.shape_count, "violations": found.violation_count}

    def sockets(self, count: int) -> None:
        self.websocket.sockets = count
        self._peaks.sockets = max(self._peaks.sockets, count)

    def sync(self) -> Status | None:
        """The progress of shipping at the last run of the shipper; None if it never ran."""
        data = self._parts.log.data
        return read_status(data) if (data / STATUS).exists() else None

    def orders(self) -> OrderState | None:
        """The orders of the fleet; None if none were looked for, or if their state is damaged."""
        data = self._parts.log.data
        with suppress(ChangeLogError, OSError):
            return read_order_state(data) if (data / ORDERS).exists() else None
        return None

    def monitoring(self) -> dict[str, Any]:
        """The answer of `GET /figures`: the figures of SEPA's beans (protocol 5.4) that apply here, a member for each
        bean. Times are in milliseconds, and everything is since the start."""
        parts, counters, peaks, timings = self._parts, self._counters, self._peaks, self.timings
        health = self._health_members()
        up_time = timedelta(microseconds=parts.clock.boottime_us() - self._started_us)
        return {
            "engine": {
                "gateway": parts.log.gateway,
                "status": health["status"],
                "problems": health["problems"],
                "version": version("lamplighter"),
                "started": iso(self._started),
                "up_time": duration_isoformat(up_time),
                "up_time_s": round(up_time.total_seconds(), 3),
                "secure": self.secure,
                "addresses": dict(self.addresses),
                "loop_held_ms": timings.loop_held.members(),
                "upkeep_backlog": parts.upkeep.backlog,
                **_process(),
            },
            "scheduler": self._scheduler(),
            "updates": self._updates(),
            "queries": {"store_ms": timings.store_query.members()},
            "spu_manager": {
                "spus": parts.engine.unit_count,
                "subscribers": self._of_clients(),
                "max_subscribers": peaks.subscriptions,
                "application_subscriptions": len(parts.applications.subscriptions),
                "subscribes": counters.subscribes,
                "unsubscribes": counters.unsubscribes,
                "ended": counters.ended,
                "processing_ms": timings.spu_manager.members(),
            },
            "components": health["components"],
            "brokers": parts.brokers.members(),
            "coap": parts.brokers.coap(),
            "polled": parts.brokers.polled_reports(),
            "adapters": parts.brokers.counters(),
            "applications": self._applications(),
            "shacl": self._shacl(),
            "quotas": self._quotas(),
            "log": {"commits": counters.commits, "syncs": counters.syncs, "sync_ms": timings.sync.members()},
            "http": {
                "requests": self.http.requests,
                "handling_ms": timings.http.members(),
                "errors": dict(self.http.errors),
            },
            "websocket": {
                "sockets": self.websocket.sockets,
                "max_sockets": peaks.sockets,
                "messages": self.websocket.messages,
                "subscribed": self.websocket.subscribed,
                "unsubscribed": self.websocket.unsubscribed,
                "notifications": counters.notifications,
                "disconnected": self.websocket.disconnected,
                "errors": dict(self.websocket.errors),
            },
        }

    def _updates(self) -> dict[str, Any]:
        timings = self.timings
        return {
            "processing_ms": timings.update_processing.members(),
            "processing_by_class_ms": {one.word: timings.updates[one].members() for one in Priority},
            "store_ms": timings.store_update.members(),
        }

    def subscriptions(self, limit: int | None = None, characters: int | None = None) -> dict[str, Any]:
        """The oldest subscriptions, those of the applications too; total: of all.

        limit: rows, `LISTED_MAX` without one. characters: of each text; a row whose text has more has their number.
        subscribers: how many listed subscriptions share the query. taken_over: as in `SubscriptionInfo`. price: as
        `engine.matching.prices.Price`.
        """
        parts = self._parts
        names = [
            *(
                (spuid, f"application {application.name}", None)
                for spuid, (application, _) in parts.applications.subscriptions.items()
            ),
            *((spuid, sink.client, sink.since) for spuid, sink in parts.subscribers.sinks.items()),
            *(
                (handle, "away" if sink is None else sink.client, None if sink is None else sink.since)
                for handle, sink in parts.subscribers.resumables.attachments()
            ),
        ][: limit or LISTED_MAX]
        found = [(parts.engine.describe(spuid), client, since) for spuid, client, since in names]
        secret = {info.spuid: parts.subscribers.resumables.spuid(info.spuid) for info, _, _ in found}
        shared = Counter((info.text, info.spu_class) for info, _, _ in found)
        listed = [
            {
                "spuid": public_spuid(secret[info.spuid] or "") if secret[info.spuid] else info.spuid,
                "class": info.spu_class,
                "reason": info.reason,
                "taken_over": info.taken_over,
                "subscribers": shared[info.text, info.spu_class],
                "client": client,
                "since": None if since is None else iso(since),
                "price": {**info.price._asdict(), "us": None if info.price.us is None else round(info.price.us, 1)},
                "text": info.text[:characters],
            }
            | ({} if characters is None or len(info.text) <= characters else {"text_characters": len(info.text)})
            for info, client, since in found
        ]
        total = len(parts.applications.subscriptions) + self._of_clients()
        return {"total": total, "subscriptions": listed}

    def _of_clients(self) -> int:
        """The number of clients' subscriptions, those of absent clients too."""
        subscribers = self._parts.subscribers
        return len(subscribers.sinks) + len(subscribers.resumables)

    def _scheduler(self) -> dict[str, Any]:
        counters, queue = self._counters, self._parts.queue
        return {
            "requests": counters.updates + counters.queries + counters.subscribes + counters.unsubscribes,
            "updates": counters.updates,
            "queries": counters.queries,
            "subscribes": counters.subscribes,
            "unsubscribes": counters.unsubscribes,
            "pending": queue.waiting,
            "pending_by_class": {one.word: queue.waiting_by_class[one] for one in Priority},
            "max_pending": self._peaks.waiting,
            "queue_size": queue.room,
            "rejected": counters.queue_full,
            "refused": counters.refused,
        }

    def _quotas(self) -> dict[str, int]:
        """By the setting: what the client uses that uses most."""
        delayed, subscribers = self._parts.delayed, self._parts.subscribers
        resumables = subscribers.resumables
        return {
            "delayed_max": delayed.usage.most(),
            "delayed_bytes_max": delayed.usage_bytes.most(),
            "subscriptions_max": subscribers.usage.most(),
            "resumable_max": resumables.usage.most(),
            "connections_max": max(self.http_connections.most(), self.websocket_connections.most()),
            "outbox_bytes_max": self.shares.most(),
            "retained_bytes_max": resumables.usage_bytes.most(),
        }


def _process() -> dict[str, int]:
    """Resident memory in bytes and open files of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "resident_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "open_files": sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1,
    }
