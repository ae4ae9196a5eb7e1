"""The commands of a parser as a tree, and shell completions and manual pages made from it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from shlex import quote

from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.options import NAMES_OF

PROGRAM = "lamplighter"
# shell -> where it looks for the completion of a program that a package has, below /usr.
PLACES = {
    "bash": f"share/bash-completion/completions/{PROGRAM}",
    "zsh": f"share/zsh/vendor-completions/_{PROGRAM}",
    "fish": f"share/fish/vendor_completions.d/{PROGRAM}.fish",
}
MANUALS = "share/man/man1"
# shell -> where it looks for the completion of a program that no package has, below /.
LOCAL_PLACES = {
    "bash": f"usr/local/share/bash-completion/completions/{PROGRAM}",
    "zsh": f"usr/local/share/zsh/site-functions/_{PROGRAM}",
    "fish": f"etc/fish/completions/{PROGRAM}.fish",  # it does not look below /usr/local
}
LOCAL_MANUALS = "usr/local/share/man/man1"


@dataclass(frozen=True)
class CommandNode:
    """A command or subcommand. words: its name, such as ("lamplighter", "log", "show")."""

    words: tuple[str, ...]
    help: str
    parser: argparse.ArgumentParser

    @property
    def name(self) -> str:
        return " ".join(self.words)

    @property
    def options(self) -> list[argparse.Action]:
        return [one for one in self.parser._actions if one.option_strings]

    @property
    def arguments(self) -> list[argparse.Action]:
        """What follows the name, without subcommands."""
        found = (one for one in self.parser._actions if not one.option_strings)
        return [one for one in found if not isinstance(one, argparse._SubParsersAction)]

    @property
    def subcommands(self) -> list[CommandNode]:
        found = []
        for action in self.parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                helps = {one.dest: one.help or "" for one in action._choices_actions}
                for name, parser in action.choices.items():
                    found.append(CommandNode((*self.words, name), helps.get(name, ""), parser))
        return found

    def all(self) -> Iterator[CommandNode]:
        yield self
        for one in self.subcommands:
            yield from one.all()


def tree(parser: argparse.ArgumentParser) -> CommandNode:
    return CommandNode((PROGRAM,), parser.description or "", parser)


# --- completion --------------------------------------------------------------------------------------------------


def _words(node: CommandNode) -> list[str]:
    """What may follow the name: subcommands, options, and the choices of arguments."""
    found = [one.words[-1] for one in node.subcommands]
    found += [str(choice) for one in node.arguments for choice in one.choices or ()]
    return found + [string for one in node.options for string in one.option_strings]


def _values(root: CommandNode) -> Iterator[tuple[str, list[str]]]:
    """Each option that takes a value, behind the name of its command, and the possible values; [] for any."""
    for node in root.all():
        for one in node.options:
            if one.nargs != 0:
                for string in one.option_strings:
                    yield f"{node.name} {string}", [str(choice) for choice in one.choices or ()]


def _names(root: CommandNode) -> Iterator[tuple[str, str]]:
    """Each command and option that takes a name, and the kind of names."""
    for node in root.all():
        for one in node.parser._actions:
            kind = getattr(one, NAMES_OF, None)
            if kind is not None:
                yield from ((f"{node.name} {string}", kind) for string in one.option_strings)
                if not one.option_strings:
                    yield node.name, kind


def _cases(cases: list[tuple[str, str]], last: str) -> str:
    """The body of a `case`, for bash and zsh."""
    lines = "".join(f"    {quote(name)}) {what} ;;\n" for name, what in cases)
    return f"{lines}    *) {last} ;;\n"


def bash(root: CommandNode) -> str:
    names = "|".join(quote(one.name) for one in root.all() if one is not root)
    values = [(name, f"words={quote(' '.join(choices))}" if choices else "return") for name, choices in _values(root)]
    words = [(one.name, f"words={quote(' '.join(_words(one)))}") for one in root.all()]
    kinds = [(name, f"kind={kind}") for name, kind in _names(root)]
    return (
        f"# Completion of {PROGRAM} for bash, generated from its parser.\n"
        "# With no word to offer, -o default offers files.\n"
        f"_{PROGRAM}() {{\n"
        "  COMPREPLY=()\n"
        f'  local current="${{COMP_WORDS[COMP_CWORD]}}" at={PROGRAM} words= one kind= name\n'
        '  for one in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do\n'
        f'    case "$at $one" in\n    {names}) at="$at $one" ;;\n    esac\n'
        "  done\n"
        f'  case "$at ${{COMP_WORDS[COMP_CWORD-1]}}" in\n{_cases(kinds, ":")}  esac\n'
        f'  [ -n "$kind" ] || case "$at ${{COMP_WORDS[COMP_CWORD-1]}}" in\n{_cases(values, "one=")}  esac\n'
        f'  [ -n "$kind$words" ] || [[ "$current" == -* ]] || case "$at" in\n{_cases(kinds, ":")}  esac\n'
        '  if [ -n "$kind" ]; then\n'
        "    while IFS= read -r name; do\n"
        '      printf -v name %q "$name"\n'
        '      [[ "$name" == "$current"* ]] && COMPREPLY+=("$name")\n'
        f'    done < <({PROGRAM} names --plain --kind "$kind" 2>/dev/null)\n'
        "    [ ${#COMPREPLY[@]} -eq 0 ] || return\n"
        "  fi\n"
        f'  [ -n "$words" ] || case "$at" in\n{_cases(words, "return")}  esac\n'
        '  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")\n'
        "}\n"
        f"complete -o default -F _{PROGRAM} {PROGRAM}\n"
    )


def zsh(root: CommandNode) -> str:
    names = "|".join(quote(one.name) for one in root.all() if one is not root)
    values = [
        (name, f"compadd -- {' '.join(map(quote, choices))}; return" if choices else "_files; return")
        for name, choices in _values(root)
    ]
    words = []
    for one in root.all():
        offered = f"compadd -- {' '.join(map(quote, _words(one)))}"
        words.append((one.name, f"{offered}; _files" if one.arguments else offered))
    kinds = [
        (name, f'compadd -- ${{(f)"$({PROGRAM} names --plain --kind {kind} 2>/dev/null)"}} && return')
        for name, kind in _names(root)
    ]
    return (
        f"#compdef {PROGRAM}\n"
        f"# Completion of {PROGRAM} for zsh, generated from its parser.\n"
        f"local at={PROGRAM} one\n"
        'for one in "${(@)words[2,CURRENT-1]}"; do\n'
        f'  case "$at $one" in\n    ({names}) at="$at $one" ;;\n  esac\n'
        "done\n"
        f'case "$at ${{words[CURRENT-1]}}" in\n{_cases(kinds, ":")}esac\n'
        f'case "$at ${{words[CURRENT-1]}}" in\n{_cases(values, "one=")}esac\n'
        f'[[ "${{words[CURRENT]}}" == -* ]] || case "$at" in\n{_cases(kinds, ":")}esac\n'
        f'case "$at" in\n{_cases(words, "_files")}esac\n'
    )


def fish(root: CommandNode) -> str:
    names = " ".join(_fish(one.name) for one in root.all() if one is not root)
    lines = [
        f"# Completion of {PROGRAM} for fish, generated from its parser.",
        f"function __{PROGRAM}_at",
        f"  set -l at {PROGRAM}",
        "  for one in (commandline -opc)[2..]",
        f'    contains -- "$at $one" {names}; and set at "$at $one"',
        "  end",
        '  test "$at" = "$argv[1]"',
        "end",
    ]
    for node in root.all():
        begin = f"complete -c {PROGRAM} -n {_fish(f'__{PROGRAM}_at {_fish(node.name)}')}"
        for one in node.subcommands:
            lines.append(f"{begin} -f -a {_fish(one.words[-1])} -d {_fish(one.help)}")
        for action in node.arguments:
            if action.choices:
                lines.append(f"{begin} -f -a {_fish(' '.join(map(str, action.choices)))}")
            if (kind := getattr(action, NAMES_OF, None)) is not None:
                lines.append(f"{begin} -f -a {_fish(_fish_names(kind))}")
        for action in node.options:
            strings = " ".join(
                f"-{'l' if string.startswith('--') else 's'} {_fish(string.lstrip('-'))}"
                for string in action.option_strings
            )
            takes = "" if action.nargs == 0 else " -r"
            if action.choices:
                takes = f" -x -a {_fish(' '.join(map(str, action.choices)))}"
            elif (kind := getattr(action, NAMES_OF, None)) is not None:
                takes = f" -x -a {_fish(_fish_names(kind))}"
            lines.append(f"{begin} {strings}{takes} -d {_fish(_help(action))}")
    return "\n".join(lines) + "\n"


def _fish_names(kind: str) -> str:
    return f"({PROGRAM} names --plain --kind {kind} 2>/dev/null)"


def _fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _help(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%")


# shell -> what makes its completion.
SHELLS: dict[str, Callable[[CommandNode], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


# --- manual pages ------------------------------------------------------------------------------------------------


def manuals(root: CommandNode) -> Iterator[tuple[str, str]]:
    """Name and text (man(7)) of each page: `lamplighter`, and one for each command with all its subcommands."""
    pages = [f"{PROGRAM}-{one.words[-1]}" for one in root.subcommands]
    yield PROGRAM, _page(PROGRAM, root, [root], pages)
    for one, name in zip(root.subcommands, pages, strict=True):
        yield name, _page(name, one, list(one.all()), [PROGRAM])


def _page(name: str, node: CommandNode, described: list[CommandNode], see: list[str]) -> str:
    lines = [
        f'.TH {name.upper()} 1 "" "{PROGRAM} {version(PROGRAM)}" "User Commands"',
        ".SH NAME",
        rf"{_roff(name)} \- {_roff(node.help.rstrip('.'))}",
        ".SH SYNOPSIS",
    ]
    for one in described:
        usage = " ".join(one.parser.format_usage().removeprefix("usage: ").split())
        lines += [
            *([".br"] if one is not node else []),
            rf"\fB{_roff(one.name)}\fR{_roff(usage.removeprefix(one.name))}",
        ]
    for one in described:
        heading = "DESCRIPTION" if one is node else one.name.upper()
        lines += [f'.SH "{_roff(heading)}"', _roff(one.help)]
        for action in [*one.arguments, *one.options]:
            strings = ", ".join(action.option_strings) or str(action.metavar or action.dest)
            value = f" {_metavar(action)}" if action.option_strings and action.nargs != 0 else ""
            lines += [".TP", rf"\fB{_roff(strings)}\fR{_roff(value)}", _roff(_help(action)) or "."]
        for below in one.subcommands:
            lines += [".TP", rf"\fB{_roff(below.words[-1])}\fR", _roff(below.help)]
    if node.parser.epilog:
        lines += [".SH EXIT STATUS", ".nf", *map(_roff, node.parser.epilog.splitlines()[1:]), ".fi"]
    lines += [".SH SEE ALSO", ", ".join(rf"\fB{_roff(one)}\fR(1)" for one in sorted(see))]
    return "\n".join(line for line in lines if line) + "\n"


def _metavar(action: argparse.Action) -> str:
    if action.choices:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or action.dest.upper())


def _roff(text: str) -> str:
    """A text without meaning for roff: no escapes, and no control line."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


def texts(parser: argparse.ArgumentParser, places: Mapping[str, str], folder: str) -> dict[str, str]:
    """The completions and manual pages by their paths. places: of completions, such as `PLACES`; folder: of pages."""
    root = tree(parser)
    completions = {places[shell]: make(root) for shell, make in SHELLS.items()}
    return completions | {f"{folder}/{name}.1": text for name, text in manuals(root)}


def write_files(folder: Path, parser: argparse.ArgumentParser) -> None:
    """Writes the completions and manual pages at the places of a package. folder: stands for /usr."""
    for name, text in texts(parser, PLACES, MANUALS).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def add_completion_command(command: Adder) -> None:
    command("completion", _completion, data=False).add_argument("shell", choices=SHELLS)


def _completion(options: argparse.Namespace) -> int:
    print(SHELLS[options.shell](tree(options.command_parser())), end="")
    return 0
