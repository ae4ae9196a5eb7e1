"""The listeners that a gateway opens, their protection, and their addresses.

Plain mode: HTTP and WebSocket on loopback, without authentication. Secure mode: both with TLS on the network, for
clients with a token, and both on Unix sockets, for local processes.

A socket that systemd opened replaces the one that the gateway would open at the same address.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lamplighter.engine.access import FULL, Access
from lamplighter.engine.client.addresses import UNIX
from lamplighter.engine.client.files import own_problem
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.addresses import Addresses, Ports, in_url, plain_addresses, socket_paths, write_ports
from lamplighter.gateway.clock import Clock
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.gates.http.routes import Route
from lamplighter.gateway.gates.listeners import EVERYWHERE, Listener, passed_listener, tcp_listener, unix_listener
from lamplighter.gateway.gates.protection_check import (
    FOLDER,
    PREFIX,
    check_passed_host,
    check_protection,
    security_routes,
)
from lamplighter.gateway.monitoring.health.own import Validity
from lamplighter.gateway.security.browsers import Browsers
from lamplighter.gateway.security.gatekeeper import Gatekeeper, OpenGatekeeper, TokenGatekeeper
from lamplighter.gateway.security.peers import trusted_users
from lamplighter.gateway.security.registry import Changed, ClientRegistry
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.settings.reasoning import graph_terms
from lamplighter.gateway.systemd import Passed

if TYPE_CHECKING:
    from lamplighter.gateway.security.authorization import Authorization
    from lamplighter.gateway.security.certificates import Identity

HTTP, WEBSOCKET = "http", "ws"  # names of the sockets that systemd opens for the gates (`FileDescriptorName=`)
_WILDCARDS = ("0.0.0.0", EVERYWHERE)

logger = EventLogger(__name__)


@dataclass(frozen=True)
class Gates:
    """The parts of the gates. browsers: permitted pages; routes: more paths over HTTP; prefix: before every path."""

    http: Sequence[Listener]
    websocket: Sequence[Listener]
    gatekeeper: Gatekeeper
    browsers: Browsers
    routes: Sequence[Route]
    prefix: str
    addresses: Addresses


class Protection:
    """Authentication and authorization, set up before any listener opens. authorization: None in plain mode."""

    def __init__(self, settings: Settings, folder: Path, data: Path, clock: Clock, disk: Disk) -> None:
        """folder: of the configuration file. Raises ConfigurationError for settings and files that cannot be used."""
        check_protection(settings, folder, data)  # a file that may not be read is refused below, where it is used
        self._settings = settings
        self._data = data
        self._clock = clock
        security = settings.security
        self.authorization: Authorization | None = None
        self._identity: Identity | None = None
        self._users: frozenset[int] = frozenset()
        self._open_gatekeeper = OpenGatekeeper(clock, security.plain_requests_per_s)
        self._browsers = Browsers(security, (settings.http.host, settings.websocket.host))
        if security.enabled:
            self._users = trusted_users(security.local_users)
            self._identity, self.authorization = _secure_parts(settings, folder, data, clock, disk)
        authority = None if self._identity is None else self._identity.authority
        self._routes = [*security_routes(security, self.authorization, authority, self._browsers)]

    @property
    def access_of(self) -> Callable[[str], Access | None]:
        """The permissions of a client, by its name; None for one that is not registered (any more)."""
        return _everything if self.authorization is None else self.authorization.access_of

    @property
    def validity(self) -> Validity | None:
        """Of the gateway's certificate; None in plain mode."""
        found = self._identity
        return None if found is None else Validity(found.begins, found.ends, found.file)

    def when_changed(self, changed: Changed) -> None:
        """Calls back with the name of a client whose permissions changed or that was removed."""
        if self.authorization is not None:
            self.authorization.registry.changed.append(changed)

    def apply(self, settings: Settings) -> None:
        """Applies the settings that take effect with the next request (`gateway.service.reload`)."""
        self._open_gatekeeper.allow(settings.security.plain_requests_per_s)
        self._browsers.apply(settings.security)
        if self.authorization is not None:
            self.authorization.apply(settings.security)

    def open(self, passed: Sequence[Passed] = ()) -> Gates:
        """Opens the listeners, all or none. passed: those of systemd. Raises ConfigurationError."""
        opened: list[Listener] = []
        strange = [one for one in passed if one.name not in (HTTP, WEBSOCKET)]
        for one in strange:
            logger.warning(
                "systemd socket not served", at=one.place, reason="its FileDescriptorName is neither http nor ws"
            )
            one.socket.close()
        passed = [one for one in passed if one not in strange]
        try:
            if self._identity is None:
                gates = self._open_plain(opened, passed)
            else:
                gates = self._open_secure(self._identity, opened, passed)
        except BaseException:
            for listener in opened:
                listener.socket.close()
            raise
        self._browsers.page_port = gates.http[0].port
        return gates

    def _listeners(
        self,
        opened: list[Listener],
        passed: Sequence[Passed],
        place: tuple[str, str, int],
        connections_max: int,
        tls: ssl.SSLContext | None,
        mode: int,
    ) -> list[Listener]:
        """The listeners of a gate, the one of its settings first. place: its table, host and port in the settings."""
        table, host, port = place
        listeners, covered = [], False
        for one in passed:
            at = one.place
            listener = passed_listener(one.socket, connections_max, tls, mode)
            opened.append(listener)
            if listener.local:
                listeners.append(listener)
            # It serves the address of the settings, so none is opened besides.
            elif listener.port == port and _reaches(listener.socket.getsockname()[0], host):
                listeners.insert(0, listener)
                covered = True
            else:
                logger.warning("systemd socket served besides the configured address", table=table, at=at)
                listeners.append(listener)
        if not covered:
            own = tcp_listener(table, host, port, connections_max, tls)
            opened.append(own)
            listeners.insert(0, own)
        return listeners

    def _open_plain(self, opened: list[Listener], passed: Sequence[Passed]) -> Gates:
        settings = self._settings
        for one in passed:
            at = one.socket.getsockname()
            if isinstance(at, tuple):
                check_passed_host(settings, at[0], one.place)
        at_http, at_websocket = settings.http, settings.websocket
        http = self._listeners(
            opened,
            _sockets_of(passed, HTTP),
            ("http", at_http.host, at_http.port),
            at_http.connections_max,
            None,
            0o660,
        )
        websocket = self._listeners(
            opened,
            _sockets_of(passed, WEBSOCKET),
            ("websocket", at_websocket.host, at_websocket.port),
            at_websocket.connections_max,
            None,
            0o660,
        )
        ports = Ports(http[0].port, websocket[0].port)
        try:
            # Commands find a gateway by it whose port the system has chosen.
            write_ports(settings, self._data, ports)
        except OSError as error:
            logger.warning("ports not written", folder=self._data, reason=error.strerror)
        addresses = plain_addresses(settings, *ports)
        return Gates(http, websocket, self._open_gatekeeper, self._browsers, self._routes, "", addresses)

    def _open_secure(self, identity: Identity, opened: list[Listener], passed: Sequence[Passed]) -> Gates:
        assert self.authorization is not None
        settings, security = self._settings, self._settings.security
        http_socket, websocket_socket = socket_paths(settings, self._data)
        mode = 0o666 if security.local_users else 0o600  # the kernel names the user of each connection
        # A Unix socket for each gate in any case: commands and adapters of this machine need no token there.
        both = []
        for name, port, path, connections_max in (
            (HTTP, security.https_port, http_socket, settings.http.connections_max),
            (WEBSOCKET, security.wss_port, websocket_socket, settings.websocket.connections_max),
        ):
            place = "security", security.host, port
            listeners = self._listeners(opened, _sockets_of(passed, name), place, connections_max, identity.tls, mode)
            if not any(listener.local and _is_at(listener, path) for listener in listeners):
                opened.append(unix_listener(path, mode))
                listeners.append(opened[-1])
            both.append(listeners)
        http, websocket = both
        name = in_url(security.host)
        if security.host in _WILDCARDS:
            # A wildcard is no address that a client can use; mDNS gives the name .local.
            machine = socket.gethostname()
            name = machine if "." in machine else f"{machine}.local"
        https, wss = f"https://{name}:{http[0].port}", f"wss://{name}:{websocket[0].port}"
        addresses = Addresses(
            page=f"{https}/",
            query=f"{https}{PREFIX}{settings.http.query_path}",
            update=f"{https}{PREFIX}{settings.http.update_path}",
            subscribe=f"{wss}{PREFIX}{settings.websocket.path}",
            delayed=f"{https}/delayed",
            health=f"{https}/health",
            register=f"{https}/oauth/register",
            token=f"{https}/oauth/token",
            authority=f"{https}/ca.pem" if identity.authority is not None else "",
            fingerprint=f"SHA-256 {identity.fingerprint}",
            http_here=str(http_socket),
            subscribe_here=f"{UNIX}{websocket_socket}",
        )
        gatekeeper = TokenGatekeeper(self.authorization, self._users, self._browsers)
        return Gates(http, websocket, gatekeeper, self._browsers, self._routes, PREFIX, addresses)


