"""Everything that is read before anything starts: settings, rules, applications, shapes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lamplighter.adapters.mapping import Mapping, ResourceRules, file_rules
from lamplighter.adapters.mapping.files import FileRules
from lamplighter.engine.client.files import read_text
from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.gates.protection_check import check_protection
from lamplighter.gateway.service.rule_faults import command_faults, query_faults
from lamplighter.gateway.service.shape_files import shape_sources
from lamplighter.gateway.settings import Settings, read_settings
from lamplighter.gateway.settings.refusals import with_places
from lamplighter.gateway.state.applications import Application, load_applications, sparql_faults

if TYPE_CHECKING:
    from lamplighter.engine.shacl.sources import ShapeSources


class RefusedConfigurationError(ConfigurationError):
    """A configuration with which nothing starts. faults: as in `Configuration`."""

    def __init__(self, refused: Sequence[str], faults: Sequence[str]) -> None:
        super().__init__("\n".join(refused))
        self.faults = faults


@dataclass(frozen=True)
class Configuration:
    """What was read.

    folder: where mapping/ and apps/ are; unread: the file that this process may not read and so did not check, empty if
    there is none; mapping, resource_rules: the rules of mapping/ for MQTT and for the other adapters; faults: of the
    SPARQL texts of applications and rules, which do not run. The others do, so a start only logs them, and `lamplighter
    check` refuses. shapes: None if no update is checked against any; options: of a command that reads the same;
    assigned: settings of the command line.
    """

    settings: Settings
    folder: Path
    data: Path
    applications: list[Application]
    unread: str = ""
    mapping: Mapping = field(default_factory=lambda: Mapping([]))
    resource_rules: ResourceRules = field(default_factory=ResourceRules)
    faults: Sequence[str] = ()
    shapes: ShapeSources | None = None
    options: Sequence[str] = ()
    assigned: Sequence[str] = ()

    @classmethod
    def read(cls, config: Path | None, data: Path | None, assigned: Sequence[str] = ()) -> Configuration:
        """Reads and checks settings, rules, applications, protection. Raises ConfigurationError with all faults.
        assigned: as of `read_settings`."""
        folder = config.parent if config else Path()
        # All faults of all files at once: who mends them one by one would need as many starts.
        refused: list[str] = []
        settings, unread = Settings(), ""
        applications: list[Application] = []
        try:
            settings = read_settings(config, assigned=assigned)
            unread = check_protection(settings, folder, data or folder / settings.gateway.data)
        except ConfigurationError as error:
            refused.append(str(error))
        shapes = None
        try:
            shapes = shape_sources(settings.shacl, folder)
        except ConfigurationError as error:
            refused.append(str(error))
        rules = FileRules(Mapping([]), ResourceRules(), ())
        try:
            rules = file_rules(folder / "mapping", settings.gateway.base_iri)
            refused += [str(fault.error) for fault in rules.faults]
        except ConfigurationError as error:
            refused.append(f"gateway.base_iri: {error}")
        try:
            applications = load_applications(folder / "apps")
        except ConfigurationError as error:
            refused.append(str(error))
        faults = [
            *query_faults(rules.mqtt.publishes),
            *command_faults(rules.resources.commands),
            *sparql_faults(folder / "apps"),
        ]
        if refused:
            if config is not None:
                with suppress(OSError, UnicodeDecodeError):  # it is among what is refused
                    text = read_text(config)
                    refused = [with_places(config, text, one) for one in refused]
            raise RefusedConfigurationError(refused, faults)
        options = [f"--set={text}" for text in assigned]
        options += [f"--{name}={path}" for name, path in (("config", config), ("data", data)) if path is not None]
        data = data or folder / settings.gateway.data
        return cls(
            settings,
            folder,
            data,
            applications,
            unread,
            rules.mqtt,
            rules.resources,
            faults,
            shapes,
            options,
            assigned,
        )
