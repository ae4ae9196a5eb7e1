"""Members of a JSAP profile for the gateway of a test."""

from urllib.parse import urlsplit

from lamplighter.gateway.addresses import Addresses


def settings(at: Addresses) -> list[str]:
    return [
        "host=127.0.0.1",
        f"sparql11protocol.port={urlsplit(at.query).port}",
        f"sparql11seprotocol.availableProtocols.ws.port={urlsplit(at.subscribe).port}",
    ]
