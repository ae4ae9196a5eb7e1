"""Builds the processes from their parts: the gateway, and each adapter, alone or all in one."""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import ctypes
import gc
import resource
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from typing import Any

from lamplighter.adapters.specs import ADAPTERS, AdapterSpec
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.addresses import Addresses, write_assigned
from lamplighter.gateway.clock import MachineClock
from lamplighter.gateway.gates.apis import Api, ApiContext, api_headers, apis
from lamplighter.gateway.gates.http.documents import DOCUMENTS
from lamplighter.gateway.gates.http.gate import http_gate
from lamplighter.gateway.gates.http.mapping import MappingRequests
from lamplighter.gateway.gates.http.messages import MessageRequests
from lamplighter.gateway.gates.http.page import PAGE
from lamplighter.gateway.gates.http.resources import resources_path
from lamplighter.gateway.gates.listeners import HANDSHAKES_MAX
from lamplighter.gateway.gates.opening import Gates, Protection
from lamplighter.gateway.gates.outbox import SendBudget
from lamplighter.gateway.gates.websocket import websocket_gate
from lamplighter.gateway.local_time.service import LocalTime
from lamplighter.gateway.log.writer import LogWriter, Recovery
from lamplighter.gateway.loop.recovery_attempt import RecoveryAttempt, recover_with_retries
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.upkeep import COLLECTED_AFTER
from lamplighter.gateway.monitoring.health.machine import MachineComponents
from lamplighter.gateway.page.assets import built_assets
from lamplighter.gateway.page.documents import built_documents
from lamplighter.gateway.service.adapter_process import (
    NOBODY,
    AdapterConfiguration,
    background,
    run_adapter,
    stop_on_signals,
)
from lamplighter.gateway.service.configuration import Configuration
from lamplighter.gateway.service.settings_check import SettingsCheck
from lamplighter.gateway.service.supervision import GatewayService, Reread, warn_of_quotas
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.systemd import Supervisor, mark_lines

__all__ = [
    "allow_files",
    "collect_rarely",
    "run_gateway",
    "share_heap",
    "small_tls_buffers",
    "stop_on_signals",
]

logger = EventLogger(__name__)

_M_ARENA_MAX = -8  # malloc.h
_TLS_BYTES = 64 * 1024
_OWN_FILES = 256  # open files of the process besides its connections, with reserve: log, store, readers, adapters
ADAPTERS_S = 10.0  # how long the start of a gateway with adapters waits for their peers


def allow_files(settings: Settings) -> None:
    """Raises the limit of open files for the connections of both gates; the usual limit of 1024 is too low."""
    wanted = settings.http.connections_max + settings.websocket.connections_max + 2 * HANDSHAKES_MAX + _OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < wanted:
            logger.warning("open file limit too low for all connections", wanted=wanted, allowed=allowed)


