"""The tables of docs/cli.md: commands, the options that commands share, and the exit codes."""

from __future__ import annotations

from collections.abc import Iterator

from lamplighter.gateway.__main__ import command_parser
from lamplighter.gateway.cli.command_table import MEANINGS
from lamplighter.gateway.cli.command_tree import CommandNode, tree

SHARED = {
    "--config": ("FILE", "the settings file"),
    "--data": ("FOLDER", "the data folder, instead of `gateway.data`"),
    "--verbose": ("", "also debug messages in the log"),
    "--url": ("URL", "a gateway elsewhere: http, https, ws or wss, host and port"),
    "--client": ("FILE", "credentials that `register` wrote"),
    "--token": ("FILE", "a bearer token"),
    "--ca": ("FILE", "trusted certificates"),
    "--json": ("", "one JSON object for programs"),
    "--yes": ("", "no question; required without a terminal"),
}
"""Option -> its value and meaning."""
TEMPLATES = "init"
"""The command whose subcommands are templates, whose options are values of the applications: one row."""


def commands_reference() -> str:
    """A row for each command that has no subcommands: arguments and help. `--help` of a command has its own options."""
    rows = ["|command|does|", "|---|---|"]
    for node in tree(command_parser()).all():
        words = node.words[1:]
        if words == (TEMPLATES,):
            names = ", ".join(f"`{one.words[-1]}`" for one in node.subcommands)
            rows.append(f"|`{TEMPLATES} TEMPLATE`|{_text(node).partition(':')[0]}: {names}|")
        elif words and not node.subcommands and words[0] != TEMPLATES:
            rows.append(f"|`{' '.join((*words, *_arguments(node)))}`|{_text(node)}|")
    return "\n".join(rows)


def _text(node: CommandNode) -> str:
    """The first sentence of the help."""
    return node.help.partition(". ")[0].partition(" (also without")[0]


def _arguments(node: CommandNode) -> Iterator[str]:
    for one in node.arguments:
        name = one.metavar if isinstance(one.metavar, str) else one.dest.upper()
        if one.choices:
            name = ",".join(map(str, one.choices))
        yield f"[{name}]" if one.nargs in ("?", "*") else f"{name}..." if one.nargs == "+" else str(name)


def shared_options_reference() -> str:
    rows = ["|option|meaning|", "|---|---|"]
    rows += [f"|`{' '.join(filter(None, (name, value)))}`|{text}|" for name, (value, text) in SHARED.items()]
    return "\n".join(rows)


def exit_codes_reference() -> str:
    rows = ["|code|meaning|", "|---|---|"]
    return "\n".join([*rows, *(f"|{int(code)}|{text}|" for code, text in MEANINGS.items())])
