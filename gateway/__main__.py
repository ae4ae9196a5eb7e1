"""The `lamplighter` command."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lamplighter.engine.errors import ConfigurationError, GatewayError
from lamplighter.gateway.cli.config_file import DEFAULT_CONFIG
from lamplighter.gateway.cli.declaring import GROUPS, TEXTS, Adder
from lamplighter.gateway.cli.exit_codes import ExitCode, epilog, exit_code
from lamplighter.gateway.systemd import set_up_logging
from lamplighter.gateway.texts import printable


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code (`gateway.cli.exit_codes`). arguments: None, those of this process, which
    then is the command's own."""
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
        options = _parsed(sys.argv[1:])
        gc.freeze()
        gc.enable()
    else:
        options = _parsed(arguments)
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
    """The options. A command loads no modules of the others, which saves time, and memory while the gateway runs."""
    parser, commands, command = _empty_parser()
    group = next((add for names, add in _GROUPS if arguments and arguments[0] in names), None)
    if group is not None:
        group(command, commands)
    else:  # --help, --version, or wrong use: names are enough
        for name, text in TEXTS.items():
            commands.add_parser(name, help=text)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        _named(parser, arguments).error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def _named(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command or subcommand that the arguments name."""
    from lamplighter.gateway.cli.command_tree import tree

    node = tree(parser)
    for word in arguments:
        node = next((one for one in node.subcommands if one.words[-1] == word), node)
    return node.parser


def command_parser() -> argparse.ArgumentParser:
    """The parser of the command line. Shell completion and manual pages are made from it."""
    parser, commands, command = _empty_parser()
    for _, add in _GROUPS:
        add(command, commands)
    return parser


def _empty_parser() -> tuple[argparse.ArgumentParser, Any, Callable[..., argparse.ArgumentParser]]:
    """A parser without commands, its action for commands, and what makes a command."""
    parser = argparse.ArgumentParser(
        prog="lamplighter",
        description="Lamplighter, a semantic edge gateway: SPARQL publish-subscribe, MQTT, CoAP.",
        epilog=epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_VersionAction, nargs=0, help="show program's version number and exit")
    parser.set_defaults(command_parser=command_parser)  # for what is made from all commands
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, function: object, *, data: bool = True) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=TEXTS[name], description=TEXTS[name])
        one.add_argument("--config", type=Path, help=f"settings file (default: {DEFAULT_CONFIG} if it exists)")
        if data:
            one.add_argument(
                "--data", type=Path, help="folder of the change log (default: gateway.data of the settings)"
            )
        one.add_argument("--verbose", action="store_true", help="also log debug messages")
        one.set_defaults(command=function)
        return one

    return parser, commands, command


def _own(command: Adder, commands: Any) -> None:
    """Declares the commands of this module: one needs the parser, and only this module may load the demo."""
    from lamplighter.gateway.cli.command_tree import SHELLS

    completion = command("completion", _completion, data=False)
    completion.add_argument("shell", choices=SHELLS)
    demo = command("demo", _demo)
    demo.add_argument("--for", dest="seconds", type=float, help="stop after this number of seconds")
    demo.add_argument("--no-browser", action="store_true", help="do not open the web page")


_GROUPS = (*GROUPS, (("completion", "demo"), _own))


class _VersionAction(argparse.Action):
    """Prints the version. It is read from the installation, which takes longer than most commands need to begin."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"lamplighter {version('lamplighter')}")
        parser.exit()


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
    import asyncio

    return asyncio.run(run_demo(options.config, options.data, options.seconds, browser=not options.no_browser))


if __name__ == "__main__":
    sys.exit(main())
