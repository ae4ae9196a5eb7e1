"""Finds CoAP devices, and proposes them in the dataset: by multicast, by address, and by their registrations.

::

    GET /.well-known/core ─▶ Searcher ─┐ links
                                       ├─▶ discovery.proposed ─▶ CoapDiscovering ─▶ RegistryFeed ─▶ gateway
    POST /rd ─▶ Registrations ────┘

A proposed device is not used until a person adopts it (`lamplighter devices adopt`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import aiocoap
import msgspec

from lamplighter.adapters.coap import links
from lamplighter.adapters.coap.callers import origin_of
from lamplighter.adapters.coap.directory import Registration
from lamplighter.adapters.coap.directory_site import DirectorySite
from lamplighter.adapters.coap.discovery import (
    SOURCE,
    Proposal,
    address_id,
    device_to_propose,
    distinct,
    propose,
    registered_id,
)
from lamplighter.adapters.coap.endpoint import Endpoint
from lamplighter.adapters.coap.exchanges import Exchanges
from lamplighter.adapters.coap.links import LINK_FORMAT
from lamplighter.adapters.coap.names import DeviceNames
from lamplighter.adapters.coap.registrations import Event, Registrations
from lamplighter.adapters.coap.server_settings import CoapDiscoverySettings
from lamplighter.adapters.devices.device import Device, Problem
from lamplighter.adapters.devices.draft import plain, segment
from lamplighter.adapters.devices.registry import Adoption
from lamplighter.adapters.devices.registry_feed import FeedScope, RegistryFeed
from lamplighter.adapters.mapping import uris
from lamplighter.adapters.networks import Address, Networks, refusal
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.resources.exchange import DeviceRequest
from lamplighter.adapters.resources.reachability import DeviceContacts
from lamplighter.adapters.resources.running import RunningResources
from lamplighter.engine.errors import PayloadError, UpstreamError
from lamplighter.engine.log_events import EventLogger

# All CoAP nodes: of IPv4, of the link and of the site (RFC 7252 section 12.8).
GROUPS = tuple(map(ip_address, ("224.0.1.187", "ff02::fd", "ff05::fd")))
# How long answers to multicast are awaited. Devices spread theirs over about 5 s (RFC 7252 section 8.2).
SEARCH_S = 8.0
INTERFACES_MAX = 32
PATH = "/.well-known/core"

logger = EventLogger(__name__)


class Searcher:
    """Asks devices for their links. Nothing is sent to addresses outside of the networks, but multicast."""

    def __init__(
        self,
        endpoint: Endpoint,
        exchanges: Exchanges,
        networks: Networks,
        *,
        interfaces: Callable[[], Iterable[str]] | None = None,
        port: int = uris.COAP_PORT,
    ) -> None:
        """interfaces: names of those that multicast leaves by; port: that multicast goes to."""
        self._endpoint = endpoint
        self._exchanges = exchanges
        self._networks = networks
        self._interfaces = self._usable_interfaces if interfaces is None else interfaces
        self._port = port

    async def at(self, host: str) -> Proposal:
        """The device at a host, host:port or coap:// URI. Raises UpstreamError and PayloadError."""
        text = host if "://" in host else f"coap://{host}"
        base = f"coap://{uris.authority(uris.coap(text))}"
        return await self._proposal(base)

    async def everywhere(self, seconds: float = SEARCH_S) -> list[Proposal]:
        """The devices that answer to multicast. Addresses outside of the networks are left out."""
        searches = [
            self._endpoint.collect(self._request(number, group), seconds, self._permits)
            for number in self._numbers()
            for group in GROUPS
        ]
        answers: dict[str, aiocoap.Message] = {}
        for found in await asyncio.gather(*searches):
            for answer in found:
                answers.setdefault(_base(answer.remote), answer)
        return await asyncio.gather(*(self._proposal_of(base, answer) for base, answer in sorted(answers.items())))

    async def _proposal_of(self, base: str, answer: aiocoap.Message) -> Proposal:
        options = answer.opt
        if origin_of(answer.remote).origin.address.is_link_local:
            return _failed_proposal(base, "the device answered from a link-local address, which rules cannot name")
        if not answer.code.is_successful() or options.content_format not in (None, LINK_FORMAT):
            return _failed_proposal(base, f"the device answered {answer.code.dotted} instead of its links")
        if options.block2 is None or not options.block2.more:
            return _read_links(base, answer.payload)
        try:
            return await self._proposal(base)
        except (UpstreamError, PayloadError) as error:
            return _failed_proposal(base, str(error))

    async def _proposal(self, base: str) -> Proposal:
        # Like retries, these leave half of the slots free for commands: devices may answer to multicast only.
        answer = await self._exchanges.request(DeviceRequest(base + PATH, "GET", accept=LINK_FORMAT, retried=True))
        if not answer.successful or answer.format not in (None, LINK_FORMAT):
            raise UpstreamError(f"the device answered {answer.code} instead of its links")
        return _read_links(base, answer.body)

    def _request(self, interface: int, group: Address) -> aiocoap.Message:
        message = aiocoap.Message(code=aiocoap.GET, uri_path=PATH[1:].split("/"), accept=LINK_FORMAT)
        message.remote = self._endpoint.address(group, self._port, interface)
        return message

    def _permits(self, remote: Any) -> bool:
        return not refusal(origin_of(remote).origin.address, self._networks.current())

    def _numbers(self) -> list[int]:
        numbers = []
        for name in self._interfaces():
            try:
                numbers.append(socket.if_nametoindex(name))
            except OSError:
                continue  # it has gone
        return numbers[:INTERFACES_MAX]

    def _usable_interfaces(self) -> list[str]:
        """All interfaces; loopback only if devices may be there."""
        loopback = any(network.is_loopback for network in self._networks.current())
        return [name for name in machine_interfaces() if loopback or name != "lo"]


