"""Streams and readings: what the adapters hand to the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Literal, NamedTuple

from lamplighter.engine.terms import Term
from lamplighter.ontology.vocabulary import RULE

OnRepeat = Literal["refresh", "ignore", "event"]


class Keep(NamedTuple):
    """Which readings of a stream are dropped: see `repeats`. The defaults drop none."""

    on_repeat: OnRepeat = "refresh"
    dead_band: Decimal | None = None
    throttle_s: float = 0.0


class ValueLifetime(NamedTuple):
    """How long a value lasts without another report, in seconds. off_delay_s: of the value true, which is followed by
    false; expire_after_s: of every value, which is followed by none. None: until the next report."""

    off_delay_s: float | None = None
    expire_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """One sensor that observes one property of one feature of interest, and the source of its readings.

    All members but `topic`, `label`, `rule` and `keep` are IRIs as terms. unit: an IRI, or a literal if the code is
    unknown. result: the qudt:QuantityValue beside the simple result, or None. keep: None drops nothing. lifetime: None:
    values last until the next one. sources: what its readings come through, such as a broker, a device and an adapter:
    a value that was received before one of them came back is unconfirmed. condition: a
    SPARQL pattern without which no update of the stream has an effect, such as `rule_condition`; empty: there is none.
    If two streams have the same `iri` and differ otherwise, they conflict.
    """

    iri: Term
    observation: Term
    sensor: Term
    property: Term
    feature: Term
    platform: Term
    unit: Term | None
    topic: str
    label: str | None
    rule: str
    result: Term | None = None
    keep: Keep | None = None
    condition: str = ""
    lifetime: ValueLifetime | None = None
    sources: tuple[Term, ...] = field(default=(), compare=False)

    def chars(self) -> int:
        """Of all its members, a measure of the memory that it takes."""
        terms = self.iri, self.observation, self.sensor, self.property, self.feature, self.platform
        others = self.unit or "", self.topic, self.label or "", self.result or ""
        return sum(len(text) for text in (*terms, *others))


def rule_condition(mapping: Term) -> str:
    """The pattern that matches as long as a `gateway:Mapping` of the dataset has a rule.

    It stands in the WHERE of what an adapter writes by the rule, so that an update that is under way when the rule is
    removed has no effect."""
    return f"{mapping} <{RULE}> ?rule . "


class Reading(NamedTuple):
    """value: a typed literal, spelled as in the payload, or an IRI; or a term that stands for no value, see
    `adapters.literals.NIL`; time: the result time, xsd:dateTime; retained: an
    old state that the broker stored; time_problem: why `time` is not what the payload says, see `mapping.times`;
    received: by the adapter's clock; again: the value is to leave and to enter once more; own_time: the rule takes the
    time from the message, so that readings may come out of order; request_id: gives a message that arrives twice one
    effect, for readings whose batches are written one after the other; historical: the device says that it is not
    current."""

    stream: Stream
    value: Term
    time: Term
    retained: bool
    time_problem: str | None = None
    received: datetime = datetime.min
    again: bool = False
    own_time: bool = False
    request_id: str = ""
    historical: bool = False
