"""node-wot, the reference implementation of the W3C's Web of Things, as a client of a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from lamplighter.adapters.model.latest import LatestModel
from lamplighter.ontology.vocabulary import DESIRED_STATE, REPORTED_STATE
from tests.clients.peer import Peer, PeerError
from tests.support.components import require_command
from tests.support.gateway_process import GatewayProcess
from tests.support.places import ROOT
from tests.support.secure_gateway import SecureGateway
from tests.support.thing_descriptions import (
    ACTUATORS,
    HALL_IRI,
    TOPIC,
    adoption,
    hall,
    node_environment,
    reading_updates,
)

ON = {"wot": {"enabled": True}}


def node_wot(authority: Path | None = None) -> Peer:
    """authority: of certificates that it trusts, in PEM."""
    environment = node_environment()
    if authority is not None:
        environment["NODE_EXTRA_CA_CERTS"] = str(authority)
    return Peer([require_command("node"), str(ROOT / "tests" / "wot" / "drive.js")], environment)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("wot") / "gateway", **ON) as process:
        process.update(adoption(hall()))
        publish(process, '{"temperature": 21.5, "occupancy": true}')
        yield process


@pytest.fixture
def node() -> Iterator[Peer]:
    peer = node_wot()
    try:
        yield peer
    finally:
        code = peer.close()
    assert code == 0


def publish(gateway: GatewayProcess, payload: str) -> None:
    for text in reading_updates(hall(), TOPIC, payload, LatestModel()):
        gateway.update(text)


def found(node: Peer, gateway: GatewayProcess) -> str:
    """The id of the device, which the client finds by the well-known URI of the gateway."""
    [description] = node.call("explore", url=f"{gateway.http_url}/.well-known/wot")
    node.call("consume", td=description)
    assert description["id"] == HALL_IRI
    return HALL_IRI


def test_it_finds_the_device_and_reads_its_properties(node: Peer, gateway: GatewayProcess) -> None:
    thing = found(node, gateway)
    assert node.call("read", thing=thing, name="temperature") == 21.5
    assert node.call("read", thing=thing, name="motion") is True
    several = node.call("readSeveral", thing=thing, names=["temperature", "motion"])
    assert several == {"temperature": 21.5, "motion": True}
    with pytest.raises(PeerError, match="Not Found"):
        node.call("read", thing=thing, name="effect")


def test_it_observes_a_property(node: Peer, gateway: GatewayProcess) -> None:
    thing = found(node, gateway)
    node.call("observe", thing=thing, name="motion", of="motion")
    assert node.event("motion", "value") == ("value", True)
    publish(gateway, '{"occupancy": false}')
    assert node.event("motion", "value") == ("value", False)
    publish(gateway, '{"occupancy": true}')
    assert node.event("motion", "value") == ("value", True)
    node.call("stop", of="motion")


def test_it_writes_a_property_and_invokes_an_action(node: Peer, gateway: GatewayProcess) -> None:
    thing = found(node, gateway)
    node.call("observe", thing=thing, name="light", of="light")
    node.call("write", thing=thing, name="light", value=True)
    assert node.event("light", "value") == ("value", True)
    node.call("invoke", thing=thing, name="level", value=200)
    states = gateway.rows(f"SELECT ?a ?v {{ ?a <{DESIRED_STATE}> ?v }}")
    assert {row["a"].removeprefix(ACTUATORS): row["v"] for row in states} == {"light": "true", "level": "200"}
    gateway.update(f"INSERT DATA {{ <{ACTUATORS}light> <{REPORTED_STATE}> false }}")
    assert node.event("light", "value") == ("value", False)
    assert node.call("read", thing=thing, name="light") is False
    with pytest.raises(PeerError, match="Bad Request"):
        node.call("invoke", thing=thing, name="level", value=400)
    node.call("stop", of="light")


def test_it_uses_a_token_in_secure_mode(tmp_path: Path) -> None:
    with SecureGateway(tmp_path, tables=ON) as gateway:
        writer = gateway.bearer("writer", gateway.client("writer", read=["*"], write=["*"]))
        headers = {"Authorization": writer, "Content-Type": "application/sparql-update"}
        for text in [adoption(hall()), *reading_updates(hall(), TOPIC, '{"temperature": 3}', LatestModel())]:
            assert gateway.https("POST", "/update", text, headers).status == 200
        secret = gateway.client("reader", read=["default"])
        token = gateway.bearer("reader", secret)
        target = f"/things/{quote(HALL_IRI, safe='')}"
        description = gateway.https("GET", target, headers={"Authorization": token}).json
        peer = node_wot(gateway.authority)
        try:
            directory = peer.call("describe", url=f"https://localhost:{gateway.port}/.well-known/wot")
            assert directory["securityDefinitions"]["bearer_sc"]["authorization"].endswith("/oauth/token")
            peer.call("consume", td=description, token=token.removeprefix("Bearer "))
            assert peer.call("read", thing=HALL_IRI, name="temperature") == 3
            with pytest.raises(PeerError, match="Forbidden"):
                peer.call("invoke", thing=HALL_IRI, name="light", value=True)
        finally:
            assert peer.close() == 0
