"""Registration, tokens and their renewal at a gateway in secure mode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from lamplighter.engine.client import (
    Credentials,
    EngineClient,
    GenericClient,
    OAuth,
    RefusedError,
    SparqlEndpoint,
    UpstreamError,
)
from lamplighter.engine.client.oauth import register
from lamplighter.engine.protocol.jsap import profile
from lamplighter.engine.protocol.jsap_tree import normal
from lamplighter.gateway.addresses import Addresses
from tests.support.running_gateway import running_gateway

SECURE: dict[str, object] = {
    "enabled": True,
    "host": "127.0.0.1",
    "https_port": 0,
    "wss_port": 0,
    "registration": "open",
    "grant_read": ["*"],
    "grant_write": ["*"],
    "grant_subscribe": ["*"],
}
EVERYTHING = "SELECT ?s { ?s ?p ?o }"
INSERT = "INSERT { ?s <a:p> 1 } WHERE { BIND(UUID() AS ?s) }"


@asynccontextmanager
async def secure_gateway(folder: Path) -> AsyncIterator[tuple[Addresses, Path]]:
    """A gateway in secure mode, and the file with its authority's certificate."""
    async with running_gateway(folder, security=SECURE) as at:
        yield at, folder / "data" / "security" / "authority.pem"


async def revoke_all_tokens(at: Addresses) -> None:
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=at.http_here)) as operator:
        answer = await operator.post("http://localhost/keys/rotate", json={"revoke": True})
        assert answer.status_code < 300, answer.text


def secure_profile(at: Addresses) -> dict[str, Any]:
    http, ws = (httpx.URL(url) for url in (at.query, at.subscribe))
    return {
        "host": "127.0.0.1",
        "oauth": {"enable": True, "register": at.register, "tokenRequest": at.token},
        "sparql11protocol": {"protocol": "https", "port": http.port},
        "sparql11seprotocol": {"protocol": "wss", "availableProtocols": {"wss": {"port": ws.port}}},
        "updates": {"ADD": {"sparql": INSERT}},
        "queries": {"ALL": {"sparql": EVERYTHING}},
    }


async def test_a_client_registers_once_and_its_tokens_are_renewed_when_they_are_refused(tmp_path: Path) -> None:
    async with secure_gateway(tmp_path) as (at, ca):
        file = tmp_path / "credentials.json"
        credentials = await register(at.register, "somebody", ca=ca)
        credentials.save(file)
        with pytest.raises(RefusedError) as caught:
            await register(at.register, "somebody", ca=ca)
        assert (caught.value.status, caught.value.code) == (401, "not_authorized_identity")
        async with GenericClient(profile(normal(secure_profile(at))), credentials=file, ca=ca) as client:
            await client.update("ADD")
            async with aclosing(client.subscribe("ALL")) as notifications:
                assert len((await anext(notifications)).added) == 1
                await revoke_all_tokens(at)
                await client.update("ADD")  # by HTTP, with the old token first
                assert len((await anext(notifications)).added) == 1
            await revoke_all_tokens(at)
            async with aclosing(client.subscribe("ALL")) as notifications:  # the same by WebSocket
                assert len((await anext(notifications)).added) == 2
        with pytest.raises(RefusedError, match="unauthorized_client"):
            await OAuth(at.token, Credentials("somebody", "wrong"), ca=ca).token()


async def test_without_a_token_or_trust_nobody_gets_in_and_processes_of_this_machine_need_none(tmp_path: Path) -> None:
    async with secure_gateway(tmp_path) as (at, ca):
        async with SparqlEndpoint(query_url=at.query, update_url=at.update, ca=ca) as stranger:
            for request in (stranger.query(EVERYTHING), stranger.update(INSERT)):
                with pytest.raises(RefusedError) as caught:
                    await request
                assert (caught.value.status, caught.value.code) == (401, "invalid_request")
        async with SparqlEndpoint(query_url=at.query) as suspicious:
            with pytest.raises(UpstreamError, match="certificate"):
                await suspicious.query(EVERYTHING)
        async with SparqlEndpoint("http://localhost", unix=at.http_here) as here, EngineClient(at.here) as client:
            await here.update(INSERT)
            assert len(await client.query(EVERYTHING)) == 1
