"""The devices that are not ok: offline, not in their desired state, or refusing it.

They are found in the dataset: ``gateway:online false``, a ``gateway:reportedState`` that differs from the desired one,
and ``gateway:refused``. The CoAP adapter reports refusals by their targets. A round over the actuators takes turns, so
that many of them do not hold the event loop.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter

import pyoxigraph as ox

from lamplighter.adapters.devices.desired import ACTUATION_SUFFIX, same_state
from lamplighter.engine.errors import StoreError
from lamplighter.engine.store.quad_store import QuadStore, term_text
from lamplighter.engine.terms import Term, lexical
from lamplighter.gateway.clock import Clock, foreign_moment
from lamplighter.gateway.monitoring.brokers import Brokers
from lamplighter.gateway.monitoring.health.components import Component, not_ok
from lamplighter.ontology import vocabulary as v

LISTED_MAX = 20  # devices that are components of their own. One that is listed stays so while it is not ok.
FOUND_MAX = 1_000  # offline devices, and actuators not as desired, that are counted
TURN_S = 0.005  # of one look at the actuators
REST = 50.0  # a round begins after so many times the duration of the one before
GRACE_S = 10.0  # time limit for a device to reach its desired state

_DEFAULT = ox.DefaultGraph()
_OFFLINE = ox.Literal("false", datatype=ox.NamedNode(f"{v.XSD}boolean"))
_RETIRED = ox.Literal("retired")
_AT_ONCE = 20
_STATE_CHARACTERS_MAX = 100  # of a state in a reason

# How to make the components of devices; only those that are listed are made, since their texts may be long.
_Making = dict[str, Callable[[], Component]]


class DeviceComponents:
    def __init__(self, brokers: Brokers, store: QuadStore, clock: Clock) -> None:
        self._brokers = brokers
        self._store = store
        self._clock = clock
        self._round: Iterator[None] | None = None
        self._took = self._ended = 0.0
        self._differing: dict[str, tuple[str, str]] = {}  # of the last complete round
        self._first_seen: dict[str, int] = {}  # CLOCK_BOOTTIME at which an actuator differed first
        self._listed: set[tuple[str, str]] = set()

    def components(self) -> list[Component]:
        """The component ``devices``, which has the totals, and the first devices that are not ok."""
        try:
            self._turn()
            found = {"offline": self._offline(), "not as desired": self._not_as_desired(), "refusing": self._refusing()}
            making = {(kind, key): make for kind, ones in found.items() for key, make in ones.items()}
            chosen = sorted(making, key=lambda one: one not in self._listed)[:LISTED_MAX]
            self._listed = set(chosen)
            listed = [make() for key, make in making.items() if key in self._listed]
        except (StoreError, OSError, RuntimeError):  # the store cannot be read now
            return [Component(name="devices")]
        if not making:
            return [Component(name="devices")]
        reason = ", ".join(f"{len(ones):,} {kind}" for kind, ones in found.items() if ones)
        cure = "see `lamplighter devices`, and the components device/..."
        return [not_ok("devices", "degraded", reason, cure), *listed]

    # --- offline ---

    def _offline(self) -> _Making:
        native, retired = self._store.native, ox.NamedNode(v.ADOPTION)
        found: _Making = {}
        for quad in native.quads_for_pattern(None, ox.NamedNode(v.ONLINE), _OFFLINE, _DEFAULT):
            if len(found) == FOUND_MAX:
                break
            node = quad.subject
            if isinstance(node, ox.NamedNode) and ox.Quad(node, retired, _RETIRED, _DEFAULT) not in native:
                found[node.value] = partial(self._offline_device, node)
        return found

    def _offline_device(self, node: ox.NamedNode) -> Component:
        why, address = self._text(node, v.UNREACHABLE), self._text(node, v.COAP_ADDRESS)
        reason = f"{self._label(node)}offline{why and ': '}{why}"
        cure = "check its power and its network"
        name = f"device/coap/{address}" if address else self._name(node.value, "device/")
        if not address and not self._text(node, v.DEVICE_ADDRESS):
            cure += "; if it is gone, `lamplighter devices remove`"
        return not_ok(name, "failed", reason, cure, foreign_moment(self._text(node, v.LAST_SEEN)))

    # --- not as desired ---

    def _not_as_desired(self) -> _Making:
        now = self._clock.boottime_us()
        return {
            actuator: partial(self._differing_actuator, actuator, *states)
            for actuator, states in self._differing.items()
            if now - self._first_seen[actuator] >= GRACE_S * 1e6
        }

    def _differing_actuator(self, actuator: str, desired: str, reported: str) -> Component:
        label = self._label(ox.NamedNode(actuator))
        reason = f"{label}{desired} is desired, {reported} is reported"
        cure = f"see what was sent: lamplighter explain {shlex.quote(actuator)}"
        return not_ok(self._name(actuator, "actuator/"), "degraded", reason, cure)

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
        actuators = {
            quad.subject.value: None
            for quad in native.quads_for_pattern(None, ox.NamedNode(v.REPORTED_STATE), None, _DEFAULT)
            if isinstance(quad.subject, ox.NamedNode)
        }
        differing: dict[str, tuple[str, str]] = {}
        for count, actuator in enumerate(actuators):
            if count % _AT_ONCE == 0:
                yield
            reported, desired = self._state(actuator, v.REPORTED_STATE), self._desired_state(actuator)
            if reported is None or desired is None or len(differing) == FOUND_MAX:
                continue
            if not same_state(desired, reported):
                differing[actuator] = _short(desired), _short(reported)
        now, before = self._clock.boottime_us(), self._first_seen
        self._differing = differing
        self._first_seen = {actuator: before.get(actuator, now) for actuator in differing}

    def _desired_state(self, actuator: str) -> Term | None:
        return self._state(actuator, v.DESIRED_STATE) or self._state(actuator, v.HAS_STATUS)

    def _state(self, actuator: str, name: str) -> Term | None:
        node = ox.NamedNode(actuator)
        for quad in self._store.native.quads_for_pattern(node, ox.NamedNode(name), None, _DEFAULT):
            return term_text(quad.object)
        return None

    # --- refusing ---

    def _refusing(self) -> _Making:
        cure = "see its rule and its network: docs/coap-devices.md, docs/mqtt-devices.md, and coap.networks"
        named = self._brokers.coap_refusals()
        found: _Making = {
            target: partial(not_ok, f"device/{target}", "degraded", reason, cure) for target, reason in named
        }
        # The CoAP adapter names its targets; these would be the same ones by their actuators.
        told = {reason for _, reason in named}
        native = self._store.native
        for quad in native.quads_for_pattern(None, ox.NamedNode(v.REFUSED), None, _DEFAULT):
            if len(found) == FOUND_MAX:
                break
            node, reason = quad.subject, quad.object
            if isinstance(node, ox.NamedNode) and isinstance(reason, ox.Literal) and reason.value not in told:
                actuator = node.value.removesuffix(ACTUATION_SUFFIX)
                if self._desired_state(actuator) is None:
                    continue  # nothing is to be sent any more
                found[actuator] = partial(self._refusing_actuator, actuator, reason.value)
        return found

    def _refusing_actuator(self, actuator: str, reason: str) -> Component:
        label = self._label(ox.NamedNode(actuator))
        cure = f"see `lamplighter devices problems`, and what was sent: lamplighter explain {shlex.quote(actuator)}"
        name = self._name(actuator, "actuator/")
        return not_ok(name, "degraded", f"{label}the state is refused: {reason}", cure)

    # --- texts ---

    def _name(self, node: str, folder: str) -> str:
        return f"device/{node.removeprefix(self._brokers.base_iri).removeprefix(folder)}"

    def _label(self, node: ox.NamedNode) -> str:
        label = self._text(node, v.RDFS_LABEL)
        return f"{label}: " if label else ""

    def _text(self, node: ox.NamedNode, name: str) -> str:
        for quad in self._store.native.quads_for_pattern(node, ox.NamedNode(name), None, _DEFAULT):
            if isinstance(quad.object, ox.Literal):
                return quad.object.value
        return ""


def _short(state: Term) -> str:
    return lexical(state)[:_STATE_CHARACTERS_MAX]
