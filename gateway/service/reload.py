"""Which changes of the configuration a running gateway applies, and which need a restart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from lamplighter.adapters.specs import ADAPTERS
from lamplighter.gateway.settings import QuotaSettings, Settings
from lamplighter.gateway.settings.place import PlaceSettings

# Keys, by table, that take effect with the next request.
LIVE: dict[str, frozenset[str]] = {
    "gateway": frozenset({"log_level", "queue_max"}),
    "query": frozenset({"time_ms_max", "rows_max", "memory_bytes_max", "concurrent_max"}),
    "limits": frozenset(
        {
            "evaluation_ms_max",
            "first_result_rows_max",
            "result_characters_max",
            "parse_memory_bytes_max",
            "parse_ms_max",
            "query_bytes_max",
            "term_bytes_max",
        }
    ),
    "delayed": frozenset({"pending_max", "missed"}),
    "place": frozenset(PlaceSettings.__struct_fields__),
    "quotas": frozenset(QuotaSettings.__struct_fields__),
    "security": frozenset(
        {
            "attempts_per_min",
            "hosts",
            "origins",
            "plain_requests_per_s",
            "registration",
            "requests_per_s",
            "token_life_s",
        }
    ),
}
# Tables of the adapters and of the shipper, which reload them themselves.
OTHER_PROCESS_TABLES = (*(spec.table for spec in ADAPTERS), "sync")


@dataclass(frozen=True)
class Change:
    """settings: the current ones; applied, waiting: names of keys such as ``limits.evaluation_ms_max``."""

    settings: Settings
    applied: list[str]
    waiting: list[str]


def change(before: Settings, after: Settings) -> Change:
    """The change from one configuration to another without a restart."""
    applied, waiting = [], []
    tables: dict[str, Any] = {}
    for table in Settings.__struct_fields__:
        old, new = getattr(before, table), getattr(after, table)
        if table in OTHER_PROCESS_TABLES:
            # Taken over as they are: the other processes apply them, and the health of the gateway reads them here.
            tables[table] = new
            continue
        keys = [key for key in old.__struct_fields__ if getattr(old, key) != getattr(new, key)]
        live = [key for key in keys if key in LIVE.get(table, ())]
        applied += [f"{table}.{key}" for key in live]
        # Kept as they were in the settings in force, so that the next reload names them again.
        waiting += [f"{table}.{key}" for key in keys if key not in live]
        tables[table] = msgspec.structs.replace(old, **{key: getattr(new, key) for key in live})
    return Change(Settings(**tables), applied, waiting)
