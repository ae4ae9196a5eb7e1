"""A chat: everybody writes to everybody else (the use case of Roffia 2018; SEPA protocol 4.5).

A message takes three updates. Its sender runs SEND. Its receiver, subscribed to SENT, runs SET_RECEIVED for each
row that comes. Its sender, subscribed to RECEIVED, runs REMOVE; the receiver sees the row go, and nothing is left.

    python docs/examples/chat/chat.py --clients 3 --messages 2
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypedDict

from lamplighter.engine.client import Aggregator, GatewayError, GenericClient, Jsap, Producer, load_profile
from lamplighter.engine.terms import lexical

NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gina", "Hal")
PROFILE = Path(__file__).with_name("chat.jsap")
LIMIT_S = 60.0
SECURE = (
    "sparql11protocol.protocol=https",
    "sparql11protocol.port=8443",
    "sparql11seprotocol.protocol=wss",
    "oauth.enable=true",
)
"""What a profile needs for a gateway in secure mode."""


class Access(TypedDict, total=False):
    """credentials: of `lamplighter register`; ca: trusted certificates, None for the system's. Empty for plain mode."""

    credentials: Path
    ca: Path | None


PLAIN: Access = {}


class Person:
    """Sends, reads and cleans up. expected: how many messages come to this one, and how many it sends."""

    def __init__(self, profile: Jsap, name: str, expected: int, tell: Callable[[str], None], access: Access) -> None:
        self.name = name
        self.user = f"who:{name.lower()}"
        self._tell = tell
        self._expected = expected
        self._texts: dict[str, str] = {}
        self._sender = Producer(profile, "SEND", name=name, **access)
        self._reader = Aggregator(profile, "SENT", "SET_RECEIVED", {"receiver": self.user}, name=name, **access)
        self._remover = Aggregator(profile, "RECEIVED", "REMOVE", {"sender": self.user}, name=name, **access)
        self.listening = asyncio.Event()

    async def open(self, stack: AsyncExitStack) -> None:
        for part in (self._sender, self._reader, self._remover):
            await stack.enter_async_context(part)

    async def write(self, receiver: Person, text: str) -> None:
        await self._sender.update(sender=self.user, receiver=receiver.user, text=text)

    async def read(self) -> None:
        """Reads what comes, and ends once all of it has been read and has gone again."""
        gone = 0
        async for notification in self._reader:
            self.listening.set()
            for row in notification.added.bindings():
                self._texts[row["message"]] = lexical(row["text"])
                self._tell(f"{self.name} reads from {lexical(row['name'])}: {lexical(row['text'])}")
                await self._reader.update(row)
            for row in notification.removed.bindings():
                self._tell(f"{self.name} sees it go: {self._texts.pop(row['message'])}")
                gone += 1
            if gone == self._expected:
                return

    async def clean(self) -> None:
        """Removes what its receivers have read, and ends once that was all."""
        removed = 0
        async for notification in self._remover:
            for row in notification.added.bindings():
                await self._remover.update(row)
                removed += 1
            if removed == self._expected:
                return


async def chat(profile: Jsap, clients: int, messages: int, tell: Callable[[str], None], access: Access = PLAIN) -> int:
    """Runs the story; how many quads are left in the end, which should be none. Raises GatewayError, TimeoutError."""
    people = [Person(profile, name, messages * (clients - 1), tell, access) for name in NAMES[:clients]]
    async with asyncio.timeout(LIMIT_S), AsyncExitStack() as stack:
        everything = await stack.enter_async_context(GenericClient(profile, **access))
        for person in people:
            await person.open(stack)
            await everything.update("REGISTER_USER", user=person.user, name=person.name)
        tell(f"{len(await everything.query('USERS'))} people are here")
        async with asyncio.TaskGroup() as group:
            for person in people:
                group.create_task(person.read())
                group.create_task(person.clean())
            for person in people:
                await person.listening.wait()
            for number in range(1, messages + 1):
                for sender in people:
                    for receiver in people:
                        if sender is not receiver:
                            group.create_task(sender.write(receiver, f"hello {receiver.name}, message {number}"))
        for person in people:
            await everything.update("LEAVE", user=person.user)
        return len(await everything.query("EVERYTHING"))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A chat between some clients of a gateway.")
    parser.add_argument("--jsap", default=str(PROFILE), help="the profile (default: chat.jsap beside this program)")
    parser.add_argument("--set", action="append", default=[], metavar="MEMBER=VALUE", help="sparql11protocol.port=8001")
    parser.add_argument("--credentials", type=Path, metavar="FILE", help="of `lamplighter register`, for secure mode")
    parser.add_argument("--ca", type=Path, metavar="FILE", help="trusted certificates (default: the system's)")
    parser.add_argument("--clients", type=int, choices=range(2, len(NAMES) + 1))
    parser.add_argument("--messages", type=int)
    options = parser.parse_args(arguments)
    try:
        secure = options.credentials is not None
        access: Access = {"credentials": options.credentials, "ca": options.ca} if secure else PLAIN
        profile = load_profile(options.jsap, [*(SECURE if secure else ()), *options.set])
        clients = options.clients or profile.extended["clients"]
        messages = options.messages or profile.extended["messages"]
        left = asyncio.run(chat(profile, clients, messages, print, access))
    except GatewayError as error:
        print(f"chat: {error}", file=sys.stderr)
        return 1
    print(f"{clients * (clients - 1) * messages} messages were sent, read and removed; {left} quads are left")
    return 0 if left == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
