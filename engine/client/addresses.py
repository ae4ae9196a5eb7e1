"""Where a client goes: WebSocket addresses, Unix sockets, and whom to trust there."""

from __future__ import annotations

import ssl
from pathlib import Path

from websockets.exceptions import InvalidURI
from websockets.uri import parse_uri

from engine.errors import ConfigurationError

UNIX = "ws+unix:"
"""Begins the address of a Unix socket; the rest is its absolute path."""


def trusting(ca: Path | str | None) -> ssl.SSLContext:
    """A context that trusts the certificates in a file, or the machine's. Raises ConfigurationError."""
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"{ca}: no certificates can be read from it ({error}); name a PEM file") from error


def unix_path(url: str) -> str | None:
    """The path of the Unix socket that an address names, None for one on the network. Raises ConfigurationError."""
    if url.startswith(UNIX):
        path = url.removeprefix(UNIX)
        if not path.startswith("/"):
            raise ConfigurationError(f"not the address of a Unix socket: {url!r}; it looks like {UNIX}/absolute/path")
        return path
    try:
        parse_uri(url)
    except InvalidURI as error:
        raise ConfigurationError(f"not a WebSocket address: {url!r}; it looks like ws://host:9000/subscribe") from error
    return None
