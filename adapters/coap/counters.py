"""What the CoAP adapter counts."""

from dataclasses import dataclass, field

from lamplighter.adapters.coap.endpoint import EndpointCounters
from lamplighter.adapters.resources.counters import ResourceCounters


@dataclass(slots=True)
class CoapCounters(ResourceCounters):
    """As `ResourceCounters`, with those of the endpoint."""

    endpoint: EndpointCounters = field(default_factory=EndpointCounters)

    def counts(self) -> dict[str, int]:
        """For the metrics of the gateway."""
        return ResourceCounters.counts(self) | {
            "notifications": self.observations.notifications,
            "notifications_outdated": self.observations.notifications_outdated,
            "observations_renewed": self.observations.observations_renewed,
            "datagrams_malformed": self.endpoint.datagrams_malformed,
        }
