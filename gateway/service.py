"""Builds the processes from their parts: the gateway, and each adapter, alone or all in one."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from adapters.coap.adapter import CoapAdapter
from adapters.mqtt.adapter import MqttAdapter
from adapters.mqtt.mapping import load_mapping
from engine.client import EngineClient
from engine.errors import ConfigurationError
from gateway.apps import Application, load_applications
from gateway.clock import MachineClock
from gateway.http_gate import http_gate
from gateway.log_writer import LogWriter, Recovery
from gateway.runner import Runner
from gateway.settings import Settings, read_settings
from gateway.websocket_gate import PATH, websocket_gate

logger = logging.getLogger(__name__)

_M_ARENA_MAX = -8  # malloc.h


@dataclass(frozen=True)
class Configuration:
    """Everything that is read before anything starts. folder: where mapping/ and apps/ are."""

    settings: Settings
    folder: Path
    data: Path
    applications: list[Application]

    @classmethod
    def read(cls, config: Path | None, data: Path | None) -> Configuration:
        """Reads and checks all of it: settings, mapping rules, applications. Raises ConfigurationError."""
        settings = read_settings(config)
        folder = config.parent if config else Path()
        rules = load_mapping(folder / "mapping", settings.gateway.base_iri)
        if settings.mqtt.host and not rules.filters:
            raise ConfigurationError(f"mqtt.host is set, but {folder / 'mapping'} has no [[stream]] rule; add one")
        return cls(
            settings,
            folder,
            data or folder / settings.gateway.data,
            load_applications(folder / "apps"),
        )


@dataclass(frozen=True)
class Addresses:
    """Where a running gateway is to be found."""

    query: str
    update: str
    subscribe: str
    delayed: str
    health: str

    @classmethod
    def of(cls, settings: Settings, http_port: int, websocket_port: int) -> Addresses:
        http = f"http://{settings.http.host}:{http_port}"
        return cls(
            query=f"{http}/query",
            update=f"{http}/update",
            subscribe=f"ws://{settings.websocket.host}:{websocket_port}{PATH}",
            delayed=f"{http}/delayed",
            health=f"{http}/health",
        )

    def table(self) -> str:
        """One address a line, to copy from."""
        return "".join(f"  {name:<10} {url}\n" for name, url in vars(self).items())


def share_heap() -> None:
    """Has all threads use one heap (glibc, mallopt(3)): what a thread has freed serves the others, and a process that
    works in threads now and then does not grow by a heap for each of them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


async def run_gateway(
    configuration: Configuration,
    stop: asyncio.Event,
    ready: Callable[[Addresses, Recovery], None],
    *,
    adapters: bool,
) -> None:
    """The gateway process, until `stop`; with its adapters in it when asked for.

    ready: called once everything is served. Raises ConfigurationError when it cannot start, ChangeLogError when
    the disk gives up.
    """
    settings = configuration.settings
    clock = MachineClock(settings.gateway.clock_trusted)
    log = LogWriter(configuration.data, clock, settings.gateway.durability)
    log.open()
    runner = Runner(settings, clock, log, configuration.applications)
    orderly = False
    try:
        recovery = runner.recover()
        logger.info("recovered records=%d epoch=%d sequence=%d", recovery.records, log.epoch, log.sequence)
        async with (
            _background(runner.run(), stop),
            websocket_gate(runner, settings.websocket) as websocket_port,
            http_gate(runner, settings.http, _about()) as http_port,
        ):
            addresses = Addresses.of(settings, http_port, websocket_port)
            if adapters:
                async with _background(_run_adapters(configuration, addresses.subscribe), stop):
                    ready(addresses, recovery)
                    await stop.wait()
            else:
                ready(addresses, recovery)
                await stop.wait()
        orderly = True
    finally:
        runner.close(orderly=orderly)


def _about() -> str:
    return (
        "Lamplighter, a semantic edge gateway\n\n"
        "  /query     SPARQL 1.1 query (GET, POST)\n"
        "  /update    SPARQL 1.1 update (POST); ?delay=PT30S or ?at=<xsd:dateTime> for later\n"
        "  /delayed   delayed updates that are pending; DELETE /delayed/<id> cancels one\n"
        "  /health    state and figures of the gateway\n"
        "  /metrics   the figures for Prometheus\n"
        "  /subscriptions  who waits for what, and how it is kept true\n"
        "  /backup    everything in one file; POST it to /restore to have it back\n\n"
        f"Subscriptions are taken by WebSocket at the path {PATH} of the other port.\n"
    )


@asynccontextmanager
async def _background(work: object, stop: asyncio.Event) -> AsyncIterator[None]:
    """Runs a coroutine beside the body; sets `stop` when it ends early, and then raises what ended it."""
    assert asyncio.iscoroutine(work)
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda _: stop.set())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await _unwrapped(task)


async def _unwrapped(task: asyncio.Future[None]) -> None:
    """Waits for a task; a group of one exception is raised as that one."""
    try:
        await task
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None


async def _run_adapters(configuration: Configuration, url: str) -> None:
    async with asyncio.TaskGroup() as group:
        if configuration.settings.mqtt.host:
            group.create_task(run_mqtt(configuration, url))
        if configuration.settings.coap.enabled:
            group.create_task(run_coap(configuration, url))
        group.create_task(asyncio.Event().wait())  # with neither, there is still nothing to do


async def run_mqtt(configuration: Configuration, url: str) -> None:
    """The MQTT adapter, until cancelled."""
    settings = configuration.settings
    rules = load_mapping(configuration.folder / "mapping", settings.gateway.base_iri)
    async with EngineClient(url, name="mqtt") as client:
        await MqttAdapter(settings.mqtt, rules, client).run()


async def run_coap(configuration: Configuration, url: str) -> None:
    """The CoAP adapter, until cancelled."""
    async with EngineClient(url, name="coap") as client:
        await CoapAdapter(configuration.settings.coap, client).run()


async def run_until(work: object, stop: asyncio.Event) -> None:
    """Runs a coroutine until it ends or `stop`."""
    async with _background(work, stop):
        await stop.wait()


def stop_on_signals() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
