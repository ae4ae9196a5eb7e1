"""URIs of resources of devices: normal form, parts, and names for IRIs. Pure."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from lamplighter.adapters.mapping.modbus_places import modbus_place, place_of
from lamplighter.adapters.specs import Kind
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import iri


class ResourceScheme(NamedTuple):
    """kind: of the adapter that the URIs are for; port: the default of the scheme."""

    kind: Kind
    port: int


SCHEMES: dict[str, ResourceScheme] = {
    "coap": ResourceScheme("coap", 5683),  # RFC 7252 section 6.1
    "http": ResourceScheme("http-devices", 80),  # RFC 9110 section 4.2
    "https": ResourceScheme("http-devices", 443),
    "modbus+tcp": ResourceScheme("modbus", 502),  # WoT Modbus Binding
}
COAP_PORT = SCHEMES["coap"].port
OPTION_BYTES_MAX = 255
"""Of the host, of a segment of the path and of an argument of CoAP (RFC 7252 section 5.10)."""
URI_CHARS_MAX = 2_000
"""Of the other schemes."""


CACHED, CACHED_CHARS_MAX = 4_096, 512
"""URIs whose normal form is remembered, and their length: actuators are told their states again and again."""


def kind_of_uri(text: str) -> Kind:
    """The adapter that a URI is for, by its scheme; "coap" for unknown ones, so that one adapter reports the fault."""
    scheme = text.partition(":")[0].lower()
    return SCHEMES[scheme].kind if scheme in SCHEMES else "coap"


def normal(text: str) -> str:
    """A URI in normal form (RFC 7252 section 6.3, RFC 9110 section 4.2.3), so that one resource has one spelling.

    Raises PayloadError for other URIs and for URIs that do not name a single device.
    """
    return _remembered(text) if len(text) <= CACHED_CHARS_MAX else _normal(text)


def coap(text: str) -> str:
    """As `normal`, for places that take coap:// URIs only."""
    found = normal(text)
    if kind_of_uri(found) != "coap":
        raise PayloadError(f"only coap:// URIs are supported: {text}")
    return found


def _normal(text: str) -> str:
    try:
        iri(text)  # refuses white space and control characters, which urlsplit silently removes
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # as resolving the name does
    except ValueError as error:
        raise PayloadError(f"not a URI: {error}") from error
    if parts.scheme == "coaps":
        raise PayloadError(f"DTLS is not available; write coap://, and protect the device with an OSCORE key: {text}")
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise PayloadError(f"URIs of resources begin with {known}: {text}")
    usual = SCHEMES[parts.scheme].port
    if not host or port == 0:
        raise PayloadError(f"a {parts.scheme}:// URI needs a host and a port above 0: {text}")
    if parts.fragment or "@" in parts.netloc:
        raise PayloadError(f"a {parts.scheme}:// URI has neither fragment nor user name: {text}")
    if _is_multicast(host):
        raise PayloadError(f"a multicast address has no single device to acknowledge: {text}")
    _check_parts(text, parts.scheme, host, parts.path, parts.query)
    netloc = f"[{host}]" if ":" in host else host
    if port not in (None, usual):
        netloc += f":{port}"
    if parts.scheme == "modbus+tcp":
        return f"{parts.scheme}://{netloc}{modbus_place(parts.path, parts.query).path()}"
    return f"{parts.scheme}://{netloc}{parts.path or '/'}" + (f"?{parts.query}" if parts.query else "")


_remembered = lru_cache(CACHED)(_normal)


def host_and_port(resource: str) -> tuple[str, int]:
    """Host and port of a URI in normal form."""
    parts = urlsplit(resource)
    assert parts.hostname is not None
    return parts.hostname, parts.port or SCHEMES[parts.scheme].port


def authority(resource: str) -> str:
    """The device of a URI in normal form, as host or host:port. Of https, it has always the port, which is another one
    than that of http."""
    parts = urlsplit(resource)
    return f"{parts.netloc}:443" if parts.scheme == "https" and parts.port is None else parts.netloc


def beside(resource: str, path: str) -> str:
    """The URI with another path, at the same device. Raises PayloadError."""
    parts = urlsplit(resource)
    return normal(f"{parts.scheme}://{parts.netloc}/{path.removeprefix('/')}")


def authority_name(authority: str) -> str:
    """The name of a device in IRIs: ``lamp``, ``192.168.7.20~61616``, ``fe80==1~61616``. Different for different
    devices."""
    host, bracket, port = authority.rpartition("]")
    if not bracket:
        return authority.replace(":", "~")
    return host.removeprefix("[").replace(":", "=") + port.replace(":", "~")


def address_name(authority: str, port: int = COAP_PORT) -> str:
    """As `authority_name`, always with the port: ``lamp~5683``. It is the name of a device that has no other one. port:
    the usual one of the device's scheme."""
    name = authority_name(authority)
    return name if urlsplit(f"//{authority}").port else f"{name}~{port}"


def name(resource: str) -> str:
    """Device and path of a URI in normal form, as default IRIs have them: ``192.168.7.20~61616/3303/0/5700``.

    Different for different resources; percent-encoded characters and arguments stay as they are. The names of other
    schemes than coap have always the port, so that they are different from those of coap.
    """
    parts = urlsplit(resource)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    device = authority_name(parts.netloc)
    if parts.scheme != "coap":
        device = address_name(parts.netloc, SCHEMES[parts.scheme].port)
    if parts.scheme == "modbus+tcp":
        return f"{device}/{place_of(resource).name()}"
    return device + path.replace("+", "%2B")  # a plus sign is a wildcard of patterns


def _check_parts(text: str, scheme: str, host: str, path: str, query: str) -> None:
    """Checks what becomes parts of a request. Raises PayloadError."""
    if host.count(".") == 3 and not host.strip("0123456789.") and "" in host.split("."):
        raise PayloadError(f"not a valid {scheme}:// URI: {host} is not an address")
    segments = path.split("/")[1:] if path else []
    try:
        options = [unquote(one, errors="strict").encode() for one in [host, *segments, *query.split("&")]]
    except UnicodeError as error:
        raise PayloadError(f"not a valid {scheme}:// URI: its parts are not UTF-8") from error
    if scheme == "coap" and any(len(option) > OPTION_BYTES_MAX for option in options):
        raise PayloadError(f"a part of the coap:// URI is longer than {OPTION_BYTES_MAX} bytes")
    if scheme != "coap" and len(text) > URI_CHARS_MAX:
        raise PayloadError(f"the {scheme}:// URI is longer than {URI_CHARS_MAX:,} characters")


def _is_multicast(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_multicast
    except ValueError:
        return False  # a name
