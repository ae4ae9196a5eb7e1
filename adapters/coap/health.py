"""The summary of the adapter's health (`adapters.resources.health`)."""

from lamplighter.adapters.resources.health import ResourceHealth


class CoapHealth(ResourceHealth, frozen=True, kw_only=True):
    """observed: resources that are observed; registered: devices of the resource directory; observers: of the gateway's
    resources; listens: address of the server, or ""."""

    observed: int = 0
    registered: int = 0
    observers: int = 0
    listens: str = ""
