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
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec

from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.http.settings import HttpDevicesSettings
from lamplighter.adapters.modbus.settings import ModbusSettings
from lamplighter.adapters.model.last_messages import LastMessages
from lamplighter.adapters.mqtt.settings import BrokerSettings, MqttSettings
from lamplighter.cloud_sync.settings import Trust, clock_trusted
from lamplighter.engine.errors import ConfigurationError, GatewayError, JsapError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.addresses import local_url
from lamplighter.gateway.settings import Settings, read_settings
from lamplighter.gateway.systemd import Supervisor, set_up_logging

if TYPE_CHECKING:  # an adapter does not load what the other needs, and a gateway without adapters loads none of it
    from lamplighter.adapters.coap.adapter import CoapAdapter
    from lamplighter.adapters.mapping import CommandRule, PublishRule, ResourceRules, StreamRule
    from lamplighter.adapters.mapping.tables import Kind
    from lamplighter.adapters.modbus.protocol import ModbusProtocol
    from lamplighter.adapters.mqtt.adapter import MqttAdapter
    from lamplighter.adapters.networks import Networks
    from lamplighter.adapters.resources.polled import PolledProtocol
    from lamplighter.adapters.resources.polled_adapter import PolledAdapter
    from lamplighter.engine.client import EngineClient, Jsap

    _MqttPart = tuple[MqttSettings, str, Sequence[StreamRule], Sequence[CommandRule], Sequence[PublishRule]]

logger = EventLogger(__name__)

SomeBroker = TypeVar("SomeBroker", bound=BrokerSettings)

NOBODY = Supervisor({})
"""For processes without a supervisor."""
MQTT_PASSWORD = "lamplighter.mqtt-password"
"""The credential with the password where no file is named."""
FIRST_STEP_S = 60.0
"""How long a starting service waits for the gateway. Then it reports ready, and its status says what it waits for."""
_COLLECTED_AFTER = 10_000
"""Additional container objects between two garbage collections: a few MB. A batch of messages makes thousands, none of
them in cycles."""
STATUS_S = 10.0
"""Interval of the status text, unless the watchdog needs a shorter one."""


# --- configuration --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AdapterConfiguration:
    """The configuration of an adapter. folder: where mapping/ is; data: of the gateway; url: where it subscribes;
    secure: as enabled in `[security]`; clock_trusted: as in `[gateway]`."""

    mqtt: MqttSettings
    coap: CoapSettings
    http_devices: HttpDevicesSettings
    modbus: ModbusSettings
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
        tables = settings.mqtt, settings.coap, settings.http_devices, settings.modbus
        data, secure = folder / gateway.data, settings.security.enabled
        return cls(*tables, gateway.base_iri, folder, data, url, gateway.log_level, secure, gateway.clock_trusted)


class _CoapPart(NamedTuple):
    settings: CoapSettings
    base_iri: str
    contexts: Path
    secure: bool
    rules: ResourceRules
    profiles: Mapping[str, Jsap]


class _PolledPart(NamedTuple):
    """files: what the files have that the settings name."""

    settings: Any
    base_iri: str
    rules: ResourceRules
    files: Any


MODBUS_CURE = "pip install 'lamplighter[modbus]', or set enabled = false"
TABLES = ("gateway", "websocket", "security", "mqtt", "coap", "http_devices", "modbus")
"""The tables of lamplighter.toml that an adapter needs. The gateway checks the others."""


def read_configuration(config: Path) -> AdapterConfiguration:
    """Raises ConfigurationError."""
    settings = read_settings(config, TABLES)
    return AdapterConfiguration.of(settings, config.parent, local_url(settings, config.parent / settings.gateway.data))


