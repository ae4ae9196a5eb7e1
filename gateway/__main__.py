"""The `lamplighter` command."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lamplighter.engine.errors import GatewayError
from lamplighter.gateway.cli.command_table import COMMANDS, Adder, ExitCode, epilog, exit_code
from lamplighter.gateway.cli.options import DEFAULT_CONFIG
from lamplighter.gateway.systemd import set_up_logging
from lamplighter.gateway.texts import printable

_HELP = {name: text for group in COMMANDS for name, text in group.commands.items()}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its `ExitCode`. arguments: None for those of this process."""
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
    if arguments is None:
        # What this process loads stays, so collections meanwhile find next to nothing. They take a tenth of a start.
        gc.disable()
        options = parse_command_line(sys.argv[1:])
        gc.freeze()
        gc.enable()
    else:
        options = parse_command_line(arguments)
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


def parse_command_line(arguments: Sequence[str]) -> argparse.Namespace:
    """The options. A command loads no modules of the others, which saves time, and memory while the gateway runs."""
    parser, command = _empty_parser()
    group = next((group for group in COMMANDS if arguments and arguments[0] in group.commands), None)
    if group is not None:
        group.declare(command)
    else:  # --help, --version, or wrong use: names are enough
        for name in _HELP:
            command(name, None)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        _command_named(parser, arguments).error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def _command_named(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command or subcommand that the arguments name."""
    from lamplighter.gateway.cli.command_tree import tree

    node = tree(parser)
    for word in arguments:
        node = next((one for one in node.subcommands if one.words[-1] == word), node)
    return node.parser


def command_parser() -> argparse.ArgumentParser:
    """The parser of the command line. Shell completion and manual pages are made from it."""
    parser, command = _empty_parser()
    for group in COMMANDS:
        group.declare(command)
    return parser


class _CommandParser(argparse.ArgumentParser):
    """argparse takes a value that begins with - for an option."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):
            option = message.split()[1].rstrip(":").rpartition("/")[2]
            message += f"; one that begins with - is written {option}=VALUE"
        super().error(message)


def _empty_parser() -> tuple[argparse.ArgumentParser, Adder]:
    parser = _CommandParser(
        prog="lamplighter",
        description="Lamplighter, a semantic edge gateway: SPARQL publish-subscribe for MQTT, CoAP, HTTP, Modbus.",
        epilog=epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_VersionAction, nargs=0, help="show program's version number and exit")
    parser.set_defaults(command_parser=command_parser)  # for what is made from all commands
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, function: object, *, settings: bool = True, data: bool = True) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=_HELP[name], description=_HELP[name])
        one.set_defaults(command=function, verbose=False)
        if not settings:
            return one
        one.add_argument("--config", type=Path, help=f"settings file (default: {DEFAULT_CONFIG} if it exists)")
        if data:
            one.add_argument(
                "--data", type=Path, help="folder of the change log (default: gateway.data of the settings)"
            )
        one.add_argument("--verbose", action="store_true", help="also log debug messages")
        return one

    return parser, command


class _VersionAction(argparse.Action):
    """Prints the version. It is read from the installation, which takes longer than most commands need to begin."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"lamplighter {version('lamplighter')}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
