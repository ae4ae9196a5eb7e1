"""Checks of Host and Origin: which names lead to the gateway, and which pages may use it.

A web page can make its visitor's browser send requests to any address that the machine reaches. Loopback or a closed
network therefore protects from other machines, but not from pages. With each request a browser sends the name that it
connected to (Host) and the page that made the request (Origin, Fetch Metadata). A page cannot change these headers.
Both gates check them before they read anything else. Other programs send Host only and are not affected.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from functools import lru_cache, partial

from lamplighter.engine.errors import ForeignRequestError
from lamplighter.engine.log_events import EventLogger
from lamplighter.gateway.settings.security import SecuritySettings

logger = EventLogger(__name__)

_TOLD_MAX = 100  # log lines about refused requests; a page can make any number of them, each with another name
_SHOWN_MAX = 200
_HOST_CHARACTERS_MAX = 300
"""A name has at most 253 (RFC 1035, 2.3.4)."""
_HOSTS_MAX = 64
"""Names whose verdict is kept."""
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s\[\]:/?#@]+))(?::(\d{0,5}))?", re.IGNORECASE)

Headers = Iterable[tuple[bytes, bytes]]  # names in lower case

NOSNIFF = ("x-content-type-options", "nosniff")  # a header of all answers: browsers take no text for a page or a script
# The cookie of the gateway's page, with an access token. Browsers take a cookie of this prefix over TLS only, and not
# for other hosts (RFC 6265bis, 4.1.3.2).
COOKIE = "__Host-lamplighter"
# A header that forms cannot send, and scripts of other origins only after a preflight.
PAGE_HEADER = b"x-lamplighter-page"


def cookie_token(headers: Iterable[str]) -> str | None:
    """The token of the page's cookie; None where there is none, or several. headers: all that are called Cookie."""
    found = [
        value
        for header in headers
        for name, _, value in (pair.strip().partition("=") for pair in header.split(";"))
        if name == COOKIE
    ]
    return found[0] if len(found) == 1 else None