def with_password(settings: MqttSettings, service: Supervisor) -> MqttSettings:
    """Settings whose password_files are the credentials of these names; without one, the first broker's is
    `MQTT_PASSWORD`."""

    def completed(broker: SomeBroker, default: str) -> SomeBroker:
        name = broker.password_file or default
        credential = service.credential(name) if broker.username and name else None
        return broker if credential is None else msgspec.structs.replace(broker, password_file=str(credential))

    brokers = {name: completed(broker, "") for name, broker in settings.brokers.items()}
    return msgspec.structs.replace(completed(settings, MQTT_PASSWORD), brokers=brokers)


# --- running --------------------------------------------------------------------------------------------------


class Adapter(Protocol):
    """One of the adapters. tried: set when its peer has accepted its subscription or is unreachable."""

    tried: asyncio.Event

    async def run(self) -> None: ...

    def status(self) -> str:
        """Its status, for people."""
        ...


Adopt = Callable[[Any, Any, Any], bool]
"""Of a running adapter, its part of the configuration and the new one: whether the adapter has taken the new one."""


class _NotWantedError(ConfigurationError):
    """The settings are valid, but do not enable this adapter."""


Reread = Callable[[], AdapterConfiguration]
"""Reads the configuration again. Raises ConfigurationError."""
AdapterProcess = Callable[[AdapterConfiguration, Supervisor, "Reread | None"], Coroutine[Any, Any, None]]
"""`run_mqtt`, `run_coap`, `run_http_devices` or `run_modbus`."""


async def run_mqtt(
    configuration: AdapterConfiguration,
    service: Supervisor = NOBODY,
    reread: Reread | None = None,
    tried: asyncio.Event | None = None,
) -> None:
    """The MQTT adapter, until cancelled, or as a service until the settings disable it. tried: see `Adapter`."""
    from lamplighter.adapters.mapping import Mapping, load_mapping
    from lamplighter.adapters.mapping.dataset_rules import DatasetRules
    from lamplighter.adapters.mqtt.adapter import MqttAdapter
    from lamplighter.adapters.mqtt.credentials import read_credentials, table_of
    from lamplighter.adapters.mqtt.discovering import Discovering
    from lamplighter.engine.client import EngineClient

    def part(now: AdapterConfiguration) -> _MqttPart:
        if not now.mqtt.host:
            raise _NotWantedError("mqtt.host is empty; set it to the broker's name to start the adapter")
        mapping = load_mapping(now.folder / "mapping", now.base_iri)
        settings = with_password(now.mqtt, service)
        for name, broker in settings.all_brokers().items():
            read_credentials(broker, table_of(name))  # a reload with an unusable file keeps the previous settings
        return settings, now.base_iri, mapping.rules, mapping.commands, mapping.publishes

    last = LastMessages()
    async with EngineClient(configuration.url, name="mqtt") as client:
        client.offer_messages(last.find)

        def adapter(made_of: Any, before: Any) -> MqttAdapter:
            settings, base_iri, *tables = made_of
            trust = configuration.clock_trusted
            discovering = Discovering(
                client,
                base_iri=base_iri,
                formats=settings.discovery,
                adopt=settings.adopt,
                devices_max=settings.devices_max,
            )
            return MqttAdapter(
                settings,
                Mapping(*tables),
                client,
                former=Mapping(()) if before is None else Mapping(*before[2:]),
                trusted=lambda: clock_trusted(trust),
                rules=DatasetRules(base_iri, settings.publish),
                feed=client,
                discovering=discovering if settings.discovery else None,
                base_iri=base_iri,
                tried=tried,
                last=last,
            )

        def remapped(running: Any, made_of: Any, wanted: Any) -> bool:
            if made_of[:2] != wanted[:2]:
                return False
            running.remap(Mapping(*wanted[2:]))
            return True

        await _run(client, configuration, part, adapter, service, reread, remapped)


