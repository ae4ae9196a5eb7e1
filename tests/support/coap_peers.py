"""CoAP devices for tests, made of libcoap's own programs (Debian package libcoap3-bin)."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.support.brokers import free_port
from tests.support.components import require_command

SERVER_COMMANDS = ("coap-server-notls", "coap-server")
CLIENT_COMMANDS = ("coap-client-notls", "coap-client")
PING = b"\x40\x00\x00\x01"
"""An empty confirmable message, which every endpoint answers with a reset (RFC 7252 section 4.3)."""


def free_udp_port() -> int:
    """A port of 127.0.0.1 that nothing listens on; no two calls in one process give the same."""
    return free_port(socket.SOCK_DGRAM)


class LibcoapServer:
    """A coap-server on 127.0.0.1 that makes a resource of each path that is PUT, at most ``resources_max``.

    loss_percent: share of its datagrams that it forgets to send. everywhere: it listens on all addresses. options: of
    the command. Resources do not outlive `stop`.
    """

    def __init__(
        self,
        port: int,
        *,
        resources_max: int = 100,
        loss_percent: int = 0,
        everywhere: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        self.port = port
        self._command = [require_command(*SERVER_COMMANDS), "-p", str(port), "-d", str(resources_max), "-v", "1"]
        self._command += [*([] if everywhere else ["-A", "127.0.0.1"]), *options]
        if loss_percent:
            self._command += ["-l", f"{loss_percent}%"]
        self._client = require_command(*CLIENT_COMMANDS)
        self._process: subprocess.Popen[bytes] | None = None

    def uri(self, path: str) -> str:
        return f"coap://127.0.0.1:{self.port}/{path.lstrip('/')}"

    def start(self) -> None:
        """Returns when the server answers."""
        assert self._process is None
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, stdin=quiet, stdout=quiet, stderr=quiet)
        until = time.monotonic() + 60
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise RuntimeError(f"{self._command[0]} does not answer on port {self.port}")

    def stop(self) -> None:
        """Also when it is stopped already."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def get(self, path: str) -> str:
        """What a GET with libcoap's client prints: the content, or "" while there is no such resource."""
        answer = subprocess.run(
            [self._client, "-v", "3", "-B", "60", self.uri(path)], capture_output=True, timeout=120, check=True
        )
        complaint = answer.stderr.decode().strip()
        if complaint and not complaint.startswith("4.04"):
            raise RuntimeError(f"GET {self.uri(path)}: {complaint}")
        return answer.stdout.decode().removesuffix("\n")

    def _answers(self) -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.settimeout(0.05)
            try:
                probe.connect(("127.0.0.1", self.port))
                probe.send(PING)
                return bool(probe.recv(16))
            except OSError:  # refused, or nothing yet
                return False


@contextmanager
def libcoap_server(
    port: int | None = None,
    *,
    resources_max: int = 100,
    loss_percent: int = 0,
    everywhere: bool = False,
    options: Sequence[str] = (),
) -> Iterator[LibcoapServer]:
    """A running server, on a free port when none is given; stopped at the end."""
    server = LibcoapServer(
        port or free_udp_port(),
        resources_max=resources_max,
        loss_percent=loss_percent,
        everywhere=everywhere,
        options=options,
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()
