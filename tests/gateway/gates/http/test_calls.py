"""ClientTurns of a door: slow clients keep their places to themselves, and leave some to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.access import FULL
from lamplighter.engine.errors import LimitExceededError, QueueFullError
from lamplighter.gateway.gates.http import waiting
from lamplighter.gateway.gates.http.calls import BODY, RequestTurns
from lamplighter.gateway.security.callers import ANYBODY, Caller
from lamplighter.gateway.security.peers import origin
from lamplighter.gateway.sharing import ClientTurns


class Clients:
    """Requests to a handler with turns, whose bodies arrive when `sent` is set."""

    def __init__(self, at_once: int, most: int) -> None:
        self.sent = asyncio.Event()
        self.answering = self.most_answering = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self._answer = RequestTurns(at_once, most).of(self._handler, 100)

    async def _handler(self, request: Request, caller: Caller) -> Response:
        self.answering += 1
        self.most_answering = max(self.answering, self.most_answering)
        await self.go_on.wait()
        self.answering -= 1
        return Response(request.scope[BODY])

    def ask(
        self, address: str, caller: Caller = ANYBODY, method: str = "POST", body: bytes = b"body"
    ) -> Awaitable[Response]:
        async def receive() -> dict[str, Any]:
            await self.sent.wait()
            return {"type": "http.request", "body": body, "more_body": False}

        scope = {"type": "http", "method": method, "path": "/", "headers": [], "client": (address, 1)}
        known = replace(caller, origin=origin(None, address))
        return asyncio.ensure_future(self._answer(Request(scope, receive), known))


def anna(name: str) -> Caller:
    return Caller(name, FULL, operator=False, registered=True)


@pytest.mark.parametrize(
    "other",
    [
        lambda clients, number: clients.ask("10.0.0.1"),
        lambda clients, number: clients.ask(f"2001:db8::{number}"),  # one machine has many of them
        lambda clients, number: clients.ask(f"10.0.0.{number}", anna("anna")),
    ],
)
async def test_one_client_cannot_take_all_places(other: Callable[[Clients, int], Awaitable[Response]]) -> None:
    clients = Clients(2, 64)
    slow = [other(clients, number) for number in range(100)]
    prompt = [clients.ask("10.0.1.1", method="GET") for _ in range(8)]
    for answer in await asyncio.gather(*prompt):
        assert (answer.status_code, answer.body) == (200, b"")
    clients.sent.set()
    answers = await asyncio.gather(*slow, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, QueueFullError)]
    assert [answer.body for answer in answers if isinstance(answer, Response)] == [b"body"] * (100 - len(refused))
    assert len(refused) == 100 - 32
    assert (await clients.ask("10.0.0.1")).status_code == 200, "its places are free again"


def test_only_so_many_requests_wait_for_records_of_one_client_and_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAITING_MAX", 3)
    monkeypatch.setattr(waiting, "WAITING_PER_CLIENT_MAX", 2)
    places = waiting.WaitingRequests()
    with ExitStack() as stack:
        for name in "aab":
            stack.enter_context(places.one_more(anna(name)))
        for name in "ac":
            with pytest.raises(QueueFullError), places.one_more(anna(name)):
                pass
        stack.pop_all().close()
        assert not places._waiting


async def test_only_so_many_are_answered_at_once() -> None:
    clients = Clients(2, 64)
    clients.sent.set()
    clients.go_on.clear()
    asked = [clients.ask(f"10.0.0.{number}") for number in range(10)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert clients.answering == 2
    clients.go_on.set()
    assert len(await asyncio.gather(*asked)) == 10
    assert (clients.answering, clients.most_answering) == (0, 2)


async def test_clients_take_turns() -> None:
    clients = Clients(1, 64)
    clients.sent.set()
    clients.go_on.clear()
    answered: list[str] = []
    asked = []
    for number, address in enumerate(["10.0.0.1"] * 20 + ["10.0.0.2", "10.0.0.3", "10.0.0.2"]):
        one = asyncio.ensure_future(clients.ask(address))
        one.add_done_callback(lambda done, address=address: answered.append(address[-1]))  # type: ignore[misc]
        asked.append(one)
        if number == 10:
            asked[5].cancel()  # it waits
    for _ in range(20):
        await asyncio.sleep(0)
    clients.go_on.set()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(answer, Response) for answer in answers) == 22
    assert "".join(answered).startswith("11" + "123" + "12" + "1111")  # the first one was cancelled
    assert (await clients.ask("10.0.0.9")).status_code == 200


async def test_a_turn_of_a_request_that_is_cancelled_goes_to_the_next() -> None:
    turns = ClientTurns(1)

    async def one(client: str) -> str:
        async with turns.of(client):
            return client

    async with turns.of("first"):
        second, third = (asyncio.ensure_future(one(client)) for client in ("second", "third"))
        await asyncio.sleep(0)
    second.cancel()  # it has its turn, and does not know it yet
    async with asyncio.timeout(10):
        assert await third == "third"
        assert await one("fourth") == "fourth"
    assert second.cancelled()


async def test_a_body_that_is_too_long_gives_its_place_back() -> None:
    clients = Clients(1, 2)
    clients.sent.set()
    for _ in range(5):
        with pytest.raises(LimitExceededError):
            await clients.ask("10.0.0.1", body=b"x" * 101)
    assert (await clients.ask("10.0.0.1")).status_code == 200