def _secure_parts(
    settings: Settings, folder: Path, data: Path, clock: Clock, disk: Disk
) -> tuple[Identity, Authorization]:
    """The parts of secure mode that are kept in the data folder. Raises ConfigurationError."""
    # Not above: they load cryptography, 9 MB that plain mode does not need.
    from lamplighter.gateway.security.authorization import Authorization
    from lamplighter.gateway.security.certificates import own_identity, users_identity
    from lamplighter.gateway.security.tokens import TokenIssuer

    security, keys = settings.security, data / FOLDER
    try:
        disk.make_folder(keys)
        disk.sync_folder(data)  # clients will trust the authority that is in it
        keys.chmod(0o700)
    except OSError as error:
        raise ConfigurationError(f"{keys}: {own_problem(error, keys, 'the keys are stored there')}") from error
    if security.certificate_file:
        identity = users_identity(folder / security.certificate_file, folder / security.key_file, clock)
    else:
        identity = own_identity(keys, security.names, disk)
    registry = ClientRegistry(keys, clock, disk, security.clients_max, security.code_life_s)
    tokens = TokenIssuer(keys, clock, disk, security.token_life_s)
    if not settings.inference.graphs:
        return identity, Authorization(security, clock, registry, tokens)
    from lamplighter.engine.inference.sources import Sources

    sources = Sources(graph_terms(settings.inference.graphs), graph_terms(settings.inference.ontologies))
    return identity, Authorization(security, clock, registry, tokens, sources.readable)


def _everything(client: str) -> Access | None:
    """Plain mode requires no authentication: subscriptions and timers with an owner keep all permissions, too."""
    return FULL


def _sockets_of(passed: Sequence[Passed], name: str) -> list[Passed]:
    return [one for one in passed if one.name == name]


def _is_at(listener: Listener, path: Path) -> bool:
    return Path(listener.socket.getsockname()).resolve() == path


def _reaches(listening: str, host: str) -> bool:
    """Whether a socket listens where a setting says; one on every address of the machine does."""
    return listening == host or (listening in _WILDCARDS and host in _WILDCARDS) or host == "localhost"