async def run_coap(
    configuration: AdapterConfiguration,
    service: Supervisor = NOBODY,
    reread: Reread | None = None,
    tried: asyncio.Event | None = None,
) -> None:
    """The CoAP adapter, until cancelled, or as a service until the settings disable it. tried: see `Adapter`."""
    from lamplighter.adapters.coap.adapter import CoapAdapter
    from lamplighter.adapters.coap.context_files import contexts_folder
    from lamplighter.adapters.mapping import load_resource_rules
    from lamplighter.adapters.mapping.dataset_rules import DatasetRules
    from lamplighter.engine.client import EngineClient

    def part(now: AdapterConfiguration) -> _CoapPart:
        if not now.coap.enabled:
            raise _NotWantedError("coap.enabled is false; set it to true to start the adapter")
        rules = load_resource_rules(now.folder / "mapping", now.base_iri)
        profiles = read_profiles(now.folder / "apps") if now.coap.server.enabled else {}
        return _CoapPart(now.coap, now.base_iri, contexts_folder(now.data), now.secure, rules, profiles)

    last = LastMessages()
    async with EngineClient(configuration.url, name="coap") as client:
        client.offer_messages(last.find)

        def adapter(made_of: _CoapPart, before: object) -> CoapAdapter:
            trust = configuration.clock_trusted
            return CoapAdapter(
                made_of.settings,
                client,
                files=made_of.rules,
                profiles=made_of.profiles,
                rules=DatasetRules(made_of.base_iri, kind="coap"),
                contexts=made_of.contexts,
                secure=made_of.secure,
                trusted=lambda: clock_trusted(trust),
                base_iri=made_of.base_iri,
                tried=tried,
                last=last,
            )

        def remapped(running: Any, made_of: _CoapPart, wanted: _CoapPart) -> bool:
            if made_of._replace(rules=wanted.rules, profiles=wanted.profiles) != wanted:
                return False
            running.remap(wanted.rules, wanted.profiles)
            return True

        await _run(client, configuration, part, adapter, service, reread, remapped)


async def run_http_devices(
    configuration: AdapterConfiguration,
    service: Supervisor = NOBODY,
    reread: Reread | None = None,
    tried: asyncio.Event | None = None,
) -> None:
    """The adapter for devices with HTTP, as `run_coap`."""
    from lamplighter.adapters.http.credentials import HttpCredentials, read_credentials
    from lamplighter.adapters.http.protocol import HttpDevices

    def files(now: AdapterConfiguration) -> HttpCredentials:
        return read_credentials(now.http_devices, now.folder)

    await _run_polled("http-devices", configuration, files, HttpDevices, service, reread, tried)


async def run_modbus(
    configuration: AdapterConfiguration,
    service: Supervisor = NOBODY,
    reread: Reread | None = None,
    tried: asyncio.Event | None = None,
) -> None:
    """The Modbus adapter, as `run_coap`. Raises ConfigurationError if its package is not installed."""

    def files(now: AdapterConfiguration) -> type[ModbusProtocol]:
        try:
            from lamplighter.adapters.modbus.protocol import ModbusProtocol  # only where it is enabled
        except ImportError as missing:
            raise ConfigurationError(
                f"[modbus] enabled = true needs a package that cannot be loaded: {missing}; {MODBUS_CURE}"
            ) from missing
        return ModbusProtocol

    def protocol(settings: Any, networks: Networks, loaded: type[ModbusProtocol]) -> PolledProtocol:
        return loaded(settings, networks)

    await _run_polled("modbus", configuration, files, protocol, service, reread, tried)


