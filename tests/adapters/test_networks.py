"""Which addresses may be sent to: of every spelling the address counts, and what was checked is what is sent to."""

from __future__ import annotations

import ipaddress
import socket
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.adapters.networks import CACHED_S, Network, Networks, parse, private_networks, refusal
from lamplighter.engine.errors import PayloadError, UpstreamError
from tests.support.tables import each_row

LAN = ipaddress.ip_network("192.168.7.0/24")
EVERYTHING = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))

ROUTES = """Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
eth0\t00000000\t0107A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0007A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
eth0\t0000FEA9\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
wlan0\t0000010A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
tun0\t0000A8C0\t0107A8C0\t0003\t0\t0\t0\t0000FFFF\t0\t0\t0
ppp0\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0
wan0\t00007104\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
"""
ADDRESSES = """fd121234123400000000000000000002 04 40 00 82     eth0
20010db8000000000000000000000002 04 40 00 82     eth0
00000000000000000000000000000001 01 80 10 80       lo
fe8000000000000000fc00fffe000001 04 40 20 80     eth0
"""


def test_private_networks_are_those_that_the_machine_is_in() -> None:
    found = private_networks(ROUTES, ADDRESSES)
    assert list(map(str, found)) == ["192.168.7.0/24", "10.1.0.0/16", "fd12:1234:1234::/64"]
    assert private_networks("", "") == ()


@each_row(
    "address",
    [
        *(
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "169.254.1.1",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.1.187",
        ),
        *(
            "192.168.7.255",
            "192.168.8.1",
            "8.8.8.8",
            "::1",
            "::",
            "fe80::1",
            "fe80::1%eth0",
            "ff02::fd",
            "fd00:ec2::254",
        ),
        *(
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:8.8.8.8",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2001:db8::1",
        ),
        *("::ffff:192.168.7.255", "fd12:1234:1235::1", "172.17.0.1", "10.2.0.1"),
    ],
)
def test_what_is_not_a_device_of_the_machine_s_private_networks_is_refused(address: str) -> None:
    assert refusal(ipaddress.ip_address(address), private_networks(ROUTES, ADDRESSES))


@each_row("address", ["192.168.7.20", "10.1.200.3", "fd12:1234:1234::77", "::ffff:192.168.7.20"])
def test_devices_of_the_machine_s_private_networks_are_not(address: str) -> None:
    assert refusal(ipaddress.ip_address(address), private_networks(ROUTES, ADDRESSES)) == ""


@each_row(
    "address",
    [
        *("0.0.0.0", "255.255.255.255", "239.1.2.3", "169.254.169.254", "fd00:ec2::254", "::", "ff05::fd"),
        *("::ffff:169.254.169.254", "::ffff:224.0.0.1", "fd00:ec2::254%eth0"),
    ],
)
def test_some_addresses_are_refused_whatever_is_listed(address: str) -> None:
    assert refusal(ipaddress.ip_address(address), (*EVERYTHING, ipaddress.ip_network("169.254.0.0/16")))


addresses = st.ip_addresses() | st.ip_addresses(network="192.168.7.0/24") | st.ip_addresses(network="127.0.0.0/8")
some_networks = st.lists(
    st.builds(
        lambda address, bits: ipaddress.ip_network((address, min(bits, address.max_prefixlen)), strict=False),
        addresses,
        st.integers(0, 128),
    ),
    max_size=4,
)


@given(addresses, some_networks)
def test_only_what_is_in_a_listed_network_may_be_sent_to(
    address: IPv4Address | IPv6Address, networks: list[Network]
) -> None:
    meant = (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address
    if not refusal(address, networks):
        assert any(meant in network for network in networks if network.version == meant.version)
        assert not (meant.is_multicast or meant.is_unspecified)
        assert not refusal(address, EVERYTHING)


@given(st.ip_addresses(v=4), some_networks)
def test_an_ipv4_mapped_address_is_judged_as_the_address_that_it_stands_for(
    address: IPv4Address, networks: list[Network]
) -> None:
    assert refusal(IPv6Address(f"::ffff:{address}"), networks) == refusal(address, networks)


@given(addresses, some_networks, some_networks)
def test_more_networks_refuse_nothing_that_fewer_allow_but_broadcasts(
    address: IPv4Address | IPv6Address, networks: list[Network], more: list[Network]
) -> None:
    if not refusal(address, networks):
        assert refusal(address, networks + more) in ("", f"{address} is the broadcast address of a network")


@each_row("entry", ["192.168.7.1/24", "lan", "", "10.0.0.0/33", "::ffff:10.0.0.0/104", "private/24", "Private"])
def test_an_entry_that_is_no_network_is_named(entry: str) -> None:
    with pytest.raises(ValueError, match="networks: "):
        parse(["private", entry])


# --- hosts ------------------------------------------------------------------------------------------------------


async def resolved(networks: Networks, host: str) -> IPv4Address | IPv6Address:
    return await networks.resolve(host, 5683, socket.SOCK_DGRAM)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0x7f.1", "017700000001"),
        *("::1", "::ffff:127.0.0.1", "::ffff:7f00:1", "0:0:0:0:0:0:0:1", "127.0.0.1.", "2852039166", "0"),
    ],
)
async def test_every_spelling_of_a_refused_address_is_refused(host: str) -> None:
    networks = Networks(["private"], "coap.networks", machine=lambda: [LAN])
    with pytest.raises((PayloadError, UpstreamError)) as told:
        await resolved(networks, host)
    if isinstance(told.value, PayloadError):
        assert "coap.networks allows 192.168.7.0/24; add the network there" in str(told.value)


@pytest.mark.parametrize(("listed", "expected"), [("192.168.7.0/24", "192.168.7.9"), ("127.0.0.0/8", "127.0.0.1")])
async def test_of_the_addresses_of_a_name_the_first_that_is_allowed_is_taken(
    listed: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def getaddrinfo(host: str, *_arguments: Any, **_options: Any) -> list[Any]:
        asked.append(host)
        return [(2, 2, 17, "", (address, 5683)) for address in ("127.0.0.1", "192.168.7.9", "192.168.7.10")]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert str(await resolved(Networks([listed], "coap.networks"), "lamp.example")) == expected
    assert asked == ["lamp.example"]


async def test_the_machine_s_networks_are_asked_for_again_after_a_while() -> None:
    now, machine, asked = 100.0, [LAN], 0

    def of_machine() -> list[Any]:
        nonlocal asked
        asked += 1
        return machine

    networks = Networks(["private", "10.9.0.0/16"], "coap.networks", machine=of_machine, monotonic=lambda: now)
    for _ in range(3):
        assert str(await resolved(networks, "192.168.7.9")) == "192.168.7.9"
    assert asked == 1
    machine = [ipaddress.ip_network("192.168.8.0/24")]
    now += CACHED_S
    with pytest.raises(PayloadError, match=r"coap\.networks allows 10\.9\.0\.0/16, 192\.168\.8\.0/24"):
        await resolved(networks, "192.168.7.9")
    assert asked == 2
    assert str(await resolved(networks, "10.9.3.4")) == "10.9.3.4"


async def test_without_private_in_the_list_the_machine_is_not_asked() -> None:
    def never() -> list[Network]:
        raise AssertionError

    networks = Networks([], "coap.networks", machine=never)
    with pytest.raises(PayloadError, match=r"coap\.networks allows none"):
        await resolved(networks, "192.168.7.9")
