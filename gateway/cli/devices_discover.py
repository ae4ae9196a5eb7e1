"""`lamplighter devices discover`: searches the network for CoAP devices, beside the adapter.

It uses no keys, which only the adapter may have: the links of a device that answers no plain requests are found by the
adapter, when the device registers itself.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lamplighter.adapters.coap.settings import CoapSettings

if TYPE_CHECKING:  # most commands need none
    from lamplighter.adapters.coap.discovery import Proposal


def add_discover_arguments(discover: argparse.ArgumentParser) -> None:
    discover.add_argument(
        "host", nargs="?", metavar="HOST", help="host or host:port of one device; without it, all are asked (multicast)"
    )


def found_devices(settings: CoapSettings, host: str | None) -> Sequence[Proposal]:
    """The devices that answer, as their links describe them. Raises UpstreamError and PayloadError."""
    from lamplighter.adapters.coap.discovering import Searcher
    from lamplighter.adapters.coap.endpoint import Endpoint, EndpointCounters
    from lamplighter.adapters.coap.exchanges import Exchanges
    from lamplighter.adapters.networks import Networks

    async def search() -> Sequence[Proposal]:
        networks = Networks(settings.networks, "coap.networks")
        endpoint = await Endpoint.client(settings, EndpointCounters())
        try:
            searcher = Searcher(endpoint, Exchanges(endpoint, networks, settings), networks)
            return await searcher.everywhere() if host is None else [await searcher.at(host)]
        finally:
            await endpoint.close()

    return asyncio.run(search())
