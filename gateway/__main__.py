"""The `lamplighter` command."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lamplighter.cloud_sync.files import check_owner
from lamplighter.engine.errors import ConfigurationError, GatewayError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.tables import counted
from lamplighter.gateway.addresses import Addresses, local_url
from lamplighter.gateway.cli.config_file import DEFAULT_CONFIG, config_file
from lamplighter.gateway.cli.exit_codes import ExitCode, epilog, exit_code
from lamplighter.gateway.history.names import printable
from lamplighter.gateway.log.writer import Recovery
from lamplighter.gateway.service.adapter_process import (
    AdapterConfiguration,
    AdapterProcess,
    ended_by_signals,
    run_coap,
    run_mqtt,
    serve,
)
from lamplighter.gateway.service.process import (
    Configuration,
    allow_files,
    collect_rarely,
    run_gateway,
    share_heap,
    small_tls_buffers,
    stop_on_signals,
)
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.systemd import Supervisor, set_up_logging

logger = EventLogger("gateway")

_PROCESSES = ("run", "mqtt", "coap")
"""Commands that run until they are stopped."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code (`gateway.cli.exit_codes`)."""
    try:
        try:
            code = _run_command(arguments)
        except SystemExit:  # of argparse, after a help text or wrong use
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.GOOD
    return code


def _run_command(arguments: list[str] | None) -> int:
    options = _parsed(sys.argv[1:] if arguments is None else arguments)
    set_up_logging(os.environ)
    logging.getLogger().setLevel(logging.DEBUG if options.verbose else logging.INFO)
    try:
        return int(options.command(options))
    except GatewayError as error:  # several faults are several lines
        _say(error)
        return exit_code(error)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _say(error: GatewayError) -> None:
    """Prints the lines of an error, which can quote names of devices and texts of clients."""
    for line in str(error).splitlines():
        print(f"lamplighter: {printable(line)}", file=sys.stderr)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The options. `run`, `mqtt` and `coap` load no modules of other commands, to save memory."""
    if arguments and arguments[0] in _PROCESSES:
        parser, _, _ = _process_parser()
        options, unknown = parser.parse_known_args(arguments)
        if not unknown:
            return options
    return command_parser().parse_args(arguments)


def command_parser() -> argparse.ArgumentParser:
    """The parser of the command line. Shell completion and manual pages are made from it."""
    from lamplighter.gateway.cli.command_tree import SHELLS
    from lamplighter.gateway.cli.declaring import add_other_commands

    parser, commands, command = _process_parser()
    add_other_commands(command, commands)
    completion = command("completion", "print the completion of this command for a shell", _completion, data=False)
    completion.add_argument("shell", choices=SHELLS)
    demo = command("demo", "run a gateway with a simulated street of ten lamps", _demo)
    demo.add_argument("--for", dest="seconds", type=float, help="stop after this number of seconds")
    demo.add_argument("--no-browser", action="store_true", help="do not open the web page")
    return parser


def _process_parser() -> tuple[argparse.ArgumentParser, Any, Callable[..., argparse.ArgumentParser]]:
    """A parser with the commands of `_PROCESSES`, its action for commands, and what makes a command."""
    parser = argparse.ArgumentParser(
        prog="lamplighter",
        description="Lamplighter, a semantic edge gateway: SPARQL publish-subscribe, MQTT, CoAP.",
        epilog=epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lamplighter {version('lamplighter')}")
    commands = parser.add_subparsers(title="commands", required=True)

    def command(name: str, text: str, function: object, *, data: bool = True) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text)
        one.add_argument("--config", type=Path, help=f"settings file (default: {DEFAULT_CONFIG} if it exists)")
        if data:
            one.add_argument(
                "--data", type=Path, help="folder of the change log (default: gateway.data of the settings)"
            )
        one.add_argument("--verbose", action="store_true", help="also log debug messages")
        one.set_defaults(command=function)
        return one

    run = command("run", "run the gateway until it is stopped", _run)
    run.add_argument("--all", action="store_true", help="also run the MQTT and CoAP adapters in this process")
    command("mqtt", "run only the MQTT adapter", _mqtt)
    command("coap", "run only the CoAP adapter", _coap)
    return parser, commands, command


def _configuration(options: argparse.Namespace) -> Configuration:
    return Configuration.read(config_file(options), options.data)


def _started(options: argparse.Namespace) -> Configuration:
    """The configuration of a process that starts; sets its log level."""
    configuration = _configuration(options)
    _set_log_level(options, configuration.settings)
    return configuration


def _set_log_level(options: argparse.Namespace, settings: Settings) -> None:
    logging.getLogger().setLevel(logging.DEBUG if options.verbose else settings.gateway.log_level.upper())


def _run(options: argparse.Namespace) -> int:
    configuration = _started(options)
    check_owner(configuration.data, "`systemctl start lamplighter-gateway` starts it as that user")
    for fault in configuration.faults:
        logger.error("not run, it has a fault", reason=fault)

    def ready(addresses: Addresses, recovery: Recovery) -> None:
        print(f"Lamplighter is ready, with {counted(recovery.records, 'record')} from {configuration.data}")
        print(addresses.table())
        sys.stdout.flush()
        collect_rarely()

    share_heap()
    small_tls_buffers()
    allow_files(configuration.settings)
    faulthandler.enable()  # the watchdog ends a stalled gateway by SIGABRT, which logs its stacks

    def reread() -> Settings:
        again = _configuration(options)
        if again.unread:  # this process has to read it
            raise ConfigurationError(again.unread)
        if again.applications != configuration.applications:
            logger.warning("configuration changes need a restart", keys="apps")
        _set_log_level(options, again.settings)
        return again.settings

    async def run() -> None:
        await run_gateway(
            configuration,
            stop_on_signals(),
            ready,
            adapters=options.all,
            service=Supervisor(os.environ),
            reread=reread,
            unheard=ended_by_signals,
        )

    asyncio.run(run())
    return 0


def _mqtt(options: argparse.Namespace) -> int:
    return _adapter(options, run_mqtt)


def _coap(options: argparse.Namespace) -> int:
    return _adapter(options, run_coap)


def _adapter(options: argparse.Namespace, work: AdapterProcess) -> int:
    def read() -> AdapterConfiguration:
        configuration = _started(options)
        return configuration.for_adapters(local_url(configuration.settings, configuration.data))

    serve(work, read(), read)
    return 0


def _completion(options: argparse.Namespace) -> int:
    from lamplighter.gateway.cli.command_tree import SHELLS, tree

    print(SHELLS[options.shell](tree(command_parser())), end="")
    return 0


def _demo(options: argparse.Namespace) -> int:
    try:
        from lamplighter.demo.street import run_demo
    except ModuleNotFoundError as error:
        if error.name != "lamplighter.demo":
            raise
        raise ConfigurationError(
            "the demo is not part of an installation on a gateway; pip install 'lamplighter[demo]' in a virtual "
            "environment"
        ) from error
    return asyncio.run(run_demo(options.config, options.data, options.seconds, browser=not options.no_browser))


if __name__ == "__main__":
    sys.exit(main())
