"""Addresses of gateways: WebSocket URLs and Unix sockets, and the certificates to trust."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from lamplighter.engine.errors import ConfigurationError

# Prefix of the address of a Unix socket; the absolute path follows.
UNIX = "ws+unix:"


def trusting(ca: Path | str | None) -> ssl.SSLContext:
    """A TLS context that trusts the certificates in a file, or the machine's. Raises ConfigurationError."""
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"{ca}: no certificates can be read from it ({error}); name a PEM file") from error


def unix_path(url: str) -> str | None:
    """The path of an address of a Unix socket, None for a network address. Raises ConfigurationError."""
    if url.startswith(UNIX):
        path = url.removeprefix(UNIX)
        if not path.startswith("/"):
            raise ConfigurationError(f"not the address of a Unix socket: {url!r}; it looks like {UNIX}/absolute/path")
        return path
    # Here, since commands over HTTP load this module.
    from websockets.exceptions import InvalidURI
    from websockets.uri import parse_uri

    try:
        parse_uri(url)
    except (InvalidURI, ValueError) as error:
        raise ConfigurationError(f"not a WebSocket address: {url!r}; it looks like ws://host:9000/subscribe") from error
    return None


def split_address(url: str) -> SplitResult:
    """The parts of an address. Raises ConfigurationError for a text that is none."""
    try:
        url.encode()
        return urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"not an address: {url!r} ({error}); it looks like https://host:8443/query") from error


def check_private(url: str) -> None:
    """Raises ConfigurationError for an address to which secrets would be sent over a network unencrypted."""
    place = split_address(url)
    if url.startswith(UNIX) or (place.scheme in ("https", "wss") and place.hostname):
        return
    if place.scheme in ("http", "ws") and place.hostname and is_loopback(place.hostname):
        return
    raise ConfigurationError(f"{url!r} is no https or wss address: secrets would go over the network unencrypted")


def is_loopback(host: str) -> bool:
    """Whether a host name or address is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
