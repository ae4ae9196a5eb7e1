"""The MQTT adapter from its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lamplighter.adapters.mapping import CommandRule, Mapping, PublishRule, StreamRule, load_mapping
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.mqtt.adapter import MqttAdapter
from lamplighter.adapters.mqtt.credentials import read_credentials, table_of, with_passwords
from lamplighter.adapters.mqtt.discovering import Discovering
from lamplighter.adapters.mqtt.discovery.announcements import formats_of
from lamplighter.adapters.mqtt.settings import MqttSettings
from lamplighter.adapters.parts import AdapterContext, AdapterInput


@dataclass(frozen=True)
class MqttParts:
    """rules: those of mapping/*.toml, as the arguments of `Mapping`."""

    settings: MqttSettings
    base_iri: str
    rules: tuple[Sequence[StreamRule], Sequence[CommandRule], Sequence[PublishRule]]

    def adapter(self, context: AdapterContext, before: MqttParts | None) -> MqttAdapter:
        settings, client = self.settings, context.client
        context = replace(context, base_iri=self.base_iri)
        discovering = None
        if settings.discovery:
            discovering = Discovering(
                client,
                base_iri=self.base_iri,
                formats=formats_of(settings.discovery, settings.discovery_prefix),
                adopt=settings.adopt,
                devices_max=settings.devices_max,
            )
        adapter = MqttAdapter(
            settings,
            Mapping(*self.rules),
            context,
            rules=DatasetRules(self.base_iri, settings.publish),
            feed=client,
            discovering=discovering,
        )
        if before is not None:
            adapter.forget(Mapping(*before.rules))
        return adapter

    def adopt(self, running: MqttAdapter, before: MqttParts) -> bool:
        if replace(before, rules=self.rules) != self:
            return False
        running.remap(Mapping(*self.rules))
        return True


def mqtt_parts(given: AdapterInput) -> MqttParts:
    """Raises ConfigurationError."""
    mapping = load_mapping(given.folder / "mapping", given.base_iri)
    settings = with_passwords(given.settings, given.credential)
    for name, broker in settings.all_brokers().items():
        read_credentials(broker, table_of(name))  # a reload with an unusable file keeps the previous settings
    return MqttParts(settings, given.base_iri, (mapping.rules, mapping.commands, mapping.publishes))
