"""Requests to URLs that others choose; what limits and certificates do is tested with the fleet's webhooks, too."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from typing import Any

import pytest

from lamplighter.engine.client.outward import AddressRefusedError, OutwardHttp
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.networks import Address
from tests.support.receivers import HttpReceiver, Reply

HERE = ip_address("127.0.0.1")


def only_here(address: Address) -> str:
    return "" if address == HERE else f"{address} is elsewhere"


def client(**members: Any) -> OutwardHttp:
    return OutwardHttp(only_here, **{"total_s": 10.0, "answer_bytes_max": 10, "connections_max": 2, **members})


def resolved(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    """Names have these addresses."""

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [(None, None, None, "", (address, port)) for address in answers]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


async def test_a_name_stays_in_the_request_and_its_allowed_address_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved(monkeypatch, "10.0.0.1", "127.0.0.1")
    with HttpReceiver() as receiver:
        http = client()
        answer = await http.send("POST", f"http://hooks.example:{receiver.port}/a?b=c", {"X-One": "1"}, b"body")
        await http.aclose()
        [request] = receiver.posted
        assert answer.status == 200
        assert (request.path, request.parameters, request.body) == ("/a", {"b": "c"}, b"body")
        assert request.headers["host"] == f"hooks.example:{receiver.port}"
        assert (request.headers["x-one"], request.headers["accept-encoding"]) == ("1", "identity")


@pytest.mark.parametrize("addresses", [("10.0.0.1",), ("::1", "10.0.0.1"), ()])
async def test_without_an_allowed_address_nothing_is_called(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    resolved(monkeypatch, *addresses)
    http = client()
    with pytest.raises(AddressRefusedError, match=r"elsewhere|no address"):
        await http.send("GET", "http://hooks.example/", {})
    await http.aclose()


async def test_answers_are_cut_and_headers_joined() -> None:
    with HttpReceiver() as receiver:
        receiver.answer = lambda request: Reply(404, {"X-A": "1", "x-a": "2"}, b"0123456789abcdef")
        http = client()
        answer = await http.send("POST", receiver.url(), {}, b"")
        await http.aclose()
        assert (answer.status, answer.body, answer.headers["x-a"]) == (404, b"0123456789", "1, 2")


async def test_a_request_without_an_answer_ends() -> None:
    release = asyncio.Event()
    loop = asyncio.get_running_loop()
    with HttpReceiver() as receiver:

        def stuck(request: Any) -> Reply:
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
            return Reply()

        receiver.answer = stuck
        http = client(total_s=0.2)
        with pytest.raises(UpstreamError, match=r"no answer within 0\.2 s"):
            await http.send("POST", receiver.url("/secret"), {}, b"")
        release.set()
        await http.aclose()


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/secret", "http://exämple/secret", "ftp://127.0.0.1/secret"])
async def test_errors_name_the_origin_only(url: str) -> None:
    http = client()
    with pytest.raises(UpstreamError) as raised:
        await http.send("GET", url, {})
    assert "secret" not in str(raised.value)
    await http.aclose()
