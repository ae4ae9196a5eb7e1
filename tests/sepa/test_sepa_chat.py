"""The chat over the bare protocol (SEPA protocol, 4.5 and 6.8): each message takes three updates and four events."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.sepa.fixture import Broker, Subscriber, events_in_all, subscribers

GRAPH = "http://sepatest"
_PREFIX = "PREFIX schema: <http://schema.org/> PREFIX who: <http://who.example/> "


def sent_to(receiver: str) -> str:
    return (
        f"{_PREFIX} SELECT ?message ?name ?text ?at WHERE {{ GRAPH <{GRAPH}> {{ ?message a schema:Message ;"
        f" schema:toRecipient who:{receiver} ; schema:sender ?sender ; schema:text ?text ; schema:dateSent ?at ."
        " ?sender schema:name ?name } } ORDER BY ?at"
    )


def received_from(sender: str) -> str:
    return (
        f"{_PREFIX} SELECT ?message ?at WHERE {{ GRAPH <{GRAPH}> {{ ?message a schema:Message ;"
        f" schema:sender who:{sender} ; schema:dateReceived ?at }} }}"
    )


def register(user: str) -> str:
    return f"{_PREFIX} INSERT DATA {{ GRAPH <{GRAPH}> {{ who:{user} a schema:Person ; schema:name '{user}' }} }}"


def send(sender: str, receiver: str, text: str) -> str:
    return (
        f"{_PREFIX} INSERT {{ GRAPH <{GRAPH}> {{ ?m a schema:Message ; schema:sender ?sender ;"
        " schema:toRecipient ?receiver ; schema:text ?text ; schema:dateSent ?at } }"
        f" WHERE {{ GRAPH <{GRAPH}> {{ ?sender a schema:Person . ?receiver a schema:Person }}"
        f" VALUES (?sender ?receiver ?text) {{ (who:{sender} who:{receiver} '{text}') }}"
        " BIND(NOW() AS ?at) BIND(UUID() AS ?m) }"
    )


def set_received(message: str) -> str:
    return (
        f"{_PREFIX} INSERT {{ GRAPH <{GRAPH}> {{ <{message}> schema:dateReceived ?at }} }}"
        f" WHERE {{ GRAPH <{GRAPH}> {{ <{message}> a schema:Message }} BIND(NOW() AS ?at) }}"
    )


def remove(message: str) -> str:
    return (
        f"{_PREFIX} DELETE {{ GRAPH <{GRAPH}> {{ <{message}> ?p ?o }} }}"
        f" WHERE {{ GRAPH <{GRAPH}> {{ <{message}> schema:dateReceived ?done ; ?p ?o }} }}"
    )


MESSAGES = f"{_PREFIX} SELECT ?m {{ GRAPH <{GRAPH}> {{ ?m a schema:Message }} }}"


def rows(results: dict[str, Any]) -> list[dict[str, str]]:
    return [{name: term["value"] for name, term in row.items()} for row in results["results"]["bindings"]]


async def test_the_five_operations_as_plain_updates_and_queries(broker: Broker) -> None:
    await broker.updates(register("ann"), register("bob"), send("ann", "bob", "hello"))
    [message] = await broker.rows(sent_to("bob"))
    assert (message["name"], message["text"]) == ("ann", "hello")
    assert await broker.rows(received_from("ann")) == await broker.rows(sent_to("ann")) == []
    await broker.updates(set_received(message["message"]))
    [received] = await broker.rows(received_from("ann"))
    assert received["message"] == message["message"]
    assert received["at"] >= message["at"]
    await broker.updates(remove(message["message"]))
    assert await broker.rows(sent_to("bob")) == await broker.rows(MESSAGES) == []


async def test_the_basic_chat(broker: Broker) -> None:
    users, times = ["ann", "bob", "cleo", "dora"], 3
    of_each = (len(users) - 1) * times

    async def follow(one: Subscriber, react: Any) -> list[str]:
        """Answers each added row; the messages whose rows were removed, once that are all."""
        gone: list[str] = []
        while len(gone) < of_each:
            body = (await one.hear())["notification"]
            for row in rows(body["addedResults"]):
                await broker.updates(react(row["message"]))
            gone += [row["message"] for row in rows(body["removedResults"])]
        return gone

    await broker.updates(*map(register, users))
    texts = [*map(sent_to, users), *map(received_from, users)]
    async with subscribers(broker, *texts) as found:
        receivers, removers = found[: len(users)], found[len(users) :]
        sending = [
            broker.updates(*[send(one, other, f"{one} {number}") for other in users if other != one])
            for one in users
            for number in range(times)
        ]
        gone, seen, *_ = await asyncio.gather(
            asyncio.gather(*[follow(one, set_received) for one in receivers]),
            asyncio.gather(*[follow(one, remove) for one in removers]),
            *sending,
        )
        told = {message for messages in gone for message in messages}
        assert told == {message for messages in seen for message in messages}
        assert len(told) == len(users) * of_each
        assert await events_in_all(found) == len(found) + 4 * len(told)
    assert await broker.rows(MESSAGES) == []
