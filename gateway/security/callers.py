"""The caller: what a gate knows of the sender of a request after its credentials are checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from shlex import quote

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.errors import AccessDeniedError
from lamplighter.engine.protocol import Priority

_NORMAL = Priority.NORMAL


@dataclass(frozen=True)
class Caller:
    """The sender of a request.

    name: the client id, or "" where no authentication is required (plain mode, the machine's own Unix sockets).
    access: the graphs it may read, write and subscribe to. operator: whether it may administer the gateway (detailed
    state, backup, restore, other clients and what they own). registered: whether it is in the registry; the
    subscriptions and timers of such a client end when it is removed. highest: the highest class that its requests may
    have. origin: of a caller without a name that has a share (`gateway.security.peers.origin`). sees_sequence: whether
    answers name the sequence of the record. usual: the class of a request that names none: normal, or the highest one
    if that is lower.
    """

    name: str
    access: Access
    operator: bool
    registered: bool
    highest: Priority = Priority.NORMAL
    origin: str = ""

    # As whom its requests count where clients share something (`gateway.sharing`).
    client: str = field(init=False, repr=False, compare=False)

    sees_sequence: bool = field(init=False, repr=False, compare=False)
    usual: Priority = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "client", self.name or self.origin)
        # It counts all commits, so it would tell a caller that may not read every graph when the others change.
        object.__setattr__(self, "sees_sequence", self.operator or self.access.read.every)
        object.__setattr__(self, "usual", max(_NORMAL, self.highest))

    def require_operator(self, what: str) -> None:
        """Raises AccessDeniedError unless the caller is an operator; what: ``take a backup``, for the message."""
        if not self.operator:
            raise AccessDeniedError(
                f"only an operator may {what}; one can be made by: lamplighter clients permit {self.name} --operate"
            )

    def priority(self, asked: str) -> Priority:
        """The class of a request that names it. Raises MalformedRequestError, AccessDeniedError."""
        found = Priority.of(asked)
        if found < self.highest:
            raise AccessDeniedError(
                f"priority {found.word}: this client may use {self.highest.word} and lower; an operator permits it "
                f"by: lamplighter clients permit {quote(self.name)} --priority {found.word}"
            )
        return found


# The caller in plain mode, which requires no authentication.
ANYBODY = Caller("", FULL, operator=True, registered=False, highest=Priority.ALARM)

# The caller on the machine's own Unix sockets, whose user the kernel has authenticated.
LOCAL = Caller("", FULL, operator=True, registered=False, highest=Priority.ALARM)
