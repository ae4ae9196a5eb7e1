"""Resumable subscriptions of the running gateway: the engine's subscription of each, as the records say.

A live request subscribes first, since that may fail, and appends its record then: `begins` says which subscription the
record is about. During recovery there is none, and `follow` subscribes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Generic

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.change_log import Followed, Record
from lamplighter.engine.core import Engine, Subscription
from lamplighter.engine.errors import GatewayError, StoreError, UnknownSpuidError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.settings import Durability
from lamplighter.gateway.state.resumption import (
    ResumableSubscriptions,
    Retained,
    Sink,
    digits,
    outlives_process,
    seen,
)

logger = EventLogger(__name__)


class Resuming(Generic[Sink]):
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
        self._beginning: tuple[str, Sink] | None = None

    def follow(self, record: Record) -> None:
        """Begins or ends what a record says. Ends all where clients may have seen more than the log has."""
        lost = record.gap is not None and record.gap.last is None
        if lost or record.boot != self._boot:
            self.distrust(record.boot, lost=lost)
        if record.subscribe is not None:
            if self._beginning is None:
                self._again(record.subscribe, partial(self.resumables.begin, record.subscribe))
            else:
                self.resumables.begin(record.subscribe, *self._beginning)
        if record.unsubscribe is not None:
            self.forget(record.unsubscribe)

    @contextmanager
    def begins(self, handle: str, sink: Sink) -> Iterator[None]:
        """The record that is appended inside is about the engine's subscription of that handle."""
        self._beginning = handle, sink
        try:
            yield
        finally:
            self._beginning = None

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
            self._again(one.followed, partial(self.resumables.restore, one))

    def state(self) -> list[Retained]:
        """What a snapshot has to hold."""
        return self.resumables.state()

    def _again(self, followed: Followed, begin: Callable[[str], None]) -> None:
        """Subscribes to one as it was. begin: is given the engine's spuid."""
        if not outlives_process(followed.sparql):
            return
        try:
            subscription = subscribed(self._engine, followed, Access(FULL.read, FULL.write, seen(followed)))
        except GatewayError as error:
            logger.error("subscription cannot be resumed", spuid=digits(followed.spuid), reason=error)
        else:
            begin(subscription.spuid)


def subscribed(engine: Engine, followed: Followed, access: Access) -> Subscription:
    """The engine's subscription. Raises GatewayError, StoreError for whatever is not expected."""
    try:
        return engine.subscribe(
            followed.sparql,
            default_graphs=followed.default_graphs,
            named_graphs=followed.named_graphs,
            access=access,
        )
    except GatewayError:
        raise
    except Exception as error:
        logger.exception("subscription evaluation failed")
        raise StoreError(f"the subscription could not be evaluated: {error!r}") from error
