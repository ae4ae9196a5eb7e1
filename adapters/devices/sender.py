"""What an adapter does so that `output` keeps its devices in their desired states, and what is counted of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, NamedTuple, Protocol, TypeVar

from lamplighter.adapters.devices.desired import Cause
from lamplighter.adapters.mapping.tables import CommandBase, LampPart
from lamplighter.engine.errors import GatewayError, UpstreamError
from lamplighter.engine.terms import Term


class DrivenRule(Protocol):
    """What all command rules have. place: file, line and number, or the IRI of its `gateway:Mapping`; actuator: full
    IRI, None for a rule that actuators point to; condition: a SPARQL pattern without which nothing that is written by
    the rule has an effect, empty for rules of files."""

    @property
    def place(self) -> str: ...
    @property
    def actuator(self) -> str | None: ...
    @property
    def table(self) -> CommandBase: ...
    @property
    def condition(self) -> str: ...


Rule = TypeVar("Rule", bound=DrivenRule)


class Attempt(NamedTuple, Generic[Rule]):
    """One attempt to bring an actuator into a state. is_current: whether the state is still wanted; from_file: the rule
    is one of mapping/*.toml; retried: the attempt before it failed. together: of a lamp, the rules and states that go
    in one command, its own among them, in the order of the device; empty: its own only."""

    actuator: Term
    rule: Rule
    state: Term
    cause: Cause
    is_current: Callable[[], bool]
    from_file: bool
    retried: bool
    together: tuple[tuple[Rule, Term], ...] = ()


class Acknowledged(NamedTuple):
    """What came of an attempt. sent: when the message left; at: when it was acknowledged; both with a time zone.
    answer: the acknowledgement, such as "PUBACK" or "2.04"."""

    sent: datetime
    at: datetime
    answer: str


class RefusedByDevice(UpstreamError):
    """The device answered, and does not take the state. The reason is for people, such as "4.00: want json"."""


class NotSentError(RefusedByDevice):
    """Nothing was sent, and nothing may be sent for now. The reason is for people."""


class NotRepeatedError(UpstreamError):
    """The device may have the state or not, and the message may not be sent twice: it is sent again for another state
    only. The reason is for people; empty: nothing was sent."""


class Outdated(GatewayError):
    """Another state is wanted by now, so the attempt was ended. The device may have the state or not."""


class OutdatedUnsent(Outdated):
    """The same, before anything was sent."""


class Sender(Protocol[Rule]):
    """How a protocol brings a state to a device."""

    def target(self, rule: Rule) -> str:
        """What the rule sends to, such as a topic: for causes and for people."""
        ...

    def device(self, rule: Rule) -> str:
        """The device of the rule's target; all its targets are reachable or not, and start again together."""
        return self.target(rule)

    def lamp(self, rule: Rule) -> LampPart | None:
        """What the rule's actuator is of a lamp, if it is a part of one."""
        return None

    def is_same(self, rule: Rule, one: Term, other: Term) -> bool:
        """Whether the rule makes the same command of two states, as for a device that counts in coarse steps."""
        return False

    async def ready(self, rule: Rule) -> None:
        """Returns when something can be sent by the rule."""
        ...

    def reassert_s(self, rule: Rule) -> float | None:
        """The interval at which the state is sent again, whatever the device reports; None: there is none."""
        ...

    def follow(self, rule: Rule) -> None:
        """Begins to read the state that the device reports by the rule, if it is not read yet."""
        return

    def leave(self, rule: Rule) -> None:
        """Ends what `follow` began. The rule is not in force any more."""
        return

    async def send(self, attempt: Attempt[Rule]) -> Acknowledged:
        """Returns when the state is acknowledged, and logs how it went, except for refusals.

        Raises PayloadError, whose reason is for people, if the state is never sent; RefusedByDevice and other
        UpstreamErrors if it is to be sent again later; NotRepeatedError; Outdated."""
        ...


@dataclass(slots=True)
class OutputCounters:
    """Since the adapter was made. sent: messages with states, repeated ones too; acknowledged: those of them that
    were; failed: the others; outdated: attempts that were ended as another state was wanted, and count as neither;
    reasserted: messages for devices that have acknowledged the state before; refused: states that are never sent, and
    those that a device refuses; reported: states of devices that were stored; followed: reports that became the
    desired state; unrecorded: actuations and reports that the gateway refused to store; rejected_rows: rows of queries
    that give no command."""

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    outdated: int = 0
    reasserted: int = 0
    refused: int = 0
    reported: int = 0
    followed: int = 0
    unrecorded: int = 0
    rejected_rows: int = 0
