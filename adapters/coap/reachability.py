"""Which devices answer: in the log, in the dataset, and in the summary of the adapter's health."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from lamplighter.adapters.client import UpdatesClient
from lamplighter.adapters.devices.pauses import Pauses
from lamplighter.adapters.lasting_updates import write
from lamplighter.adapters.literals import datetime_term
from lamplighter.adapters.mapping import uris
from lamplighter.engine.client import DeclaredCause
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.terms import XSD, Term, iri, literal
from lamplighter.ontology.vocabulary import (
    COAP_ADDRESS,
    HOSTS,
    LAST_SEEN,
    ONLINE,
    PLATFORM,
    RDF_TYPE,
    UNREACHABLE,
)

CHECK_S = 1.0
"""How often it is looked which devices are to be written."""
TOGETHER_MAX = 50
"""Devices in one message to the gateway."""
_OWN = (COAP_ADDRESS, ONLINE, LAST_SEEN, UNREACHABLE)

logger = EventLogger(__name__)


@dataclass(eq=False)
class KnownDevice:
    """online: None before the first answer or failure; reason: why it does not answer; since: when `online` changed;
    withheld: why nothing may be sent to it. written: what the dataset has, and when it was written."""

    authority: str
    online: bool | None = None
    reason: str = ""
    since: datetime | None = None
    last_seen: datetime | None = None
    withheld: str = ""
    written: tuple[bool, str] | None = None
    written_at: float = 0.0
    hosts: set[Term] = field(default_factory=set)


class Reachability:
    """The devices of an adapter, by authority: host, or host and port.

    hosted: the actuators of a device; none: it is forgotten. on_back: called when a device answers again. base_iri:
    empty: nothing is written. contact_write_s: seconds after which a newer last contact is written.
    """

    def __init__(
        self,
        client: UpdatesClient,
        *,
        base_iri: str,
        contact_write_s: float,
        hosted: Callable[[str], set[Term]],
        on_back: Callable[[str], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.devices: dict[str, KnownDevice] = {}
        self._client = client
        self._base_iri = base_iri
        self._contact_write_s = contact_write_s
        self._hosted = hosted
        self._on_back = on_back
        self._now = now
        self._pauses = Pauses()

    def heard(self, authority: str) -> None:
        """Notes an answer or notification of a device."""
        device, now = self._known(authority), self._now()
        device.last_seen, device.withheld = now, ""
        if device.online:
            return
        away, device.online, device.reason, device.since = device.online is False, True, "", now
        if away:
            logger.info("coap device reachable again", device=authority)
            self._on_back(authority)

    def failed(self, authority: str, resource: str, reason: str) -> None:
        """Notes that a device does not answer."""
        device = self._known(authority)
        device.withheld, device.reason = "", reason
        if device.online is not False:
            device.online, device.since = False, self._now()
            logger.warning("coap device unreachable", device=authority, resource=resource, reason=reason)

    def withheld(self, authority: str, resource: str, reason: str) -> None:
        """Notes that nothing may be sent to a device."""
        device = self._known(authority)
        if device.withheld != reason:
            device.withheld = reason
            logger.error("coap target refused", device=authority, resource=resource, reason=reason)

    def away(self) -> list[KnownDevice]:
        """Those that do not answer, the longest first."""
        found = [one for one in self.devices.values() if one.online is False]
        return sorted(found, key=lambda one: (one.since is None, one.since))

    def outside(self) -> int:
        return sum(bool(one.withheld) for one in self.devices.values())

    async def run(self) -> None:
        """Keeps the dataset, until cancelled. Raises UpstreamError when the client is closed."""

        def refused(error: GatewayError) -> None:
            logger.warning("coap device not written", reason=error)

        while True:
            await asyncio.sleep(CHECK_S)
            texts = self.due(asyncio.get_running_loop().time())
            if self._base_iri:
                await write(self._client, texts, DeclaredCause("coap", "devices"), refused)

    def due(self, now: float) -> list[str]:
        """The updates that are due. now: on a clock that never goes back."""
        texts: list[str] = []
        for device in list(self.devices.values()):
            if len(texts) == TOGETHER_MAX:
                break
            hosts = self._hosted(device.authority)
            if not hosts:
                del self.devices[device.authority]
                if device.written is not None:
                    texts.append(self._update(device, (), device.hosts))
                continue
            if device.online is None:
                continue
            state = device.online, device.reason
            old = device.online and now >= device.written_at + self._contact_write_s
            if (state == device.written and hosts == device.hosts and not old) or now < self._pauses.due(
                device.authority
            ):
                continue
            if state != device.written:
                self._pauses.changed(device.authority, now)
            texts.append(self._update(device, hosts, device.hosts - hosts))
            device.written, device.written_at, device.hosts = state, now, hosts
        return texts

    def _known(self, authority: str) -> KnownDevice:
        found = self.devices.get(authority)
        if found is None:
            found = self.devices[authority] = KnownDevice(authority)
        return found

    def _update(self, device: KnownDevice, hosts: Iterable[Term], gone: Iterable[Term]) -> str:
        """The update that replaces what the dataset has of a device. hosts: empty: nothing stays."""
        node = iri(f"{self._base_iri}device/coap/{uris.authority_name(device.authority)}")
        removed = "".join(f" . {node} {iri(HOSTS)} {one}" for one in sorted(gone))
        own = " ".join(map(iri, _OWN))
        insert = ""
        if hosts:
            found = [
                (RDF_TYPE, iri(PLATFORM)),
                (COAP_ADDRESS, literal(device.authority)),
                (ONLINE, literal("true" if device.online else "false", datatype=XSD + "boolean")),
                *((HOSTS, one) for one in sorted(hosts)),
            ]
            if device.last_seen is not None:
                found.append((LAST_SEEN, datetime_term(device.last_seen)))
            if not device.online:
                found.append((UNREACHABLE, literal(device.reason)))
            insert = f"INSERT {{ {' . '.join(f'{node} {iri(name)} {value}' for name, value in found)} }} "
        return (
            f"DELETE {{ {node} ?property ?value{removed} }} {insert}"
            f"WHERE {{ OPTIONAL {{ VALUES ?property {{ {own} }} {node} ?property ?value }} }}"
        )
