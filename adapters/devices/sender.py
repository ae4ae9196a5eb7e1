"""What an adapter does so that `output` keeps its devices in their desired states."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple, Protocol

from lamplighter.adapters.devices.desired import Cause
from lamplighter.adapters.mapping import CommandRule
from lamplighter.engine.errors import GatewayError, UpstreamError
from lamplighter.engine.terms import Term


class Attempt(NamedTuple):
    """One attempt to bring an actuator into a state. is_current: whether the state is still wanted; from_file: the rule
    is one of mapping/*.toml; retried: the attempt before it failed."""

    actuator: Term
    rule: CommandRule
    state: Term
    cause: Cause
    is_current: Callable[[], bool]
    from_file: bool
    retried: bool


class Acknowledged(NamedTuple):
    """What came of an attempt. sent: when the message left; at: when it was acknowledged; both with a time zone.
    answer: the acknowledgement, such as "PUBACK" or "2.04"."""

    sent: datetime
    at: datetime
    answer: str


class RefusedByDevice(UpstreamError):
    """The device answered, and does not take the state. The reason is for people, such as "4.00: want json"."""


class Outdated(GatewayError):
    """Another state is wanted by now, so the attempt was ended. The device may have the state or not."""


class Sender(Protocol):
    """How a protocol brings a state to a device."""

    def target(self, rule: CommandRule) -> str:
        """What the rule sends to, such as a topic: for causes and for people."""
        ...

    async def ready(self, rule: CommandRule) -> None:
        """Returns when something can be sent by the rule."""
        ...

    def reassert_s(self, rule: CommandRule) -> float | None:
        """The interval at which the state is sent again, whatever the device reports; None: there is none."""
        ...

    async def send(self, attempt: Attempt) -> Acknowledged:
        """Returns when the state is acknowledged, and logs how it went, except for refusals.

        Raises PayloadError, whose reason is for people, if the state is never sent; RefusedByDevice and other
        UpstreamErrors if it is to be sent again later; Outdated."""
        ...
