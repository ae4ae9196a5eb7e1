"""The addresses that an adapter may send to.

Graphs name the devices that adapters call, so every client that may write a graph chooses addresses. The settings list
the allowed networks. The check uses the address, not the spelling of a name or number: a host is resolved once, and the
adapter sends to the address that was checked.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from pathlib import Path

from lamplighter.engine.errors import PayloadError, UpstreamError
from lamplighter.engine.networks import Address as Address
from lamplighter.engine.networks import Network as Network
from lamplighter.engine.networks import refusal as refusal

# In a list of networks: the private networks of the machine.
PRIVATE = "private"
# How long the machine's networks are cached; DHCP may change them.
CACHED_S = 10.0

_PRIVATE = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
_UP_ROUTE = 0x1


class NotAllowedError(PayloadError):
    """No address of a host is in the networks. The reason has addresses, so it is for the operator only."""


def parse(entries: Sequence[str]) -> tuple[Network, ...]:
    """The networks that a setting lists, without `PRIVATE`. Raises ValueError that names the entry."""
    found = []
    for entry in entries:
        if entry == PRIVATE:
            continue
        try:
            network = ipaddress.ip_network(entry)
        except ValueError as error:
            raise ValueError(f'networks: {error}; write "{PRIVATE}", or a network such as "192.168.7.0/24"') from error
        if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
            raise ValueError(f"networks: {entry} has IPv4-mapped addresses; write the IPv4 network")
        found.append(network)
    return tuple(found)


def private_networks(routes: str, addresses: str) -> tuple[Network, ...]:
    """The private IPv4 networks and the unique local IPv6 prefixes (RFC 4193) of a machine. Pure.

    routes: as in ``/proc/net/route``; routes with a gateway are ignored. addresses: as in ``/proc/net/if_inet6``.
    """
    found: list[Network] = []
    for line in routes.splitlines()[1:]:
        _, destination, gateway, flags, _, _, _, mask, *_ = line.split()
        if int(gateway, 16) == 0 and int(flags, 16) & _UP_ROUTE:
            # The kernel writes them in the byte order of the processor, here little-endian.
            low, bits = (bytes.fromhex(text)[::-1] for text in (destination, mask))
            found.append(IPv4Network(f"{IPv4Address(low)}/{IPv4Address(bits)}"))
    for line in addresses.splitlines():
        address, _, length, *_ = line.split()
        found.append(ipaddress.ip_network((int(address, 16), int(length, 16)), strict=False))
    return tuple(one for one in dict.fromkeys(found) if any(_within(one, private) for private in _PRIVATE))


def machine_networks() -> tuple[Network, ...]:
    """`private_networks` of this machine, now."""
    return private_networks(*map(_content, ("/proc/self/net/route", "/proc/self/net/if_inet6")))


class Networks:
    """The networks that a setting lists.

    entries: as in the settings; setting: its name, for errors; machine: returns what `PRIVATE` stands for, and is
    called again after `CACHED_S` by the clock monotonic.
    """

    def __init__(
        self,
        entries: Sequence[str],
        setting: str,
        *,
        machine: Callable[[], Iterable[Network]] = machine_networks,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listed = parse(entries)
        self._private = PRIVATE in entries
        self._setting = setting
        self._machine = machine
        self._monotonic = monotonic
        self._cached: tuple[float, tuple[Network, ...]] | None = None

    def current(self) -> tuple[Network, ...]:
        if not self._private:
            return self._listed
        now = self._monotonic()
        if self._cached is None or not 0 <= now - self._cached[0] < CACHED_S:
            self._cached = now, tuple(self._machine())
        return self._listed + self._cached[1]

    async def resolve(self, host: str, port: int, kind: socket.SocketKind) -> Address:
        """The first address of the host that is allowed.

        The caller sends to this address and does not resolve the name again. Raises PayloadError, which names the
        setting, if no address is allowed, and UpstreamError if the name cannot be resolved.
        """
        networks, reasons = self.current(), {}
        for address in await _addresses(host, port, kind):
            reason = refusal(address, networks)
            if not reason:
                return address
            reasons[reason] = True
        allowed = ", ".join(map(str, networks)) or "none"
        raise NotAllowedError(
            f"{host}: {'; '.join(reasons) or 'it has no address'}; {self._setting} allows {allowed}; add the "
            "network there if it has devices"
        )


async def _addresses(host: str, port: int, kind: socket.SocketKind) -> list[Address]:
    """Raises UpstreamError."""
    with contextlib.suppress(ValueError):
        return [ipaddress.ip_address(host)]  # without a thread
    import asyncio  # commands load this module for its settings and have no event loop

    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=kind)
    except (OSError, UnicodeError) as error:
        raise UpstreamError(f"{host} cannot be resolved: {error}") from error
    return [ipaddress.ip_address(place[0]) for *_, place in found]


def _within(network: Network, other: Network) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(other, IPv4Network) and network.subnet_of(other)
    return isinstance(other, IPv6Network) and network.subnet_of(other)


def _content(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # for example without IPv6
        return ""
