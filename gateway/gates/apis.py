"""The doors: further standards by which others reach the gateway. Each is a room of its own in `gateway/gates/`.

A door knows the loop's interface (`Runner`) and the parts that all gates share, and nothing of the other doors. The
optional ones have a table each in the settings, are off by default, and are imported only when they are on, so that one
that is off costs no memory.

What all doors keep: a subscription begins with its first result and then has the rows that entered and left, numbered
without gaps. Who comes back names the last number that it has and receives the next ones unchanged, or is told that it
starts anew, and why (`gateway.state.resumption`). The caller's permissions are those of the other gates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.extras import pip_install
from lamplighter.gateway.gates.http.routes import Route
from lamplighter.gateway.gates.outbox import SendBudget
from lamplighter.gateway.gates.sse import ServerSentEvents
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.gatekeeper import Gatekeeper
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.state.applications import DeclaredApplications


@dataclass(frozen=True)
class ApiContext:
    """What doors are made of. folder: of the configuration file; data: the data folder; applications: those of apps/;
    gatekeeper: permissions of clients; send_budget: what waits for all network clients; address: URL of the HTTP gate
    from other machines."""

    runner: Runner
    settings: Settings
    folder: Path
    data: Path
    applications: DeclaredApplications
    gatekeeper: Gatekeeper
    send_budget: SendBudget
    address: str


class Api(Protocol):
    """One door. It does nothing before `run`, and `routes` needs no running gateway: a check of the configuration asks
    for them too."""

    def routes(self) -> Iterator[Route]:
        """Its paths over HTTP, and their handlers."""
        ...

    def about(self) -> Iterator[tuple[str, str]]:
        """Rows of the answer of ``GET /``: path and what is there."""
        ...

    async def run(self) -> None:
        """What it does beside its requests, until cancelled. Its return or an exception ends the gateway."""
        ...


def apis(context: ApiContext) -> list[Api]:
    """The doors that the settings open. Raises ConfigurationError where one lacks a package or has a bad setting."""
    api_list: list[Api] = [
        ServerSentEvents(context.runner, context.settings, context.applications, context.send_budget)
    ]
    if context.settings.mcp.enabled:
        api_list.append(_model_context(context))
    if context.settings.webhooks.enabled:
        from lamplighter.gateway.gates.webhooks import Webhooks

        api_list.append(Webhooks(context.runner, context.settings, context.data, context.applications, context.address))
    if context.settings.ldn.enabled:
        from lamplighter.gateway.gates.ldn import LinkedDataNotifications

        ldn = LinkedDataNotifications(
            context.runner, context.settings, context.data, context.applications, context.address
        )
        api_list.append(ldn)
    if context.settings.sensorthings.enabled:
        from lamplighter.gateway.gates.sensorthings import SensorThings

        api_list.append(SensorThings(context.runner, context.settings, context.data, context.address))
    if context.settings.changes.enabled:
        from lamplighter.gateway.gates.changes import ChangeFeed

        api_list.append(ChangeFeed(context.runner, context.settings, context.data))
    if context.settings.wot.enabled:
        from lamplighter.gateway.gates.wot import WebOfThings

        api_list.append(WebOfThings(context.runner, context.settings, context.send_budget))
    if context.settings.ngsild.enabled:
        from lamplighter.gateway.gates.ngsild import NgsiLd

        api_list.append(NgsiLd(context.runner, context.settings, context.folder, context.data))
    return api_list


def _model_context(context: ApiContext) -> Api:
    try:
        from lamplighter.gateway.gates.mcp import ModelContext  # not above: see there
    except ImportError as missing:
        raise ConfigurationError(
            f"[mcp] enabled = true needs a package that cannot be loaded: {missing}; {pip_install('mcp')}, "
            "or set enabled = false"
        ) from missing
    return ModelContext(context.runner, context.settings, context.applications, context.gatekeeper)


def api_headers(settings: Settings) -> Mapping[str, str]:
    """Headers of all answers over HTTP."""
    if not settings.ldn.enabled:
        return {}
    from lamplighter.gateway.gates.ldn.api import LINK

    return {"link": LINK}


def api_routes(settings: Settings, folder: Path) -> list[Route]:
    """Their routes, for a check of the paths only: no handler may be called. Raises ConfigurationError."""
    nobody: Any = None
    context = ApiContext(nobody, settings, folder, nobody, DeclaredApplications(), nobody, nobody, "")
    return [route for api in apis(context) for route in api.routes()]
