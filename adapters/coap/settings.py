"""The table ``[coap]`` of ``lamplighter.toml``."""

from typing import Annotated

import msgspec

from lamplighter.adapters import networks
from lamplighter.adapters.coap.mapping import DEFAULT_QUERY

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class CoapSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the CoAP adapter finds out what its devices should be told, and how patiently it tells them.

    enabled: whether the adapter is started at all.
    networks: what commands may be sent to, since whoever may write the graph names the devices: networks such as
        ``192.168.7.0/24``, and ``private`` for the private networks that the machine is in, without loopback and the
        addresses of a link alone. Of a name the resolved address counts.
    query: a SPARQL SELECT with the variables ``?actuator`` (an IRI), ``?resource`` (a coap:// URI) and
        ``?payload`` (a literal); one row per device resource. The adapter sends each resource its payload.
        That the three variables are there is checked with the first notification.
    concurrency_max: requests under way at a time over all devices (one at a time per device, RFC 7252
        section 4.7). Repeated attempts take at most half of them, so devices that are away never
        hold up the others.
    ack_timeout_s, retransmissions_max: RFC 7252 section 4.8. A request that is not acknowledged within
        1 to 1.5 times the timeout is sent again, and the wait doubles. Below 1 s is against the RFC's
        advice outside of tests. A state that is out of date is not retransmitted.
    answer_timeout_s: when an attempt is given up, resolving the name and separate answers included.
    retry_min_s, retry_max_s: the wait after the first failed attempt, and what its doubling grows to
        (less up to half by chance). A device that refuses (4.xx) is asked again only after the longest wait.
    """

    enabled: bool = True
    networks: tuple[str, ...] = (networks.PRIVATE,)
    query: Annotated[str, msgspec.Meta(min_length=1)] = DEFAULT_QUERY
    concurrency_max: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 32
    ack_timeout_s: Seconds = 1.0
    retransmissions_max: Annotated[int, msgspec.Meta(ge=0, le=10)] = 2
    answer_timeout_s: Seconds = 15.0
    retry_min_s: Seconds = 0.2
    retry_max_s: Seconds = 30.0

    def __post_init__(self) -> None:
        networks.parsed(self.networks)
        if self.retry_max_s < self.retry_min_s:
            raise ValueError(f"retry_max_s ({self.retry_max_s}) is less than retry_min_s ({self.retry_min_s})")
