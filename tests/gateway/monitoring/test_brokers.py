"""What the gateway makes of the reports of adapters."""

from __future__ import annotations

import msgspec
import pyoxigraph as ox

from lamplighter.engine.core import Engine
from lamplighter.gateway.monitoring.brokers import GRACE_S, Brokers
from lamplighter.gateway.monitoring.health.others import PeerComponents
from lamplighter.gateway.settings import Settings
from lamplighter.ontology import vocabulary as v
from tests.support.gateway_parts import FakeClock


def report(engine: Engine, listens: str) -> None:
    """As the CoAP adapter writes it."""
    base_iri = Settings().gateway.base_iri
    node, graph = ox.NamedNode(v.adapter_iri(base_iri, "coap")), ox.NamedNode(v.adapters_graph(base_iri))
    engine.store.native.remove_graph(graph)
    text = msgspec.json.encode({"devices": 0, "listens": listens}).decode()
    engine.store.native.add(ox.Quad(node, ox.NamedNode(v.HEALTH), ox.Literal(text), graph))


def test_a_coap_server_that_does_not_listen_is_degraded_after_a_while() -> None:
    engine, clock, settings = Engine(), FakeClock(), Settings()
    brokers = Brokers(lambda: settings, engine.store, clock)

    def state() -> str:
        [found] = PeerComponents(brokers).components()
        return f"{found.state}: {found.reason}"

    brokers.adapters["coap"] = 1
    report(engine, "")
    assert state() == "ok: "
    clock.advance(GRACE_S)
    assert state() == "degraded: the server for devices does not listen, and tries again"
    report(engine, "[::]:5683")
    assert state() == "ok: "
    report(engine, "")
    assert state() == "ok: ", "for a moment, as while its adapter starts again"
    clock.advance(GRACE_S)
    settings = msgspec.convert({"coap": {"server": {"enabled": False}}}, Settings)
    assert state() == "ok: "
