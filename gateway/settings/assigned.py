"""Settings of a command line: ``--set mqtt.host=127.0.0.1``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from lamplighter.engine.errors import ConfigurationError

_ASSIGNMENT = re.compile(r"\s*([\w-]+(?:\.[\w-]+)+)\s*=(.*)", re.DOTALL)


@dataclass(frozen=True)
class AssignedSettings:
    """values: by the names of tables and key. A value is TOML, or else a text as it is."""

    values: dict[tuple[str, ...], Any]

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """texts: ``TABLE.KEY=VALUE``. Raises ConfigurationError."""
        values = {}
        for text in texts:
            found = _ASSIGNMENT.fullmatch(text)
            if found is None:
                raise ConfigurationError(f"--set {text}: write TABLE.KEY=VALUE, such as mqtt.host=127.0.0.1")
            names = tuple(found[1].split("."))
            try:
                text.encode()
            except UnicodeEncodeError as error:  # other bytes of a command line are halves of pairs (PEP 383)
                raise ConfigurationError(f"{_option(names)}: write UTF-8") from error
            values[names] = _value(found[2].strip())
        return cls(values)

    def put_into(self, document: dict[str, Any]) -> None:
        """Changes the document of a settings file. Raises ConfigurationError."""
        for names, value in self.values.items():
            table: Any = document
            for name in names[:-1]:
                table = table.setdefault(name, {})
                if not isinstance(table, dict):
                    raise ConfigurationError(f"{_option(names)}: {name} is no table")
            table[names[-1]] = value

    def place(self, names: tuple[str, ...]) -> str | None:
        """The option that gives a key, or one of a table; None if none does."""
        return next((_option(one) for one in self.values if one[: len(names)] == names[: len(one)]), None)


def _option(names: tuple[str, ...]) -> str:
    return f"--set {'.'.join(names)}"


def _value(text: str) -> Any:
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # A text with a line break could have more than one value.
    return document["value"] if len(document) == 1 else text
