"""Resumable subscriptions: they outlive the connection of their client and the gateway's process.

Their notifications are numbered when they are computed: number k is the k-th change since the subscription began. So a
replay of the change log gives the same numbers and contents. A client that names the last one it has receives the next
ones unchanged, or a reset. The newest ones are retained, also those that were sent, since it is unknown what a broken
connection delivered. Pure: clocks and connections are passed in.

The change log has the begin and the end of each subscription, and the commits that caused its notifications. It does
not have the attached clients: after a start of the gateway none is attached.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from itertools import zip_longest
from typing import Any, Generic, NamedTuple, TypeVar

import isodate
import msgspec

from lamplighter.engine.access import Graphs
from lamplighter.engine.change_log import Followed
from lamplighter.engine.errors import LimitExceededError, MalformedRequestError
from lamplighter.engine.protocol import Results
from lamplighter.engine.sharing import Usage, refusal
from lamplighter.engine.sparql.lexer import tokens
from lamplighter.gateway.settings import QuotaSettings, ResumeSettings
from lamplighter.gateway.state.delayed import delay_us
from lamplighter.gateway.state.quotas import Quotas

Sink = TypeVar("Sink")  # the sink of a client; compared by identity
Place = tuple[int, int]  # epoch and sequence of a record

_ENTRY_BYTES = 64  # bytes of a retained notification besides its results
# An attached client needs retained notifications only for those in transit; an absent one needs all.
_ATTACHED_WEIGHT = 8
SPUID = "sepa://subscription/"
_SHOWN = len(SPUID) + 8
# Keywords whose result may depend on the order of solutions. The store's order differs between processes; plans have
# none.
_BY_ORDER = ("LIMIT", "OFFSET", "SAMPLE", "GROUP_CONCAT", "SUM", "AVG", "MIN", "MAX")
BY_ORDER = (
    "the gateway was restarted, and the result may depend on the order in which the store finds the solutions, which "
    "is another one now: LIMIT without ORDER BY, SAMPLE, or another query with LIMIT, OFFSET, SUM, AVG, MIN, MAX or "
    "GROUP_CONCAT that is re-evaluated"
)
_DISTRUSTED = (
    "the gateway was restarted, and its change log may lack notifications that were delivered: a part of the log was "
    "lost, or the power failed while gateway.durability was not fsync"
)
_LOST_MAX = 1_000  # subscriptions that a start could not continue, whose clients are told why; the oldest are forgotten


class Retained(msgspec.Struct, frozen=True, omit_defaults=True):
    """A resumable subscription in a snapshot. sequence: of its last notification; notifications: the newest ones, the
    last of them with that sequence, each as the text of its members `addedResults` and `removedResults`; commits: of
    the same, epoch and sequence of the records that caused them. lost: why a delivery has to begin anew, if it has
    to."""

    followed: Followed
    sequence: int
    notifications: tuple[str, ...] = ()
    commits: tuple[Place | None, ...] = ()
    lost: str = ""


class Delivered(NamedTuple, Generic[Sink]):
    """A numbered notification. sink: its client, if one is attached."""

    spuid: str
    sequence: int
    sink: Sink | None


class MissedNotification(NamedTuple):
    """A notification that a client missed. members: the text of its results; commit: of the record that caused it."""

    sequence: int
    results: Results

    @property
    def members(self) -> bytes:
        return self.results.members

    @property
    def commit(self) -> Place | None:
        return self.results.commit


class AttachedSubscription(NamedTuple, Generic[Sink]):
    """A client resumes. sequence: the newest notification; missed: those that it missed up to that one; bytes: their
    memory; displaced: the client that was attached before."""

    sequence: int
    missed: Sequence[MissedNotification]
    bytes: int
    displaced: Sink | None


class ResumeFailure(NamedTuple):
    """A client cannot resume. reason: text for the client; outdated: the request is the owner's, but its state is lost,
    so the subscription is of use only to another attached connection of the owner."""

    reason: str
    outdated: bool = False


class _KeptSubscription(Generic[Sink]):
    """handle: the engine's name for it. told: the last notification that an absent client may have seen."""

    __slots__ = ("away_since_us", "bytes", "client", "followed", "handle", "retained", "sequence", "sink", "told")

    def __init__(self, followed: Followed, handle: str, sink: Sink | None) -> None:
        self.followed = followed
        self.handle = handle
        self.sink = sink
        self.sequence = 0
        self.retained: deque[Results] = deque()
        self.bytes = 0
        self.away_since_us: int | None = None
        self.told = 0
        self.client = ""

    @property
    def is_told_at_once(self) -> bool:
        """Whether a client is attached. The receiver of a delivery may be away nevertheless."""
        return self.sink is not None and self.followed.delivery is None

    @property
    def last_forgotten(self) -> int:
        """The newest notification that is no longer retained."""
        return self.sequence - len(self.retained)