async def _run_polled(
    kind: Kind,
    configuration: AdapterConfiguration,
    files: Callable[[AdapterConfiguration], Any],
    protocol: Callable[[Any, Networks, Any], PolledProtocol],
    service: Supervisor,
    reread: Reread | None,
    tried: asyncio.Event | None,
) -> None:
    """An adapter for polled devices. Its table has the name of its kind. files: reads the files that the settings name;
    protocol: made of settings, networks, and what `files` returned."""
    from lamplighter.adapters.mapping import load_resource_rules
    from lamplighter.adapters.mapping.dataset_rules import DatasetRules
    from lamplighter.adapters.networks import Networks
    from lamplighter.adapters.resources.polled_adapter import PolledAdapter
    from lamplighter.engine.client import EngineClient

    table = kind.replace("-", "_")

    def part(now: AdapterConfiguration) -> _PolledPart:
        settings = getattr(now, table)
        if not settings.enabled:
            raise _NotWantedError(f"{table}.enabled is false; set it to true to start the adapter")
        rules = load_resource_rules(now.folder / "mapping", now.base_iri, kind)
        return _PolledPart(settings, now.base_iri, rules, files(now))

    last = LastMessages()
    async with EngineClient(configuration.url, name=kind) as client:
        client.offer_messages(last.find)

        def adapter(made_of: _PolledPart, before: object) -> PolledAdapter:
            trust = configuration.clock_trusted
            networks = Networks(made_of.settings.networks, f"{table}.networks")
            return PolledAdapter(
                kind,
                table,
                made_of.settings,
                client,
                lambda: protocol(made_of.settings, networks, made_of.files),
                files=made_of.rules,
                rules=DatasetRules(made_of.base_iri, kind=kind),
                trusted=lambda: clock_trusted(trust),
                base_iri=made_of.base_iri,
                tried=tried,
                last=last,
            )

        def remapped(running: Any, made_of: _PolledPart, wanted: _PolledPart) -> bool:
            if made_of._replace(rules=wanted.rules) != wanted:
                return False
            running.remap(wanted.rules)
            return True

        await _run(client, configuration, part, adapter, service, reread, remapped)


def read_profiles(folder: Path) -> dict[str, Jsap]:
    """The application profiles of a folder by name. A faulty one is left out, since the gateway reports it."""
    from lamplighter.engine.client.profile import Loader
    from lamplighter.engine.protocol.jsap import profile

    found = {}
    for path in sorted(folder.glob("*.jsap")):
        try:
            found[path.stem] = profile(Loader(network=False).tree(path))
        except JsapError as error:
            logger.warning("coap profile left out", path=path, reason=error)
    return found


async def _run(
    client: EngineClient,
    configuration: AdapterConfiguration,
    part: Callable[[AdapterConfiguration], Any],
    make: Callable[[Any, Any], Adapter],
    service: Supervisor,
    reread: Reread | None,
    adopt: Adopt = lambda adapter, part, wanted: False,
) -> None:
    """part: the part of a configuration that the adapter uses. The others: see `AdapterService`."""
    if reread is None:
        await make(part(configuration), None).run()
        return
    again: Reread = reread
    await AdapterService(service, client, lambda: part(again()), make, adopt).run(part(configuration))


def turn_s(service: Supervisor) -> float:
    """Seconds between two watchdog signals: a third of the limit, so that one may be late."""
    return STATUS_S if service.watchdog_s is None else min(STATUS_S, service.watchdog_s / 3)


_ON_HANGUP: set[asyncio.Event] = set()
"""Of the parts of this process that reload."""


