"""The caller: what a gate knows of the sender of a request after its credentials are checked."""

from __future__ import annotations

from dataclasses import dataclass

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.errors import AccessDeniedError


@dataclass(frozen=True)
class Caller:
    """The sender of a request.

    name: the client id, or "" where no authentication is required (plain mode, the machine's own Unix sockets).
    access: the graphs it may read, write and subscribe to. operator: whether it may administer the gateway (detailed
    state, backup, restore, other clients and what they own). registered: whether it is in the registry; the
    subscriptions and timers of such a client end when it is removed.
    """

    name: str
    access: Access
    operator: bool
    registered: bool

    @property
    def numbered(self) -> bool:
        """Whether answers name the sequence of the record. It counts all commits, so it would tell a caller that may
        not read every graph when the others change."""
        return self.operator or self.access.read.every

    def require_operator(self, what: str) -> None:
        """Raises AccessDeniedError unless the caller is an operator; what: ``take a backup``, for the message."""
        if not self.operator:
            raise AccessDeniedError(
                f"only an operator may {what}; one can be made by: lamplighter clients permit {self.name} --operate"
            )


ANYBODY = Caller("", FULL, operator=True, registered=False)
"""The caller in plain mode, which requires no authentication."""

LOCAL = Caller("", FULL, operator=True, registered=False)
"""The caller on the machine's own Unix sockets, whose user the kernel has authenticated."""
