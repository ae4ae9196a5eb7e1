"""The contract "desired state -> device", shared by the MQTT and the CoAP adapter. Pure.

- The newest desired state of an actuator wins; nothing is queued.
- An actuator has one worker task while its device lacks the wanted state, and none otherwise.
- A failed attempt is repeated with back-off and jitter.
- What the device or broker acknowledged is the actuator's one live `sosa:Actuation`, with its cause. A refusal is its
  `gateway:refused`, a text for people.
- A regular re-assertion of a state that was acknowledged before is not recorded.
- What the device says of itself is `gateway:reportedState`, beside the desired state, with `gateway:reportedTime` and
  what it came through (`gateway:receivedFrom`), so that it can be told as unconfirmed. Another state of a device that
  had the desired one, without a command of ours, is a person's hand: the actuator follows it, or holds the desired one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Literal, NamedTuple

from lamplighter.adapters.literals import datetime_term
from lamplighter.adapters.mapping.tables import ByHand
from lamplighter.engine.terms import XSD, Term, iri, lexical, literal
from lamplighter.ontology.vocabulary import (
    ACTUATION,
    ACTUATOR,
    ANSWER,
    BY_HAND,
    BY_RULE,
    CAUSE,
    DESIRED_STATE,
    FOLLOWED,
    HAS_SIMPLE_RESULT,
    HAS_STATUS,
    MADE_BY_ACTUATOR,
    RDF_TYPE,
    RECEIVED_FROM,
    REFUSED,
    REPORTED_STATE,
    REPORTED_TIME,
    RESULT_TIME,
    SENT_TIME,
    TARGET,
)

# What the IRI of an actuation has behind that of its actuator.
ACTUATION_SUFFIX = "/actuation"
# Begins the origin of an update that makes a report the desired state; the target follows.
BY_HAND_ORIGIN = "by hand, "
# Why a state is sent. notification: the desired state changed; timer: it is sent again at its interval; client: the
# device reported another state, or came back.
Cause = Literal["notification", "timer", "client"]


class Sending(NamedTuple):
    """How a state was sent that is acknowledged. sent: time of the message, with a time zone; answer: the
    acknowledgement, such as "PUBACK"; rule: its place, such as "mapping/home.toml line 7: command 1"; target: a topic
    or URI; followed: epoch and sequence of the commit with the desired state, if known."""

    sent: datetime
    cause: Cause
    answer: str
    rule: str
    target: str
    followed: tuple[int, int] | None


_BOOLEANS = {"true": "true", "1": "true", "false": "false", "0": "false"}
_BOOLEAN = f"^^<{XSD}boolean>"


def desired_pattern(variable: str) -> str:
    """The pattern of ?actuator and its desired state. The state of a lamp of the street is its lighting:hasStatus.

    The engine maintains a UNION incrementally, but not a choice of properties in a path (``|``).
    """
    return f"{{ ?actuator <{DESIRED_STATE}> ?{variable} }} UNION {{ ?actuator <{HAS_STATUS}> ?{variable} }}"


def desired_update(actuator: Term, state: Term, condition: str = "") -> str:
    """SPARQL text that makes ``state`` the desired state of the actuator. condition: a pattern without which it has no
    effect, here and below."""
    return _state_update(actuator, DESIRED_STATE, state, condition)


def status_update(lamp: Term, state: Term, condition: str = "") -> str:
    """SPARQL text that makes ``state`` the lighting:hasStatus of a lamp. One that is BROKEN stays so."""
    return (
        f"DELETE {{ {lamp} <{HAS_STATUS}> ?before }} INSERT {{ {lamp} <{HAS_STATUS}> {state} }} "
        f"WHERE {{ {condition}OPTIONAL {{ {lamp} <{HAS_STATUS}> ?before }} "
        f"FILTER NOT EXISTS {{ {lamp} <{HAS_STATUS}> 'BROKEN' }} }}"
    )


def actuation_update(
    actuator: Term, state: Term, at: datetime, sending: Sending | None = None, condition: str = ""
) -> str:
    """SPARQL text that makes ``state`` the result of the actuator's one live sosa:Actuation.

    at: time of the acknowledgement, with a time zone. sending: None for an adapter that does not record it. The update
    replaces the earlier actuation as a whole; the change log has the past (design section 9).
    """
    assert at.tzinfo is not None
    actuation = iri(lexical(actuator) + ACTUATION_SUFFIX)
    return (
        f"DELETE {{ {actuation} ?property ?value }} "
        f"INSERT {{ {actuation} {iri(RDF_TYPE)} {iri(ACTUATION)} ; "
        f"{iri(MADE_BY_ACTUATOR)} {actuator} ; "
        f"{iri(HAS_SIMPLE_RESULT)} {state} ; "
        f"{iri(RESULT_TIME)} {datetime_term(at)}{'' if sending is None else _sending_triples(sending)} }} "
        f"WHERE {{ {condition}OPTIONAL {{ {actuation} ?property ?value }} }}"
    )


def _sending_triples(sending: Sending) -> str:
    found = {
        SENT_TIME: datetime_term(sending.sent),
        CAUSE: literal(sending.cause),
        ANSWER: literal(sending.answer),
        BY_RULE: literal(sending.rule),
        TARGET: literal(sending.target),
    }
    if sending.followed is not None:
        found[FOLLOWED] = literal("{}/{}".format(*sending.followed))
    return "".join(f" ; {iri(name)} {value}" for name, value in found.items())


def refusal_update(actuator: Term, reason: str, condition: str = "") -> str:
    """SPARQL text that records in the actuator's actuation why nothing is sent. The last acknowledgement stays."""
    actuation = iri(lexical(actuator) + ACTUATION_SUFFIX)
    return (
        f"DELETE {{ {actuation} {iri(REFUSED)} ?reason }} "
        f"INSERT {{ {actuation} {iri(RDF_TYPE)} {iri(ACTUATION)} ; "
        f"{iri(MADE_BY_ACTUATOR)} {actuator} ; {iri(REFUSED)} {literal(reason)} }} "
        f"WHERE {{ {condition}OPTIONAL {{ {actuation} {iri(REFUSED)} ?reason }} }}"
    )


