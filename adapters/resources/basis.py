"""What an adapter of resources keeps from run to run."""

from __future__ import annotations

from dataclasses import dataclass

from lamplighter.adapters.devices.device import Problem
from lamplighter.adapters.devices.dropped import DropWarnings
from lamplighter.adapters.devices.problem_writer import ProblemWriter
from lamplighter.adapters.model.commits import StreamOwners
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.resources.counters import ResourceCounters
from lamplighter.adapters.resources.exchange import ResourceSettings
from lamplighter.adapters.specs import Kind, table_name


@dataclass(frozen=True)
class AdapterBasis:
    """kind: of the adapter, whose rules it takes; problems: None if nothing is written of them."""

    kind: Kind
    settings: ResourceSettings
    context: AdapterContext
    counters: ResourceCounters
    problems: ProblemWriter | None
    warnings: DropWarnings
    owners: StreamOwners


def adapter_basis(
    kind: Kind, settings: ResourceSettings, context: AdapterContext, counters: ResourceCounters
) -> AdapterBasis:
    sources = f"{kind}-mapping", f"{kind}-command"  # of problems of readings, and of commands
    client, base_iri, problems = context.client, context.base_iri, None
    if base_iri:
        problems = ProblemWriter(client, base_iri=base_iri, kind=kind, sources=sources, clock=context.now)
    warnings = DropWarnings(kind, _only_logged if problems is None else problems.note, sources=sources)
    owners = StreamOwners(settings.streams_max, warnings.reading, kind=table_name(kind))
    return AdapterBasis(kind, settings, context, counters, problems, warnings, owners)


def _only_logged(problem: Problem) -> None:
    """Does nothing: there is no place for it in the dataset."""
