"""Protection and paths of the gates, checked without opening them: before a start, and for ``lamplighter check``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamplighter.adapters.specs import ADAPTERS
from lamplighter.engine.client.addresses import is_loopback
from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.addresses import socket_paths
from lamplighter.gateway.security.peers import trusted_users
from lamplighter.gateway.security.permissions import Permissions
from lamplighter.gateway.settings import HttpSettings, Settings
from lamplighter.gateway.settings.security import SecuritySettings

if TYPE_CHECKING:
    from lamplighter.gateway.gates.http.routes import Route
    from lamplighter.gateway.security.authorization import Authorization
    from lamplighter.gateway.security.browsers import Browsers

# Optional prefix of every path in secure mode: the classic layout, which clients have hard-wired (protocol 1.1).
PREFIX = "/secure"
FOLDER = "security"  # the folder of keys, certificates and clients, in the data folder
_ADDRESS_BYTES_MAX = 107  # of the address of a Unix socket: sun_path of unix(7), without the zero at its end
_PATHS = [name for name in HttpSettings.__struct_fields__ if name.endswith("_path")]
_TABLES = {*Settings.__struct_fields__} - {spec.table for spec in ADAPTERS}


def check_protection(settings: Settings, folder: Path, data: Path) -> str:
    """Checks protection and gates as a start does, by the settings and the files that they name.

    No socket is opened and nothing is written. Returns the file that this process may not read and that was therefore
    not checked, "" if there is none: a check may run as another user than the gateway. Raises ConfigurationError, which
    names all faults, one a line.
    """
    security = settings.security
    faults: list[str] = []
    unread = ""

    def check(work: Callable[[], object]) -> None:
        try:
            work()
        except ConfigurationError as error:
            faults.append(str(error))

    check(lambda: _check_grant(security))
    check(lambda: _check_gate_paths(settings, folder))
    if security.enabled:
        check(lambda: trusted_users(security.local_users))
        check(lambda: _check_socket_paths(settings, data))
        try:
            unread = _check_certificate(security, folder)
        except ConfigurationError as error:
            faults.append(str(error))
    else:
        faults += _plain_host_faults(settings)
    if faults:
        raise ConfigurationError("\n".join(faults))
    return unread


def check_passed_host(settings: Settings, host: str, place: str) -> None:
    """Checks a TCP socket of systemd. host: where it listens; place: for the error. Raises ConfigurationError."""
    security = settings.security
    if not security.enabled and not security.plain_on_network and not is_loopback(host):
        raise ConfigurationError(
            f"security.enabled is false, and systemd listens at {place}, which other machines reach; set "
            "security.enabled, or `systemctl disable --now lamplighter-http.socket lamplighter-ws.socket`"
        )


def _check_grant(security: SecuritySettings) -> None:
    """Raises ConfigurationError."""
    try:
        _ = _grant(security).access
    except ConfigurationError as error:
        raise ConfigurationError(f"security.grant_read, grant_write, grant_subscribe: {error}") from error


def _check_gate_paths(settings: Settings, folder: Path) -> None:
    """Raises ConfigurationError."""
    if _has_usual_paths(settings):
        return
    # Not above: they load the handlers of all paths, for half of the time of a check.
    from lamplighter.gateway.gates.apis import api_routes
    from lamplighter.gateway.gates.http.gate import check_paths

    security = settings.security
    own_certificate = security.enabled and not security.certificate_file
    nobody: Any = None  # only the paths are used; no handler is called
    check_paths(
        settings.http,
        [*security_routes(security, None, b"" if own_certificate else None, nobody), *api_routes(settings, folder)],
        PREFIX if security.enabled else "",
    )


def _has_usual_paths(settings: Settings) -> bool:
    """Whether the gates have the paths of the default settings, which differ, and nothing else that has paths is on."""
    usual = HttpSettings()
    if any(getattr(settings.http, name) != getattr(usual, name) for name in _PATHS):
        return False
    return not any(getattr(getattr(settings, table), "enabled", False) for table in _TABLES)


def _check_socket_paths(settings: Settings, data: Path) -> None:
    """Raises ConfigurationError."""
    for path in socket_paths(settings, data):
        if len(os.fsencode(path)) > _ADDRESS_BYTES_MAX:
            raise ConfigurationError(
                f"cannot listen on {path}: a Unix socket's address may have at most {_ADDRESS_BYTES_MAX} bytes; "
                "name a shorter security.socket_folder"
            )


def _check_certificate(security: SecuritySettings, folder: Path) -> str:
    """Returns the file that this process may not read, or "". Raises ConfigurationError."""
    # Not above: they load cryptography, 9 MB.
    if security.certificate_file:
        from lamplighter.gateway.security.certificates import users_identity

        try:
            users_identity(folder / security.certificate_file, folder / security.key_file, None)
        except ConfigurationError as error:
            if isinstance(error.__cause__, PermissionError):
                return str(error)
            raise
    elif security.names:
        from lamplighter.gateway.security.certificates import check_names

        check_names(security.names)
    return ""


def security_routes(
    security: SecuritySettings, authorization: Authorization | None, authority: bytes | None, browsers: Browsers
) -> Iterator[Route]:
    """What registers and recognizes clients. authority: the certificate that clients trust, if it is the gateway's."""
    # Not above: they load the handlers, which a check seldom needs.
    from lamplighter.gateway.gates.http.clients import Clients
    from lamplighter.gateway.gates.http.oauth import OAuthHandlers
    from lamplighter.gateway.gates.http.page_login import PageLogin

    yield from OAuthHandlers(authorization, authority).routes()
    yield from PageLogin(authorization, browsers).routes()
    yield from Clients(authorization, _grant(security), security.code_life_s).routes()


def _grant(security: SecuritySettings) -> Permissions:
    return Permissions(read=security.grant_read, write=security.grant_write, subscribe=security.grant_subscribe)


def _plain_host_faults(settings: Settings) -> Iterator[str]:
    """Names unprotected gates that other machines reach, unless the settings allow them."""
    for table, host in (("http", settings.http.host), ("websocket", settings.websocket.host)):
        if not settings.security.plain_on_network and not is_loopback(host):
            yield (
                f"{table}.host = {host!r} is reachable from other machines without protection; set "
                "security.enabled for TLS and tokens, or security.plain_on_network to allow that"
            )