@dataclass(slots=True)
class _Registered:
    """heard: when it registered or updated its registration; None: it was said, or the registration is of an earlier
    run."""

    device: Device
    heard: datetime | None


class CoapDiscovering:
    """Proposes the devices that are found while the adapter runs.

    returned: called with the authority of a device that registered itself. contacts: takes when an adopted device was
    heard. names: they follow the entries.
    """

    def __init__(
        self,
        context: AdapterContext,
        searcher: Searcher,
        settings: CoapDiscoverySettings,
        *,
        returned: Callable[[str], None],
        contacts: DeviceContacts,
        names: DeviceNames,
    ) -> None:
        self.feed = RegistryFeed(
            context.client,
            base_iri=context.base_iri,
            scope=FeedScope("coap", "ask", frozenset({SOURCE})),
            on_entries=self._follow_entries,
            clock=context.now,
        )
        self._searcher = searcher
        self._settings = settings
        self._returned = returned
        self._contacts = contacts
        self._names = names
        self._clock = context.now
        # The devices that are registered, by identity, the newest last.
        self._registered: dict[str, _Registered] = {}
        self._announced: set[str] = set()
        self._unique: dict[str, str] = {}
        self._left_out: dict[str, Sequence[Problem]] = {}
        """What is listed of a device's links, by its identity."""
        self._found = 0
        names.follow(self.feed.entries.values, self._registered.keys)

    def counts(self) -> dict[str, int]:
        """devices_found: by multicast, since the start."""
        return {"devices_found": self._found}

    async def run(self) -> None:
        """Runs until cancelled. Raises an ExceptionGroup with UpstreamError when the client is closed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.feed.run(), name="coap registry")
            if self._settings.multicast_s:
                tasks.create_task(self._search(), name="coap discovery")

    # The listener of registrations

    async def ready(self) -> None:
        await self.feed.ready.wait()

    def took(self, event: Event, registration: Registration) -> None:
        """Takes what became of a registration."""
        if event == "registered":
            with contextlib.suppress(PayloadError):  # a base of another scheme
                self._returned(_authority(registration.base))
        proposal = self._proposal(registration)
        if event in ("registered", "restored"):
            self._note_problems(proposal)
        if proposal.device is None:
            return
        identity = proposal.device.identity
        self._registered.pop(identity, None)
        if event == "ended":
            self._names.changed()
            self._end_registration(proposal.device, registration.location)
            return
        self._registered[identity] = _Registered(proposal.device, None if event == "restored" else self._clock())
        self._names.changed()
        self._withdraw_others(proposal.device)
        self._announce(proposal.device)
        self._note_contact(identity)

    def identity(self, registration: Registration) -> str:
        device = self._proposal(registration).device
        return "" if device is None else device.identity

    def _proposal(self, registration: Registration) -> Proposal:
        return of_registration(registration, self._known_id(registration))

    def _known_id(self, registration: Registration) -> str:
        """The identifier of a device that was adopted by its address, before it registered; "": it has its own.

        Afterwards the endpoint is the identity, and the address may change. A source has to show that it has the
        address, because its links replace those that a person saw.
        """
        entries, own = self.feed.entries, segment(registered_id(registration.endpoint, registration.sector))
        entry = entries.get(f"{SOURCE}/{own}")
        if entry is not None and entry.adoption != "proposed":
            return ""
        before = next((one.device.id for one in entries.values() if one.device.endpoint == own), "")
        if before or not registration.proven:
            return before
        with contextlib.suppress(PayloadError, ValueError):
            entry = entries.get(f"{SOURCE}/{address_id(_authority(registration.base))}")
            if entry is not None and entry.adoption == "adopted" and not entry.device.endpoint:
                return entry.device.id
        return ""

    def _note_problems(self, proposal: Proposal) -> None:
        """Lists what is wrong with links, and what of them is not used, instead of what was before."""
        for problem in (*proposal.problems, *proposal.left_out):
            self.feed.note(problem)
        if proposal.device is None:
            return
        identity = proposal.device.identity
        self._end_left_out(identity, {one.about for one in proposal.left_out})
        if proposal.left_out:
            self._left_out[identity] = proposal.left_out

    def _end_left_out(self, identity: str, but: Container[str] = ()) -> None:
        """Ends what is listed of a device's links, but for these problems."""
        for problem in self._left_out.pop(identity, ()):
            if problem.about not in but:
                self.feed.note(msgspec.structs.replace(problem, reason=""))

    def note(self, place: str, reason: str) -> None:
        self.feed.note(Problem(SOURCE, "", plain(place), plain(reason, 400)))

    def _end_registration(self, device: Device, location: str) -> None:
        """A device that nobody decided about is forgotten. The rules of an adopted one stay: it may come back."""
        if self._is_adopted(device):
            self._contacts.failed(uris.authority(device.broker), location, "its registration has ended")
        elif not self._has(device.identity, "adopted"):
            self._withdraw(device.identity)

    def _withdraw_others(self, device: Device) -> None:
        """Withdraws what was proposed for a registered device under another identity."""
        ids = address_id(uris.authority(device.broker)), device.endpoint or device.id
        for identity in {f"{SOURCE}/{one}" for one in ids} - {device.identity}:
            self._registered.pop(identity, None)
            if self._has(identity, "proposed") or identity in self._announced - self.feed.entries.keys():
                self._withdraw(identity)

    def _withdraw(self, identity: str) -> None:
        self._announced.discard(identity)
        self._end_left_out(identity)
        self.feed.announce([], [identity])

    def _has(self, identity: str, adoption: Adoption) -> bool:
        return identity in self.feed.entries and self.feed.entries[identity].adoption == adoption

    def _is_adopted(self, device: Device) -> bool:
        """Whether the dataset has a device as adopted, with its address of now."""
        return (
            self._has(device.identity, "adopted") and self.feed.entries[device.identity].device.broker == device.broker
        )

    def _note_contact(self, identity: str) -> None:
        """Says once of each registration of an adopted device that it was heard."""
        known = self._registered[identity]
        if known.heard is not None and self._is_adopted(known.device):
            self._contacts.heard(uris.authority(known.device.broker), known.heard)
            known.heard = None

    def _follow_entries(self) -> None:
        self._names.changed()
        for identity in self._registered:
            self._note_contact(identity)

    # What is found

    async def _search(self) -> None:
        await self.feed.ready.wait()
        while True:
            known = self.feed.entries.keys() | self._announced
            for proposal in distinct(await self._searcher.everywhere(), known, self._unique):
                self._note_problems(proposal)
                if proposal.device is None or self._is_registered(proposal.device):
                    continue
                device = device_to_propose(proposal.device, self.feed.entries)
                if isinstance(device, Device):
                    self._found += 1
                    self._announce(device)
            await asyncio.sleep(self._settings.multicast_s)

    def _is_registered(self, device: Device) -> bool:
        """Whether the device has another identity, by its registration."""
        return any(one.device.broker == device.broker for one in self._registered.values())

    def _announce(self, device: Device) -> None:
        identity, entries = device.identity, self.feed.entries
        if identity not in entries and identity not in self._announced:
            proposals = {one for one, entry in entries.items() if entry.adoption == "proposed"} | (
                self._announced - entries.keys()
            )
            if len(proposals) >= self._settings.devices_max:
                reason = f"more than {self._settings.devices_max:,} devices are proposed (coap.discovery.devices_max)"
                self.note(device.broker, reason)
                return
        self._announced.add(identity)
        self.feed.announce([device])


