"""Which devices answer: in the log, in the dataset, and in the summary of the adapter's health."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from lamplighter.adapters.devices.pauses import Pauses
from lamplighter.adapters.lasting_updates import write
from lamplighter.adapters.literals import datetime_term
from lamplighter.adapters.resources.basis import AdapterBasis
from lamplighter.engine.client import DeclaredCause
from lamplighter.engine.errors import GatewayError, UpstreamError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import XSD, Term, iri, lexical, literal
from lamplighter.ontology.vocabulary import (
    ADOPTION,
    HOSTS,
    LAST_SEEN,
    ONLINE,
    PLATFORM,
    RDF_TYPE,
    SINCE,
    UNREACHABLE,
    adapter_iri,
)

# How often it is looked which devices are to be written.
CHECK_S = 1.0
# Devices in one message to the gateway.
TOGETHER_MAX = 50
_OWN = (ONLINE, SINCE, LAST_SEEN, UNREACHABLE)

logger = EventLogger(__name__)


class DeviceIris(Protocol):
    """Which resources of the dataset the devices are, by authority: host, or host and port. below: what the IRIs of all
    begin with; address: the property of their authority."""

    @property
    def below(self) -> str: ...
    @property
    def address(self) -> str: ...

    def node(self, authority: str) -> Term: ...

    def adopted(self, authority: str) -> object | None:
        """Not None if the description of an adopted device says what it hosts."""
        ...

    def is_described(self, thing: Term) -> bool:
        """Whether a sensor or actuator is in the description of an adopted device."""
        ...


class DeviceContacts(Protocol):
    """Takes which devices answer. authority: host, or host and port; at: when, None: now."""

    def heard(self, authority: str, at: datetime | None = None) -> None: ...

    def failed(self, authority: str, resource: str, reason: str) -> None: ...

    def withheld(self, authority: str, resource: str, reason: str) -> None: ...


@dataclass(eq=False)
class KnownDevice:
    """online: None before the first answer or failure; reason: why it does not answer; since: when `online` changed;
    withheld: why nothing may be sent to it."""

    authority: str
    online: bool | None = None
    reason: str = ""
    since: datetime | None = None
    last_seen: datetime | None = None
    withheld: str = ""


@dataclass(slots=True)
class _WrittenDevice:
    """What the dataset has of a device. state: address, `online`, `since`, `reason`, whether it is adopted; None: of
    an earlier run. at: when it was written."""

    state: tuple[str, bool, datetime | None, str, bool] | None = None
    at: float = 0.0
    hosts: set[Term] = field(default_factory=set)


class Reachability:
    """The devices of an adapter, by authority: host, or host and port.

    hosted: the sensors and actuators of a device; None: no rule is about it, and it is forgotten. settled: whether all
    rules are known, so that a device without one may be forgotten. on_back: called when a device answers again. names:
    which resources the devices are; None: nothing is written.
    """

    def __init__(
        self,
        basis: AdapterBasis,
        names: DeviceIris | None,
        *,
        hosted: Callable[[str], set[Term] | None],
        on_back: Callable[[str], None],
        settled: Callable[[], bool] = lambda: True,
    ) -> None:
        self.devices: dict[str, KnownDevice] = {}
        self._client, self._now = basis.context.client, basis.context.now
        self._names = names
        self._kind = basis.kind
        self._adapter = iri(adapter_iri(basis.context.base_iri, basis.kind))
        self._contact_write_s = basis.settings.contact_write_s
        self._hosted = hosted
        self._settled = settled
        self._on_back = on_back
        self._written: dict[Term, _WrittenDevice] = {}
        self._pauses: Pauses[Term] = Pauses()

    def heard(self, authority: str, at: datetime | None = None) -> None:
        """Notes an answer or notification of a device. at: when, None: now."""
        device, now = self._known(authority), at or self._now()
        device.last_seen, device.withheld = now, ""
        # The usual case, for each notification.
        if device.online:
            return
        away, device.online, device.reason, device.since = device.online is False, True, "", now
        if away:
            logger.info(f"{self._kind} device reachable again", device=authority)
            self._on_back(authority)

    def failed(self, authority: str, resource: str, reason: str) -> None:
        """Notes that a device does not answer."""
        device = self._known(authority)
        device.withheld, device.reason = "", reason
        if device.online is not False:
            device.online, device.since = False, self._now()
            logger.warning(f"{self._kind} device unreachable", device=authority, resource=resource, reason=reason)

    def withheld(self, authority: str, resource: str, reason: str) -> None:
        """Notes that nothing may be sent to a device."""
        device = self._known(authority)
        if device.withheld != reason:
            device.withheld = reason
            logger.error(f"{self._kind} target refused", device=authority, resource=resource, reason=reason)

    def sources(self, authority: str) -> tuple[Term, ...]:
        """What the states of a device come through: the device and the adapter, as resources of the dataset."""
        return () if self._names is None else (self._names.node(authority), self._adapter)

    def known(self) -> int:
        """The devices that have answered, or should have."""
        return sum(one.online is not None or bool(one.withheld) for one in self.devices.values())

    def away(self) -> list[KnownDevice]:
        """Those that do not answer, the longest first."""
        found = [one for one in self.devices.values() if one.online is False]
        return sorted(found, key=lambda one: (one.since is None, one.since))

    def outside(self) -> int:
        return sum(bool(one.withheld) for one in self.devices.values())

    async def run(self) -> None:
        """Keeps the dataset, until cancelled. Raises UpstreamError when the client is closed."""

        def refused(error: GatewayError) -> None:
            logger.warning(f"{self._kind} device not written", reason=error)

        if self._names is not None:
            await self._restore(self._names)
        while True:
            await asyncio.sleep(CHECK_S)
            await write(
                self._client,
                self.due(asyncio.get_running_loop().time()),
                DeclaredCause(self._kind, "devices"),
                refused,
            )

    async def _restore(self, names: DeviceIris) -> None:
        """Reads what earlier runs have written, so that devices without a rule can be removed."""
        try:
            async with aclosing(self._client.subscribe(_stored_query(names))) as notifications:
                first = await anext(notifications)
        except UpstreamError:
            raise
        except GatewayError as error:
            logger.warning(f"{self._kind} devices of an earlier run not read", reason=error)
            return
        for row in first.added.bindings():
            self._known(lexical(row["address"]))
            written = self._written.setdefault(row["device"], _WrittenDevice())
            if "thing" in row:
                written.hosts.add(row["thing"])

    def due(self, now: float) -> list[str]:
        """The updates that are due. now: on a clock that never goes back."""
        settled = self._settled()
        wanted: dict[Term, tuple[KnownDevice, set[Term]]] = {}
        for device in list(self.devices.values()):
            hosts = self._hosted(device.authority)
            if hosts is None:
                # Until all rules are known, a device may only seem to have none.
                if settled:
                    del self.devices[device.authority]
            elif self._names is not None:
                node = self._names.node(device.authority)
                # Several addresses may be one node: that of the adopted device counts.
                if node not in wanted or self._names.adopted(device.authority) is not None:
                    wanted[node] = device, {one for one in hosts if not self._names.is_described(one)}
        texts: list[str] = []
        if self._names is None:
            return texts
        for node in [one for one in self._written if one not in wanted] if settled else ():
            if len(texts) == TOGETHER_MAX:
                return texts
            gone = self._written.pop(node).hosts
            texts.append(_removal(self._names, node, [one for one in gone if not self._names.is_described(one)]))
        for node, (device, hosts) in wanted.items():
            if len(texts) == TOGETHER_MAX:
                break
            if device.online is None:
                continue
            is_adopted = self._names.adopted(device.authority) is not None
            state = device.authority, device.online, device.since, device.reason, is_adopted
            written = self._written.get(node, _WrittenDevice())
            # The time of the last contact is written seldom, as each update wears the card.
            old = device.online and now >= written.at + self._contact_write_s
            if (state == written.state and hosts == written.hosts and not old) or now < self._pauses.due(node):
                continue
            if state != written.state:
                self._pauses.changed(node, now)
            gone = {one for one in written.hosts - hosts if not self._names.is_described(one)}
            # An update that is under way when the device is removed must not bring it back.
            condition = f"{node} {iri(ADOPTION)} ?adoption . " if is_adopted else ""
            texts.append(_update(self._names, node, device, hosts, gone, condition))
            self._written[node] = _WrittenDevice(state, now, hosts)
        return texts

    def _known(self, authority: str) -> KnownDevice:
        found = self.devices.get(authority)
        if found is None:
            found = self.devices[authority] = KnownDevice(authority)
        return found


def _update(
    names: DeviceIris, node: Term, device: KnownDevice, hosts: Iterable[Term], gone: Iterable[Term], condition: str
) -> str:
    """The update that replaces what the dataset has of a device that answered, or should have. condition: a pattern
    without which it has no effect."""
    found = [
        (RDF_TYPE, iri(PLATFORM)),
        (names.address, literal(device.authority)),
        (ONLINE, literal("true" if device.online else "false", datatype=XSD + "boolean")),
        *((HOSTS, one) for one in sorted(hosts)),
    ]
    if device.last_seen is not None:
        found.append((LAST_SEEN, datetime_term(device.last_seen)))
    if device.since is not None:
        found.append((SINCE, datetime_term(device.since)))
    if not device.online:
        found.append((UNREACHABLE, literal(device.reason)))
    removed = "".join(f" . {node} {iri(HOSTS)} {one}" for one in sorted(gone))
    own = " ".join(map(iri, (names.address, *_OWN)))
    return (
        f"DELETE {{ {node} ?property ?value{removed} }} "
        f"INSERT {{ {' . '.join(f'{node} {iri(name)} {value}' for name, value in found)} }} "
        f"WHERE {{ {condition}OPTIONAL {{ VALUES ?property {{ {own} }} {node} ?property ?value }} }}"
    )


def _removal(names: DeviceIris, node: Term, hosts: Iterable[Term]) -> str:
    """The update that removes what the adapter has written of a device; the description of an adopted one stays."""
    own = " ".join(map(iri, (names.address, *_OWN)))
    others = " ".join(f"({iri(HOSTS)} {one})" for one in sorted(hosts))
    return (
        f"DELETE {{ {node} ?property ?value }} WHERE {{ {node} ?property ?value "
        f"{{ VALUES ?property {{ {own} }} }} UNION {{ VALUES (?property ?value) {{ {others} }} }} "
        f"UNION {{ VALUES (?property ?value) {{ ({iri(RDF_TYPE)} {iri(PLATFORM)}) }} "
        f"FILTER NOT EXISTS {{ {node} {iri(ADOPTION)} ?adopted }} }} }}"
    )


def _stored_query(names: DeviceIris) -> str:
    """The devices that have an address, with what they host beside the descriptions of adopted ones."""
    return (
        f"SELECT ?device ?address ?thing WHERE {{ ?device {iri(names.address)} ?address "
        f"FILTER(STRSTARTS(STR(?device), {literal(names.below)})) "
        f"OPTIONAL {{ ?device {iri(HOSTS)} ?thing FILTER NOT EXISTS {{ ?device {iri(ADOPTION)} ?adopted }} }} }}"
    )