class Browsers:
    """Judges requests by Host, Origin and Fetch Metadata. Not for Unix sockets, which no browser connects to. settings:
    may be replaced while requests are served. listening: the hosts that the gates listen at by their settings."""

    # Secure mode does not check Host: an attacker who directs a browser here by another name has no certificate for
    # that name.

    def __init__(self, settings: SecuritySettings, listening: Iterable[str] = ()) -> None:
        self._listening = frozenset(host.lower() for host in listening)
        self._told: set[str] = set()
        self.page_port = 0  # the address of the HTTP gate: its own pages may use both gates
        self.apply(settings)

    def apply(self, settings: SecuritySettings) -> None:
        self._origins = frozenset(settings.origins)
        self._any_origin = "*" in self._origins
        names = self._listening | {_bare_host(host) for host in settings.hosts}
        if settings.plain_on_network:
            names |= _machine_names()
        # Kept, since a client sends the same name with each request.
        served = lru_cache(_HOSTS_MAX)(partial(_is_served, names=names, any_address=settings.plain_on_network))
        self._is_host: Callable[[str], bool] = _any_host if settings.enabled else served
        if self._any_origin and not settings.enabled:
            logger.warning("every web page may use the gateway without a token", origins="*")

    def origin(self, headers: Headers, version: str, *, link: bool) -> bytes | None:
        """The origin of the page that made a request, for the answer; None where no script made it. version: of HTTP,
        ``1.1``; link: whether the request only reads something that links may point to. Raises ForeignRequestError."""
        hosts: list[bytes] = []
        origins: list[bytes] = []
        site = mode = target = b""
        for name, value in headers:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origins.append(value)
            elif name == b"sec-fetch-site":
                site = value
            elif name == b"sec-fetch-mode":
                mode = value
            elif name == b"sec-fetch-dest":
                target = value
        if len(hosts) != 1 and (hosts or version != "1.0"):
            raise ForeignRequestError("http", 400, "a request has one header Host; send it")
        host = hosts[0].decode("latin-1") if hosts else ""
        if hosts and (len(host) > _HOST_CHARACTERS_MAX or not self._is_host(host)):
            raise self._refuse(
                "wrong_host",
                421,
                f"Host {_display_text(host)} is no name of this gateway; if it is one, list it in security.hosts",
            )
        if len(origins) > 1:
            raise ForeignRequestError("cors_error", 401, "a request has one Origin")
        if origins:
            origin = origins[0].decode("latin-1")
            if not (self._any_origin or origin in self._origins or (host and self._is_own(origin, host))):
                raise self._refuse(
                    "cors_error",
                    403,
                    f"pages of {_display_text(origin)} may not use this gateway; if they should, list it in "
                    "security.origins",
                )
            return origins[0]
        if site in (b"", b"same-origin", b"none") or self._any_origin:  # "none": the user typed the address
            return None
        if link and mode == b"navigate" and target == b"document":
            return None
        raise self._refuse(
            "cors_error",
            403,
            f"a page of another site made this request (Sec-Fetch-Site is {_display_text(site.decode('latin-1'))}); "
            "let a script of a page that is listed in security.origins make it",
        )

    def is_own_page(self, headers: Headers, *, writes: bool = False, connects: bool = False) -> bool:
        """Whether a script or a link of the gateway's own page made a request, so that its cookie counts. An Origin
        must be https: an attacker in the network can serve a page of the same host and port without TLS. writes: the
        request may change something, so it must have Origin and `PAGE_HEADER`; connects: it opens a WebSocket, so it
        must have Origin."""
        # `security.origins` have no part in it: their pages send tokens.
        found: dict[bytes, list[str]] = {}
        for name, value in headers:
            found.setdefault(name, []).append(value.decode("latin-1"))
        hosts, origins = found.get(b"host", []), found.get(b"origin", [])
        if writes and found.get(PAGE_HEADER) != ["1"]:
            return False
        if len(hosts) != 1 or len(hosts[0]) > _HOST_CHARACTERS_MAX or len(origins) > 1:
            return False
        if origins:
            return origins[0].startswith("https://") and self._is_own(origins[0], hosts[0])
        return not writes and not connects and found.get(b"sec-fetch-site") == ["same-origin"]

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether the page came from the gateway itself, under the name that this request is sent to."""
        scheme, _, place = origin.partition("://")
        if scheme not in ("http", "https"):
            return False
        if place == host.lower():
            return True
        page, asked = _HOST.fullmatch(place), _HOST.fullmatch(host.lower())
        if page is None or asked is None or page.group(1, 2) != asked.group(1, 2):
            return False
        return int(page[3] or (443 if scheme == "https" else 80)) == self.page_port

    def _refuse(self, code: str, status: int, description: str) -> ForeignRequestError:
        if len(self._told) < _TOLD_MAX and description not in self._told:
            self._told.add(description)
            logger.warning("browser refused", code=code, reason=description)
        return ForeignRequestError(code, status, description)


def _display_text(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}...")


def _bare_host(host: str) -> str:
    return host.lower().removeprefix("[").removesuffix("]")


def _any_host(host: str) -> bool:
    return True


def _is_served(host: str, names: frozenset[str], *, any_address: bool) -> bool:
    """True if a header Host names this machine. names: besides loopback's; any_address: not only loopback's."""
    # DNS rebinding changes names, not addresses, so addresses are safe.
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = (found[1] or found[2]).lower().removesuffix(".")
    if name in names or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any_address or (mapped or address).is_loopback or str(address) in names


def _machine_names() -> frozenset[str]:
    """The machine's name, plain and as in multicast DNS (RFC 6762)."""
    name = socket.gethostname().lower()
    return frozenset({name, f"{name.partition('.')[0]}.local"})
