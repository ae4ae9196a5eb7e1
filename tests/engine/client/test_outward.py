"""Requests to URLs that others choose; what limits and certificates do is tested with the fleet's webhooks, too."""

from __future__ import annotations

import asyncio
import socket
import threading
from ipaddress import ip_address
from typing import Any

import pytest

from lamplighter.engine.client import outward
from lamplighter.engine.client.outward import RETRY_AFTER_S_MAX, AddressRefusedError, OutwardHttp, retry_after_s
from lamplighter.engine.errors import UpstreamError
from lamplighter.engine.networks import Address
from tests.support.receivers import HttpReceiver, Reply
from tests.support.tables import each_row

HERE = ip_address("127.0.0.1")


def only_here(address: Address) -> str:
    return "" if address == HERE else f"{address} is elsewhere"


def client(**members: Any) -> OutwardHttp:
    return OutwardHttp(only_here, **{"total_s": 10.0, "answer_bytes_max": 10, "connections_max": 2, **members})


def resolved(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    """Names have these addresses."""

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [(None, None, None, "", (address, port)) for address in answers]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


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


async def test_the_next_allowed_address_is_called_where_the_first_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolved(monkeypatch, "127.0.0.2", "127.0.0.1")
    with HttpReceiver() as receiver:
        http = OutwardHttp(lambda address: "", total_s=60.0, answer_bytes_max=10, connections_max=2)
        assert (await http.send("POST", f"http://hooks.example:{receiver.port}/", {}, b"")).status == 200
        await http.aclose()


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


async def test_names_that_are_looked_up_for_long_take_no_threads_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def stuck(host: str, port: int, **_: Any) -> list[Any]:
        release.wait()
        raise OSError("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", stuck)
    monkeypatch.setattr(outward, "LOOK_UPS_MAX", 40)
    http = client(total_s=0.2, connections_max=100)
    try:
        asked = [http.send("GET", f"http://{number}.example/", {}) for number in range(41)]
        refused = [str(error) for error in await asyncio.gather(*asked, return_exceptions=True)]
        assert [error.partition(": ")[2] for error in refused[:40]] == ["no answer within 0.2 s"] * 40
        assert "40 names are being looked up already" in refused[40]
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(lambda: "free") == "free"
    finally:
        release.set()
    for thread in [*outward._looking_up]:
        thread.join()
    with pytest.raises(UpstreamError, match="no such name"):
        await http.send("GET", "http://41.example/", {})
    await http.aclose()


@each_row(
    ("text", "seconds"),
    [
        ("", 0.0),
        ("soon", 0.0),
        (" 7 ", 7.0),
        ("-7", 0.0),
        ("999999999", RETRY_AFTER_S_MAX),
        ("9" * 400, 0.0),
        ("Thu, 01 Jan 1970 00:16:45 GMT", 5.0),
        ("Thu, 01 Jan 1970 00:16:45", 5.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", 0.0),
        ("Mon, 01 Jan 2024 00:00:00 +99999999999999999999", 0.0),
    ],
)
def test_what_a_receiver_asks_for_is_bounded(text: str, seconds: float) -> None:
    assert retry_after_s(text, 1000.0) == seconds
