"""The addresses of the machine's network interfaces (netdevice(7), proc(5))."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_SIOCGIFADDR = 0x8915
_IF_INET6 = Path("/proc/net/if_inet6")


def interface_addresses() -> list[str]:
    """The first IPv4 address of each interface and its IPv6 ones, without link-local ones, which need the name of a
    link; in a fixed order."""
    found = {ipaddress.ip_address(address) for address in (*_ipv4(), *_ipv6())}
    shown = [address for address in found if not address.is_link_local and not address.is_loopback]
    return [str(address) for address in sorted(shown, key=lambda address: (address.version, int(address)))]


def _ipv4() -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, request)
            except OSError:  # it has none
                continue
            yield socket.inet_ntoa(answer[20:24])


def _ipv6() -> Iterator[str]:
    try:
        lines = _IF_INET6.read_text().splitlines()
    except OSError:  # no IPv6 here
        return
    for line in lines:
        yield str(ipaddress.IPv6Address(int(line.split()[0], 16)))
