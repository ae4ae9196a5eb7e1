"""The tables of docs/settings.md: the keys of lamplighter.toml with their defaults and comments, and what of them a
reload applies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from lamplighter.gateway.service.reload import LIVE, OTHER_PROCESS_TABLES
from lamplighter.gateway.settings import Settings
from tests.support.places import ROOT

GROUPS = (("webhooks", "ldn", "ngsild.subscriptions"), ("coap", "http_devices", "modbus"))
"""Tables that share most keys, and are shown as one."""
DEFAULT_CHARACTERS_MAX = 40
"""A longer default is only in the file."""
RELOADED = "↻"


@dataclass(frozen=True)
class Key:
    """default: as in the file; text: its comment."""

    table: str
    name: str
    default: str
    text: str


@dataclass(frozen=True)
class Table:
    name: str
    text: str
    keys: dict[str, Key]


def settings_reference() -> str:
    """A section for each table, or for tables that share keys: name, default and meaning of each key."""
    tables = {table.name: table for table in documented_tables()}
    parts = []
    while tables:
        name = next(iter(tables))
        group = next((group for group in GROUPS if name in group), (name,))
        parts.append(_section([tables.pop(member) for member in group]))
    return "\n\n".join(parts)


def _section(tables: list[Table]) -> str:
    whole = all(_is_reloaded(table.name, key) for table in tables for key in table.keys)
    heading = ", ".join(f"`[{table.name}]`" for table in tables) + (RELOADED if whole else "")
    names = dict.fromkeys(name for table in tables for name in table.keys)
    columns = [f"`{table.name}`" for table in tables] if len(tables) > 1 else ["default"]
    rows = [f"|key|{'|'.join(columns)}|meaning|", f"|---|{'---|' * len(columns)}---|"]
    for name in names:
        keys = [table.keys.get(name) for table in tables]
        mark = RELOADED if not whole and all(_is_reloaded(key.table, name) for key in keys if key) else ""
        defaults = "|".join(_default(key) if key else "" for key in keys)
        text = next(key.text for key in keys if key) or _text_of_others([key for key in keys if key and key.text])
        rows.append(f"|`{name}`{mark}|{defaults}|{_linked(text)}|")
    texts = dict.fromkeys(_heading_text(table.text) for table in tables if table.text)
    return f"### {heading}\n\n" + "".join(f"{text}\n\n" for text in texts) + "\n".join(rows)


def _text_of_others(keys: list[Key]) -> str:
    """The text of a key that the first table has without one."""
    texts = dict.fromkeys(key.text for key in keys)
    return "; ".join(f"{', '.join(key.table for key in keys if key.text == text)}: {text}" for text in texts)


def _heading_text(text: str) -> str:
    """The link to the page of a table, or else its comment."""
    linked = _linked(text)
    link = re.search(r"\[[^\]]+\]\([^)]+\)", linked)
    return link[0] if link else linked


def _linked(text: str) -> str:
    """A comment as Markdown; names of pages become links with their titles."""

    def link(found: re.Match[str]) -> str:
        page = (ROOT / "docs" / found[1]).read_text()
        return f"[{page.partition(chr(10))[0].removeprefix('# ')}]({found[1]}{found[2] or ''})"

    return re.sub(r"docs/([\w/-]+\.md)(#[\w-]+)?", link, _escaped(text))


def _escaped(text: str) -> str:
    """A comment as Markdown; what is between backticks stays code."""
    return re.sub(r"`[^`]*`|[<*|\[\]]", lambda found: found[0] if found[0][0] == "`" else f"\\{found[0]}", text)


def _default(key: Key) -> str:
    if not key.default:
        return "unset"
    return f"`{key.default}`" if len(key.default) <= DEFAULT_CHARACTERS_MAX else "list"


def _is_reloaded(table: str, key: str) -> bool:
    top = table.partition(".")[0]
    return top in OTHER_PROCESS_TABLES or key in LIVE.get(table, ())


def documented_tables() -> Iterator[Table]:
    """The tables of lamplighter.toml."""
    table: Table | None = None
    lines = iter((ROOT / "lamplighter.toml").read_text().splitlines())
    for line in lines:
        if header := re.match(r"\[([\w.]+)\] *(?:# (.*))?$", line):
            if table is not None:
                yield table
            table = Table(header[1], header[2] or "", {})
        elif found := re.match(r"(# )?(\w+) = (.*)$", line):
            assert table is not None
            value = found[3]
            while not (read := _value(value)):  # a list of several lines
                value += "\n" + next(lines)
            default, comment = read
            # A key that is commented out has no default of its own.
            shown = "" if found[1] else default
            table.keys[found[2]] = Key(table.name, found[2], shown, comment)
    assert table is not None
    yield table


def _value(text: str) -> tuple[str, str] | None:
    """The value at the beginning of a text, and the comment behind it; None if the value does not end there."""
    quoted, depth = False, 0
    for at, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif not quoted:
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(character, 0)
            if character == "#":
                return text[:at].strip(), text[at + 1 :].strip()
    return None if depth else (text.strip(), "")


def structs() -> dict[str, Any]:
    """Table -> its defaults, with the tables within tables as tables of their own."""
    found: dict[str, Any] = {}

    def add(name: str, value: Any) -> None:
        found[name] = value
        for key in value.__struct_fields__:
            inner = getattr(value, key)
            if isinstance(inner, msgspec.Struct):
                add(f"{name}.{key}", inner)

    settings = Settings()
    for name in settings.__struct_fields__:
        add(name, getattr(settings, name))
    return found
