"""Rules by the adapter that they are for: a table with `topic` is for MQTT, one with `path` for CoAP, and one with
`resource` for the adapter of the URI's scheme."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from lamplighter.adapters.mapping import uris
from lamplighter.adapters.mapping.publishes import PublishRule, publish_rule
from lamplighter.adapters.mapping.resource_commands import ResourceCommandRule, resource_command
from lamplighter.adapters.mapping.resources import PathRule, ResourceRule
from lamplighter.adapters.mapping.rules import CommandRule, StreamRule, command_rule
from lamplighter.adapters.mapping.tables import (
    CommandTable,
    PathTable,
    PublishTable,
    ResourceCommandTable,
    ResourceTable,
    StreamTable,
)
from lamplighter.adapters.specs import Kind
from lamplighter.engine.errors import ConfigurationError

AnyRule = StreamRule | ResourceRule | PathRule | CommandRule | ResourceCommandRule | PublishRule

TABLES: dict[str, dict[str, tuple[Any, Any]]] = {
    "stream": {
        "topic": (StreamTable, StreamRule),
        "resource": (ResourceTable, ResourceRule),
        "path": (PathTable, PathRule),
    },
    "command": {"topic": (CommandTable, command_rule), "resource": (ResourceCommandTable, resource_command)},
    "publish": {"topic": (PublishTable, publish_rule)},
}
"""name of a table -> key that says what it is for -> its struct, and what makes the rule."""


class ResourceRules(NamedTuple):
    """The rules for resources, and paths of the CoAP server, in their order."""

    resources: tuple[ResourceRule, ...] = ()
    paths: tuple[PathRule, ...] = ()
    commands: tuple[ResourceCommandRule, ...] = ()

    @classmethod
    def of(cls, rules: Iterable[object], kind: Kind | None = None) -> ResourceRules:
        """Those among all rules. kind: of the adapter that they are for; None: any."""
        found = [one for one in rules if kind is None or getattr(one, "kind", None) == kind]
        return cls(
            tuple(one for one in found if isinstance(one, ResourceRule)),
            tuple(one for one in found if isinstance(one, PathRule)),
            tuple(one for one in found if isinstance(one, ResourceCommandRule)),
        )


def kind_of(name: str, table: object) -> Kind:
    """The adapter that a table is for, also if it is faulty. name: a key of `TABLES`."""
    keys = TABLES[name].keys() & table.keys() if isinstance(table, dict) else set()
    if not keys or "topic" in keys:
        return "mqtt"
    resource = table.get("resource") if isinstance(table, dict) else None
    return uris.kind_of_uri(resource) if isinstance(resource, str) else "coap"


def rule_type(name: str, table: Mapping[str, Any], place: str) -> tuple[Any, Callable[..., AnyRule]]:
    """The struct of a table, and what makes its rule with prefixes, base_iri, place, and for "publish" permitted.

    name: a key of `TABLES`. Raises ConfigurationError.
    """
    tables = TABLES[name]
    keys = [key for key in tables if key in table]
    if len(keys) > 1:
        raise ConfigurationError(f"{place}: {' and '.join(keys)}: a rule has one of them; write a rule for each")
    if not keys and len(tables) > 1:
        raise ConfigurationError(f"{place}: write {' or '.join(tables)}")
    return tables[keys[0] if keys else "topic"]
