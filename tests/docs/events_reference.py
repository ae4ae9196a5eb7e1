"""The table of log events in docs/monitor.md: warnings and errors, from the calls of `EventLogger`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.support.places import ROOT

LEVELS = {"warning": "warning", "error": "error", "exception": "error"}
"""method of `EventLogger` -> level."""
PARTS = {
    "gateway": ("gateway", "engine/client"),
    "adapters": ("adapters",),
    "sync": ("cloud_sync",),
}
"""row of the table -> folders of the code."""
ELSEWHERE = ("cloud_sync/fleet", "gateway/security/audit.py", "gateway/cli")
"""Events that no service of a gateway logs, and the audit log, which docs/secure.md describes."""
VARIABLE = {
    "adapters/devices/dropped.py": ("KIND reading dropped", "KIND not published or commanded"),
    "gateway/loop/evaluations.py": ("update failed", "delayed update failed"),
}
"""file whose callers name the event -> the names."""
PLACEHOLDERS = {"now.state": "STATE"}
"""expression in the name of an event -> what the table shows; others are the kind of an adapter."""


@dataclass(frozen=True)
class LoggedEvent:
    name: str
    level: str
    path: str


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Each call that logs a warning or an error, with its level."""
    chosen: dict[str, list[str]] = {}  # variable -> levels, as in `log = logger.error if lost else logger.warning`
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp):
            methods = [_method(branch) for branch in (node.value.body, node.value.orelse)]
            if all(methods):
                chosen[ast.unparse(node.targets[0])] = methods
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for method in chosen.get(ast.unparse(node.func), [_method(node.func)]):
                if method:
                    yield LEVELS[method], node


def _method(node: ast.expr) -> str:
    """The method of `EventLogger` that an expression names; empty if it names none of `LEVELS`."""
    named = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "logger" and node.attr in LEVELS
    return node.attr if named and isinstance(node, ast.Attribute) else ""


def _names(call: ast.Call, tree: ast.Module, path: str) -> tuple[str, ...]:
    """The events of a call. Raises KeyError where a caller names them and `VARIABLE` does not."""
    match call.args[0]:
        case ast.Constant(value=str(name)):
            return (name,)
        case ast.JoinedStr(values=parts):
            return ("".join(_part(part) for part in parts),)
        case ast.Name(id=variable):
            for node in tree.body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == variable:
                    return (str(ast.literal_eval(node.value)),)
    return VARIABLE[path]


def _part(part: ast.expr) -> str:
    if isinstance(part, ast.FormattedValue):
        return PLACEHOLDERS.get(ast.unparse(part.value), "KIND")
    return str(ast.literal_eval(part))


@cache
def events() -> tuple[LoggedEvent, ...]:
    """Each warning and error that a service of a gateway can log."""
    found: list[LoggedEvent] = []
    for folder in (folder for folders in PARTS.values() for folder in folders):
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = str(file.relative_to(ROOT))
            if path.startswith(ELSEWHERE):
                continue
            tree = ast.parse(file.read_text())
            for level, call in _calls(tree):
                found += (LoggedEvent(name, level, path) for name in _names(call, tree, path))
    return tuple(found)


def events_table() -> str:
    """A Markdown table with the names of the events of each part and level. Those of every adapter are without KIND."""
    found = events()
    lines = ["|part|level|events|", "|---|---|---|"]
    for part, folders in PARTS.items():
        for level in ("error", "warning"):
            prefixes = tuple(f"{folder}/" for folder in folders)
            names = {event.name for event in found if event.level == level and event.path.startswith(prefixes)}
            for shown, chosen in (
                (part, {name for name in names if not name.startswith("KIND ")}),
                ("KIND", {name.removeprefix("KIND ") for name in names if name.startswith("KIND ")}),
            ):
                if chosen:
                    lines.append(f"|{shown}|{level}|{', '.join(f'`{name}`' for name in sorted(chosen))}|")
    return "\n".join(lines) + "\n"
