"""Who sends a request to the CoAP server: an OSCORE context, or an address."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import aiocoap
from aiocoap.numbers.codes import Code

from lamplighter.adapters.coap.admission import Origin
from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.adapters.coap.serving import SiteCaller, SiteRefusal
from lamplighter.adapters.coap.settings import CoapDeviceSettings, normal_authority
from lamplighter.adapters.networks import Address, Networks, refusal
from lamplighter.engine.errors import UpstreamError


class ProtectsAnswers(Protocol):
    def outer(self, answer: aiocoap.Message) -> aiocoap.Message:
        """The protected answer. Raises UpstreamError."""
        ...


class ReceivedMessage(NamedTuple):
    """message: without its protection; protects: its answers, None if it was unprotected."""

    message: aiocoap.Message
    caller: SiteCaller
    protects: ProtectsAnswers | None = None


class Callers:
    """Finds who sends a request.

    contexts: OSCORE keys. devices: tables ``[coap.devices.NAME]``; one with ``security = "plain"`` and an IP address
    permits unprotected requests of this address. plain: the networks whose unprotected requests are permitted.
    """

    def __init__(self, contexts: Contexts, devices: Mapping[str, CoapDeviceSettings], plain: Networks) -> None:
        self._contexts = contexts
        self._plain = plain
        self._names: dict[Address, str] = {}
        for name, device in devices.items():
            if device.security == "plain":
                host = urlsplit(f"coap://{normal_authority(device.address)}").hostname or ""
                with contextlib.suppress(ValueError):  # of a host name, only a resolver would know the address
                    self._names[ipaddress.ip_address(host)] = name

    def received(self, message: aiocoap.Message) -> ReceivedMessage:
        """Raises SiteRefusal if a protected request cannot be verified."""
        caller = origin_of(message.remote)
        if message.opt.oscore is None:
            name = self._names.get(caller.origin.address, "")
            permitted = bool(name) or not refusal(caller.origin.address, self._plain.current())
            return ReceivedMessage(message, caller._replace(device=name, permitted=permitted))
        if not self._contexts:
            raise SiteRefusal(Code.UNAUTHORIZED, "Security context not found", max_age=0)
        from lamplighter.adapters.coap.secured import RefusedRequest, received  # loaded with the contexts

        try:
            found = received(self._contexts.by_kid, message)
        except RefusedRequest as error:
            answer = error.answer
            raise SiteRefusal(answer.code, str(error), max_age=0, message=answer) from error
        except UpstreamError as error:
            raise SiteRefusal(Code.SERVICE_UNAVAILABLE, max_age=10) from error
        caller = caller._replace(device=found.context.name, protected=True, permitted=True)
        return ReceivedMessage(found.inner, caller, found)


def origin_of(remote: Any) -> SiteCaller:
    """A caller of whom only the address is known. It is not permitted anything. remote: of a message."""
    host, port, _, scope = remote.sockaddr
    address: Address = ipaddress.ip_address(host.partition("%")[0])
    zone = ""
    if address.version == 6:
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif address.is_link_local and scope:
            zone = _interface(scope)
            address = ipaddress.IPv6Address(f"{address}%{zone}")
    return SiteCaller(Origin(address, port), zone, permitted=False)


def _interface(scope: int) -> str:
    try:
        return socket.if_indextoname(scope)
    except OSError:  # it has gone
        return str(scope)
