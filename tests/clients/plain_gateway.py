"""A gateway as a process of its own for the published clients, and how their configurations name it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.gateway_process import GatewayProcess


def plain_gateway(folder: Path) -> GatewayProcess:
    """`lamplighter run` without a broker, not started yet."""
    return GatewayProcess(folder, broker_port=None, off_after="PT1H")


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