@asynccontextmanager
async def on_hangup(asked: asyncio.Event) -> AsyncIterator[None]:
    """Makes SIGHUP set an event. Several parts of a process may do so at once.

    The end of the terminal sends SIGHUP, too. It ends the process, as it would without a handler.
    """
    loop = asyncio.get_running_loop()
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
    """An adapter that follows its configuration. It restarts when its part of it has changed, and stops when it is
    disabled.

    part: reads its part of the configuration; make: makes it, with the new part and the previous one, None at the
    start; adopt: whether the running adapter has taken the new part, so that it does not have to restart.
    """

    def __init__(
        self,
        service: Supervisor,
        client: EngineClient,
        part: Callable[[], Any],
        make: Callable[[Any, Any], Adapter],
        adopt: Adopt = lambda adapter, part, wanted: False,
    ) -> None:
        """part: reads and checks it, raises ConfigurationError."""
        self._adopt = adopt
        self._service = service
        self._client = client
        self._part = part
        self._make = make
        self._answered = False

    async def run(self, part: Any) -> None:
        """Runs until cancelled, until the adapter ends, or until the settings disable it. part: the first one."""
        hangup = asyncio.Event()
        before = None
        async with on_hangup(hangup):
            while part is not None:
                adapter = self._make(part, before)
                running = asyncio.ensure_future(adapter.run())
                living = asyncio.ensure_future(self._live(adapter))
                try:
                    part, changed = await self._changed(adapter, hangup, part, [running, living])
                finally:
                    for task in (running, living):
                        task.cancel()
                    await asyncio.gather(running, living, return_exceptions=True)
                before, part = part, changed

    async def _changed(
        self, adapter: Adapter, hangup: asyncio.Event, part: Any, tasks: list[asyncio.Future[Any]]
    ) -> tuple[Any, Any]:
        """Waits for a configuration that needs a restart.

        Returns the part that the adapter has by then, and the new one, None if it disables the adapter. Raises the
        error that ends a task.
        """
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
            self._service.reloading()
            try:
                wanted = await asyncio.to_thread(self._part)
                if wanted == part:
                    logger.info("configuration reloaded", applied="nothing")
                elif self._adopt(adapter, part, wanted):
                    logger.info("configuration reloaded", applied="mapping")
                    part = wanted
                else:
                    logger.info("configuration reloaded, adapter restarts", applied="all")
                    self._service.ready("restarting with the new configuration")
                    return part, wanted
            except _NotWantedError as error:
                logger.info("configuration reloaded, adapter stops", reason=error)
                self._service.ready("disabled by the configuration")  # which ends the reload
                self._service.stopping("disabled by the configuration")
                return part, None
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
            await asyncio.wait([meeting], timeout=FIRST_STEP_S)
            if meeting.done():
                await meeting
            self._service.ready(self._status(adapter))
            await meeting
        finally:
            meeting.cancel()

    async def _meet(self, adapter: Adapter) -> None:
        """Waits until both peers are reached; a query to an unreachable gateway is sent when it is back."""
        await self._client.ask("ASK {}")
        self._answered = True
        await adapter.tried.wait()

    def _status(self, adapter: Adapter) -> str:
        there = self._client.connected and self._answered
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


def stop_on_signals() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Makes SIGINT and SIGTERM end the process at once, by their default action; afterwards restores the handlers.

    For crash-safe work that blocks the event loop, where the event of `stop_on_signals` could be read only minutes
    later.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
            signal.siginterrupt(number, False)  # as asyncio sets it


def serve(work: AdapterProcess, configuration: AdapterConfiguration, reread: Reread) -> None:
    """Runs an adapter until it ends or is stopped. Raises ConfigurationError."""

    gc.set_threshold(_COLLECTED_AFTER, 10, 10)

    async def run() -> None:
        stop = stop_on_signals()
        async with background(work(configuration, Supervisor(os.environ), reread), stop):
            await stop.wait()

    asyncio.run(run())


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 well, 2 wrong use or configuration."""
    parser = argparse.ArgumentParser(
        prog="python -m lamplighter.gateway.service.adapter_process", description="Runs one adapter."
    )
    parser.add_argument("adapter", choices=["mqtt", "coap", "http-devices", "modbus"])
    parser.add_argument("--config", type=Path, required=True, help="lamplighter.toml")
    options = parser.parse_args(arguments)
    set_up_logging(os.environ)

    def read() -> AdapterConfiguration:
        configuration = read_configuration(options.config)
        logging.getLogger().setLevel(configuration.log_level.upper())
        return configuration

    try:
        works = {"mqtt": run_mqtt, "coap": run_coap, "http-devices": run_http_devices, "modbus": run_modbus}
        serve(works[options.adapter], read(), read)
    except GatewayError as error:
        print(f"lamplighter: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
