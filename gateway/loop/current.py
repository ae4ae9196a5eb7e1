"""What holds now: settings, and permissions of clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lamplighter.engine.access import Access
from lamplighter.gateway.loop.failures import not_registered
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.settings import QuotaSettings, Settings

AccessOf = Callable[[str], Access | None]
"""What a client may do now, None for one that is not registered (any more)."""


def current_access(caller: Caller, access_of: AccessOf) -> Access:
    """What a caller may do now and might do when its request came: it may take long to send the body, and another
    client may have come under its name. Raises AccessDeniedError for a client that was removed."""
    access = access_of(caller.name) if caller.registered else caller.access
    if access is None:
        raise not_registered(caller.name)
    return access if access is caller.access else access & caller.access


@dataclass
class Current:
    """Shared by the parts of the loop. A reload replaces `settings` between two steps."""

    settings: Settings

    def quotas(self) -> QuotaSettings:
        """What one client may use."""
        return self.settings.quotas
