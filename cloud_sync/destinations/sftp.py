"""A folder of an SFTP server."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lamplighter.cloud_sync.destinations.base import display_url
from lamplighter.cloud_sync.destinations.fsspec_folder import FsspecFolder
from lamplighter.engine.errors import ConfigurationError


class SftpFolder(FsspecFolder):
    """The server's key is checked against ``known_hosts``.

    SFTP has no request that makes a file durable. An object that the server loses in a power cut has no confirmation,
    and the shipper sends it again.
    """

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        parts = urlsplit(url)
        options = {"host": parts.hostname, **_options(url, options)}
        options |= {name: value for name, value in (("port", parts.port), ("username", parts.username)) if value}
        super().__init__(url, options, root=parts.path)
        # Without this option each write waits 40 ms for an acknowledgement that TCP delays.
        self._fs.client.get_transport().sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._fs.client.close()  # ends its thread


def _options(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options with a policy that checks the server's key in ``known_hosts``. By default fsspec trusts any key."""
    options = dict(options)
    known = Path(options.pop("known_hosts", "~/.ssh/known_hosts")).expanduser()
    try:
        import paramiko
    except ImportError as error:
        raise ConfigurationError(f"{display_url(url)}: {error}; pip install 'lamplighter[sync-sftp]'") from error

    class KnownHosts(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            try:
                keys = paramiko.HostKeys(str(known))
            except OSError as error:
                raise ConfigurationError(
                    f"{known}: {error.strerror}; create it with ssh-keyscan {hostname} > {known}"
                ) from error
            if not keys.check(hostname, key):
                raise ConfigurationError(
                    f"{display_url(url)}: {known} does not have the key of {hostname}; check the key and add it, or "
                    "set known_hosts in the options file"
                )

    options.setdefault("timeout", 30)
    return {"host_key_policy": KnownHosts(), "allow_agent": False, "look_for_keys": False, **options}
