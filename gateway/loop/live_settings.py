"""What holds now: settings, and permissions of clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.errors import AccessDeniedError
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings import QuotaSettings, Settings

AccessOf = Callable[[str], Access | None]
"""What a client may do now, None for one that is not registered (any more)."""


def not_registered(client: str) -> AccessDeniedError:
    """The error for a request of a client that was removed before its turn came."""
    return AccessDeniedError(f"the client {client} is no longer registered")


@dataclass
class LiveSettings:
    """Shared by the parts of the loop, which read it where they use it. A reload replaces `settings` between two steps;
    access_of: asks the registry."""

    settings: Settings
    access_of: AccessOf = lambda client: FULL

    def quotas(self) -> QuotaSettings:
        """What one client may use."""
        return self.settings.quotas

    def access(self, caller: Caller) -> Access:
        """What a caller may do now and might do when its request came: it may take long to send the body, and another
        client may have come under its name. Raises AccessDeniedError for a client that was removed."""
        access = self.access_of(caller.name) if caller.registered else caller.access
        if access is None:
            raise not_registered(caller.name)
        return access if access is caller.access else access & caller.access
