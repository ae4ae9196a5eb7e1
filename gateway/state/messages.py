"""The last messages of devices, which adapters keep and the gateway asks for when an operator looks at them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.protocol import KeptMessage, MessagePlace
from lamplighter.gateway.sharing import TotalBudget

SOURCES_MAX = 16  # clients that offer messages at the same time
ANSWER_S = 5.0  # how long their answers may take


class MessagesAnswer(NamedTuple):
    """more: of places that no rule reads, how many others there are."""

    found: Sequence[KeptMessage]
    more: int = 0


class MessageSource:
    """A client that offers messages. ask: sends it a question with its number, for those of places, or for those of
    places that no rule reads."""

    def __init__(self, ask: Callable[[int, Sequence[MessagePlace], bool], None]) -> None:
        self._ask = ask
        self._asked = 0
        self._answers: dict[int, asyncio.Future[MessagesAnswer]] = {}

    async def find(self, places: Sequence[MessagePlace], *, unread: bool = False) -> MessagesAnswer | None:
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[MessagesAnswer] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._ask(number, places, unread)
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except (TimeoutError, ConnectionError):
            return None
        finally:
            del self._answers[number]

    def answer(self, number: int, found: MessagesAnswer) -> None:
        """Takes the answer to a question, unless it comes too late."""
        answer = self._answers.get(number)
        if answer is not None and not answer.done():
            answer.set_result(found)

    def close(self) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the client disconnected"))


class FoundMessages(NamedTuple):
    """messages: the newest one of each place, in the order of the places. sources: clients that answered; silent:
    clients that did not. more: of places that no rule reads, those that are not among them."""

    messages: list[KeptMessage]
    sources: int
    silent: int
    more: int = 0


class MessageSources:
    def __init__(self) -> None:
        self._sources: dict[MessageSource, str] = {}  # and whose they are
        self._room = TotalBudget(lambda: SOURCES_MAX, "the number of connections that may offer messages of devices")

    def join(self, source: MessageSource, client: str) -> None:
        """client: whose it is. Raises LimitExceededError."""
        if why := self._room.refusal(client):
            raise LimitExceededError(why)
        self._sources[source] = client
        self._room.usage.add(client)

    def leave(self, source: MessageSource) -> None:
        self._room.usage.add(self._sources.pop(source), -1)
        source.close()

    async def find(self, places: Sequence[MessagePlace]) -> FoundMessages:
        answers = await asyncio.gather(*(source.find(places) for source in self._sources))
        found: dict[MessagePlace, KeptMessage] = {}
        for message in (one for answer in answers if answer is not None for one in answer.found):
            place = MessagePlace(message.place, message.broker)
            if place not in found or found[place].received < message.received:
                found[place] = message
        silent = sum(answer is None for answer in answers)
        return FoundMessages([found[one] for one in places if one in found], len(answers) - silent, silent)

    async def find_unread(self) -> FoundMessages:
        """The newest messages of places that no rule reads, those of many messages first."""
        answers = await asyncio.gather(*(source.find((), unread=True) for source in self._sources))
        given = [answer for answer in answers if answer is not None]
        messages = sorted((one for answer in given for one in answer.found), key=lambda one: -one.count)
        return FoundMessages(messages, len(given), len(answers) - len(given), sum(answer.more for answer in given))
