"""The socket of a kernel without IPv6: the same exchanges, and the addresses, sources and errors of the other one."""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable

import pytest

from lamplighter.adapters.coap import endpoint as module
from lamplighter.adapters.coap import udp_socket as sockets
from lamplighter.adapters.coap.udp_socket import MappedIpv4Socket, udp_socket
from tests.adapters.coap import test_endpoint as exchanges

EXCHANGES: list[Callable[[], Awaitable[None]]] = [
    exchanges.test_a_separate_answer_acknowledges_its_request,
    exchanges.test_an_answer_with_a_wrong_token_or_address_is_ignored,
    exchanges.test_a_closed_port_fails_all_requests_to_the_peer,
    exchanges.test_requests_to_a_client_are_reset,
    exchanges.test_a_multicast_request_collects_an_answer_of_each_permitted_peer,
    exchanges.test_libcoap_answers_a_multicast_request,
    exchanges.test_a_repeated_request_gets_the_same_answer_and_has_one_effect,
    exchanges.test_a_second_server_on_the_port_is_refused,
    exchanges.test_libcoap_observes_until_it_ends,
]


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.__name__)
async def test_exchanges_are_those_of_a_machine_with_ipv6(
    exchange: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "udp_socket", MappedIpv4Socket)
    await exchange()


def test_a_kernel_without_ipv6_gets_the_socket_for_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    made = socket.socket

    def without_ipv6(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return made(family, kind)

    monkeypatch.setattr(sockets.socket, "socket", without_ipv6)
    with udp_socket() as link:
        link.bind(("::", 0))
        assert isinstance(link, MappedIpv4Socket) and link.getsockname()[0] == "::ffff:0.0.0.0"


def test_another_error_is_not_taken_for_a_missing_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(family: int, kind: int) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(sockets.socket, "socket", full)
    with pytest.raises(OSError, match="Too many"):
        udp_socket()


def test_an_address_of_ipv6_cannot_be_reached() -> None:
    with MappedIpv4Socket() as link, pytest.raises(OSError, match="not supported") as refused:
        link.sendmsg([b"x"], (), 0, ("fd00::1", 5683, 0, 0))
    assert refused.value.errno == errno.EAFNOSUPPORT


@pytest.mark.parametrize("kind", [udp_socket, MappedIpv4Socket])
def test_a_datagram_leaves_from_the_address_that_was_called(kind: Callable[[], socket.socket]) -> None:
    with kind() as ours, socket.socket(type=socket.SOCK_DGRAM) as peer:
        ours.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        ours.bind(("::", 0))
        port = ours.getsockname()[1]
        peer.bind(("127.0.0.1", 0))
        peer.settimeout(60)
        peer.sendto(b"called", ("127.0.0.77", port))
        ours.settimeout(60)
        data, [called], _, address = ours.recvmsg(100, 1024)
        assert (data, address) == (b"called", ("::ffff:127.0.0.1", peer.getsockname()[1], 0, 0))
        ours.sendmsg([b"answer"], [called], 0, address)
        assert peer.recvfrom(100) == (b"answer", ("127.0.0.77", port))
