"""URIs of CoAP resources: normal form, parts, and names for IRIs. Pure."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import unquote, urlsplit

from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import iri

COAP_PORT = 5683
"""The default of the scheme (RFC 7252 section 6.1)."""
OPTION_BYTES_MAX = 255
"""Of the host, of a segment of the path and of an argument (RFC 7252 section 5.10)."""


CACHED, CACHED_CHARS_MAX = 4_096, 512
"""URIs whose normal form is remembered, and their length: actuators are told their states again and again."""


def normal(text: str) -> str:
    """A coap:// URI in normal form (RFC 7252 section 6.3), so that one resource has one spelling.

    Raises PayloadError for other URIs and for URIs that do not name a single device.
    """
    return _remembered(text) if len(text) <= CACHED_CHARS_MAX else _normal(text)


def _normal(text: str) -> str:
    try:
        iri(text)  # refuses white space and control characters, which urlsplit silently removes
        parts = urlsplit(text)
        host, port = parts.hostname or "", COAP_PORT if parts.port is None else parts.port
        host.encode("idna")  # as resolving the name does
    except ValueError as error:
        raise PayloadError(f"not a URI: {error}") from error
    if parts.scheme == "coaps":
        raise PayloadError(f"DTLS is not available; write coap://, and protect the device with an OSCORE key: {text}")
    if parts.scheme != "coap":
        raise PayloadError(f"only coap:// URIs are supported: {text}")
    if not host or not port:
        raise PayloadError(f"a coap:// URI needs a host and a port above 0: {text}")
    if parts.fragment or "@" in parts.netloc:
        raise PayloadError(f"a coap:// URI has neither fragment nor user name: {text}")
    if _is_multicast(host):
        raise PayloadError(f"a multicast address has no single device to acknowledge: {text}")
    _check_options(host, parts.path, parts.query)
    netloc = f"[{host}]" if ":" in host else host
    if port != COAP_PORT:
        netloc += f":{port}"
    return f"coap://{netloc}{parts.path or '/'}" + (f"?{parts.query}" if parts.query else "")


_remembered = lru_cache(CACHED)(_normal)


def host_and_port(resource: str) -> tuple[str, int]:
    """Host and port of a URI in normal form."""
    parts = urlsplit(resource)
    assert parts.hostname is not None
    return parts.hostname, parts.port or COAP_PORT


def authority(resource: str) -> str:
    """The device of a URI in normal form, as host or host:port."""
    return urlsplit(resource).netloc


def authority_name(authority: str) -> str:
    """The name of a device in IRIs: ``lamp``, ``192.168.7.20~61616``, ``fe80==1~61616``. Different for different
    devices."""
    host, bracket, port = authority.rpartition("]")
    if not bracket:
        return authority.replace(":", "~")
    return host.removeprefix("[").replace(":", "=") + port.replace(":", "~")


def address_name(authority: str) -> str:
    """As `authority_name`, always with the port: ``lamp~5683``. It is the name of a device that has no other one."""
    name = authority_name(authority)
    return name if urlsplit(f"//{authority}").port else f"{name}~{COAP_PORT}"


def name(resource: str) -> str:
    """Device and path of a URI in normal form, as default IRIs have them: ``192.168.7.20~61616/3303/0/5700``.

    Different for different resources; percent-encoded characters and arguments stay as they are.
    """
    parts = urlsplit(resource)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    return authority_name(parts.netloc) + path.replace("+", "%2B")  # a plus sign is a wildcard of patterns


def _check_options(host: str, path: str, query: str) -> None:
    """Checks what becomes options of a request. Raises PayloadError."""
    if host.count(".") == 3 and not host.strip("0123456789.") and "" in host.split("."):
        raise PayloadError(f"not a valid coap:// URI: {host} is not an address")
    segments = path.split("/")[1:] if path else []
    try:
        options = [unquote(one, errors="strict").encode() for one in [host, *segments, *query.split("&")]]
    except UnicodeError as error:
        raise PayloadError("not a valid coap:// URI: its parts are not UTF-8") from error
    if any(len(option) > OPTION_BYTES_MAX for option in options):
        raise PayloadError(f"a part of the coap:// URI is longer than {OPTION_BYTES_MAX} bytes")


def _is_multicast(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_multicast
    except ValueError:
        return False  # a name
