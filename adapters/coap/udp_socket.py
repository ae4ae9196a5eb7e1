"""The UDP socket of an endpoint: for IPv6 and IPv4, or for IPv4 alone where the kernel has no IPv6 (`ipv6.disable=1`).

The layers above know one kind of address: that of an IPv6 socket, in which an IPv4 peer is `::ffff:192.0.2.7`. A socket
for IPv4 translates, so that nothing above it differs between the two machines.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Any

Ancillary = Sequence[tuple[int, int, bytes]]

# linux/in.h and linux/in6.h; Python has no names for them before 3.14.
_IP_PKTINFO, _IP_RECVERR, _IPV6_RECVERR = 8, 11, 25
_MAPPED = b"\0" * 10 + b"\xff\xff"
_IN_PKTINFO = struct.Struct("=i4s4s")  # interface, address of this machine, address in the datagram
_IN6_PKTINFO = struct.Struct("=16si")  # address, interface


def udp_socket() -> socket.socket:
    """A UDP socket with the addresses of IPv6, not bound. Raises OSError."""
    try:
        link = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    except OSError as error:
        if error.errno != errno.EAFNOSUPPORT:
            raise
        return MappedIpv4Socket()
    try:
        link.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:
        link.close()
        raise
    return link


class MappedIpv4Socket(socket.socket):
    """A UDP socket for IPv4 that looks like one for IPv6: addresses, options and ancillary data are IPv6's."""

    def __init__(self) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_DGRAM)

    def setsockopt(self, level: int, option: int, value: Any) -> None:  # type: ignore[override]
        if level != socket.IPPROTO_IPV6:
            super().setsockopt(level, option, value)
        elif option == socket.IPV6_RECVPKTINFO:
            super().setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, value)
        # The others are for datagrams of IPv6 alone: its errors, its groups.

    def bind(self, address: Any) -> None:
        super().bind(_ipv4_address(address))

    def getsockname(self) -> Any:
        return _ipv6_address(super().getsockname())

    def recvmsg(self, size: int, ancillary_size: int = 0, flags: int = 0) -> Any:
        data, ancillary, flags, address = super().recvmsg(size, ancillary_size, flags)
        return data, [_ipv6_item(one) for one in ancillary], flags, _ipv6_address(address)

    def sendmsg(  # type: ignore[override]
        self, buffers: Iterable[bytes], ancillary: Ancillary = (), flags: int = 0, address: Any = None
    ) -> int:
        return super().sendmsg(buffers, [_ipv4_item(one) for one in ancillary], flags, _ipv4_address(address))


def _ipv4_address(address: Any) -> tuple[str, int]:
    """The IPv4 address and port in an address of IPv6. Raises OSError for one of IPv6 itself."""
    ip = ipaddress.IPv6Address(address[0])
    if not int(ip):  # all addresses
        return "0.0.0.0", address[1]
    if ip.ipv4_mapped is None:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    return str(ip.ipv4_mapped), address[1]


def _ipv6_address(address: Any) -> Any:
    """As an IPv6 socket says it; other values, as of a datagram without a sender, stay."""
    return (f"::ffff:{address[0]}", address[1], 0, 0) if isinstance(address, tuple) else address


def _ipv6_item(item: tuple[int, int, bytes]) -> tuple[int, int, bytes]:
    level, kind, data = item
    if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):
        interface, _, destination = _IN_PKTINFO.unpack_from(data)
        return socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, _IN6_PKTINFO.pack(_MAPPED + destination, interface)
    if (level, kind) == (socket.IPPROTO_IP, _IP_RECVERR):
        return socket.IPPROTO_IPV6, _IPV6_RECVERR, data
    return item


def _ipv4_item(item: tuple[int, int, bytes]) -> tuple[int, int, bytes]:
    level, kind, data = item
    if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
        source, interface = _IN6_PKTINFO.unpack_from(data)
        return socket.IPPROTO_IP, _IP_PKTINFO, _IN_PKTINFO.pack(interface, source[-4:], bytes(4))
    return item
