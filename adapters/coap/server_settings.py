"""The tables ``[coap.server]`` and ``[coap.discovery]`` of ``lamplighter.toml``."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

import msgspec

from lamplighter.engine.client.places import Host, ListenPort


class CoapServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The CoAP server, to which devices send readings.

    enabled: whether it listens. host: the IP address to listen on; without it 127.0.0.1, or with ``security.enabled``
        all addresses. port: UDP; 0: one that the system chooses.
    echo: which unprotected requests a device has to repeat with an Echo value, which proves its address: "writes":
        those that change something, and "large": only those with an answer much larger than the request. Without it
        "large", or with ``security.enabled`` "writes". Observe always needs an Echo value.
    requests_max: requests that are answered at a time; further ones are dropped.
    """

    enabled: bool = True
    host: Host | None = None
    port: ListenPort = 5683
    echo: Literal["writes", "large"] | None = None
    requests_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 200

    def __post_init__(self) -> None:
        if self.host is not None:
            ipaddress.ip_address(self.host)


class CoapDiscoverySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table ``[coap.discovery]``.

    multicast_s: the interval at which the adapter searches for devices by multicast; 0: it does not, and only
        ``lamplighter devices discover`` does. Devices that register themselves are found at once.
    devices_max: devices that are proposed at a time. Further ones are not.
    """

    multicast_s: Annotated[float, msgspec.Meta(ge=0, le=604_800)] = 0.0
    devices_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1_000

    def __post_init__(self) -> None:
        if 0 < self.multicast_s < 60:
            raise ValueError(f"multicast_s ({self.multicast_s:g}) is less than 60; multicast disturbs all devices")
