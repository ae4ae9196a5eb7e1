"""Which addresses a program may send to, if others can choose the address."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Metadata services of clouds, which give out credentials; some are in private networks.
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        (
            *("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
            *("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42"),
        ),
    )
)
_BROADCAST = ipaddress.ip_address("255.255.255.255")
EVERYWHERE: tuple[Network, ...] = (IPv4Network("0.0.0.0/0"), IPv6Network("::/0"))
# Addresses that stand for IPv4 addresses (RFC 6052).
_NAT64 = IPv6Network("64:ff9b::/96")
_UNICAST = IPv6Network("2000::/3")
"""The public addresses of IPv6 (RFC 4291, 2.4). Outside are those that local translators make of IPv4 addresses, too:
``::/96``, ``::ffff:0:0:0/96`` and ``64:ff9b:1::/48``."""
# Further ones of the registries of special addresses (RFC 6890), which `ipaddress` takes for public ones in some
# versions of Python.
_SPECIAL: tuple[Network, ...] = (IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20"))


def refusal(address: Address, networks: Iterable[Network]) -> str:
    """The reason why an address is refused; "" if it is allowed. Pure.

    Multicast, broadcast and unspecified addresses and the metadata services of clouds are always refused. An
    IPv4-mapped IPv6 address counts as its IPv4 address.
    """
    meant = (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address
    if meant.is_multicast or meant == _BROADCAST:
        return f"{meant} is an address of several machines"
    if meant.is_unspecified:
        return f"{meant} is the address of no machine"
    plain = ipaddress.ip_address(int(meant)) if meant.version == 4 else IPv6Address(int(meant))  # without its zone
    if plain in _METADATA:
        return f"{meant} is the address of a metadata service"
    within = [network for network in networks if network.version == plain.version and plain in network]
    if not within:
        return f"{meant} is in none of the networks"
    if any(isinstance(one, IPv4Network) and one.prefixlen < 31 and plain == one.broadcast_address for one in within):
        return f"{meant} is the broadcast address of a network"
    return ""


def public_refusal(address: Address) -> str:
    """The reason why an address is refused, if only public ones are allowed; "" if it is allowed. Pure.

    Loopback, link-local, private and reserved addresses are refused besides those of `refusal`, also where an IPv6
    address stands for an IPv4 address.
    """
    for meant in (address, *_embedded_addresses(address)):
        reason = refusal(meant, EVERYWHERE)
        if reason:
            return reason
        outside = isinstance(meant, IPv6Address) and not (meant in _UNICAST or meant in _NAT64 or meant.ipv4_mapped)
        if outside or not meant.is_global or any(meant in network for network in _SPECIAL):
            return f"{meant} is not a public address"
    return ""


def _embedded_addresses(address: Address) -> list[IPv4Address]:
    """The IPv4 addresses to which packets for an IPv6 address may go."""
    if isinstance(address, IPv4Address):
        return []
    found = [address.ipv4_mapped, address.sixtofour, address.teredo[1] if address.teredo else None]
    if address in _NAT64:
        found.append(IPv4Address(int(address) & 0xFFFF_FFFF))
    return [one for one in found if one is not None]
