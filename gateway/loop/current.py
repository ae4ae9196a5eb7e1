"""What holds now: settings, and permissions of clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lamplighter.engine.access import Access
from lamplighter.gateway.settings import QuotaSettings, Settings

AccessOf = Callable[[str], Access | None]
"""What a client may do now, None for one that is not registered (any more)."""


@dataclass
class Current:
    """Shared by the parts of the loop. A reload replaces `settings` between two steps."""

    settings: Settings

    def quotas(self) -> QuotaSettings:
        """What one client may use."""
        return self.settings.quotas