class FoundDevices:
    """The resource directory, and the devices that it and searches propose, while the adapter runs.

    site: the directory, for the server. ready: whether the entries are known. resources: learn which devices are back;
    names: as for `CoapDiscovering`.
    """

    def __init__(
        self,
        resources: RunningResources,
        exchanges: Exchanges,
        searcher: Searcher,
        settings: CoapDiscoverySettings,
        names: DeviceNames,
        *,
        monotonic: Callable[[], float],
    ) -> None:
        context, returned = resources.basis.context, resources.output.returned
        self._discovering = CoapDiscovering(
            context, searcher, settings, returned=returned, contacts=resources.reachability, names=names
        )
        self._registrations = Registrations(
            context.client,
            exchanges,
            self._discovering,
            base_iri=context.base_iri,
            now=context.now,
            monotonic=monotonic,
        )
        self.site = DirectorySite(self._registrations)

    @property
    def ready(self) -> bool:
        return self._discovering.feed.ready.is_set()

    @property
    def registered(self) -> int:
        """Endpoints of the directory."""
        return len(self._registrations.directory)

    def counts(self) -> dict[str, int]:
        """What is counted, for the metrics of the gateway."""
        return self._registrations.counts() | self._discovering.counts()

    def status(self) -> str:
        """The end of a sentence for the status of the adapter."""
        return self._discovering.feed.status()

    async def run(self) -> None:
        """Runs until cancelled. Raises an ExceptionGroup with UpstreamError when the client is closed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._discovering.run(), name="coap discovery")
            tasks.create_task(self._registrations.run(), name="coap registrations")


def of_registration(registration: Registration, known_id: str = "") -> Proposal:
    """The device of a registration. known_id: as for `proposed`."""
    base = registration.base
    with contextlib.suppress(PayloadError):  # `proposed` has the reason
        base = f"coap://{_authority(base)}"
    return propose(
        registration.links,
        base=base,
        place=registration.location,
        endpoint=registration.endpoint,
        sector=registration.sector,
        known_id=known_id,
    )


def machine_interfaces() -> list[str]:
    """The names of the interfaces of this machine, without netlink, which the service may not use."""
    try:
        lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    except OSError:
        return []
    return [line.partition(":")[0].strip() for line in lines]


def _read_links(base: str, body: bytes) -> Proposal:
    try:
        found: Sequence[links.Link] = links.parse_links(body)
    except PayloadError as error:
        return _failed_proposal(base, str(error))
    return propose(found, base=base, place=base + PATH)


def _failed_proposal(base: str, reason: str) -> Proposal:
    return Proposal(None, [Problem(SOURCE, base, plain(base + PATH), plain(reason, 400))])


def _authority(base: str) -> str:
    """Raises PayloadError."""
    return uris.authority(uris.coap(base))


def _base(remote: Any) -> str:
    address, port = origin_of(remote).origin
    host = f"[{address}]" if address.version == 6 else f"{address}"
    return f"coap://{host}" + ("" if port == uris.COAP_PORT else f":{port}")
