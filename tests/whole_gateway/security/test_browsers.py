"""Pages and hosts that a gateway refuses. tests/e2e/test_browsers.py tries it in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from websockets.asyncio.client import connect, unix_connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from lamplighter.gateway.addresses import Addresses
from tests.support.running_gateway import Answer, ask, http, running_gateway
from tests.support.secure_gateway import SecureGateway

PAGE = "https://dashboard.example"


async def test_the_handshake_of_a_page_that_may_not_is_refused(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, security={"origins": [PAGE]}) as at:
        evil = at.subscribe.replace("127.0.0.1", "evil.example")
        for url, headers, expected in (
            (at.subscribe, {"Origin": "https://other.example"}, (403, "cors_error")),
            (at.subscribe, {"Origin": "null"}, (403, "cors_error")),
            (at.subscribe, {"Sec-Fetch-Site": "cross-site"}, (403, "cors_error")),
            (evil, {}, (421, "wrong_host")),
        ):
            with pytest.raises(InvalidStatus) as caught:
                await connect(url, host="127.0.0.1", additional_headers=headers, proxy=None)
            response = caught.value.response
            members = Answer(response.status_code, {}, response.body or b"").json
            assert (response.status_code, members["error"]) == expected
            assert members["status_code"] == response.status_code
        async with connect(at.subscribe, origin=Origin(PAGE)) as socket:
            assert "answer" in await ask(socket, {"query": {"sparql": "ASK {}"}})


async def test_a_plain_gateway_says_which_setting_a_name_goes_into(gateway: Addresses) -> None:
    answer = await http(gateway.health, headers={"Host": "lamps.example"})
    assert (answer.status, answer.json["error"]) == (421, "wrong_host")
    assert "'lamps.example'" in answer.json["error_description"]
    assert "security.hosts" in answer.json["error_description"]


async def test_unix_sockets_serve_whatever_the_headers_say(tmp_path: Path) -> None:
    with SecureGateway(tmp_path) as gateway:
        path = gateway.addresses.subscribe_here.partition(":")[2]
        headers = {"Host": "adapter", "Origin": "null", "Sec-Fetch-Site": "cross-site"}
        async with unix_connect(path, "ws://localhost/subscribe", additional_headers=headers) as socket:
            assert "answer" in await ask(socket, {"query": {"sparql": "ASK {}"}})
        assert gateway.local("GET", "/ready").status == 200


def test_secure_mode_refuses_other_pages_before_it_asks_for_a_token(tmp_path: Path) -> None:
    with SecureGateway(tmp_path, origins=[PAGE], registration="open") as gateway:
        for path in ("/secure/query", "/oauth/register", "/oauth/token", "/ca.pem"):
            refused = gateway.https("POST", path, b"", {"Origin": "https://other.example"})
            assert (refused.status, refused.json["error"]) == (403, "cors_error")
        asked = gateway.https("POST", "/secure/query", b"", {"Origin": PAGE})
        assert (asked.status, asked.headers["access-control-allow-origin"]) == (401, PAGE)
