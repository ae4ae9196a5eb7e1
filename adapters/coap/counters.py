"""What the CoAP adapter counts."""

from dataclasses import dataclass, field

from lamplighter.adapters.coap.endpoint import EndpointCounters
from lamplighter.adapters.coap.observations import ObservationCounters
from lamplighter.adapters.devices.counters import OutputCounters


@dataclass(slots=True)
class CoapCounters(OutputCounters):
    """Since the adapter was made. retried: attempts that repeat a failed one; outside: attempts that were not sent,
    because the device may not be sent to; rejected_rows: rows of queries that give no command."""

    retried: int = 0
    outside: int = 0
    rejected_rows: int = 0
    observations: ObservationCounters = field(default_factory=ObservationCounters)
    endpoint: EndpointCounters = field(default_factory=EndpointCounters)

    def counts(self) -> dict[str, int]:
        """For the metrics of the gateway."""
        return {
            "commands": self.sent,
            "commands_acknowledged": self.acknowledged,
            "commands_failed": self.failed,
            "commands_reasserted": self.reasserted,
            "commands_refused": self.refused + self.rejected_rows,
            "notifications": self.observations.notifications,
            "notifications_outdated": self.observations.notifications_outdated,
            "observations_renewed": self.observations.observations_renewed,
            "polls": self.observations.polls,
            "datagrams_malformed": self.endpoint.datagrams_malformed,
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
