"""Runs each adapter as a process, `python -m lamplighter.gateway.service.adapter_process mqtt` or such.

Such a process loads neither store nor gates, which would double its memory. It reads only the tables that concern it;
`lamplighter check` checks all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamplighter.adapters.parts import Adapter, AdapterContext, AdapterInput, AdapterParts, ReadParts
from lamplighter.adapters.specs import ADAPTERS, AdapterSpec
from lamplighter.cloud_sync.settings import Trust, clock_trusted
from lamplighter.engine.errors import ConfigurationError, GatewayError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.addresses import local_url
from lamplighter.gateway.settings import Settings, read_settings
from lamplighter.gateway.systemd import Supervisor, set_up_logging

logger = EventLogger(__name__)

NOBODY = Supervisor({})  # for processes without a supervisor
# How long a starting service waits for the gateway. Then it reports ready, and its status says what it waits for.
FIRST_STEP_S = 60.0
# Additional container objects between two garbage collections: a few MB. A batch of messages makes thousands, none of
# them in cycles.
_COLLECTED_AFTER = 10_000
STATUS_S = 10.0  # interval of the status text, unless the watchdog needs a shorter one


# --- configuration --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AdapterConfiguration:
    """The configuration of the adapters. tables: theirs, by name; folder: where mapping/ is; data: of the gateway; url:
    where they subscribe; secure: as enabled in `[security]`; clock_trusted: as in `[gateway]`."""

    tables: Mapping[str, Any]
    base_iri: str
    folder: Path
    data: Path
    url: str
    log_level: str
    secure: bool
    clock_trusted: Trust = "auto"

    @classmethod
    def of(cls, settings: Settings, folder: Path, url: str) -> AdapterConfiguration:
        gateway = settings.gateway
        tables = {spec.table: getattr(settings, spec.table) for spec in ADAPTERS}
        data, secure = folder / gateway.data, settings.security.enabled
        return cls(tables, gateway.base_iri, folder, data, url, gateway.log_level, secure, gateway.clock_trusted)


# The tables of lamplighter.toml that an adapter needs. The gateway checks the others.
TABLES = ("gateway", "websocket", "security", *(spec.table for spec in ADAPTERS))


def read_configuration(config: Path) -> AdapterConfiguration:
    """Raises ConfigurationError."""
    settings = read_settings(config, TABLES)
    return AdapterConfiguration.of(settings, config.parent, local_url(settings, config.parent / settings.gateway.data))


# --- running --------------------------------------------------------------------------------------------------


class _NotWantedError(ConfigurationError):
    """The settings are valid, but do not enable this adapter."""


Reread = Callable[[], AdapterConfiguration]  # reads the configuration again. Raises ConfigurationError.


async def run_adapter(
    spec: AdapterSpec,
    configuration: AdapterConfiguration,
    service: Supervisor = NOBODY,
    reread: Reread | None = None,
    tried: asyncio.Event | None = None,
) -> None:
    """An adapter, until cancelled, or with `reread` until the settings disable it. tried: see `AdapterContext`. Raises
    ConfigurationError if the configuration cannot be used, or a package is missing."""
    from lamplighter.engine.client import EngineClient  # a gateway without adapters loads none of it

    def parts(now: AdapterConfiguration) -> AdapterParts:
        settings = now.tables[spec.table]
        if not spec.is_enabled(settings):
            raise _NotWantedError(spec.reason)
        # Only here is the adapter loaded: a disabled one needs no package, and no process loads the others.
        read: ReadParts = spec.load_parts()
        return read(AdapterInput(spec, settings, now.base_iri, now.folder, now.data, now.secure, service.credential))

    trust = configuration.clock_trusted
    async with EngineClient(configuration.url, name=spec.name) as client:
        context = AdapterContext(client, trusted=lambda: clock_trusted(trust), tried=tried or asyncio.Event())
        # Offered to the gateway, which asks for the last message of a topic, and for topics that no rule reads.
        client.offer_messages(context.last.find, context.unread.find)
        if reread is None:
            await parts(configuration).adapter(context, None).run()
        else:
            again = reread
            await AdapterService(service, context, lambda: parts(again())).run(parts(configuration))


def turn_s(service: Supervisor) -> float:
    """Seconds between two watchdog signals: a third of the limit, so that one may be late."""
    return STATUS_S if service.watchdog_s is None else min(STATUS_S, service.watchdog_s / 3)


_ON_HANGUP: set[asyncio.Event] = set()  # of the parts of this process that reload


@asynccontextmanager
async def on_hangup(asked: asyncio.Event) -> AsyncIterator[None]:
    """Makes SIGHUP set an event. Several parts of a process may do so at once."""
    # The end of the terminal sends SIGHUP, too. It ends the process, as it would without a handler.
    loop = asyncio.get_running_loop()
    # A process that was started without a terminal cannot lose it: then SIGHUP is a reload.
    had_terminal = _has_terminal()

    def hung_up() -> None:
        if had_terminal and not _has_terminal():
            signal.raise_signal(signal.SIGTERM)
        for event in _ON_HANGUP:
            event.set()

    if not _ON_HANGUP:
        loop.add_signal_handler(signal.SIGHUP, hung_up)
    _ON_HANGUP.add(asked)
    try:
        yield
    finally:
        _ON_HANGUP.discard(asked)
        if not _ON_HANGUP:
            loop.remove_signal_handler(signal.SIGHUP)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


class AdapterService:
    """An adapter that follows its configuration. It restarts when its parts have changed, and stops when it is
    disabled. parts: reads and checks them again, raises ConfigurationError."""

    def __init__(self, service: Supervisor, context: AdapterContext, parts: Callable[[], AdapterParts]) -> None:
        self._service = service
        self._context = context
        self._parts = parts
        self._answered = False

    async def run(self, parts: AdapterParts) -> None:
        """Runs until cancelled, until the adapter ends, or until the settings disable it. parts: the first ones."""
        hangup = asyncio.Event()
        current: AdapterParts | None = parts
        before: AdapterParts | None = None
        async with on_hangup(hangup):
            while current is not None:
                adapter = current.adapter(self._context, before)
                running = asyncio.ensure_future(adapter.run())
                living = asyncio.ensure_future(self._live(adapter))
                try:
                    before, current = await self._await_restart(adapter, hangup, current, [running, living])
                finally:
                    for task in (running, living):
                        task.cancel()
                    await asyncio.gather(running, living, return_exceptions=True)

    async def _await_restart(
        self, adapter: Adapter, hangup: asyncio.Event, parts: AdapterParts, tasks: list[asyncio.Future[Any]]
    ) -> tuple[AdapterParts, AdapterParts | None]:
        """Waits for a configuration that needs a restart. Returns the parts that the adapter has by then, and the new
        ones, None if it is disabled. Raises the error that ends a task."""
        while True:
            asked: asyncio.Future[Any] = asyncio.ensure_future(hangup.wait())
            try:
                done, _ = await asyncio.wait([asked, *tasks], return_when=asyncio.FIRST_COMPLETED)
            finally:
                asked.cancel()
            for task in tasks:
                if task in done:
                    await task
                    raise UpstreamError("the adapter ended")
            hangup.clear()
            # systemd waits for the READY that follows, so each way out of here must send one.
            self._service.reloading()
            try:
                # In a thread: reading many rules takes long, and the loop feeds the watchdog.
                new = await asyncio.to_thread(self._parts)
                if new == parts:
                    logger.info("configuration reloaded", applied="nothing")
                # Other rules need no new connection, so no messages wait or are lost.
                elif new.adopt(adapter, parts):
                    logger.info("configuration reloaded", applied="mapping")
                    parts = new
                else:
                    logger.info("configuration reloaded, adapter restarts", applied="all")
                    self._service.ready("restarting with the new configuration")
                    return parts, new
            except _NotWantedError as error:
                logger.info("configuration reloaded, adapter stops", reason=error)
                self._service.ready("disabled by the configuration")  # which ends the reload
                self._service.stopping("disabled by the configuration")
                return parts, None
            except GatewayError as error:
                logger.error("configuration refused, keeping the previous one", reason=error)
            self._service.ready("configuration reloaded")

    async def _live(self, adapter: Adapter) -> None:
        """Feeds the watchdog while the loop runs. Unreachable peers are reported, and do not stop the adapter."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._first_step(adapter), name="first step")
            while True:
                self._service.alive()
                self._service.status(self._status(adapter))
                await asyncio.sleep(turn_s(self._service))

    async def _first_step(self, adapter: Adapter) -> None:
        """Reports ready when both peers are reached, or after `FIRST_STEP_S`, so that a start does not wait longer."""
        meeting = asyncio.ensure_future(self._meet(adapter))
        try:
            # Units behind this one must not wait for a broker that is off.
            await asyncio.wait([meeting], timeout=FIRST_STEP_S)
            if meeting.done():
                await meeting
            self._service.ready(self._status(adapter))
            await meeting
        finally:
            meeting.cancel()

    async def _meet(self, adapter: Adapter) -> None:
        """Waits until both peers are reached; a query to an unreachable gateway is sent when it is back."""
        # A connection alone says little: a gateway that recovers accepts it and does not answer.
        await self._context.client.ask("ASK {}")
        self._answered = True
        await adapter.tried.wait()

    def _status(self, adapter: Adapter) -> str:
        there = self._context.client.connected and self._answered
        return f"{'' if there else 'waiting for the gateway; '}{adapter.status()}"


