"""Rows of the subscription -> commands for devices.

Pure: no network, no clock.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiocoap
import aiocoap.error

from lamplighter.adapters.devices.desired import desired_pattern
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import Term, iri, is_iri, is_literal, lexical
from lamplighter.ontology.vocabulary import COAP_RESOURCE

DEFAULT_QUERY = (
    f"SELECT ?actuator ?resource ?payload WHERE {{ ?actuator <{COAP_RESOURCE}> ?resource . "
    f"{desired_pattern('payload')} }}"
)

VARIABLES = ("actuator", "resource", "payload")

COAP_PORT = 5683
"""The default of the scheme (RFC 7252 section 6.1)."""

_OPTION_BYTES_MAX = 255  # host, segments of the path, arguments (RFC 7252 section 5.10)


@dataclass(frozen=True, slots=True, order=True)
class Command:
    """The state that a device should be in.

    actuator: its IRI, as a term. resource: the normalised coap:// URI to PUT to. result: the payload, as a literal
    term. The order of commands decides between two commands for one resource.
    """

    actuator: Term
    resource: str
    result: Term

    @property
    def payload(self) -> bytes:
        """The literal's text in UTF-8, without its datatype."""
        return lexical(self.result).encode()


def check_variables(variables: Sequence[str]) -> None:
    """Raises ConfigurationError if the subscription lacks a variable of a command."""
    missing = [f"?{name}" for name in VARIABLES if name not in variables]
    if missing:
        raise ConfigurationError(
            f"[coap] query: the result has no variable {', '.join(missing)}; "
            "write a SELECT with ?actuator, ?resource and ?payload"
        )


def command(row: Mapping[str, Term]) -> Command:
    """The command of a row (variable -> term, without unbound ones). Raises PayloadError."""
    for name in VARIABLES:
        if name not in row:
            raise PayloadError(f"?{name} is unbound")
    actuator, resource, result = (row[name] for name in VARIABLES)
    if not is_iri(actuator):
        raise PayloadError(f"?actuator is not an IRI: {actuator}")
    if not is_literal(result):
        raise PayloadError(f"?payload is not a literal: {result}")
    if not (is_iri(resource) or is_literal(resource)):
        raise PayloadError(f"?resource is neither an IRI nor a literal: {resource}")
    wanted = Command(actuator, resource_uri(lexical(resource)), result)
    try:
        _ = wanted.payload
    except UnicodeEncodeError as error:
        raise PayloadError(f"?payload cannot be written in UTF-8: {error.reason}") from error
    return wanted


def resource_uri(text: str) -> str:
    """A coap:// URI in normal form (RFC 7252 section 6.3), so that one resource has one spelling.

    Raises PayloadError for other URIs and for URIs that do not name a single device.
    """
    try:
        iri(text)  # refuses white space and control characters, which urlsplit silently removes
        parts = urlsplit(text)
        host, port = parts.hostname or "", COAP_PORT if parts.port is None else parts.port
        host.encode("idna")  # as resolving the name does
    except ValueError as error:
        raise PayloadError(f"not a URI: {error}") from error
    if parts.scheme != "coap":
        raise PayloadError(f"only coap:// URIs are supported: {text}")
    if not host or not port:
        raise PayloadError(f"a coap:// URI needs a host and a port above 0: {text}")
    if parts.fragment or "@" in parts.netloc:
        raise PayloadError(f"a coap:// URI has neither fragment nor user name: {text}")
    if _is_multicast(host):
        raise PayloadError(f"a multicast address has no single device to acknowledge: {text}")
    netloc = f"[{host}]" if ":" in host else host
    if port != COAP_PORT:
        netloc += f":{port}"
    normal = f"coap://{netloc}{parts.path or '/'}" + (f"?{parts.query}" if parts.query else "")
    try:
        options = [option.encode() for option in aiocoap.Message(code=aiocoap.PUT, uri=normal).opt.option_list()]
    except (aiocoap.error.Error, ValueError) as error:
        raise PayloadError(f"not a valid coap:// URI: {error}") from error
    if any(len(option) > _OPTION_BYTES_MAX for option in options):
        raise PayloadError(f"a part of the coap:// URI is longer than {_OPTION_BYTES_MAX} bytes")
    return normal


def host_and_port(resource: str) -> tuple[str, int]:
    """Host and port of a normalised resource URI."""
    parts = urlsplit(resource)
    assert parts.hostname is not None
    return parts.hostname, parts.port or COAP_PORT


def device(resource: str) -> str:
    """The device of a normalised resource URI, as host or host:port."""
    return urlsplit(resource).netloc


def refusal_reason(refused: Command) -> str:
    """Why nothing is sent to the resource of a command, for the graph.

    The reason names the setting. The text has no addresses, so that readers of the graph do not learn the networks of
    the gateway or what its names resolve to.
    """
    return f"the address of {refused.resource} is in none of the networks that coap.networks allows"


def _is_multicast(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_multicast
    except ValueError:
        return False  # a name
