"""How the configurations of the published clients name a gateway."""

from __future__ import annotations

from typing import Any

from tests.support.gateway_process import GatewayProcess


def configuration(gateway: GatewayProcess) -> dict[str, Any]:
    """The protocol members of a JSAP profile."""
    return {
        "host": "127.0.0.1",
        "oauth": {"enable": False},
        "sparql11protocol": {
            "protocol": "http",
            "port": gateway.http_port,
            "query": {"path": "/query", "method": "POST", "format": "JSON"},
            "update": {"path": "/update", "method": "POST", "format": "JSON"},
        },
        "sparql11seprotocol": {
            "protocol": "ws",
            "availableProtocols": {"ws": {"port": gateway.websocket_port, "path": "/subscribe"}},
        },
    }