def share_heap() -> None:
    """Makes all threads use one heap (glibc, mallopt(3)): memory that one thread frees serves the others, and
    occasional threads do not add a heap each."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def small_tls_buffers() -> None:
    """Makes connections with TLS read 64 KiB at once: asyncio allocates the read buffer of each connection, by default
    256 KiB, also for idle ones."""
    asyncio.sslproto.SSLProtocol.max_size = _TLS_BYTES


def collect_rarely() -> None:
    """Exempts the objects of the start from garbage collection, and makes it less frequent."""
    # Called when all is loaded. A full collection visits every object and blocks the process: 120 ms with 1,000
    # sockets, about every 20,000 notifications, without finding garbage. Measured with 1,000 subscribers: the last one
    # is notified after 25 ms instead of 32, and at p99 after 40 instead of 200. So cycles must not refer to much
    # memory: some hundred thousand of their objects may wait. Requests that were refused, plans and connections leave
    # none with texts in them (`engine.errors.bare`; the tests are test_garbage.py in tests/gateway/service/ and
    # tests/whole_gateway/service/).
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER, 10, 10)


async def run_gateway(
    configuration: Configuration,
    stop: asyncio.Event,
    ready: Callable[[Addresses, Recovery], None],
    *,
    adapters: bool,
    service: Supervisor = NOBODY,
    reread: Reread | None = None,
    unheard: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """The gateway process, until `stop`; with its adapters in it when asked for.

    ready: called once everything is served and the adapters have reached their peers, or tried for `ADAPTERS_S`;
    reread: reads the configuration again; unheard: entered for the recovery, which blocks the event loop and its signal
    handlers. Raises ConfigurationError when it cannot start, ChangeLogError when the disk fails.
    """
    settings = configuration.settings
    # Recovery blocks the loop, so a stop must not wait for its handlers.
    with unheard():
        protection, runner, recovery = _recover(configuration, service)
    orderly = False
    try:
        gates = protection.open(service.sockets())
        # The loop is left last: requests that were accepted are answered.
        async with background(runner.run(), stop), _serve(runner, configuration, gates, stop):
            protection.when_changed(lambda client: runner.permissions_changed(client))
            runner.figures.addresses = vars(gates.addresses)
            runner.figures.health.own.validity = protection.validity
            if service.active:  # a gateway that somebody tries by hand says nothing of their machine
                machine = MachineComponents(configuration.data)
                runner.figures.health.sources.append(machine)
                runner.figures.machine = machine.figures
            async with AsyncExitStack() as beside:
                if adapters:
                    enabled = [spec for spec in ADAPTERS if spec.is_enabled(getattr(settings, spec.table))]
                    tried = {spec: asyncio.Event() for spec in enabled}
                    here = _run_adapters(configuration, gates.addresses.here, reread, tried)
                    await beside.enter_async_context(background(here, stop))
                    await _until_tried(tried.values(), stop)
                supervised = GatewayService(service, runner, protection, gates.addresses, settings, reread)
                if reread is not None and not service.active:
                    await beside.enter_async_context(supervised.reloading(stop))
                # Behind the adapters, so that a reading which is sent once the gateway is ready is not lost.
                ready(gates.addresses, recovery)
                if service.active:
                    await beside.enter_async_context(background(supervised.run(), stop))
                await stop.wait()
                service.stopping("stopping, finishing requests in progress")
        orderly = True
    finally:
        runner.close(orderly=orderly)


def _recover(configuration: Configuration, service: Supervisor) -> tuple[Protection, Runner, Recovery]:
    """The parts of a gateway, in the state of the last run. Raises ConfigurationError, ChangeLogError."""
    # The time depends on the log behind the newest snapshot.
    return recover_with_retries(
        lambda attempt: _recovered_once(configuration, service, attempt), configuration.data / "log"
    )


def _recovered_once(
    configuration: Configuration, service: Supervisor, attempt: RecoveryAttempt
) -> tuple[Protection, Runner, Recovery]:
    """attempt: the findings of earlier tries. Raises ReplayError too."""
    settings = configuration.settings
    warn_of_quotas(settings)
    clock = MachineClock(settings.gateway.clock_trusted)
    log = LogWriter(configuration.data, clock, settings.gateway.durability)
    # The lock of the data folder before all else: two gateways must not read the same key files.
    log.open()
    mark_lines(GATEWAY=log.gateway)
    try:
        write_assigned(configuration.data, configuration.assigned)
    except OSError as error:  # such as of a full disk
        logger.warning("settings of the command line not written", folder=configuration.data, reason=error.strerror)
    service.status("starting, reading the newest snapshot")
    try:
        protection = Protection(settings, configuration.folder, configuration.data, clock, log.disk)
        runner = Runner(settings, log, configuration.applications, protection.access_of, attempt, configuration.shapes)
    except BaseException:
        log.close()
        raise
    try:
        recovery = runner.recover(service.recovering)
        logger.info("recovered", records=recovery.records, epoch=log.epoch, sequence=log.sequence)
    except BaseException:
        with suppress(Exception):  # the dataset may be unwritable
            runner.close(orderly=False)
        raise
    return protection, runner, recovery


@asynccontextmanager
async def _serve(
    runner: Runner, configuration: Configuration, gates: Gates, stop: asyncio.Event
) -> AsyncIterator[None]:
    """Serves both gates and the doors until left."""
    settings = configuration.settings
    mapping = MappingRequests(runner, configuration.folder / "mapping")
    messages = MessageRequests(runner, mapping)
    checking = SettingsCheck(configuration.options)
    send_budget = SendBudget(settings.websocket.unsent_bytes_max)
    context = ApiContext(
        runner,
        settings,
        configuration.folder,
        configuration.data,
        runner.applications,
        gates.gatekeeper,
        send_budget,
        gates.addresses.page,
    )
    api_list = apis(context)
    async with (
        websocket_gate(runner, settings, gates.websocket, gates.gatekeeper, gates.browsers, send_budget, gates.prefix),
        http_gate(
            runner,
            settings.http,
            _about(settings, gates.addresses.subscribe, api_list),
            gates.http,
            gates.gatekeeper,
            gates.browsers,
            subscribe_at=gates.addresses.subscribe,
            folder=configuration.folder,
            routes=[
                *gates.routes,
                mapping.route,
                *messages.routes,
                checking.route,
                *(route for door in api_list for route in door.routes()),
            ],
            prefix=gates.prefix,
            base_iri=settings.gateway.base_iri,
            headers=api_headers(settings),
        ),
        AsyncExitStack() as stack,
    ):
        local_time = LocalTime(runner)
        runner.figures.health.sources.append(local_time)
        await stack.enter_async_context(background(local_time.keep(), stop))
        for door in api_list:
            await stack.enter_async_context(background(door.run(), stop))
        yield


def _about(settings: Settings, subscribe_at: str, api_list: Iterable[Api]) -> str:
    http = settings.http
    rows = [
        (PAGE, "the web page" if built_assets() else "the web page, once gateway/page/build.sh has built it"),
        (DOCUMENTS, "the documents" if built_documents() else "the documents, once make docs has built them"),
        (http.query_path, "SPARQL 1.1 query (GET, POST); ?at=<record or time> queries a past dataset"),
        (http.update_path, "SPARQL 1.1 update (POST); ?delay=PT30S or ?at=<xsd:dateTime> delays it"),
        (http.graph_store_path, "Graph Store HTTP Protocol: ?default, ?graph=<IRI>, or a path below it"),
        ("/delayed", "pending delayed updates; DELETE /delayed/<id> cancels one"),
        ("/subscriptions", "subscriptions of clients and applications, with their class"),
        ("/health", "health and figures"),
        ("/ready", "readiness: 200 while updates are accepted"),
        ("/figures", "monitoring figures: counts and times"),
        ("/metrics", "the same for Prometheus"),
        ("/devices", "devices; POST a decision about one to /devices/<id>"),
        ("/messages", "the last messages of a device, and what mapping rules make of them: ?device=<id>"),
        ("/messages/unread", "topics that no mapping rule reads, with their last message and a proposed rule"),
        ("/applications", "applications; PUT and DELETE /applications/<name> change and remove one"),
        ("/templates", "templates of applications; POST values to /templates/<name> to make one"),
        ("/names", "names that people gave to devices, their parts and rooms: ?kind=, ?search="),
        ("/log", "records of the change log: ?last=N, ?from=SEQ&to=SEQ, ?after=SEQ&wait=S"),
        ("/mapping/try", "what mapping rules make of a message (POST)"),
        ("/settings/check", "what `lamplighter check` says of the files of this gateway"),
        ("/history", "past values of a reading: ?name=<name>&since=24h"),
        ("/logbook", "what happened, in words: ?last=N"),
        ("/explain", "why an actuator was switched: ?actuation=<IRI>; ?last=N lists the newest actuations"),
        ("/backup", "backup of dataset and state in one file; POST it to /restore to restore it"),
    ]
    rows += [row for door in api_list for row in door.about()]
    below = resources_path(settings.gateway.base_iri)
    if below is not None:
        rows.append((f"{below}...", f"what the dataset says about {settings.gateway.base_iri}..."))
    width = max(len(path) for path, _ in rows)
    return (
        "Lamplighter, a semantic edge gateway\n\n"
        + "".join(f"  {path:<{width}}  {text}\n" for path, text in rows)
        + f"\nSubscribe over WebSocket at {subscribe_at}\n"
    )


async def _until_tried(tried: Iterable[asyncio.Event], stop: asyncio.Event) -> None:
    """Waits for the adapters. tried: each is set when an adapter has reached its peer, or could not."""
    # Tasks of their own, as `gather` cannot be given a time-out and a stop at once.
    waiting = [asyncio.ensure_future(event.wait()) for event in tried]
    stopped: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    both: asyncio.Future[Any] = asyncio.gather(*waiting)
    try:
        await asyncio.wait([both, stopped], timeout=ADAPTERS_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        both.cancel()
        await asyncio.gather(both, stopped, return_exceptions=True)


async def _run_adapters(
    configuration: Configuration, url: str, reread: Reread | None, tried: dict[AdapterSpec, asyncio.Event]
) -> None:
    """Runs these adapters in this process; SIGHUP reloads their configuration. tried: see `_until_tried`."""
    again = None
    if reread is not None:
        read = reread
        again = lambda: AdapterConfiguration.of(read().settings, configuration.folder, url)  # noqa: E731

    own = AdapterConfiguration.of(configuration.settings, configuration.folder, url)
    async with asyncio.TaskGroup() as group:
        for spec, event in tried.items():
            group.create_task(run_adapter(spec, own, NOBODY, again, event))
        group.create_task(asyncio.Event().wait())  # without any, there is nothing to do
