"""What adapters of resources count."""

from __future__ import annotations

from dataclasses import dataclass, field

from lamplighter.adapters.devices.sender import OutputCounters
from lamplighter.adapters.resources.exchange import ObservationCounters


@dataclass(slots=True)
class ResourceCounters(OutputCounters):
    """Since the adapter was made. retried: attempts that repeat a failed one; outside: attempts that were not sent,
    because the device may not be sent to."""

    retried: int = 0
    outside: int = 0
    observations: ObservationCounters = field(default_factory=ObservationCounters)

    def counts(self) -> dict[str, int]:
        """For the metrics of the gateway."""
        return {
            "commands": self.sent,
            "commands_acknowledged": self.acknowledged,
            "commands_failed": self.failed,
            "commands_reasserted": self.reasserted,
            "commands_refused": self.refused + self.rejected_rows,
            "polls": self.observations.polls,
        }


@dataclass(slots=True)
class ReadingCounters:
    """Readings that are read, or that devices send. committed, rejected, repeated, outdated: as for `CommitCounters`;
    unreadable: values, or bodies, that the rules could not read; refused: the stream belongs to another rule, or is one
    too many; missed: states that came while too many waited for the gateway."""

    committed: int = 0
    rejected: int = 0
    repeated: int = 0
    outdated: int = 0
    unreadable: int = 0
    refused: int = 0
    missed: int = 0

    def counts(self) -> dict[str, int]:
        """For the metrics of the gateway."""
        return {
            "readings": self.committed,
            "readings_unreadable": self.unreadable,
            "readings_refused": self.refused + self.rejected,
            "readings_repeated": self.repeated,
            "readings_outdated": self.outdated,
        }
