"""The CoAP adapter from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lamplighter.adapters.coap.adapter import CoapAdapter
from lamplighter.adapters.coap.context_files import contexts_folder
from lamplighter.adapters.coap.server import CoapMachine
from lamplighter.adapters.coap.settings import CoapSettings
from lamplighter.adapters.mapping import ResourceRules, load_resource_rules
from lamplighter.adapters.mapping.dataset_rules import DatasetRules
from lamplighter.adapters.parts import AdapterContext, AdapterInput
from lamplighter.engine.client import Jsap
from lamplighter.engine.client.profile import local_profile
from lamplighter.engine.errors import JsapError
from lamplighter.engine.log_events import EventLogger

logger = EventLogger(__name__)


@dataclass(frozen=True)
class CoapParts:
    """As the arguments of `CoapAdapter`."""

    settings: CoapSettings
    base_iri: str
    contexts: Path
    secure: bool
    rules: ResourceRules
    profiles: Mapping[str, Jsap]

    def adapter(self, context: AdapterContext, before: CoapParts | None) -> CoapAdapter:
        return CoapAdapter(
            self.settings,
            replace(context, base_iri=self.base_iri),
            CoapMachine(self.contexts, self.secure),
            files=self.rules,
            rules=DatasetRules(self.base_iri, kind="coap"),
            profiles=self.profiles,
        )

    def adopt(self, running: CoapAdapter, before: CoapParts) -> bool:
        if replace(before, rules=self.rules, profiles=self.profiles) != self:
            return False
        running.change_profiles(self.profiles)
        running.remap(self.rules)
        return True


def coap_parts(given: AdapterInput) -> CoapParts:
    """Raises ConfigurationError."""
    rules = load_resource_rules(given.folder / "mapping", given.base_iri)
    profiles = read_profiles(given.folder / "apps") if given.settings.server.enabled else {}
    return CoapParts(given.settings, given.base_iri, contexts_folder(given.data), given.secure, rules, profiles)


def read_profiles(folder: Path) -> dict[str, Jsap]:
    """The application profiles of a folder by name. A faulty one is left out, since the gateway reports it."""
    found = {}
    for path in sorted(folder.glob("*.jsap")):
        try:
            found[path.stem] = local_profile(path)
        except JsapError as error:
            logger.warning("coap profile left out", path=path, reason=error)
    return found
