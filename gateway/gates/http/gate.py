"""Serves the HTTP gate: uvicorn's protocol on the gateway's own listeners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import formatdate
from functools import partial
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from lamplighter.gateway.gates.http.calls import EITHER, QUERY, UPDATE, Bodies
from lamplighter.gateway.gates.http.connections import HttpConnection
from lamplighter.gateway.gates.http.cors import VARY, CorsRules
from lamplighter.gateway.gates.http.description import Description
from lamplighter.gateway.gates.http.devices import DeviceRequests
from lamplighter.gateway.gates.http.graph_store import METHODS, GraphStore, graph_parameters
from lamplighter.gateway.gates.http.operations import LISTED, Operations
from lamplighter.gateway.gates.http.page import PageRequests, page_paths
from lamplighter.gateway.gates.http.page_operations import PageOperations
from lamplighter.gateway.gates.http.past import EXPLAIN, LOG, PastRequests
from lamplighter.gateway.gates.http.places import HttpApplication, Need, Place, Routes
from lamplighter.gateway.gates.http.resources import Resources
from lamplighter.gateway.gates.http.sparql import SparqlPath
from lamplighter.gateway.gates.listeners import BACKLOG, Listener
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.page.assets import built_assets
from lamplighter.gateway.security.browsers import NOSNIFF, Browsers
from lamplighter.gateway.security.gatekeeper import Gatekeeper
from lamplighter.gateway.settings import HttpSettings
from lamplighter.gateway.state.quotas import Held

_WATCH_S = 1.0
_CLOSING_S = 1.0
"""How long running requests may take to end when the gate closes."""


def _places(
    runner: Runner, settings: HttpSettings, about: str, gatekeeper: Gatekeeper, subscribe_at: str, base_iri: str
) -> Iterator[Place]:
    bodies = Bodies()
    paths = (settings.query_path, settings.update_path, settings.graph_store_path)
    description = Description(*paths, subscribe_at)
    graphs = GraphStore(runner, bodies)
    operations = Operations(runner, about)
    read = frozenset({"GET", "HEAD"})
    assets = built_assets()
    yield from PageRequests(runner, settings, assets, gatekeeper, subscribe_at, base_iri, operations.index).places()
    # SPARQL's parameters may be in a form, so `Bodies.call` reads them, by the table of the operation.
    if settings.query_path == settings.update_path:
        served = {settings.query_path: EITHER}
    else:
        served = {settings.query_path: QUERY, settings.update_path: UPDATE}
    for path, accepted in served.items():
        yield Place(path, SparqlPath(runner, bodies, description, accepted).answer, Need.CALLER, None, None)
    for path in (settings.graph_store_path, f"{settings.graph_store_path}/"):
        yield Place(path, graphs.answer, Need.CALLER, METHODS, graph_parameters)
    yield Place("/echo", operations.echo, Need.NOTHING, methods=None)
    yield Place("/delayed", operations.delayed, Need.CALLER, read, LISTED)
    yield Place("/delayed/", operations.cancel, Need.CALLER, frozenset({"DELETE"}))
    yield Place("/health", operations.health, Need.CALLER, read)
    yield Place("/ready", operations.ready, Need.NOTHING, read)
    yield Place("/figures", operations.figures, Need.OPERATOR, read)
    yield Place("/metrics", operations.metrics, Need.OPERATOR, read)
    yield Place("/subscriptions", operations.subscriptions, Need.OPERATOR, read, LISTED)
    past = PastRequests(runner)
    yield Place("/log", past.log, Need.OPERATOR, read, LOG)
    devices = DeviceRequests(runner)
    yield from PageOperations(past, devices).places()
    yield Place("/devices", devices.all, Need.OPERATOR, read)
    yield Place("/devices/", devices.one, Need.OPERATOR, frozenset({"GET", "HEAD", "POST"}))
    yield Place("/explain", past.explain, Need.OPERATOR, read, EXPLAIN)
    yield Place("/backup", operations.backup, Need.OPERATOR, read)
    yield Place("/restore", operations.restore, Need.OPERATOR, frozenset({"POST"}))


def check_paths(settings: HttpSettings, places: Iterable[Place], prefix: str) -> None:
    """Raises ConfigurationError for settings with which `http_gate` would have two places with one path."""
    nobody: Any = None  # only the paths are used; no handler is called
    Routes([*_places(nobody, settings, "", nobody, "", ""), *places], prefix)


@asynccontextmanager
async def http_gate(
    runner: Runner,
    settings: HttpSettings,
    about: str,
    listeners: Sequence[Listener],
    gatekeeper: Gatekeeper,
    browsers: Browsers,
    subscribe_at: str,
    places: Iterable[Place] = (),
    prefix: str = "",
    base_iri: str = "",
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[None]:
    """Serves until left, on all listeners at once.

    about: the text page at ``/``; subscribe_at: URL of subscriptions, whose host is replaced by that of a request;
    places: more paths, such as registration; prefix: optional before every path, such as ``/secure``; base_iri: the
    IRIs below it are served at their paths, where no other place is; headers: of all answers, names in lower case.
    """
    counters = runner.figures.http
    served = [*_places(runner, settings, about, gatekeeper, subscribe_at, base_iri), *places]
    resources = Resources(runner, base_iri).place
    routes, cors = Routes(served, prefix, resources), CorsRules(browsers, _links(settings, prefix))
    app = HttpApplication(routes, gatekeeper, cors, counters, runner.timings.http)
    config = uvicorn.Config(
        app,
        interface="asgi3",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # the caller is the connected peer, whatever a header says
    )
    config.load()
    state = ServerState()
    held = partial(Held, runner.figures.http_connections, runner.quotas, settings.connections_max)
    servers = [await _server(listener, config, state, settings, held) for listener in listeners]
    more = [(name.encode(), value.encode()) for name, value in (NOSNIFF, *(headers or {}).items())]
    watch = asyncio.create_task(_watch(state, more), name="HTTP connections")
    try:
        yield
    finally:
        for server in servers:
            server.close()
        watch.cancel()
        runner.log.tail.close()
        await _close(state)


def _links(settings: HttpSettings, prefix: str) -> frozenset[str]:
    """Paths that links may lead to: the page, the service description, and the health check."""
    paths = ("/", settings.query_path, "/health", "/ready", *page_paths())
    return frozenset({*paths, *(prefix + path for path in paths)})


async def _server(
    listener: Listener, config: uvicorn.Config, state: ServerState, settings: HttpSettings, held: Callable[[], Held]
) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(
        lambda: HttpConnection(config, state, settings, listener, held()),
        sock=listener.socket,
        backlog=BACKLOG,
        ssl=listener.tls,
        ssl_handshake_timeout=None if listener.tls is None else settings.idle_s,
    )


async def _watch(state: ServerState, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Closes connections that make no progress, and updates the headers of all answers. headers: further ones."""
    loop = asyncio.get_running_loop()
    while True:
        state.default_headers = [(b"date", formatdate(usegmt=True).encode()), VARY, *headers]
        for connection in list(state.connections):
            assert isinstance(connection, HttpConnection)
            connection.check(loop.time())
        await asyncio.sleep(_WATCH_S)


async def _close(state: ServerState) -> None:
    """Waits for running requests, then closes the connections of the rest without an answer: a step that has begun is
    finished, so an error would say that nothing was changed when it was."""
    for connection in list(state.connections):
        connection.shutdown()
    if state.tasks:
        _, late = await asyncio.wait(set(state.tasks), timeout=_CLOSING_S)
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # they learn of it
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
    for connection in list(state.connections):  # those without a request
        connection.transport.abort()
