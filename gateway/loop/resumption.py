"""Resumable subscriptions of the running gateway: the engine's subscription of each, as the records say.

A live request subscribes first, since that may fail, and appends its record then: `follow` is given the subscription
that the record is about. During recovery there is none, and `follow` subscribes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic

import msgspec

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.change_log import Followed, Record
from lamplighter.engine.core import Engine, Subscription
from lamplighter.engine.errors import (
    ChangeLogError,
    GatewayError,
    StoreError,
    UnknownSpuidError,
    UnsupportedRequestError,
)
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.matching.spu import RE_EVALUATED
from lamplighter.gateway.clock import iso, moment
from lamplighter.gateway.log import entries
from lamplighter.gateway.log.entries import LogEntry
from lamplighter.gateway.settings import Durability
from lamplighter.gateway.state.resumption import (
    BY_ORDER,
    SPUID,
    ResumableSubscriptions,
    Retained,
    Sink,
    depends_on_order,
    digits,
    outlives_process,
    visible_graphs,
)

logger = EventLogger(__name__)


class ResumptionService(Generic[Sink]):
    """Follows records for the resumable subscriptions, which it owns.

    durability: with any but "fsync", a power cut may take from the log what clients have seen; then all of them end.
    boot: of the machine now.
    """

    def __init__(
        self, engine: Engine, resumables: ResumableSubscriptions[Sink], durability: Durability, boot: str
    ) -> None:
        self._engine = engine
        self.resumables = resumables
        self._durability = durability
        self._boot = boot  # that of the record before
        self._takeovers = 0

    def follow(self, record: Record, begun: tuple[str, Sink | None] | None = None) -> None:
        """Begins or ends what a record says. Ends all where clients may have seen more than the log has. begun: as in
        `Knowledge.follow`."""
        lost = record.gap is not None and record.gap.last is None
        if lost or record.boot != self._boot:
            self.distrust(record.boot, lost=lost)
        if record.subscribe is not None:
            self._follow_beginning(record.subscribe, begun)
        if record.unsubscribe is not None:
            self.forget(record.unsubscribe)

    def _follow_beginning(self, followed: Followed, begun: tuple[str, Sink | None] | None) -> None:
        if begun is not None and followed.spuid not in self.resumables:
            self.resumables.begin(followed, *begun)
        elif begun is not None or self.resumables.renews(followed):
            self.resumables.restate(followed)
        else:
            self.forget(followed.spuid)
            self._again(followed, partial(self.resumables.begin, followed))
        for spuid in self.resumables.replaced_by(followed):
            self.forget(spuid)

    def with_spuid(self, asked: Followed, handle: str) -> Followed:
        """What the record of a new one says. Raises UnsupportedRequestError if it cannot be resumed."""
        info = self._engine.describe(handle)
        if info.tells_time:
            raise UnsupportedRequestError(
                "a subscription that selects the clock function cannot be resumed: its rows have the time at which "
                "they were computed; let the update write the time and select that, or leave `resume` out"
            )
        return msgspec.structs.replace(
            asked,
            spuid=f"{SPUID}{uuid.uuid4()}",
            planned=info.spu_class != RE_EVALUATED and depends_on_order(asked.sparql),
            instant=iso(self._engine.instant) if info.compares_clock else "",
        )

    def taken_over(self) -> list[tuple[Followed, str]]:
        """Those that a plan followed, and that the store has taken over since the last call, with their handles: from
        now on a start would compute other results than their clients have."""
        if self._takeovers == self._engine.takeovers:
            return []
        self._takeovers = self._engine.takeovers
        return [
            (followed, handle)
            for followed, handle in self.resumables.of_plans()
            if self._engine.subscribed(handle) and self._engine.describe(handle).taken_over is not None
        ]

    def restate_taken_over(
        self, record: Callable[[LogEntry, tuple[str, Any]], object]
    ) -> Iterator[tuple[Followed, ChangeLogError | None]]:
        """Records that those do not outlive the process any more. Yields each, and why the log did not take it."""
        failure: ChangeLogError | None = None
        for followed, handle in self.taken_over():
            try:
                if failure is None:
                    begun = handle, self.resumables.sink(followed.spuid)
                    record(entries.subscribe(msgspec.structs.replace(followed, planned=False)), begun)
            except ChangeLogError as error:
                failure = error
            yield followed, failure

    def lose_taken_over(self) -> None:
        """During recovery: ends those, since the clients may have what the store computed."""
        for followed, _ in self.taken_over():
            self.forget(followed.spuid)
            self.resumables.lose(followed, BY_ORDER)

    def forget(self, spuid: str) -> None:
        """Ends one. Does nothing for one that has ended."""
        handle = self.resumables.end(spuid)
        if handle is not None:
            with suppress(UnknownSpuidError):  # the engine itself has ended it
                self._engine.unsubscribe(handle)

    def distrust(self, boot: str, *, lost: bool) -> None:
        """Ends all if clients may have seen what the log does not have: because it lost a part, or because the machine
        went down before records were synced. boot: of the machine from here on."""
        if lost or (boot != self._boot and self._durability != "fsync"):
            for _, handle in self.resumables.end_all():
                self._engine.unsubscribe(handle)
        self._boot = boot

    def restore(self, retained: Sequence[Retained], boot: str) -> None:
        """Takes up what a snapshot has. boot: of the machine that wrote it."""
        self._boot = boot
        for one in retained:
            if one.lost:
                self.resumables.lose(one.followed, one.lost)
            else:
                self._again(one.followed, partial(self.resumables.restore, one))

    def state(self) -> list[Retained]:
        """What a snapshot has to hold. Comparisons with the clock begin again with the instant of the snapshot."""
        instant = iso(self._engine.instant) if self._engine.timetable.conditions else ""
        return [
            msgspec.structs.replace(one, followed=msgspec.structs.replace(one.followed, instant=instant))
            if one.followed.instant
            else one
            for one in self.resumables.state()
        ]

    def _again(self, followed: Followed, begin: Callable[[str], None]) -> None:
        """Subscribes to one as it was. begin: is given the engine's spuid."""
        if not outlives_process(followed):
            self.resumables.lose(followed, BY_ORDER)
            return
        try:
            if followed.instant:
                self._engine.reach(moment(followed.instant))
            subscription = subscribe_as_followed(
                self._engine, followed, Access(FULL.read, FULL.write, visible_graphs(followed))
            )
        except GatewayError as error:
            logger.error("subscription cannot be resumed", spuid=digits(followed.spuid), reason=error)
            self.resumables.lose(
                followed, f"the gateway was restarted, and the subscription could not begin again: {error}"
            )
        else:
            begin(subscription.spuid)
            self.lose_taken_over()


def subscribe_as_followed(
    engine: Engine, followed: Followed, access: Access, *, tried_first: bool = False
) -> Subscription:
    """The engine's subscription. tried_first: as in `Engine.subscribe`. Raises GatewayError, StoreError for whatever is
    not expected."""
    try:
        return engine.subscribe(
            followed.sparql,
            default_graphs=followed.default_graphs,
            named_graphs=followed.named_graphs,
            access=access,
            tried_first=tried_first,
        )
    except GatewayError:
        raise
    except Exception as error:
        logger.exception("subscription evaluation failed")
        raise StoreError(f"the subscription could not be evaluated: {error!r}") from error
