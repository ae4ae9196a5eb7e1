"""Rows of the subscription -> commands for devices.

Pure: no network, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lamplighter.adapters.devices.desired import desired_pattern
from lamplighter.adapters.mapping import uris
from lamplighter.engine.errors import ConfigurationError, PayloadError
from lamplighter.engine.terms import Term, is_iri, is_literal, lexical
from lamplighter.ontology.vocabulary import COAP_RESOURCE

DEFAULT_QUERY = (
    f"SELECT ?actuator ?resource ?payload WHERE {{ ?actuator <{COAP_RESOURCE}> ?resource . "
    f"{desired_pattern('payload')} }}"
)

VARIABLES = ("actuator", "resource", "payload")


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
    wanted = Command(actuator, uris.normal(lexical(resource)), result)
    try:
        _ = wanted.payload
    except UnicodeEncodeError as error:
        raise PayloadError(f"?payload cannot be written in UTF-8: {error.reason}") from error
    return wanted


def refusal_reason(refused: Command) -> str:
    """Why nothing is sent to the resource of a command, for the graph.

    The reason names the setting. The text has no addresses, so that readers of the graph do not learn the networks of
    the gateway or what its names resolve to.
    """
    return f"the address of {refused.resource} is in none of the networks that coap.networks allows"