# --- processes ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def background(work: object, stop: asyncio.Event) -> AsyncIterator[None]:
    """Runs a coroutine beside the body; sets `stop` when it ends early, and then raises its error."""
    assert asyncio.iscoroutine(work)
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda _: stop.set())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await _result_of(task)


async def _result_of(task: asyncio.Future[None]) -> None:
    """Waits for a task; a group of one exception is raised as that one."""
    try:
        await task
    except BaseExceptionGroup as group:
        error: BaseException = group
        # So that the message is that of the one error, not "unhandled errors in a TaskGroup".
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None


def stop_on_signals() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Makes SIGINT and SIGTERM end the process at once, by their default action; afterwards restores the handlers."""
    # For crash-safe work that blocks the event loop, where the event of `stop_on_signals` could be read only minutes
    # later.
    # The default action needs no Python: it also ends native code.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
            signal.siginterrupt(number, False)  # as asyncio sets it


def serve(spec: AdapterSpec, configuration: AdapterConfiguration, reread: Reread) -> None:
    """Runs an adapter until it ends or is stopped. Raises ConfigurationError."""

    gc.set_threshold(_COLLECTED_AFTER, 10, 10)

    async def run() -> None:
        stop = stop_on_signals()
        async with background(run_adapter(spec, configuration, Supervisor(os.environ), reread), stop):
            await stop.wait()

    asyncio.run(run())


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 well, 2 wrong use or configuration."""
    parser = argparse.ArgumentParser(
        prog="python -m lamplighter.gateway.service.adapter_process", description="Runs one adapter."
    )
    parser.add_argument("adapter", choices=[spec.name for spec in ADAPTERS])
    parser.add_argument("--config", type=Path, required=True, help="lamplighter.toml")
    options = parser.parse_args(arguments)
    set_up_logging(os.environ)

    def read() -> AdapterConfiguration:
        configuration = read_configuration(options.config)
        logging.getLogger().setLevel(configuration.log_level.upper())
        return configuration

    try:
        with Supervisor(os.environ).failures():
            serve(next(spec for spec in ADAPTERS if spec.name == options.adapter), read(), read)
    except GatewayError as error:
        print(f"lamplighter: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
