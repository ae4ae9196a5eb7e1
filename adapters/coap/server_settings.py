"""The table ``[coap.server]`` of ``lamplighter.toml``."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

import msgspec


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
    host: str | None = None
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 5683
    echo: Literal["writes", "large"] | None = None
    requests_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 200

    def __post_init__(self) -> None:
        if self.host is not None:
            ipaddress.ip_address(self.host)
