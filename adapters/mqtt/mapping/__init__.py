"""Topic and payload -> readings. Pure: no network, no clock.

tables: the rule tables; rules: what they read.
"""

from lamplighter.adapters.mqtt.mapping.rules import (
    PAYLOAD_BYTES_MAX,
    TEXT_CHARS_MAX,
    TOPIC_BYTES_MAX,
    Mapping,
    Reading,
    Stream,
    StreamRule,
    description_update,
    load_mapping,
    reading_update,
)
from lamplighter.adapters.mqtt.mapping.tables import CommandTable, ReadTable, StreamTable, table_json

__all__ = [
    "PAYLOAD_BYTES_MAX",
    "TEXT_CHARS_MAX",
    "TOPIC_BYTES_MAX",
    "CommandTable",
    "Mapping",
    "ReadTable",
    "Reading",
    "Stream",
    "StreamRule",
    "StreamTable",
    "description_update",
    "load_mapping",
    "reading_update",
    "table_json",
]