class ResumableSubscriptions(Generic[Sink]):
    """The resumable subscriptions by spuid, with their retained notifications."""

    def __init__(self, settings: ResumeSettings, quotas: Quotas = QuotaSettings) -> None:
        """quotas: the current ones."""
        self._settings = settings
        self._quotas = quotas
        # By client, where clients have names: the number of subscriptions, and the bytes retained for them.
        self.usage, self.usage_bytes = Usage(), Usage()
        self._kept: dict[str, _KeptSubscription[Sink]] = {}
        self._by_handle: dict[str, _KeptSubscription[Sink]] = {}
        self._bytes = 0
        self._lost: dict[str, tuple[str | None, str]] = {}
        # By the id of the delivery: those that a start could not continue, and why. They stay, since nobody else than
        # the gateway begins them anew.
        self._interrupted: dict[str, tuple[Followed, str]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, spuid: str) -> bool:
        return spuid in self._kept

    def grant(self, keep: str) -> tuple[int, str]:
        """How long a subscription is kept: in microseconds, as ISO 8601 duration. Raises MalformedRequestError."""
        try:
            asked_us = delay_us(keep)
        except MalformedRequestError as error:
            raise MalformedRequestError(f"resume.keep: {str(error).removeprefix('delay: ')}") from error
        # As the client wrote it: P1D stays P1D and does not become PT24H.
        if asked_us <= self._settings.keep_s_max * 1_000_000:
            return asked_us, keep
        longest = timedelta(seconds=self._settings.keep_s_max)
        return longest // timedelta(microseconds=1), isodate.duration_isoformat(longest)

    def check_room(self, client: str) -> None:
        """Raises LimitExceededError when no further one of a client can be kept; client: "" if it has no name."""
        most = self._settings.subscriptions_max
        why = refusal(client, self.usage.of(client), 1, most - len(self._kept), f"resume.subscriptions_max = {most}")
        if why:
            raise LimitExceededError(f"{why}; end some, or have the operator raise it")

    # --- from the change log ---

    def begin(self, followed: Followed, handle: str, sink: Sink | None = None) -> None:
        """A subscription begins. handle: the spuid that the engine knows it by; sink: none during a replay."""
        kept = _KeptSubscription(followed, handle, sink)
        self._kept[followed.spuid] = self._by_handle[handle] = kept
        if followed.delivery is not None:
            # It begins anew, so it is interrupted no more.
            self._interrupted.pop(followed.delivery.id, None)
        if followed.identity is not None:
            self.usage.add(followed.identity)

    def deliver(self, handle: str, results: Results) -> Delivered[Sink] | None:
        """Numbers and retains a notification; None if the engine's subscription of that name is not a resumable one."""
        kept = self._by_handle.get(handle)
        if kept is None:
            return None
        kept.sequence += 1
        # Long ones are written when they are sent, since that takes long. Of the others the text is kept, and no rows.
        self._retain(kept, results if results.is_long else Results.of_members(results.members, results.commit))
        return Delivered(kept.followed.spuid, kept.sequence, kept.sink)

    def end(self, spuid: str) -> str | None:
        """A subscription ends: its handle, None if there is none of that spuid."""
        for name, (followed, _) in self._interrupted.items():
            if followed.spuid == spuid:
                del self._interrupted[name]
                break
        kept = self._kept.pop(spuid, None)
        if kept is None:
            return None
        del self._by_handle[kept.handle]
        if kept.followed.identity is not None:
            self.usage.add(kept.followed.identity, -1)
        self._count(kept, -kept.bytes)
        return kept.handle

    def note_client(self, handle: str, client: str) -> None:
        """Notes whose share a subscription takes; where clients have no names, a start forgets it."""
        self._by_handle[handle].client = client

    def client_of(self, handle: str) -> str:
        """Whose share a subscription takes, by its handle; empty for none."""
        kept = self._by_handle.get(handle)
        return "" if kept is None else kept.client or kept.followed.identity or ""

    def restate(self, followed: Followed) -> None:
        """What the log has of a subscription changes."""
        self._kept[followed.spuid].followed = followed

    def lose(self, followed: Followed, reason: str) -> None:
        """Remembers why a start does not continue a subscription."""
        if followed.delivery is not None:
            self._interrupted[followed.delivery.id] = followed, reason
        self._lost[followed.spuid] = followed.identity, reason
        # The oldest goes. Its client is told that there is no such subscription, which is true.
        if len(self._lost) > _LOST_MAX:
            del self._lost[next(iter(self._lost))]

    def of_plans(self) -> list[tuple[Followed, str]]:
        """Those that outlive the process only as long as a plan follows them, and their handles."""
        return [(kept.followed, kept.handle) for kept in self._kept.values() if kept.followed.planned]

    def end_all(self) -> list[tuple[str, str]]:
        """All end: their spuids and handles. The clients receive a reset."""
        # For starts after which clients may have seen notifications that the log does not have: the machine was
        # restarted without fsync before each notification, or part of the log was lost.
        delivered = [kept.followed for kept in self._kept.values() if kept.followed.delivery is not None]
        ended = [(spuid, self.end(spuid) or "") for spuid in list(self._kept)]
        for followed in delivered:
            self.lose(followed, _DISTRUSTED)
        return ended

    # --- deliveries ---

    def deliveries(self, kind: str) -> list[Followed]:
        """Those that the gateway delivers itself, also those that a start could not continue."""
        found = [*(kept.followed for kept in self._kept.values()), *(one for one, _ in self._interrupted.values())]
        return [one for one in found if one.delivery is not None and one.delivery.kind == kind]

    def of_delivery(self, name: str) -> Followed | None:
        found = (kept.followed for kept in self._kept.values())
        kept = next((one for one in found if one.delivery is not None and one.delivery.id == name), None)
        return kept or self._interrupted.get(name, (None,))[0]

    def replaced_by(self, followed: Followed) -> list[str]:
        """The spuids of other subscriptions with the same delivery, which end when this one begins."""
        return [
            spuid
            for spuid, kept in self._kept.items()
            if spuid != followed.spuid
            and followed.delivery is not None
            and kept.followed.delivery is not None
            and kept.followed.delivery.id == followed.delivery.id
        ]

    def renews(self, followed: Followed) -> bool:
        """Whether a record says of a subscription that goes on that its lease is another one."""
        kept = self._kept.get(followed.spuid)
        return kept is not None and followed.delivery is not None and kept.followed.planned == followed.planned

    def acknowledge(self, spuid: str, sequence: int) -> None:
        """The receiver has the notifications up to that one: they are no longer retained."""
        kept = self._kept.get(spuid)
        while kept is not None and kept.retained and kept.last_forgotten < sequence:
            self._forget(kept)

    # --- attached clients ---

    def attach(self, asked: Followed, sequence: int, sink: Sink) -> AttachedSubscription[Sink] | ResumeFailure:
        """A client asks to resume after the notification of that sequence. asked: the spuid, query and graphs of the
        request, its identity, and the graphs that it may see now; the keep does not change. Notifications that the
        client has are no longer retained."""
        found = self.resumable(asked, sequence)
        if isinstance(found, ResumeFailure):
            return found
        while found.last_forgotten < sequence:
            self._forget(found)
        displaced, found.sink, found.away_since_us = found.sink, sink, None
        missed = [MissedNotification(number, results) for number, results in enumerate(found.retained, sequence + 1)]
        return AttachedSubscription(found.sequence, missed, found.bytes, displaced)

    def resumable(self, asked: Followed, sequence: int) -> _KeptSubscription[Sink] | ResumeFailure:
        """The result that `attach` would have, without a change."""
        kept = self._kept.get(asked.spuid)
        lost = self._lost.get(asked.spuid)
        if kept is None and lost is not None and lost[0] == asked.identity:
            return ResumeFailure(lost[1])
        if kept is None or kept.followed.identity != asked.identity:
            return ResumeFailure(
                "no subscription of this client has that spuid; it may have ended, or been away for too long"
            )
        mine = kept.followed
        # Else a client could take the notifications of a webhook away from its receiver.
        if (mine.delivery is None) != (asked.delivery is None):
            return ResumeFailure("the gateway itself delivers the notifications of that spuid")
        if (mine.sparql, mine.default_graphs, mine.named_graphs) != (
            asked.sparql,
            asked.default_graphs,
            asked.named_graphs,
        ):
            return ResumeFailure("the subscription of that spuid has another query or other graphs")
        # Rows of graphs that it may not see now would be in what it missed, or be lacking.
        if mine.visible != asked.visible:
            return ResumeFailure("what this client may subscribe to has changed", True)
        # The client has a notification that this log has not: it is from an older copy of the data folder.
        if sequence > kept.sequence:
            return ResumeFailure(f"the subscription's last notification has the sequence {kept.sequence}", True)
        if sequence < kept.last_forgotten:
            return ResumeFailure(f"notifications up to {kept.last_forgotten} are no longer retained", True)
        return kept

    def is_attached(self, spuid: str, sink: Sink) -> bool:
        kept = self._kept.get(spuid)
        return kept is not None and kept.sink is sink

    def may_end(self, spuid: str, sink: Sink, identity: str | None) -> bool:
        """Whether its client may end it: on the attached connection, or on any while none is attached."""
        kept = self._kept.get(spuid)
        if kept is None or kept.followed.delivery is not None:
            return False
        return kept.followed.identity == identity and kept.sink in (sink, None)

    def sink(self, spuid: str) -> Sink | None:
        kept = self._kept.get(spuid)
        return None if kept is None else kept.sink

    def spuid(self, handle: str) -> str | None:
        """The spuid of the engine's subscription of that name, if it is a resumable one."""
        kept = self._by_handle.get(handle)
        return None if kept is None else kept.followed.spuid

    def of_client(self, identity: str, visible: Graphs | None) -> list[str]:
        """The spuids of a client's subscriptions that see other graphs than these. visible: None if the client was
        removed; then also of its deliveries that a start could not continue, which would be those of the next client of
        that name. They begin anew with what their client may see then, so they see no other graphs."""
        found = [
            spuid
            for spuid, kept in self._kept.items()
            if kept.followed.identity == identity and (visible is None or visible_graphs(kept.followed) != visible)
        ]
        interrupted = [] if visible is not None else [followed for followed, _ in self._interrupted.values()]
        return found + [followed.spuid for followed in interrupted if followed.identity == identity]

    def attachments(self) -> list[tuple[str, Sink | None]]:
        """The handle of each, and its attached client."""
        return [(handle, kept.sink) for handle, kept in self._by_handle.items()]

    def detach(self, spuid: str, sink: Sink, now_us: int) -> None:
        """The client's connection was closed. now_us: CLOCK_BOOTTIME. No effect if another one is attached."""
        kept = self._kept.get(spuid)
        # A connection that closes late must not detach the one that replaced it.
        if kept is not None and kept.sink is sink:
            self._leave(kept, now_us)

    def detach_all(self, now_us: int) -> None:
        """After the replay of a start: the absence of all clients begins."""
        for kept in self._kept.values():
            self._leave(kept, now_us)

    def _leave(self, kept: _KeptSubscription[Sink], now_us: int) -> None:
        kept.sink, kept.away_since_us, kept.told = None, now_us, kept.sequence

    def end_expired(self, now_us: int, wall: str = "") -> list[str]:
        """Those that have to end: their clients were away for too long, or could not resume any more; of deliveries
        those whose lease has ended. wall: the time as in a lease; empty while it is not trusted, then none ends."""
        return [spuid for spuid, kept in self._kept.items() if _has_expired(kept, now_us, wall)]

    # --- retained notifications ---

    def _retain(self, kept: _KeptSubscription[Sink], results: Results) -> None:
        kept.retained.append(results)
        self._count(kept, results.size + _ENTRY_BYTES)
        # Three bounds, from the smallest circle to the largest: this subscription, its client, all.
        while kept.bytes > self._settings.outbox_bytes_max:
            self._forget(kept)
        client = kept.followed.identity
        while client is not None and self.usage_bytes.of(client) > self._quotas().retained_bytes_max:
            self._halve_largest(client)
        while self._bytes > self._settings.bytes_max:
            # Subscriptions without a client count as one client together.
            named = self.usage_bytes.most() >= self._bytes - self.usage_bytes.total
            self._halve_largest(self.usage_bytes.heaviest() if named else None)

    def _halve_largest(self, client: str | None) -> None:
        """Drops half of the largest of a client at once, so that it is not searched each time."""
        largest = max((one for one in self._kept.values() if one.followed.identity == client), key=_weight)
        half = largest.bytes // 2
        while largest.bytes > half:
            self._forget(largest)

    def _forget(self, kept: _KeptSubscription[Sink]) -> None:
        self._count(kept, -kept.retained.popleft().size - _ENTRY_BYTES)

    def _count(self, kept: _KeptSubscription[Sink], size: int) -> None:
        """size: negative to release."""
        kept.bytes += size
        self._bytes += size
        if kept.followed.identity is not None:
            self.usage_bytes.add(kept.followed.identity, size)

    def totals(self) -> dict[str, int]:
        return {
            "subscriptions": len(self._kept),
            "away": sum(kept.sink is None for kept in self._kept.values()),
            "retained_bytes": self._bytes,
        }

    # --- snapshots ---

    def state(self) -> list[Retained]:
        lost = [Retained(followed, 0, lost=reason) for followed, reason in self._interrupted.values()]
        return lost + [_cost_of(kept) for kept in self._kept.values()]

    def restore(self, state: Retained, handle: str) -> None:
        """Restores a subscription from a snapshot, with no client attached; handle: as in `begin`."""
        self.begin(state.followed, handle)
        kept = self._by_handle[handle]
        kept.sequence = state.sequence
        # A snapshot of an earlier version has no commits.
        for text, commit in zip_longest(state.notifications, state.commits[: len(state.notifications)]):
            self._retain(kept, Results.of_members(text.encode(), commit))


