"""A gateway in secure mode with the ports that sepa-js is fixed to, on a loopback address of its own."""

from __future__ import annotations

import random
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

from tests.support.components import missing, require_command
from tests.support.gateway_process import GatewayProcess

HTTPS_PORT, WSS_PORT = 8443, 9443


class SecureGateway(GatewayProcess):
    """Anybody may register and do everything, and SEPA's test identity is on: its tokens live 5 s."""

    def __init__(self, folder: Path) -> None:
        self.host = free_host(HTTPS_PORT, WSS_PORT)
        security = {"enabled": True, "host": self.host, "names": [self.host]}
        security |= {"test_identity": True, "registration": "open"}
        security |= {f"grant_{what}": ["*"] for what in ("read", "write", "subscribe")}
        super().__init__(folder, security=security)

    @property
    def authority(self) -> Path:
        """The certificate authority, in PEM; fetched by way of the machine's own socket."""
        path = self.folder / "ca.pem"
        place = self.folder / "data" / "run" / "http.sock"
        curl = [require_command("curl"), "--silent", "--fail", "--unix-socket", str(place), "http://localhost/ca.pem"]
        path.write_bytes(subprocess.run(curl, check=True, capture_output=True).stdout)
        return path

    def url(self, path: str) -> str:
        return f"https://{self.host}:{HTTPS_PORT}{path}"

    @property
    def socket(self) -> str:
        return f"wss://{self.host}:{WSS_PORT}/secure/subscribe"

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.authority)

    def configuration(self) -> dict[str, Any]:
        """The protocol members of a JSAP profile."""
        return {
            "host": self.host,
            "oauth": {
                "enable": True,
                "register": self.url("/oauth/register"),
                "tokenRequest": self.url("/oauth/token"),
            },
            "sparql11protocol": {
                "protocol": "https",
                "port": HTTPS_PORT,
                "query": {"path": "/secure/query", "method": "POST", "format": "JSON"},
                "update": {"path": "/secure/update", "method": "POST", "format": "JSON"},
            },
            "sparql11seprotocol": {
                "protocol": "wss",
                "availableProtocols": {"wss": {"port": WSS_PORT, "path": "/secure/subscribe"}},
            },
        }


def free_host(*ports: int) -> str:
    """An address of 127.0.0.0/8 where the ports are free; the test is skipped, or fails where CI=true, without one."""
    for _ in range(20):
        host = f"127.{random.randint(1, 254)}.{random.randint(1, 254)}.{random.randint(1, 254)}"
        try:
            for port in ports:
                socket.create_server((host, port)).close()
        except OSError:
            continue
        return host
    return missing(f"the ports {ports} are taken on all addresses; somebody listens on 0.0.0.0")
