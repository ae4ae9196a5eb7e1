"""Rules: topic and payload -> readings, rows of queries -> topics and payloads. All but rule_feed is pure: no network,
no clock.

tables: the rule tables; files: rules of mapping/*.toml; dataset_rules: rules that are triples; rule_feed: the
subscription to them; kinds: the adapter that a rule is for; rules: what is read by one rule, and by all together;
reads: one value of its messages; resources: rules for resources of devices and paths of the CoAP server;
resource_commands: commands for resources; publishes: rows of queries -> topics and payloads; command_payloads: states
of actuators -> payloads; lamp_commands: those of a lamp -> the messages of one command; constructs: CONSTRUCT queries;
patterns: topics; uris: resources; expressions: regular expressions; jinja, formulas: Jinja templates and what they may
use; templates: IRIs; proposals: a rule for a message; payloads: decoding; values: literals; floats: floating-point
numbers; units: UCUM -> QUDT; times: result times; senml, cbor, lwm2m, sparkplug, protobuf: formats. Modbus: registers:
values in registers; modbus_places: registers in URIs; modbus_rules: rules for them. What it exports is imported at
first use: the settings, which most commands read, need `uris` alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lamplighter.adapters.mapping.files import file_rules, load_mapping, load_resource_rules
    from lamplighter.adapters.mapping.kinds import ResourceRules
    from lamplighter.adapters.mapping.patterns import TOPIC_BYTES_MAX
    from lamplighter.adapters.mapping.payloads import PAYLOAD_BYTES_MAX
    from lamplighter.adapters.mapping.publishes import PublishRule, publish_rule
    from lamplighter.adapters.mapping.resource_commands import ResourceCommandRule, StateRule, resource_command
    from lamplighter.adapters.mapping.resources import PathRule, ResourceRule
    from lamplighter.adapters.mapping.rules import CommandRule, Mapping, ReadingRules, StreamRule, command_rule
    from lamplighter.adapters.mapping.sparkplug import Births
    from lamplighter.adapters.mapping.tables import (
        CommandTable,
        PathTable,
        PublishTable,
        ReadTable,
        ResourceCommandTable,
        ResourceTable,
        StreamTable,
        table_json,
    )
    from lamplighter.adapters.mapping.values import TEXT_CHARS_MAX

__all__ = [
    "PAYLOAD_BYTES_MAX",
    "TEXT_CHARS_MAX",
    "TOPIC_BYTES_MAX",
    "Births",
    "CommandRule",
    "CommandTable",
    "Mapping",
    "PathRule",
    "PathTable",
    "PublishRule",
    "PublishTable",
    "ReadTable",
    "ReadingRules",
    "ResourceCommandRule",
    "ResourceCommandTable",
    "ResourceRule",
    "ResourceRules",
    "ResourceTable",
    "StateRule",
    "StreamRule",
    "StreamTable",
    "command_rule",
    "file_rules",
    "load_mapping",
    "load_resource_rules",
    "publish_rule",
    "resource_command",
    "table_json",
]

_HOMES = {
    "Births": "lamplighter.adapters.mapping.sparkplug",
    "CommandRule": "lamplighter.adapters.mapping.rules",
    "CommandTable": "lamplighter.adapters.mapping.tables",
    "Mapping": "lamplighter.adapters.mapping.rules",
    "PAYLOAD_BYTES_MAX": "lamplighter.adapters.mapping.payloads",
    "PathRule": "lamplighter.adapters.mapping.resources",
    "PathTable": "lamplighter.adapters.mapping.tables",
    "PublishRule": "lamplighter.adapters.mapping.publishes",
    "PublishTable": "lamplighter.adapters.mapping.tables",
    "ReadTable": "lamplighter.adapters.mapping.tables",
    "ReadingRules": "lamplighter.adapters.mapping.rules",
    "ResourceCommandRule": "lamplighter.adapters.mapping.resource_commands",
    "ResourceCommandTable": "lamplighter.adapters.mapping.tables",
    "ResourceRule": "lamplighter.adapters.mapping.resources",
    "ResourceRules": "lamplighter.adapters.mapping.kinds",
    "ResourceTable": "lamplighter.adapters.mapping.tables",
    "StateRule": "lamplighter.adapters.mapping.resource_commands",
    "StreamRule": "lamplighter.adapters.mapping.rules",
    "StreamTable": "lamplighter.adapters.mapping.tables",
    "TEXT_CHARS_MAX": "lamplighter.adapters.mapping.values",
    "TOPIC_BYTES_MAX": "lamplighter.adapters.mapping.patterns",
    "command_rule": "lamplighter.adapters.mapping.rules",
    "file_rules": "lamplighter.adapters.mapping.files",
    "load_mapping": "lamplighter.adapters.mapping.files",
    "load_resource_rules": "lamplighter.adapters.mapping.files",
    "publish_rule": "lamplighter.adapters.mapping.publishes",
    "resource_command": "lamplighter.adapters.mapping.resource_commands",
    "table_json": "lamplighter.adapters.mapping.tables",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'adapters.mapping' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
