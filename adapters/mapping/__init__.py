"""Rules: topic and payload -> readings, rows of queries -> topics and payloads. All but rule_feed is pure: no network,
no clock.

tables: the rule tables; files: rules of mapping/*.toml; dataset_rules: rules that are triples; rule_feed: the
subscription to them; kinds: the adapter that a rule is for; rules: what is read by one rule, and by all together;
reads: one value of its messages; resources: rules for resources of devices and paths of the CoAP server;
resource_commands: commands for resources; publishes: rows of queries -> topics and payloads; command_payloads: states
of actuators -> payloads; constructs: CONSTRUCT queries; patterns: topics; uris: resources; expressions: regular
expressions; templates: IRIs; payloads: decoding; values: literals; floats: floating-point numbers; units: UCUM -> QUDT;
times: result times; senml, cbor, lwm2m, sparkplug, protobuf: formats. Modbus: registers: values in registers;
modbus_places: registers in URIs; modbus_rules: rules for them.
"""

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