def _cost_of(kept: _KeptSubscription[Any]) -> Retained:
    texts = tuple(results.members.decode() for results in kept.retained)
    return Retained(kept.followed, kept.sequence, texts, tuple(results.commit for results in kept.retained))


def _weight(kept: _KeptSubscription[Any]) -> int:
    """What counts where one has to lose notifications."""
    return kept.bytes * (_ATTACHED_WEIGHT if kept.is_told_at_once else 1)


def _has_expired(kept: _KeptSubscription[Sink], now_us: int, wall: str) -> bool:
    if kept.followed.delivery is not None:
        return bool(wall and kept.followed.delivery.until) and kept.followed.delivery.until <= wall
    away = kept.away_since_us
    return away is not None and (now_us - away >= kept.followed.keep_us or kept.last_forgotten > kept.told)


def visible_graphs(followed: Followed) -> Graphs:
    """The graphs that its client was permitted to see."""
    return Graphs(None if followed.visible is None else frozenset(followed.visible))


def depends_on_order(sparql: str) -> bool:
    """Whether the store's result of a query may depend on the order of solutions. Keywords decide; False is certain."""
    return any(token.is_word(*_BY_ORDER) for token in tokens(sparql))


def outlives_process(followed: Followed) -> bool:
    """Whether another process of the gateway computes the same results for the same dataset."""
    # Where not, a subscription outlives only its connection: a start of the gateway skips it, and its client receives a
    # reset.
    return followed.planned or not depends_on_order(followed.sparql)


def public_spuid(spuid: str) -> str:
    """The public part of a spuid; the whole spuid allows a client to resume."""
    return spuid[:_SHOWN] + "…"


def digits(spuid: str) -> str:
    """The same for the field SUBSCRIPTION of a log line."""
    return spuid[len(SPUID) : _SHOWN]
