"""Components beside the gateway's own: applications, MQTT brokers, and the other adapters."""

from __future__ import annotations

from lamplighter.gateway.monitoring.brokers import Brokers
from lamplighter.gateway.monitoring.health.components import Component, Reports, not_ok, one_line
from lamplighter.gateway.state.outcomes import ApplicationOutcomes, Outcomes


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
        if self._brokers.coap_is_deaf():
            cure = "stop the program that has its port (`ss -lnup` shows it), or name another, coap.server.port"
            return [not_ok("coap", "degraded", "the server for devices does not listen, and tries again", cure)]
        if self._brokers.adapters["coap"] or not known or not self._brokers.lasting(None):
            return [Component(name="coap")]
        return [self._absent("coap")]

    def _polled_components(self) -> list[Component]:
        """Of each adapter for polled devices that the settings enable."""
        found = []
        for kind in self._brokers.enabled_kinds():
            if self._brokers.adapters[kind] or not self._brokers.lasting(None):
                found.append(Component(name=kind))
            else:
                found.append(self._absent(kind))
        return found

    def _absent(self, kind: str) -> Component:
        return not_ok(kind, "failed", *self._brokers.services.absence(kind))


class ApplicationComponents:
    def __init__(self, outcomes: Outcomes, reports: Reports) -> None:
        self._outcomes = outcomes
        self._reports = reports

    def components(self) -> list[Component]:
        return [self._component(name, found) for name, found in self._outcomes.applications.items()]

    def _component(self, application: str, outcomes: ApplicationOutcomes) -> Component:
        name = f"application/{application}"
        reported, state = self._reports.of(name), outcomes.state()
        if reported is not None and (reported.state == "failed" or state == "ok"):
            return reported
        if state == "ok":
            return Component(name=one_line(name))
        failing = list(outcomes.failing())
        reaction, worst = failing[0]
        more = f" (and {len(failing) - 1} more)" if len(failing) > 1 else ""
        reason = f"reaction {reaction}{more} fails: update {worst.update} of query {worst.query}: {worst.reason}"
        return not_ok(name, state, reason, outcomes.remedy)
