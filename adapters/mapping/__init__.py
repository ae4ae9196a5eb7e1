"""Rules: topic and payload -> readings, rows of queries -> topics and payloads. All but rule_feed is pure: no network,
no clock.

tables: the rule tables; files: rules of mapping/*.toml; dataset_rules: rules that are triples; rule_feed: the
subscription to them; rules: one rule, and all together; reads: one value of its messages; publishes: rows of queries ->
topics and payloads; command_payloads: states of actuators -> payloads; constructs: CONSTRUCT queries; patterns: topics;
expressions: regular expressions; templates: IRIs; payloads: decoding; values: literals; units: UCUM -> QUDT; times:
result times; senml, cbor, sparkplug, protobuf: formats.
"""

from lamplighter.adapters.mapping.files import checked_mapping, load_mapping
from lamplighter.adapters.mapping.patterns import TOPIC_BYTES_MAX
from lamplighter.adapters.mapping.payloads import PAYLOAD_BYTES_MAX
from lamplighter.adapters.mapping.publishes import PublishRule, publish_rule
from lamplighter.adapters.mapping.rules import CommandRule, Mapping, StreamRule, command_rule
from lamplighter.adapters.mapping.sparkplug import Births
from lamplighter.adapters.mapping.tables import CommandTable, PublishTable, ReadTable, StreamTable, table_json
from lamplighter.adapters.mapping.values import TEXT_CHARS_MAX

__all__ = [
    "PAYLOAD_BYTES_MAX",
    "TEXT_CHARS_MAX",
    "TOPIC_BYTES_MAX",
    "Births",
    "CommandRule",
    "CommandTable",
    "Mapping",
    "PublishRule",
    "PublishTable",
    "ReadTable",
    "StreamRule",
    "StreamTable",
    "checked_mapping",
    "command_rule",
    "load_mapping",
    "publish_rule",
    "table_json",
]
