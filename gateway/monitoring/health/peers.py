"""The connections to peers: each MQTT broker, and the other adapters."""

from __future__ import annotations

from lamplighter.gateway.monitoring.brokers import Brokers
from lamplighter.gateway.monitoring.health.components import Component, not_ok, one_line


class PeerComponents:
    """Reads what the adapters last wrote to the dataset."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def components(self) -> list[Component]:
        return [*self._mqtt(), *self._coap(), *self._polled_components()]

    def _mqtt(self) -> list[Component]:
        found = []
        for one in self._brokers.statuses():
            name = one_line(f"mqtt/{one.name}")
            if one.state == "connected" and one.reason:
                found.append(not_ok(name, "degraded", f"broker {one.address}: {one.reason}", one.cure, one.since))
            elif one.state == "connected":
                found.append(Component(name=name, since=one.since))
            elif self._brokers.lasting(one.since):
                state = "state unknown" if one.state == "unknown" else one.state
                reason = f"broker {one.address} {state}{one.reason and ': '}{one.reason}"
                found.append(not_ok(name, "failed", reason, one.cure, one.since))
            else:
                found.append(Component(name=name))
        return found

    def _coap(self) -> list[Component]:
        """Of an adapter that has reported at any time: the CoAP adapter is enabled by default, also without devices."""
        known = self._brokers.coap_devices()
        if known is None:
            return []
        if self._brokers.adapters["coap"] or not known or not self._brokers.lasting(None):
            return [Component(name="coap")]
        cure = "start it: systemctl start lamplighter-coap, or lamplighter coap"
        return [not_ok("coap", "failed", "the adapter does not run", cure)]

    def _polled_components(self) -> list[Component]:
        """Of each adapter for polled devices that the settings enable."""
        found = []
        for kind in self._brokers.enabled_kinds():
            if self._brokers.adapters[kind] or not self._brokers.lasting(None):
                found.append(Component(name=kind))
            else:
                cure = f"start it: systemctl start lamplighter-{kind}, or lamplighter {kind}"
                found.append(not_ok(kind, "failed", "the adapter does not run", cure))
        return found
