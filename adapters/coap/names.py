"""Which resource of the dataset a CoAP device is. Pure.

A device has one resource, ``<base>device/coap/ID``, for its description, its state and what it hosts:

1. An adopted device has the identifier that it was proposed with: the name of its endpoint, or its first address.
2. Any other address that rules name has itself as identifier: ``HOST~PORT``, the same that discovery would propose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from lamplighter.adapters.coap.discovery import SOURCE, address_id
from lamplighter.adapters.devices.registry import Entry, Registry
from lamplighter.adapters.mapping import uris
from lamplighter.engine.terms import Term, iri
from lamplighter.ontology.vocabulary import COAP_ADDRESS


@lru_cache(4_096)
def _address_node(below: str, authority: str) -> Term:
    return iri(below + address_id(authority))


class _AdoptedDevices(NamedTuple):
    """adopted: devices by authority; parts: their sensors and actuators."""

    adopted: Mapping[str, Entry]
    parts: frozenset[Term]


class DeviceNames:
    """The names of all devices, by authority: host, or host and port. base_iri: ends with a slash."""

    def __init__(self, base_iri: str) -> None:
        self._registry = Registry(base_iri)
        self._entries: Callable[[], Iterable[Entry]] = tuple
        self._registered: Callable[[], Iterable[str]] = tuple
        self._known: _AdoptedDevices | None = None

    def follow(self, entries: Callable[[], Iterable[Entry]], registered: Callable[[], Iterable[str]]) -> None:
        """entries: of the registry. registered: identities of the devices that are registered, the newest last: of
        several adopted devices with one address, the newest has it. `changed` has to be called after each change."""
        self._entries, self._registered = entries, registered
        self.changed()

    def changed(self) -> None:
        self._known = None

    def adopted(self, authority: str) -> Entry | None:
        """The adopted device with this address."""
        return self._now().adopted.get(authority)

    def is_described(self, thing: Term) -> bool:
        """Whether a sensor or actuator is in the description of an adopted device, which says what hosts it."""
        return thing in self._now().parts

    def identity(self, authority: str) -> str:
        """As the command `lamplighter devices` shows it."""
        entry = self.adopted(authority)
        return f"{SOURCE}/{address_id(authority)}" if entry is None else entry.identity

    def node(self, authority: str) -> Term:
        """The resource of a device."""
        entry = self.adopted(authority)
        return _address_node(self.below, authority) if entry is None else self._registry.device_iri(entry.device)

    address = COAP_ADDRESS

    @property
    def below(self) -> str:
        """What the IRIs of all devices begin with."""
        return f"{self._registry.base_iri}device/{SOURCE}/"

    def _now(self) -> _AdoptedDevices:
        """It is made when it is asked for, since many devices may change together."""
        if self._known is None:
            order = {identity: number for number, identity in enumerate(self._registered(), 1)}
            adopted = [entry for entry in self._entries() if entry.adoption == "adopted"]
            adopted.sort(key=lambda entry: (order.get(entry.identity, 0), entry.identity))
            self._known = _AdoptedDevices(
                {uris.authority(entry.device.broker): entry for entry in adopted},
                frozenset(
                    (
                        *(self._registry.sensor_iri(one) for entry in adopted for one in entry.device.sensors),
                        *(self._registry.actuator_iri(one) for entry in adopted for one in entry.device.actuators),
                    )
                ),
            )
        return self._known
