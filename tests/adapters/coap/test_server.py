"""The CoAP server as a whole: its port, its address as a triple, and its permissions."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from aiocoap.numbers.codes import Code

from lamplighter.adapters.coap import server as module
from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.adapters.coap.server import CoapMachine, CoapServer, listens_update
from lamplighter.adapters.coap.server_settings import CoapServerSettings
from lamplighter.adapters.coap.settings import CoapDeviceSettings, CoapSettings
from lamplighter.adapters.parts import AdapterContext
from lamplighter.adapters.resources.basis import adapter_basis
from lamplighter.adapters.resources.counters import ResourceCounters
from lamplighter.engine import Engine
from lamplighter.ontology.vocabulary import LISTENS_ON
from tests.adapters.coap.test_queries import PROFILE, FakeClient
from tests.adapters.coap.test_readings import RULES, FakeGateway, rules
from tests.support.coap_site import URI_QUERY, Asker
from tests.support.event_loops import beside, until
from tests.support.raw_coap import ECHO, GET, NON, POST, URI_PATH, Datagram, raw_peer

BASE = "http://gateway.example/"
_Running = tuple[CoapServer, "FakeBoth"]


@dataclass
class FakeBoth(FakeClient, FakeGateway):
    """A gateway with updates and queries."""


@asynccontextmanager
async def running(server: CoapServerSettings, *, secure: bool = False, **more: Any) -> AsyncIterator[_Running]:
    client = FakeBoth()
    client.released.set()
    settings = CoapSettings(server=server, networks=(), **more)
    context = AdapterContext(client, BASE)  # type: ignore[arg-type]
    basis = adapter_basis("coap", settings, context, ResourceCounters())
    found = CoapServer(basis, settings, Contexts(), CoapMachine(secure=secure))
    found.posted.change_rules(rules(RULES))
    found.query_resources.change_profiles({"street": PROFILE})
    async with beside(found.run()):
        yield found, client


def port_of(server: CoapServer) -> int:
    return int(server.listens.rpartition(":")[2])


async def test_a_port_that_the_system_chooses_is_a_triple() -> None:
    async with running(CoapServerSettings(port=0)) as (server, client):
        await until(lambda: LISTENS_ON in client.text)
        assert f'"127.0.0.1:{port_of(server)}"' in client.text
        with raw_peer(port_of(server)) as peer:
            asker = Asker(peer)
            assert (await asker.ask(POST, "readings/hall", b"21.5")).code == Code.CHANGED
            assert (await asker.ask(GET, "queries/ALL")).code == Code.CONTENT
        counts = server.counts()
        assert (counts["readings"], counts["requests"]) == (1, 2)
    assert server.listens == ""


async def test_a_taken_port_is_a_warning_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY_MAX_S", 0.01)
    caplog.set_level(logging.WARNING)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        async with running(CoapServerSettings(port=port)) as (server, _):
            await until(lambda: "does not listen" in caplog.text)
            assert server.listens == ""
            other.close()
            await until(lambda: server.listens == f"127.0.0.1:{port}")
            with raw_peer(port) as peer:
                assert (await Asker(peer).ask(GET, "queries/ALL")).code == Code.CONTENT
    assert caplog.text.count("does not listen") == 1


async def test_secure_mode_takes_unprotected_requests_only_from_devices_without_a_key() -> None:
    settings = CoapServerSettings(port=0, host="127.0.0.1")
    async with running(settings, secure=True) as (server, client):
        await until(lambda: bool(server.listens))
        with raw_peer(port_of(server)) as peer:
            assert (await Asker(peer).ask(POST, "readings/hall", b"21.5")).code == Code.UNAUTHORIZED
            assert b"queries" not in (await Asker(peer).ask(GET, ".well-known/core", token=b"c")).payload
        assert "21.5" not in client.text
    lamp = CoapDeviceSettings(address="127.0.0.1", security="plain", queries=("ALL",))
    async with running(settings, secure=True, devices={"lamp": lamp}) as (server, client):
        await until(lambda: bool(server.listens))
        with raw_peer(port_of(server)) as peer:
            refused = await Asker(peer, echo=False).ask(POST, "readings/hall", b"21.5")
            assert (refused.code, refused.option(ECHO) is None) == (Code.UNAUTHORIZED, False)
            asker = Asker(peer)
            asker._mid = 100
            assert (await asker.ask(POST, "readings/hall", b"21.5")).code == Code.CHANGED
            assert (await asker.ask(GET, "queries/ALL")).code == Code.CONTENT
            assert (await asker.ask(GET, "queries/LAMP_STATE")).code == Code.FORBIDDEN


async def test_a_multicast_search_finds_the_server_and_gets_no_other_answer() -> None:
    async with running(CoapServerSettings(port=0, host="::")) as (server, _):
        await until(lambda: bool(server.listens))
        with raw_peer(port_of(server)) as peer:
            peer._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
            core = ((URI_PATH, b".well-known"), (URI_PATH, b"core"))
            unanswered = (
                ((URI_PATH, b"queries"), (URI_PATH, b"ALL")),
                core,
                (*core, (URI_QUERY, b"rt=nothing")),
            )
            for n, options in enumerate((*unanswered, (*core, (URI_QUERY, b"href=/queries/ALL")))):
                datagram = Datagram(NON, GET, n, b"%d" % n, options).encoded()
                peer._socket.sendto(datagram, ("224.0.1.187", port_of(server)))
            answer = await peer.receive()
            assert (answer.token, answer.code) == (b"3", Code.CONTENT)
            assert answer.payload.startswith(b"</queries/ALL>")
            await until(lambda: server.counts()["requests_refused"] == 3)
            assert peer.waiting() == []


def test_the_address_replaces_the_one_before() -> None:
    engine = Engine()
    for address in ("127.0.0.1:1", "127.0.0.1:2"):
        engine.update(listens_update(BASE, address))
    [row] = engine.query(f"SELECT ?address WHERE {{ GRAPH ?g {{ ?a <{LISTENS_ON}> ?address }} }}")
    assert row == {"address": '"127.0.0.1:2"'}


def test_a_host_is_an_address() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"host": "lamp.example"}, CoapServerSettings)
