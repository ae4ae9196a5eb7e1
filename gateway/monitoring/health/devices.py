"""The devices that are not ok: offline, not in their desired state, or refusing it.

They are found in the dataset: ``gateway:online false``, and a ``gateway:reportedState`` that differs from the desired
one. The CoAP adapter reports refusals. A round over the actuators takes turns, so that many of them do not hold the
event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from time import perf_counter

import pyoxigraph as ox

from lamplighter.adapters.devices.desired import same_state
from lamplighter.engine.errors import StoreError
from lamplighter.engine.store.quad_store import QuadStore, term_text
from lamplighter.engine.terms import Term, lexical
from lamplighter.gateway.clock import Clock
from lamplighter.gateway.monitoring.brokers import Brokers
from lamplighter.gateway.monitoring.health.components import Component, not_ok
from lamplighter.ontology.vocabulary import (
    ADOPTION,
    COAP_ADDRESS,
    DESIRED_STATE,
    HAS_STATUS,
    LAST_SEEN,
    ONLINE,
    RDFS_LABEL,
    REPORTED_STATE,
    UNREACHABLE,
    XSD,
)

LISTED_MAX = 20
"""Devices that are components of their own."""
FOUND_MAX = 1_000
"""Offline devices, and actuators not as desired, that are counted."""
TURN_S = 0.005
"""Of one look at the actuators."""
REST = 50.0
"""A round begins after so many times the duration of the one before."""
GRACE_S = 10.0
"""How long a device may take to reach its desired state."""

_DEFAULT = ox.DefaultGraph()
_OFFLINE = ox.Literal("false", datatype=ox.NamedNode(f"{XSD}boolean"))
_AT_ONCE = 20


class DeviceComponents:
    """Looks at the devices of one dataset."""

    def __init__(self, brokers: Brokers, store: QuadStore, clock: Clock) -> None:
        self._brokers = brokers
        self._store = store
        self._clock = clock
        self._round: Iterator[None] | None = None
        self._took = self._ended = 0.0
        self._differing: dict[str, tuple[Term, Term]] = {}  # of the last complete round
        self._first_seen: dict[str, int] = {}  # CLOCK_BOOTTIME at which an actuator differed first

    def components(self) -> list[Component]:
        """The component ``devices``, which has the totals, and the first devices that are not ok."""
        try:
            self._turn()
            found = {"offline": self._offline(), "not as desired": self._not_as_desired()}
        except (StoreError, OSError, RuntimeError):  # the store cannot be read now
            return [Component(name="devices")]
        found["refusing"] = self._refusing()
        counts = Counter({kind: len(ones) for kind, ones in found.items() if ones})
        if not counts:
            return [Component(name="devices")]
        reason = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        cure = "see `lamplighter devices`, and the components device/..."
        listed = [one for ones in found.values() for one in ones][:LISTED_MAX]
        return [not_ok("devices", "degraded", reason, cure), *listed]

    # --- offline ---

    def _offline(self) -> list[Component]:
        found: list[Component] = []
        for quad in self._store.native.quads_for_pattern(None, ox.NamedNode(ONLINE), _OFFLINE, _DEFAULT):
            if len(found) == FOUND_MAX:
                break
            node = quad.subject
            if isinstance(node, ox.NamedNode) and self._text(node, ADOPTION) != "retired":
                why, address = self._text(node, UNREACHABLE), self._text(node, COAP_ADDRESS)
                reason = f"{self._label(node)}offline{why and ': '}{why}"
                cure = "check its power and its network"
                if address:
                    name = f"device/coap/{address}"
                else:
                    name = self._name(node.value, "device/")
                    cure += "; if it is gone, `lamplighter devices remove`"
                found.append(not_ok(name, "failed", reason, cure, self._time(node, LAST_SEEN)))
        return found

    # --- not as desired ---

    def _not_as_desired(self) -> list[Component]:
        now, found = self._clock.boottime_us(), []
        for actuator, (desired, reported) in self._differing.items():
            if now - self._first_seen[actuator] >= GRACE_S * 1e6:
                label = self._label(ox.NamedNode(actuator))
                reason = f"{label}{lexical(desired)} is desired, {lexical(reported)} is reported"
                cure = f"see what was sent: lamplighter explain {actuator}"
                found.append(not_ok(self._name(actuator, "actuator/"), "degraded", reason, cure))
        return found

    def _turn(self) -> None:
        """Goes on with the round over the actuators, or begins one."""
        start = perf_counter()
        if self._round is None:
            if start < self._ended + REST * self._took:
                return
            self._round, self._took = self._rounds(), 0.0
        turns, self._round = self._round, None
        for _ in turns:
            if perf_counter() - start >= TURN_S:
                self._round = turns
                break
        self._ended = perf_counter()
        self._took += self._ended - start

    def _rounds(self) -> Iterator[None]:
        """One round, in small steps. Changes the result at its end."""
        native = self._store.native
        reported = {
            quad.subject.value: term_text(quad.object)
            for quad in native.quads_for_pattern(None, ox.NamedNode(REPORTED_STATE), None, _DEFAULT)
            if isinstance(quad.subject, ox.NamedNode)
        }
        differing: dict[str, tuple[Term, Term]] = {}
        for count, (actuator, state) in enumerate(reported.items()):
            if count % _AT_ONCE == 0:
                yield
            desired = self._desired(actuator)
            if desired is not None and not same_state(desired, state) and len(differing) < FOUND_MAX:
                differing[actuator] = desired, state
        now, before = self._clock.boottime_us(), self._first_seen
        self._differing = differing
        self._first_seen = {actuator: before.get(actuator, now) for actuator in differing}

    def _desired(self, actuator: str) -> Term | None:
        for name in (DESIRED_STATE, HAS_STATUS):
            node = ox.NamedNode(actuator)
            for quad in self._store.native.quads_for_pattern(node, ox.NamedNode(name), None, _DEFAULT):
                return term_text(quad.object)
        return None

    # --- refusing ---

    def _refusing(self) -> list[Component]:
        cure = "see its rule and its network: docs/devices.md, and coap.networks of lamplighter.toml"
        return [
            not_ok(f"device/{target}", "degraded", reason, cure) for target, reason in self._brokers.coap_refusals()
        ]

    # --- texts ---

    def _name(self, node: str, folder: str) -> str:
        return f"device/{node.removeprefix(self._brokers.base_iri).removeprefix(folder)}"

    def _label(self, node: ox.NamedNode) -> str:
        label = self._text(node, RDFS_LABEL)
        return f"{label}: " if label else ""

    def _time(self, node: ox.NamedNode, name: str) -> datetime | None:
        with suppress(ValueError):
            found = datetime.fromisoformat(self._text(node, name))
            return found if found.tzinfo is not None else None
        return None

    def _text(self, node: ox.NamedNode, name: str) -> str:
        for quad in self._store.native.quads_for_pattern(node, ox.NamedNode(name), None, _DEFAULT):
            if isinstance(quad.object, ox.Literal):
                return quad.object.value
        return ""
