"""The table ``[coap]`` of ``lamplighter.toml``."""

from typing import Annotated

import msgspec

from lamplighter.adapters import networks
from lamplighter.adapters.coap.mapping import DEFAULT_QUERY

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class CoapSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The query for commands, the networks of devices, and the time-outs of requests.

    enabled: whether the adapter is started.
    networks: the networks that commands may go to, such as ``192.168.7.0/24``; ``private`` stands for the private
        networks of the machine, without loopback and link-local addresses. Clients that may write the graph choose the
        devices, so this list is the limit. For a name, its resolved address counts.
    query: a SPARQL SELECT with the variables ``?actuator`` (an IRI), ``?resource`` (a coap:// URI) and
        ``?payload`` (a literal); one row per device resource. The adapter sends each resource its payload.
        The first notification is checked for the three variables.
    concurrency_max: concurrent requests over all devices; each device gets one at a time (RFC 7252 section 4.7).
        Retries use at most half of them, so that unreachable devices do not delay the others.
    ack_timeout_s, retransmissions_max: RFC 7252 section 4.8. A request that is not acknowledged within 1 to 1.5 times
        the time-out is sent again, and the wait doubles. The RFC advises against less than 1 s. An outdated state
        is not retransmitted.
    answer_timeout_s: time limit of an attempt, with name resolution and separate answers.
    retry_min_s, retry_max_s: the wait after the first failed attempt doubles from the one to the other, less up to
        half at random. After a refusal (4.xx) the adapter waits for retry_max_s.
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
