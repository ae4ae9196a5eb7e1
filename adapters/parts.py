"""What an adapter is made from: read and checked before it starts, and again at each reload."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lamplighter.adapters.model.last_messages import LastMessages
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


class AdapterContext(NamedTuple):
    """What an adapter gets from its process. tried: set when its peer has accepted its subscription or is unreachable;
    None: the adapter makes it. trusted: whether the gateway's clock is synchronised."""

    client: EngineClient
    last: LastMessages
    trusted: Callable[[], bool]
    tried: asyncio.Event | None = None


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


ReadParts = Callable[[AdapterInput], AdapterParts]
"""Raises ConfigurationError."""
