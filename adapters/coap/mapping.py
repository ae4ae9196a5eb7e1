"""Rows of the subscription -> commands for devices -> the update that records what a device acknowledged.

Pure: no network, no clock.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

import aiocoap
import aiocoap.error

from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import XSD, Term, iri, is_iri, is_literal, lexical, literal
from lamplighter.ontology.vocabulary import (
    ACTUATION,
    COAP_RESOURCE,
    HAS_SIMPLE_RESULT,
    HAS_STATUS,
    MADE_BY_ACTUATOR,
    RDF_TYPE,
    REFUSED,
    RESULT_TIME,
)

DEFAULT_QUERY = (
    f"SELECT ?actuator ?resource ?payload WHERE {{ ?actuator <{COAP_RESOURCE}> ?resource ; <{HAS_STATUS}> ?payload }}"
)

VARIABLES = ("actuator", "resource", "payload")

COAP_PORT = 5683
"""The default of the scheme (RFC 7252 section 6.1)."""

_OPTION_BYTES_MAX = 255  # host, segments of the path, arguments (RFC 7252 section 5.10)


@dataclass(frozen=True, slots=True, order=True)
class Command:
    """The state that a device should be in.

    actuator: its IRI, as a term. resource: the normalised coap:// URI to PUT to. result: the payload, as
    a literal term. Commands have an order, which decides when two are given for one resource.
    """

    actuator: Term
    resource: str
    result: Term

    @property
    def payload(self) -> bytes:
        """What is sent: the literal's text in UTF-8, without its datatype."""
        return lexical(self.result).encode()


def check_variables(variables: Sequence[str]) -> None:
    """Raises ConfigurationError when the subscription lacks a variable that a command is made of."""
    missing = [f"?{name}" for name in VARIABLES if name not in variables]
    if missing:
        raise ConfigurationError(
            f"[coap] query: the result has no variable {', '.join(missing)}; "
            "write a SELECT with ?actuator, ?resource and ?payload"
        )


def command(row: Mapping[str, Term]) -> Command:
    """The command that a row (variable -> term, unbound ones left out) asks for. Raises PayloadError."""
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

    Raises PayloadError when it is another kind of URI or names no single device.
    """
    try:
        iri(text)  # refuses white space and control characters, which urlsplit would leave out in silence
        parts = urlsplit(text)
        host, port = parts.hostname or "", COAP_PORT if parts.port is None else parts.port
        host.encode("idna")  # what resolving the name would do
    except ValueError as error:
        raise PayloadError(f"not a URI: {error}") from error
    if parts.scheme != "coap":
        raise PayloadError(f"only coap:// URIs can be sent to: {text}")
    if not host or not port:
        raise PayloadError(f"a coap:// URI needs a host and a port above 0: {text}")
    if parts.fragment or "@" in parts.netloc:
        raise PayloadError(f"a coap:// URI has neither fragment nor user name: {text}")
    if _is_multicast(host):
        raise PayloadError(f"a group of devices cannot acknowledge: {text}")
    netloc = f"[{host}]" if ":" in host else host
    if port != COAP_PORT:
        netloc += f":{port}"
    normal = f"coap://{netloc}{parts.path or '/'}" + (f"?{parts.query}" if parts.query else "")
    try:
        options = [option.encode() for option in aiocoap.Message(code=aiocoap.PUT, uri=normal).opt.option_list()]
    except (aiocoap.error.Error, ValueError) as error:
        raise PayloadError(f"not a coap:// URI that can be sent to: {error}") from error
    if any(len(option) > _OPTION_BYTES_MAX for option in options):
        raise PayloadError(f"a part of the coap:// URI is longer than {_OPTION_BYTES_MAX} bytes")
    return normal


def host_and_port(resource: str) -> tuple[str, int]:
    """Whom a normalised resource URI names."""
    parts = urlsplit(resource)
    assert parts.hostname is not None
    return parts.hostname, parts.port or COAP_PORT


def device(resource: str) -> str:
    """The device that a normalised resource URI names, as host or host:port."""
    return urlsplit(resource).netloc


def actuation_update(acknowledged: Command, at: datetime) -> str:
    """SPARQL text that makes ``acknowledged`` the actuator's one live sosa:Actuation.

    at: when the device's acknowledgement came; with a time zone. The earlier actuation is replaced as a
    whole; the past is in the change log (design section 9). The text has the same shape each time.
    """
    assert at.tzinfo is not None
    time = at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    actuation = iri(lexical(acknowledged.actuator) + "/actuation")
    return (
        f"DELETE {{ {actuation} ?property ?value }} "
        f"INSERT {{ {actuation} {iri(RDF_TYPE)} {iri(ACTUATION)} ; "
        f"{iri(MADE_BY_ACTUATOR)} {acknowledged.actuator} ; "
        f"{iri(HAS_SIMPLE_RESULT)} {acknowledged.result} ; "
        f"{iri(RESULT_TIME)} {literal(time, datatype=XSD + 'dateTime')} }} "
        f"WHERE {{ OPTIONAL {{ {actuation} ?property ?value }} }}"
    )


def refusal_update(refused: Command) -> str:
    """SPARQL text that says in the actuator's actuation that nothing is sent to its resource, and which setting would
    allow it. What was acknowledged before stays. It tells no addresses: readers of the graph need not know the
    networks of the gateway, nor what names are resolved to there.
    """
    actuation = iri(lexical(refused.actuator) + "/actuation")
    reason = literal(f"the address of {refused.resource} is in none of the networks that coap.networks allows")
    return (
        f"DELETE {{ {actuation} {iri(REFUSED)} ?reason }} "
        f"INSERT {{ {actuation} {iri(RDF_TYPE)} {iri(ACTUATION)} ; "
        f"{iri(MADE_BY_ACTUATOR)} {refused.actuator} ; {iri(REFUSED)} {reason} }} "
        f"WHERE {{ OPTIONAL {{ {actuation} {iri(REFUSED)} ?reason }} }}"
    )


def _is_multicast(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_multicast
    except ValueError:
        return False  # a name