def by_hand_update(actuator: Term, what: ByHand) -> str:
    """SPARQL text that says what becomes of a state that a person gives the actuator at its device."""
    return _state_update(actuator, BY_HAND, literal(what), f"{actuator} a <{ACTUATOR}> . ")


def reported_update(
    actuator: Term, state: Term | None, at: datetime | None, sources: Sequence[Term] = (), condition: str = ""
) -> str:
    """SPARQL text that makes ``state`` what the device reports of the actuator; None: it says that it has none.

    at: when it reported it; None: that is unknown, and an equal state keeps the time of its last report. sources: what
    the report came through, as for `adapters.model.readings.Stream`.
    """
    names = REPORTED_STATE, REPORTED_TIME, RECEIVED_FROM
    former = [f"{actuator} <{name}> ?former{number}" for number, name in enumerate(names)]
    where = "".join(f"OPTIONAL {{ {pattern} }} " for pattern in former)
    if state is None:
        return f"DELETE {{ {' . '.join(former)} }} WHERE {{ {condition}{where}}}"
    inserted = [f"{actuator} <{REPORTED_STATE}> {state}"]
    if at is not None:
        inserted.append(f"{actuator} <{REPORTED_TIME}> {datetime_term(at)}")
    inserted += [f"{actuator} <{RECEIVED_FROM}> {source}" for source in sources]
    if at is None:
        where += f"FILTER NOT EXISTS {{ {' . '.join(inserted)} }} "
    return f"DELETE {{ {' . '.join(former)} }} INSERT {{ {' . '.join(inserted)} }} WHERE {{ {condition}{where}}}"


def followed_update(actuator: Term, before: Term, state: Term, condition: str = "") -> str:
    """SPARQL text that makes a reported state the desired one, unless another one than ``before`` is desired by now."""
    return (
        f"DELETE {{ {actuator} ?name {before} }} INSERT {{ {actuator} ?name {state} }} "
        f"WHERE {{ {condition}VALUES ?name {{ <{DESIRED_STATE}> <{HAS_STATUS}> }} {actuator} ?name {before} }}"
    )


def _state_update(actuator: Term, name: str, state: Term, condition: str) -> str:
    return (
        f"DELETE {{ {actuator} <{name}> ?before }} INSERT {{ {actuator} <{name}> {state} }} "
        f"WHERE {{ {condition}OPTIONAL {{ {actuator} <{name}> ?before }} }}"
    )


def states_query() -> str:
    """The actuators with their desired and reported states; `differences` reads the rows."""
    return (
        f"SELECT ?actuator ?desired ?reported WHERE {{ {{ {desired_pattern('desired')} }} "
        f"?actuator <{REPORTED_STATE}> ?reported }}"
    )


def differences(rows: Iterable[Sequence[Term | None]]) -> dict[Term, tuple[Term, Term]]:
    """The desired and the reported state of each actuator whose device reports another state than the desired one.

    rows: of `states_query`, in any order.
    """
    return {
        actuator: (desired, reported)
        for actuator, desired, reported in rows
        if actuator and desired and reported and not same_state(desired, reported)
    }


def same_state(one: Term, other: Term) -> bool:
    """Whether two literals are the same state: equal numbers, equal booleans, or equal texts. A datatype does not
    matter, as a device may report "ON" for a state that an application writes as plain text."""
    if one == other:
        return True
    texts = lexical(one), lexical(other)
    if texts[0] == texts[1]:
        return True
    if one.endswith(_BOOLEAN) and other.endswith(_BOOLEAN):
        return _BOOLEANS.get(texts[0], texts[0]) == _BOOLEANS.get(texts[1], texts[1])
    try:
        return Decimal(texts[0]) == Decimal(texts[1])
    except InvalidOperation:
        return False
