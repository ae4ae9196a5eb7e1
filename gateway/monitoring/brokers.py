"""The state of the MQTT brokers, the devices of the other adapters and the counters of all, as the adapters last wrote
them to the dataset.

An adapter is another process. Without a connection of it the triples may be old, so a broker's state is "unknown" then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
import pyoxigraph as ox

from lamplighter.adapters.mqtt.settings import FIRST_BROKER
from lamplighter.adapters.specs import ADAPTERS, KINDS
from lamplighter.engine.errors import StoreError
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.tables import count_text
from lamplighter.gateway.clock import Clock, foreign_moment, iso
from lamplighter.gateway.monitoring.adapter_services import AdapterServices
from lamplighter.gateway.monitoring.health.components import span
from lamplighter.gateway.settings import Settings
from lamplighter.ontology import vocabulary as v

GRACE_S = 10.0  # a shorter outage, such as a broker restart or the start of the adapter, does not change the health

# Adapters for polled devices -> their tables of lamplighter.toml.
POLLED = {spec.name: spec.table for spec in ADAPTERS if spec.polled}
_WORST_SAID = 3  # devices in the text
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

State = Literal["connected", "not connected", "unknown"]


class _DevicesHealth(msgspec.Struct, kw_only=True):
    """As an adapter for polled devices writes it. worst: devices with reason and since."""

    devices: Count = 0
    unreachable: Count = 0
    refusing: Count = 0
    stale: Count = 0
    worst: list[dict[str, str]] = []


class _CoapHealth(_DevicesHealth, kw_only=True):
    observed: Count = 0
    registered: Count = 0
    observers: Count = 0
    listens: str = ""


_Health = TypeVar("_Health", bound=_DevicesHealth)


class BrokerSeen(NamedTuple):
    """name: as in lamplighter.toml; since: when the state began, None if that is unknown; reason: why it is not
    connected, or what is wrong although it is; cure: what to do about it."""

    name: str
    address: str
    state: State
    since: datetime | None
    reason: str
    cure: str

    def members(self, now: datetime) -> dict[str, Any]:
        """As in `GET /health` and `GET /figures`."""
        since = None if self.since is None else iso(self.since)
        return {
            "name": self.name,
            "address": self.address,
            "state": self.state,
            "since": since,
            "reason": self.reason,
            "text": self.text(now),
        }

    def text(self, now: datetime) -> str:
        """In one line: ``broker 127.0.0.1:1883 not connected for 3 min: connection refused``."""
        lasted = "" if self.since is None else f" for {span(now - self.since)}"
        state = "state unknown" if self.state == "unknown" else f"{self.state}{lasted}"
        return f"broker {self.address} {state}{self.reason and ': '}{self.reason}"


class Brokers:
    """The brokers of the current settings. adapters: their connections to the WebSocket gate, which counts them;
    services: why one of them does not run."""

    def __init__(self, settings: Callable[[], Settings], store: QuadStore, clock: Clock) -> None:
        self.adapters: Counter[str] = Counter()
        self.services = AdapterServices(settings, self.adapters)
        self._settings = settings
        self._store = store
        self._clock = clock
        self._started = clock.boottime_us()
        self._deaf_since_us: int | None = None

    @property
    def base_iri(self) -> str:
        return self._settings().gateway.base_iri

    def statuses(self) -> list[BrokerSeen]:
        """In the order of the settings. Reads a few triples of each, without a query."""
        settings = self._settings()
        return [
            self._status(name, f"{broker.host}:{broker.port}", settings.gateway.base_iri)
            for name, broker in settings.mqtt.all_brokers().items()
        ]

    def members(self) -> list[dict[str, Any]]:
        """As in `GET /health` and `GET /figures`."""
        now = self._clock.wall()
        return [one.members(now) for one in self.statuses()]

    def counters(self) -> dict[str, dict[str, int]]:
        """The counters of each running adapter, by its kind. Empty before its first report."""
        base_iri = self._settings().gateway.base_iri
        graph = ox.NamedNode(v.adapters_graph(base_iri))
        found: dict[str, dict[str, int]] = {}
        for kind in KINDS:
            text = self._triples(v.adapter_iri(base_iri, kind), graph).get(v.COUNTERS, "")
            # Counters of an adapter that has ended would stand still in each graph of them, and look like one without
            # traffic.
            if text and self.adapters[kind]:
                with suppress(msgspec.DecodeError, RecursionError):
                    # The text is in the dataset, where clients with the right may write: whatever is no report is none.
                    found[kind] = msgspec.json.decode(text, type=dict[str, Count])
        return found

    def coap(self) -> dict[str, Any] | None:
        """What the CoAP adapter knows of its devices, with a text; None while it does not run or has not reported."""
        found = self._coap_health() if self.adapters["coap"] else None
        return None if found is None else {**msgspec.structs.asdict(found), "text": self._devices_text(found)}

    def polled_reports(self) -> dict[str, dict[str, Any]]:
        """The device reports of each running adapter for polled devices, with a text, by its kind."""
        found = {kind: self._health(kind, _DevicesHealth) for kind in POLLED if self.adapters[kind]}
        return {
            kind: {**msgspec.structs.asdict(one), "text": self._devices_text(one)}
            for kind, one in found.items()
            if one is not None
        }

    def enabled_kinds(self) -> list[str]:
        """The kinds of the adapters for polled devices that the settings enable."""
        settings = self._settings()
        return [kind for kind, table in POLLED.items() if getattr(settings, table).enabled]

    def coap_devices(self) -> int | None:
        """The number of devices in the last report of the CoAP adapter, of earlier runs too; None without a report."""
        found = self._coap_health()
        return None if found is None else found.devices + found.registered

    def coap_is_deaf(self) -> bool:
        """Whether the CoAP adapter says for `GRACE_S` or longer that its enabled server does not listen."""
        found = self._coap_health() if self.adapters["coap"] else None
        now_us = self._clock.boottime_us()
        if found is None or found.listens or not self._settings().coap.server.enabled:
            self._deaf_since_us = None
        elif self._deaf_since_us is None:
            self._deaf_since_us = now_us
        return self._deaf_since_us is not None and (now_us - self._deaf_since_us) / 1e6 >= GRACE_S

    def coap_refusals(self) -> list[tuple[str, str]]:
        """Targets of the CoAP adapter that refuse their state, and their reasons."""
        found = self._coap_health() if self.adapters["coap"] else None
        named = [] if found is None else [(one.get("device", ""), one.get("reason", "")) for one in found.worst]
        return [(target, reason) for target, reason in named if "://" in target]

    def _coap_health(self) -> _CoapHealth | None:
        return self._health("coap", _CoapHealth)

    def _health(self, kind: str, type_: type[_Health]) -> _Health | None:
        text = self._triples(v.adapter_iri(self.base_iri, kind), ox.NamedNode(v.adapters_graph(self.base_iri)))
        with suppress(msgspec.DecodeError, RecursionError):
            return msgspec.json.decode(text.get(v.HEALTH, ""), type=type_)
        return None

    def _devices_text(self, found: _DevicesHealth) -> str:
        """In one line: ``41 devices, 2 unreachable: hall (no answer, 5 min)``."""
        others = {"unreachable": found.unreachable, "refusing": found.refusing}
        said = [
            count_text(found.devices, "device", ","),
            *(f"{count:,} {name}" for name, count in others.items() if count),
        ]
        worst = []
        for one in found.worst[:_WORST_SAID]:
            since = foreign_moment(one.get("since", ""))
            lasted = "" if since is None else f", {span(self._clock.wall() - since)}"
            worst.append(f"{one.get('device', '')} ({one.get('reason', '')}{lasted})")
        more = ", ..." if len(found.worst) > _WORST_SAID else ""
        return ", ".join(said) + (f": {', '.join(worst)}{more}" if worst else "")

    def lasting(self, since: datetime | None) -> bool:
        """Whether a state lasts for `GRACE_S` or longer. since: None: since the start of the gateway."""
        if since is not None:
            return (self._clock.wall() - since).total_seconds() >= GRACE_S
        return (self._clock.boottime_us() - self._started) / 1e6 >= GRACE_S

    def _status(self, name: str, address: str, base_iri: str) -> BrokerSeen:
        if not self.adapters["mqtt"]:
            return BrokerSeen(name, address, "unknown", None, *self.services.absence("mqtt"))
        found = self._triples(v.broker_iri(base_iri, name))
        if v.CONNECTED not in found:
            cure = "reload or restart the adapter if this lasts"
            return BrokerSeen(name, address, "unknown", None, "the adapter has not yet reported", cure)
        since = foreign_moment(found.get(v.SINCE, ""))
        if found[v.CONNECTED] == "true":
            cure = "see docs/mqtt-devices.md, what a broker keeps" if v.REASON in found else ""
            return BrokerSeen(name, address, "connected", since, found.get(v.REASON, ""), cure)
        table = "mqtt" if name == FIRST_BROKER else f"mqtt.brokers.{name}"
        # The adapter writes reason and cure as one text (`adapters/mqtt/link.py`).
        reason, refused, what = found.get(v.REASON, "").partition("; check ")
        cure = f"check {what}" if refused else "check that the broker runs, and its address"
        return BrokerSeen(name, address, "not connected", since, reason, f"{cure} in [{table}] of lamplighter.toml")

    def _triples(self, node: str, graph: ox.NamedNode | ox.DefaultGraph | None = None) -> dict[str, str]:
        """Its texts in a graph, by predicate, none while the store cannot be read. graph: None: the default graph."""
        try:
            found = self._store.native.quads_for_pattern(ox.NamedNode(node), None, None, graph or ox.DefaultGraph())
            return {quad.predicate.value: quad.object.value for quad in found if isinstance(quad.object, ox.Literal)}
        except (StoreError, OSError, RuntimeError):
            return {}
