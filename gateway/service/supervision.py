"""Services under systemd: readiness after a first end-to-end query, watchdog, reload on SIGHUP.

A step through the engine's own queue, released with its group like any other, feeds the watchdog. So the watchdog also
restarts a gateway whose event loop runs but whose queue is stalled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from lamplighter.engine.errors import ChangeLogError, GatewayError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.tables import count_text
from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.gates.local_call import check_answer
from lamplighter.gateway.gates.opening import Protection
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.service.adapter_process import background, on_hangup, turn_s
from lamplighter.gateway.service.reload import change
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.state.applications import Application
from lamplighter.gateway.systemd import Supervisor

logger = EventLogger(__name__)

_ASK_AGAIN_S = 1.0
_PROBE = "?query=ASK%20%7B%7D"


class ReadAgain(NamedTuple):
    """What a reload takes up."""

    settings: Settings
    applications: Sequence[Application]


Reread = Callable[[], ReadAgain]
"""Reads and checks the whole configuration again. Raises ConfigurationError."""


# --- the gateway ---------------------------------------------------------------------------------------------


class GatewayService:
    def __init__(
        self,
        service: Supervisor,
        runner: Runner,
        protection: Protection,
        addresses: Addresses,
        settings: Settings,
        reread: Reread | None,
    ) -> None:
        self._service = service
        self._runner = runner
        self._protection = protection
        self._addresses = addresses
        self._settings = settings
        self._reread = reread
        self._updates = 0
        self._updates_at = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Until cancelled."""
        hangup = asyncio.Event()
        async with on_hangup(hangup), asyncio.TaskGroup() as group:
            await self._first_step()
            self._service.ready(self._status())
            # After readiness: systemd counts the watchdog's time from then on, and a long replay before it is no fault.
            group.create_task(self._live(), name="watchdog")
            group.create_task(self._reload(hangup), name="reload")
            group.create_task(self._runner.figures.adapter_services.follow(), name="adapter services")

    @asynccontextmanager
    async def reloading(self, stop: asyncio.Event) -> AsyncIterator[None]:
        """Reloads on SIGHUP until left, without a supervisor, such as in the foreground. stop: see `background`."""
        hangup = asyncio.Event()
        async with on_hangup(hangup), background(self._reload(hangup), stop):
            yield

    async def _first_step(self) -> None:
        """An end-to-end query: by a socket of this gateway, through its queue, and back."""
        while True:
            try:
                # In a thread: it waits for an answer that this very event loop has to give.
                return await asyncio.to_thread(_check, self._addresses)
            except GatewayError as error:
                logger.warning("first query failed", reason=error)
                self._service.status(f"not ready, the first query failed: {error}")
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _live(self) -> None:
        while True:
            await self._runner.probe()
            self._service.alive()
            self._service.status(self._status())
            await asyncio.sleep(turn_s(self._service))

    def _status(self) -> str:
        now = asyncio.get_running_loop().time()
        figures = self._runner.figures.status()
        updates = figures["counters"]["updates"]
        # Two calls in the same moment, as after a reload, would divide by nothing.
        rate = (updates - self._updates) / max(now - self._updates_at, 1.0)
        self._updates, self._updates_at = updates, now
        return status_line(figures, rate, self._settings.gateway.durability)

    async def _reload(self, hangup: asyncio.Event) -> None:
        while True:
            await hangup.wait()
            # Before the files are read: a signal during the reading may mean a newer change, and has to be seen again.
            hangup.clear()
            self._service.reloading()
            try:
                if self._reread is not None:
                    # Files on a worn SD card may take seconds, in which updates go on.
                    again = await asyncio.to_thread(self._reread)
                    await self._apply(again.settings)
                    await self._runner.declarations.reload(again.applications)
            except ChangeLogError as error:  # what is not recorded yet is done before the next request
                logger.error("applications taken up, change log not writable", reason=error)
            except GatewayError as error:
                logger.error("configuration refused, keeping the previous one", reason=error)
            self._service.ready(self._status())

    async def _apply(self, wanted: Settings) -> None:
        found = change(self._settings, wanted)
        if found.settings != self._settings:  # the health also needs the tables of adapters and shipper
            await self._runner.apply(found.settings)
            self._protection.apply(found.settings)
        self._settings = found.settings
        warn_of_quotas(found.settings)
        logger.info("configuration reloaded", applied=",".join(found.applied) or "nothing")
        if found.waiting:
            logger.warning("configuration changes need a restart", keys=",".join(found.waiting))


def warn_of_quotas(settings: Settings) -> None:
    for one in overruled_quotas(settings):
        logger.warning("quota above the share of a client", quota=one.quota, room=one.room, share=one.share)


def _check(addresses: Addresses) -> None:
    """Raises UpstreamError, RefusedError."""
    query = urlsplit(addresses.query)
    check_answer(addresses.http_here or query.netloc, query.path + _PROBE)


def status_line(figures: dict[str, Any], rate: float, durability: str) -> str:
    """The status text of a gateway in `systemctl status`. figures: as of `GET /health`; rate: updates a second."""
    synced = {"fsync": "log synced", "interval": "log synced now and then", "off": "log not synced"}[durability]
    does = f"{count_text(figures['subscriptions'], 'subscription', ',')}, {rate:.1f} updates/s, "
    problems = figures["problems"]  # the worst component first
    if not problems:
        return f"{does}{synced}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0]}{more}; {does.rstrip(', ')}"


# A quota of one client, and the setting with the room of all that it is a part of.
SHARED = (
    ("quotas.delayed_max", "delayed.pending_max"),
    ("quotas.resumable_max", "resume.subscriptions_max"),
    ("quotas.connections_max", "http.connections_max"),
    ("quotas.connections_max", "websocket.connections_max"),
    ("quotas.outbox_bytes_max", "websocket.unsent_bytes_max"),
    ("quotas.retained_bytes_max", "resume.bytes_max"),
)


class Overruled(NamedTuple):
    """A quota that is larger than the share that one client can have: the share counts."""

    quota: str
    room: str
    share: int


def overruled_quotas(settings: Settings) -> list[Overruled]:
    """The quotas without effect. A file that has them still starts the gateway, since the shares hold anyway."""
    found = []
    for quota, room in SHARED:
        # One client has at most half of a room, so that there is always one for others.
        share = (_value(settings, room) + 1) // 2
        if _value(settings, quota) > share:
            found.append(Overruled(quota, room, share))
    return found


def _value(settings: Settings, name: str) -> int:
    table, _, key = name.partition(".")
    return int(getattr(getattr(settings, table), key))
