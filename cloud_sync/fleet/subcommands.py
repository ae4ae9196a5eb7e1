"""Subcommands of `lamplighter-fleet`: how a module declares one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lamplighter.engine.client.files import read_text
from lamplighter.engine.errors import ConfigurationError


class CommandParser(argparse.ArgumentParser):
    """A parser that takes arguments and options in any order."""

    _mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # argparse gives an optional argument to the first group of arguments, where it may be missing.
        exclusive = [action for group in self._mutually_exclusive_groups for action in group._group_actions]
        ordered = any(action.nargs == argparse.PARSER for action in self._actions) or not all(
            action.option_strings for action in exclusive
        )
        if self._mixing or ordered:
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False


def add_command(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    """The parser of a new subcommand.

    commands: as `argparse.ArgumentParser.add_subparsers` returns it.
    text: one sentence, for the list of subcommands and for the help of this one.
    """
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    return parser


def add_lake_command(
    commands: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """A subcommand that `run` executes. Its first argument is the lake: a folder, or a URL."""
    parser = add_command(commands, name, text)
    parser.add_argument("lake", metavar="LAKE", help="the lake: a folder, or a URL")
    parser.set_defaults(run=run)
    return parser


def add_group(commands: Any, name: str, text: str) -> Any:
    """The subcommands of a subcommand, as `add_subparsers` returns them. Several modules may add to one group."""
    if name in commands.choices:
        return next(one for one in commands.choices[name]._actions if isinstance(one, argparse._SubParsersAction))
    return add_command(commands, name, text).add_subparsers(title="commands", required=True, dest="subcommand")


def small_text(path: Path, most: int) -> str:
    """The text of a file of at most so many bytes. Raises ConfigurationError."""
    try:
        return read_text(path, most)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; name a file that can be read") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not UTF-8: {error}; correct the file") from error


def printable(text: str) -> str:
    """The text without control characters, for a terminal."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
