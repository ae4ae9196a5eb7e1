"""Which listeners a gateway opens, who may come through them, and where they are to be found.

Plain mode: HTTP and WebSocket on loopback, for everybody. Secure mode: both with TLS on the network, for clients with a
token, and both on Unix sockets, for processes of this machine.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from engine.access import FULL, Access
from engine.client.addresses import UNIX, is_loopback
from engine.errors import ConfigurationError
from gateway.clock import Clock
from gateway.disk import Disk
from gateway.http.clients import Clients
from gateway.http.oauth import OAuth
from gateway.http.places import Place
from gateway.listeners import Listener, tcp_listener, unix_listener
from gateway.security.gatekeeper import Gatekeeper, OpenGatekeeper, TokenGatekeeper
from gateway.security.peers import trusted_users
from gateway.security.permissions import Permissions
from gateway.security.registry import Changed, Registry
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.security.authorization import Authorization
    from gateway.security.certificates import Identity

PREFIX = "/secure"
"""May stand before every path in secure mode: the classic layout, which clients have hard-wired (protocol 1.1)."""
FOLDER = "security"
"""Of keys, certificates and clients, in the data folder."""


@dataclass(frozen=True)
class Addresses:
    """Where a running gateway is to be found.

    What has a default is there in secure mode only. fingerprint: of the authority's certificate; http_here,
    subscribe_here: the Unix sockets for processes of this machine.
    """

    query: str
    update: str
    subscribe: str
    delayed: str
    health: str
    register: str = ""
    token: str = ""
    authority: str = ""
    fingerprint: str = ""
    http_here: str = ""
    subscribe_here: str = ""

    @property
    def here(self) -> str:
        """The address to subscribe at for processes of this machine."""
        return self.subscribe_here or self.subscribe

    def table(self) -> str:
        """One address a line, to copy from."""
        shown = {field.name: getattr(self, field.name) for field in fields(self)}
        width = max(10, *(len(name) for name, value in shown.items() if value))
        return "".join(f"  {name.replace('_', ' '):<{width}} {value}\n" for name, value in shown.items() if value)


@dataclass(frozen=True)
class Gates:
    """What the gates are made of. places: served over HTTP besides; prefix: may stand before every path."""

    http: Sequence[Listener]
    websocket: Sequence[Listener]
    gatekeeper: Gatekeeper
    places: Sequence[Place]
    prefix: str
    addresses: Addresses


class Protection:
    """Who may come in, known before anything is opened. authorization: None in plain mode."""

    def __init__(self, settings: Settings, folder: Path, data: Path, clock: Clock, disk: Disk) -> None:
        """folder: of the configuration file. Raises ConfigurationError for settings and files that cannot be used."""
        self._settings = settings
        self._data = data
        self._clock = clock
        security = settings.security
        grant = Permissions(read=security.grant_read, write=security.grant_write, subscribe=security.grant_subscribe)
        try:
            _ = grant.access
        except ConfigurationError as error:
            raise ConfigurationError(f"security.grant_read, grant_write, grant_subscribe: {error}") from error
        self.authorization: Authorization | None = None
        self._identity: Identity | None = None
        self._users: frozenset[int] = frozenset()
        if security.enabled:
            self._identity, self.authorization = _secured(settings, folder, data, clock, disk)
            self._users = trusted_users(security.local_users)
        authority = None if self._identity is None else self._identity.authority
        self._places = [
            *OAuth(self.authorization, authority).places(),
            *Clients(self.authorization, grant, security.code_life_s).places(),
        ]

    @property
    def access_of(self) -> Callable[[str], Access | None]:
        """What a client may do now, by its name; None for one that is not registered (any more)."""
        return _everything if self.authorization is None else self.authorization.access_of

    def when_changed(self, changed: Changed) -> None:
        """Tells from now on whose permissions have changed, or who was removed."""
        if self.authorization is not None:
            self.authorization.registry.changed.append(changed)

    def open(self) -> Gates:
        """Opens the listeners. Raises ConfigurationError when one cannot be had; none is open then."""
        opened: list[Listener] = []
        try:
            return self._open_plain(opened) if self._identity is None else self._open_secure(self._identity, opened)
        except BaseException:
            for listener in opened:
                listener.socket.close()
            raise

    def _open_plain(self, opened: list[Listener]) -> Gates:
        settings = self._settings
        for table, host in (("http", settings.http.host), ("websocket", settings.websocket.host)):
            if not settings.security.plain_on_network and not is_loopback(host):
                raise ConfigurationError(
                    f"{table}.host = {host!r} is reached from other machines, without any protection; set "
                    "security.enabled for TLS and tokens, or security.plain_on_network if that is what you want"
                )
        at_http, at_websocket = settings.http, settings.websocket
        opened.append(http := tcp_listener("http", at_http.host, at_http.port, at_http.connections_max))
        opened.append(
            websocket := tcp_listener("websocket", at_websocket.host, at_websocket.port, at_websocket.connections_max)
        )
        gatekeeper = OpenGatekeeper(self._clock, settings.security.plain_requests_per_s)
        addresses = plain_addresses(settings, http.port, websocket.port)
        return Gates([http], [websocket], gatekeeper, self._places, "", addresses)

    def _open_secure(self, identity: Identity, opened: list[Listener]) -> Gates:
        assert self.authorization is not None
        settings, security = self._settings, self._settings.security
        http_socket, websocket_socket = socket_paths(settings, self._data)
        mode = 0o666 if security.local_users else 0o600  # who may do what is asked of the kernel, for each connection
        for port, path, connections_max in (
            (security.https_port, http_socket, settings.http.connections_max),
            (security.wss_port, websocket_socket, settings.websocket.connections_max),
        ):
            opened.append(tcp_listener("security", security.host, port, connections_max, identity.tls))
            opened.append(unix_listener(path, mode))
        http, websocket = opened[:2], opened[2:]
        name = f"[{security.host}]" if ":" in security.host else security.host
        if security.host in ("0.0.0.0", "::"):
            machine = socket.gethostname()
            name = machine if "." in machine else f"{machine}.local"
        https, wss = f"https://{name}:{http[0].port}", f"wss://{name}:{websocket[0].port}"
        addresses = Addresses(
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
        gatekeeper = TokenGatekeeper(self.authorization, self._users)
        return Gates(http, websocket, gatekeeper, self._places, PREFIX, addresses)


def _secured(settings: Settings, folder: Path, data: Path, clock: Clock, disk: Disk) -> tuple[Identity, Authorization]:
    """What secure mode needs from the data folder. Raises ConfigurationError."""
    # Not above: they load cryptography, 9 MB that plain mode does without.
    from gateway.security.authorization import Authorization
    from gateway.security.certificates import own_identity, users_identity
    from gateway.security.tokens import Tokens

    security, keys = settings.security, data / FOLDER
    try:
        disk.make_folder(keys)
        disk.sync_folder(data)  # clients will know the authority by what is in there
        keys.chmod(0o700)
    except OSError as error:
        raise ConfigurationError(f"{keys}: {error.strerror}; the keys are kept there") from error
    if security.certificate_file:
        identity = users_identity(folder / security.certificate_file, folder / security.key_file, clock)
    else:
        identity = own_identity(keys, security.names, disk)
    registry = Registry(keys, clock, disk, security.clients_max, security.code_life_s)
    tokens = Tokens(keys, clock, disk, security.token_life_s)
    return identity, Authorization(security, clock, registry, tokens)


def _everything(client: str) -> Access | None:
    """In plain mode everybody may do everything, so what was begun under a name may, too."""
    return FULL


def plain_addresses(settings: Settings, http_port: int, websocket_port: int) -> Addresses:
    http = f"http://{settings.http.host}:{http_port}"
    return Addresses(
        query=f"{http}{settings.http.query_path}",
        update=f"{http}{settings.http.update_path}",
        subscribe=f"ws://{settings.websocket.host}:{websocket_port}{settings.websocket.path}",
        delayed=f"{http}/delayed",
        health=f"{http}/health",
    )


def socket_paths(settings: Settings, data: Path) -> tuple[Path, Path]:
    """The Unix sockets of secure mode, for HTTP and for WebSocket."""
    folder = (data / settings.security.socket_folder).resolve()
    return folder / "http.sock", folder / "ws.sock"
