"""What the tables of adapters for polled devices have."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from lamplighter.adapters import networks

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class PolledSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The networks of devices, the time-outs of requests, and the bounds of readings.

    enabled: whether the adapter is started.
    networks: the networks that requests may go to, as in ``[coap]``.
    concurrency_max: concurrent requests over all devices; each device gets one at a time. Retries use at most half of
        them, so that unreachable devices do not delay the others.
    answer_timeout_s: time limit of a request, with name resolution, connection and the whole answer.
    retry_min_s, retry_max_s: the wait after the first failed attempt doubles from the one to the other, less up to
        half at random. A device that does not answer gets one attempt in this time, whatever the number of its rules.
    reassert_s, contact_write_s, resources_max, streams_max, model, events_kept: as in ``[coap]``.
    """

    enabled: bool = False
    networks: tuple[str, ...] = (networks.PRIVATE,)
    concurrency_max: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 16
    answer_timeout_s: Seconds = 10.0
    retry_min_s: Seconds = 1.0
    retry_max_s: Seconds = 60.0
    reassert_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 60.0
    contact_write_s: Seconds = 600.0
    resources_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 2_000
    streams_max: Annotated[int, msgspec.Meta(ge=1)] = 10_000
    model: Literal["latest", "event"] = "latest"
    events_kept: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 10

    def __post_init__(self) -> None:
        networks.parse(self.networks)
        if self.retry_max_s < self.retry_min_s:
            raise ValueError(f"retry_max_s ({self.retry_max_s}) is less than retry_min_s ({self.retry_min_s})")

    def max_age_s(self, device: str, authority: str) -> float | None:
        """None: the devices are polled."""
        return None
