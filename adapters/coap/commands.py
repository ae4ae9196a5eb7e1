"""The rule that the setting coap.query stands for. Pure."""

from __future__ import annotations

from lamplighter.adapters.mapping.resource_commands import resource_command
from lamplighter.adapters.mapping.tables import ResourceCommandTable
from lamplighter.adapters.resources.commands import CommandQuery

SETTINGS_PLACE = "lamplighter.toml [coap] query"


def settings_query(query: str) -> CommandQuery:
    """The rule that the setting coap.query stands for: a PUT of ?payload as text to ?resource."""
    table = ResourceCommandTable(resource="{resource}", query=query)
    return CommandQuery(
        resource_command(table, prefixes={}, base_iri="", place=SETTINGS_PLACE, state_variable="payload"), others=True
    )
