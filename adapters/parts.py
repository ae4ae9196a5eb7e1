"""What an adapter is made from: read and checked before it starts, and again at each reload."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lamplighter.adapters.model.last_messages import LastMessages
from lamplighter.adapters.model.unread import UnreadMessages
from lamplighter.adapters.specs import AdapterSpec

if TYPE_CHECKING:  # a gateway without adapters loads no client
    from lamplighter.engine.client import EngineClient


@dataclass(frozen=True)
class AdapterInput:
    """What an adapter reads its parts from.

    settings: its table; folder: where mapping/ and apps/ are; data: of the gateway; secure: as enabled in
    ``[security]``; credential: the file of a credential of its service, None if there is none of that name.
    """

    spec: AdapterSpec
    settings: Any
    base_iri: str
    folder: Path
    data: Path
    secure: bool
    credential: Callable[[str], Path | None]


@dataclass(frozen=True)
class AdapterContext:
    """What an adapter gets from its process.

    base_iri: where it keeps what it knows of devices, its counters and its health as triples; empty: nowhere. now:
    returns the time, with a time zone; elapsed: seconds of a monotonic clock; trusted: whether the gateway's clock is
    synchronised. last: keeps the last message of each topic or resource; unread: those of topics and resources that no
    rule reads. tried: set when its peer has accepted its subscription or is unreachable.
    """

    client: EngineClient
    base_iri: str = ""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    elapsed: Callable[[], float] = time.monotonic
    trusted: Callable[[], bool] = lambda: True
    last: LastMessages = field(default_factory=LastMessages)
    unread: UnreadMessages = field(default_factory=UnreadMessages)
    tried: asyncio.Event = field(default_factory=asyncio.Event)


class Adapter(Protocol):
    """One of the adapters. tried: see `AdapterContext`."""

    tried: asyncio.Event

    async def run(self) -> None: ...

    def status(self) -> str:
        """Its status, for people."""
        ...


class AdapterParts(Protocol):
    """A value: the adapter restarts if it changes, unless the running one can adopt it."""

    def adapter(self, context: AdapterContext, before: Any) -> Adapter:
        """A new adapter. before: the parts of the previous one, None at the start."""
        ...

    def adopt(self, running: Any, before: Any) -> bool:
        """Whether a running adapter, made from `before`, has taken these parts."""
        ...


# Raises ConfigurationError.
ReadParts = Callable[[AdapterInput], AdapterParts]
