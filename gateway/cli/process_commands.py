"""`run`, and a command for each adapter: the gateway and the adapters as processes that run until they are stopped."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import logging
import os
import sys
from functools import partial

from lamplighter.adapters.specs import ADAPTERS, AdapterSpec
from lamplighter.cloud_sync.files import check_owner
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.tables import count_text
from lamplighter.gateway.addresses import Addresses, local_url
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.options import add_assignments, config_file
from lamplighter.gateway.log.writer import Recovery
from lamplighter.gateway.service.adapter_process import AdapterConfiguration, ended_by_signals, serve
from lamplighter.gateway.service.configuration import Configuration
from lamplighter.gateway.service.process import (
    allow_files,
    collect_rarely,
    run_gateway,
    share_heap,
    small_tls_buffers,
    stop_on_signals,
)
from lamplighter.gateway.service.supervision import ReadAgain
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.systemd import Supervisor

logger = EventLogger("gateway")


def add_process_commands(command: Adder) -> None:
    run = command("run", _run)
    run.add_argument(
        "--all", action="store_true", help="also run the adapters that the settings enable in this process"
    )
    add_assignments(run)
    for spec in ADAPTERS:
        add_assignments(command(spec.name, partial(_adapter, spec)))
    demo = command("demo", _demo)
    demo.add_argument("--for", dest="seconds", type=float, help="stop after this number of seconds")
    demo.add_argument("--no-browser", action="store_true", help="do not open the web page")


def _configuration(options: argparse.Namespace) -> Configuration:
    return Configuration.read(config_file(options), options.data, options.assigned)


def _start_configuration(options: argparse.Namespace) -> Configuration:
    """The configuration of a process that starts; sets its log level."""
    configuration = _configuration(options)
    _set_log_level(options, configuration.settings)
    return configuration


def _set_log_level(options: argparse.Namespace, settings: Settings) -> None:
    logging.getLogger().setLevel(logging.DEBUG if options.verbose else settings.gateway.log_level.upper())


def _run(options: argparse.Namespace) -> int:
    service = Supervisor(os.environ)
    with service.failures():
        _serve_gateway(options, service)
    return 0


def _serve_gateway(options: argparse.Namespace, service: Supervisor) -> None:
    configuration = _start_configuration(options)
    check_owner(configuration.data, "`systemctl start lamplighter-gateway` starts it as that user")
    for fault in configuration.faults:
        logger.error("not run, it has a fault", reason=fault)

    def ready(addresses: Addresses, recovery: Recovery) -> None:
        print(f"Lamplighter is ready, with {count_text(recovery.records, 'record')} from {configuration.data}")
        print(addresses.table())
        sys.stdout.flush()
        collect_rarely()

    share_heap()
    small_tls_buffers()
    allow_files(configuration.settings)
    faulthandler.enable()  # the watchdog ends a stalled gateway by SIGABRT, which logs its stacks

    def reread() -> ReadAgain:
        again = _configuration(options)
        if again.unread:  # this process has to read it
            raise ConfigurationError(again.unread)
        for fault in again.faults:
            logger.error("not run, it has a fault", reason=fault)
        _set_log_level(options, again.settings)
        return ReadAgain(again.settings, again.applications)

    async def serve_requests() -> None:
        await run_gateway(
            configuration,
            stop_on_signals(),
            ready,
            adapters=options.all,
            service=service,
            reread=reread,
            unheard=ended_by_signals,
        )

    asyncio.run(serve_requests())


def _adapter(spec: AdapterSpec, options: argparse.Namespace) -> int:
    def read() -> AdapterConfiguration:
        configuration = _start_configuration(options)
        return AdapterConfiguration.of(
            configuration.settings, configuration.folder, local_url(configuration.settings, configuration.data)
        )

    serve(spec, read(), read)
    return 0


def _demo(options: argparse.Namespace) -> int:
    try:
        from lamplighter.demo.street import run_demo
    except ModuleNotFoundError as error:
        if error.name != "lamplighter.demo":
            raise
        raise ConfigurationError(
            "the demo is not part of an installation on a gateway; run `make run` in a checkout of the sources"
        ) from error
    return asyncio.run(run_demo(options.config, options.data, options.seconds, browser=not options.no_browser))
