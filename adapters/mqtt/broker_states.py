"""The state of each broker's connection, as triples.

::

    <base>broker/NAME a gateway:Broker ; rdfs:label "host:port" ;
        gateway:connected true|false ; gateway:since TIME ; gateway:reason "why it is not connected, or what is wrong"

They are written at the start and when a state changes, never periodically, because each update wears an SD card.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from lamplighter.adapters.client import UpdatesClient
from lamplighter.adapters.lasting_updates import write
from lamplighter.adapters.literals import FALSE, TRUE, datetime_term
from lamplighter.adapters.mqtt.settings import BrokerSettings
from lamplighter.engine.client import DeclaredCause
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import Term, iri, literal
from lamplighter.ontology.vocabulary import (
    CONNECTED,
    MESSAGE_BROKER,
    RDF_TYPE,
    RDFS_LABEL,
    REASON,
    SINCE,
    broker_iri,
)

REASON_CHARS_MAX = 300
PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 60.0
"""Between two updates. The pause doubles while states keep changing."""
STARTING = "the adapter starts"
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]+")

logger = EventLogger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerState:
    """connected: the broker has granted the subscriptions; since: when that became so; reason: why it is not
    connected, or what is wrong although it is."""

    connected: bool
    since: datetime
    reason: str


class BrokerStates:
    """Keeps the states of an adapter's brokers in the dataset. Only the newest state of a broker is written."""

    def __init__(
        self,
        client: UpdatesClient,
        base_iri: str,
        brokers: Mapping[str, BrokerSettings],
        clock: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._base_iri = base_iri
        self._brokers = brokers
        self._clock = clock
        self._states = {name: BrokerState(connected=False, since=clock(), reason=STARTING) for name in brokers}
        self._changed: set[str] = set()
        self._work = asyncio.Event()

    def changed(self, name: str, *, connected: bool, reason: str) -> None:
        """Notes the state of a broker; `run` writes it."""
        before = self._states[name]
        reason = _plain(reason) if reason or not connected else ""
        if (before.connected, before.reason) == (connected, reason):
            return
        since = before.since if before.connected is connected else self._clock()
        self._states[name] = BrokerState(connected, since, reason)
        self._changed.add(name)
        self._work.set()

    async def run(self) -> None:
        """Writes the states until cancelled. The first update removes those of earlier runs."""
        self._changed = set()
        await self._write([self.forgetting, *map(self.update, self._brokers)])
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_MIN_S
        while True:
            if not self._changed:
                self._work.clear()
            waited = loop.time()
            await self._work.wait()
            pause_s = next_pause_s(pause_s, loop.time() - waited)
            names, self._changed = sorted(self._changed), set()
            await self._write(list(map(self.update, names)))
            await asyncio.sleep(pause_s)

    @property
    def forgetting(self) -> str:
        """The update that removes the brokers of an earlier configuration."""
        return (
            f"DELETE {{ ?broker ?p ?o }} WHERE {{ ?broker a <{MESSAGE_BROKER}> ; ?p ?o "
            f"FILTER(STRSTARTS(STR(?broker), {literal(broker_iri(self._base_iri, ''))})) }}"
        )

    def update(self, name: str) -> str:
        """The update that replaces the state of a broker."""
        state, settings = self._states[name], self._brokers[name]
        node = iri(broker_iri(self._base_iri, name))
        values: list[tuple[str, Term]] = [
            (RDF_TYPE, iri(MESSAGE_BROKER)),
            (RDFS_LABEL, literal(f"{settings.host}:{settings.port}")),
            (CONNECTED, TRUE if state.connected else FALSE),
            (SINCE, datetime_term(state.since, "milliseconds")),
        ]
        if state.reason:
            values.append((REASON, literal(state.reason)))
        triples = " ; ".join(f"<{name}> {value}" for name, value in values)
        return f"DELETE WHERE {{ {node} ?p ?o }} ; INSERT DATA {{ {node} {triples} }}"

    async def _write(self, texts: Sequence[str]) -> None:
        """Returns when the gateway has taken or finally refused each update."""

        def refused(error: GatewayError) -> None:
            logger.error("mqtt broker state not stored", reason=error)

        await write(self._client, texts, DeclaredCause("mqtt", "brokers"), refused)


def next_pause_s(pause_s: float, quiet_s: float) -> float:
    """The pause after the next update. pause_s: the last one; quiet_s: how long no state has changed since then."""
    return PAUSE_MIN_S if quiet_s > pause_s else min(pause_s * 2, PAUSE_MAX_S)


def _plain(reason: str) -> str:
    """One line without the number of a system error; never empty."""
    line = _UNPRINTABLE.sub(" ", _ERRNO.sub("", reason)).strip()[:REASON_CHARS_MAX]
    return f"{line[:1].lower()}{line[1:]}" if line else "unknown"
