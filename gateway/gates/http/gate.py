"""Serves the HTTP gate: uvicorn's protocol on the gateway's own listeners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from lamplighter.gateway.gates.http.applications import ApplicationRequests
from lamplighter.gateway.gates.http.calls import EITHER, QUERY, UPDATE, Bodies
from lamplighter.gateway.gates.http.connections import HttpConnection
from lamplighter.gateway.gates.http.description import Description
from lamplighter.gateway.gates.http.devices import DeviceRequests, device_parameters
from lamplighter.gateway.gates.http.documents import DocumentRequests, document_paths
from lamplighter.gateway.gates.http.graph_store import METHODS, GraphStore, graph_parameters
from lamplighter.gateway.gates.http.history import HISTORY, LOGBOOK, HistoryRequests
from lamplighter.gateway.gates.http.names import NameRequests
from lamplighter.gateway.gates.http.operations import LISTED, Operations
from lamplighter.gateway.gates.http.page import PageRequests, page_paths
from lamplighter.gateway.gates.http.page_operations import PageOperations
from lamplighter.gateway.gates.http.past import EXPLAIN, LOG, PastRequests
from lamplighter.gateway.gates.http.resources import Resources
from lamplighter.gateway.gates.http.routes import VARY, CorsRules, HttpApplication, Permission, Route, Routes
from lamplighter.gateway.gates.http.sparql import SparqlPath
from lamplighter.gateway.gates.http.templates import TemplateRequests
from lamplighter.gateway.gates.listeners import BACKLOG, Listener
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.page.assets import built_assets
from lamplighter.gateway.page.documents import built_documents
from lamplighter.gateway.security.browsers import NOSNIFF, Browsers
from lamplighter.gateway.security.gatekeeper import Gatekeeper
from lamplighter.gateway.settings import HttpSettings
from lamplighter.gateway.state.quotas import ConnectionLease

_WATCH_S = 1.0
_CLOSING_S = 1.0  # how long running requests may take to end when the gate closes


def _routes(
    runner: Runner, settings: HttpSettings, about: str, gatekeeper: Gatekeeper, subscribe_at: str, folder: Path
) -> Iterator[Route]:
    bodies = Bodies()
    paths = (settings.query_path, settings.update_path, settings.graph_store_path)
    description = Description(*paths, subscribe_at)
    graphs = GraphStore(runner, bodies)
    operations = Operations(runner, about)
    read = frozenset({"GET", "HEAD"})
    documents = built_documents()
    yield from DocumentRequests(documents).routes()  # before those of /page/, which is above them
    page = PageRequests(runner, built_assets(), documents is not None, gatekeeper, subscribe_at, operations.index)
    yield from page.routes()
    # SPARQL's parameters may be in a form, so `Bodies.call` reads them, by the table of the operation.
    if settings.query_path == settings.update_path:
        served = {settings.query_path: EITHER}
    else:
        served = {settings.query_path: QUERY, settings.update_path: UPDATE}
    for path, accepted in served.items():
        yield Route(path, SparqlPath(runner, bodies, description, accepted).answer, Permission.CALLER, None, None)
    for path in (settings.graph_store_path, f"{settings.graph_store_path}/"):
        yield Route(path, graphs.answer, Permission.CALLER, METHODS, graph_parameters)
    yield Route("/echo", operations.echo, Permission.NOTHING, methods=None)
    yield Route("/delayed", operations.pending, Permission.CALLER, read, LISTED)
    yield Route("/delayed/", operations.cancel, Permission.CALLER, frozenset({"DELETE"}))
    yield Route("/health", operations.health, Permission.CALLER, read)
    yield Route("/ready", operations.ready, Permission.NOTHING, read)
    yield Route("/figures", operations.figures, Permission.OPERATOR, read)
    yield Route("/metrics", operations.metrics, Permission.OPERATOR, read)
    yield Route("/subscriptions", operations.subscriptions, Permission.OPERATOR, read, LISTED)
    names = NameRequests(runner, folder)
    applications = ApplicationRequests(runner, folder, names)
    yield names.route
    yield from applications.routes
    yield from TemplateRequests(runner, names, applications).routes
    history = HistoryRequests(runner)
    past = PastRequests(runner, names, history)
    yield Route("/log", past.log, Permission.OPERATOR, read, LOG)
    devices = DeviceRequests(runner, names)
    yield from PageOperations(past, devices).routes()
    yield Route("/devices", devices.all, Permission.OPERATOR, read | {"POST"}, device_parameters)
    yield Route("/devices/", devices.one, Permission.OPERATOR, read | {"POST"})
    yield Route("/explain", past.explain, Permission.OPERATOR, read, EXPLAIN)
    yield Route("/history", history.history, Permission.CALLER, read, HISTORY)
    yield Route("/logbook", history.logbook, Permission.OPERATOR, read, LOGBOOK)
    yield Route("/backup", operations.backup, Permission.OPERATOR, read)
    yield Route("/restore", operations.restore, Permission.OPERATOR, frozenset({"POST"}))


def check_paths(settings: HttpSettings, routes: Iterable[Route], prefix: str) -> None:
    """Raises ConfigurationError for settings with which `http_gate` would have two routes with one path."""
    nobody: Any = None  # only the paths are used; no handler is called
    Routes([*_routes(nobody, settings, "", nobody, "", Path()), *routes], prefix)


@asynccontextmanager
async def http_gate(
    runner: Runner,
    settings: HttpSettings,
    about: str,
    listeners: Sequence[Listener],
    gatekeeper: Gatekeeper,
    browsers: Browsers,
    subscribe_at: str,
    folder: Path,
    routes: Iterable[Route] = (),
    prefix: str = "",
    base_iri: str = "",
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[None]:
    """Serves until left, on all listeners at once.

    about: the text page at ``/``; folder: of the configuration file; subscribe_at: URL of subscriptions, whose host is
    replaced by that of a request;
    routes: more paths, such as registration; prefix: optional before every path, such as ``/secure``; base_iri: the
    IRIs below it are served at their paths, where no other route is; headers: of all answers, names in lower case.
    """
    counters = runner.figures.http
    served = [*_routes(runner, settings, about, gatekeeper, subscribe_at, folder), *routes]
    resources = Resources(runner, base_iri).route
    paths, cors = Routes(served, prefix, resources), CorsRules(browsers, _links(settings, prefix))
    app = HttpApplication(paths, gatekeeper, cors, counters, runner.timings.http)
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
    held = partial(ConnectionLease, runner.figures.http_connections, runner.current.quotas, settings.connections_max)
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
    """Paths that links may lead to: the page, the documents, the service description, and the health check."""
    paths = ("/", settings.query_path, "/health", "/ready", *page_paths(), *document_paths(built_documents()))
    return frozenset({*paths, *(prefix + path for path in paths)})


async def _server(
    listener: Listener,
    config: uvicorn.Config,
    state: ServerState,
    settings: HttpSettings,
    held: Callable[[], ConnectionLease],
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
