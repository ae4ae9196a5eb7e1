"""Who asks: what a gate knows of the other side of a request once its credentials are checked."""

from __future__ import annotations

from dataclasses import dataclass

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.errors import AccessDeniedError


@dataclass(frozen=True)
class Caller:
    """The other side of a request.

    name: the client id, or "" where nobody has to say who he is (plain mode) and on the machine's own Unix sockets.
    access: the graphs it may read, write and subscribe to. operator: whether it may do what concerns the gateway and
    not the data (details of the state, backup, restore, other clients and what is theirs). registered: whether it is
    a client in the registry; what such a client started ends when it is removed.
    """

    name: str
    access: Access
    operator: bool
    registered: bool

    @property
    def numbered(self) -> bool:
        """Whether answers name the sequence of the record. It counts everybody's commits, so who may not read every
        graph would know by it when something happens in the others."""
        return self.operator or self.access.read.every

    def require_operator(self, what: str) -> None:
        """Raises AccessDeniedError unless the caller is an operator; what: ``take a backup``, for the message."""
        if not self.operator:
            raise AccessDeniedError(
                f"only an operator may {what}; one can be made by: lamplighter clients permit {self.name} --operate"
            )


ANYBODY = Caller("", FULL, operator=True, registered=False)
"""The caller in plain mode, where everybody may do everything."""

LOCAL = Caller("", FULL, operator=True, registered=False)
"""Whoever speaks through the machine's own Unix sockets, whose user the kernel has told."""
