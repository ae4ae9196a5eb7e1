"""Sensors behind an MQTT broker, seen live and logged (the use case of Roffia 2018; SEPA protocol 4.6).

A topics manager describes each topic of the profile as a SOSA observation (ADD_OBSERVATION). An adapter learns the
topics from TOPICS and writes the number in each message (UPDATE_OBSERVATION_VALUE). A view prints OBSERVATIONS_VALUES
as it changes, and a logger puts each new value into the history graph (LOG).

    python docs/examples/monitoring/monitoring.py --set extended.mqtt.host=broker.example
    mosquitto_pub -t hall/node1/temperature -m '{"temperature": 21.5}'
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from lamplighter.engine.client import Aggregator, Consumer, GatewayError, Jsap, Producer, load_profile
from lamplighter.engine.terms import Term, lexical

PROFILE = Path(__file__).with_name("monitoring.jsap")
WAITING_MAX = 1000
_NUMBER = re.compile(rb"[+-]?[0-9]+(\.[0-9]+)?")

Messages = asyncio.Queue[tuple[str, bytes]]


async def manage_topics(profile: Jsap) -> None:
    """Describes the sensors."""
    async with Producer(profile, "ADD_OBSERVATION", name="topics manager") as producer:
        for topic, members in profile.extended["semantic-mappings"].items():
            await producer.update(topic=topic, **members)


async def adapt(profile: Jsap, messages: Messages, ready: asyncio.Event) -> None:
    """Writes the readings of the topics that are known now."""
    observations: dict[str, Term] = {}

    async def learn() -> None:
        async with Consumer(profile, "TOPICS", name="adapter") as topics:
            async for notification in topics:
                for row in notification.removed.bindings():
                    observations.pop(lexical(row["topic"]), None)
                for row in notification.added.bindings():
                    observations[lexical(row["topic"])] = row["observation"]
                ready.set()

    async with asyncio.TaskGroup() as group, Producer(profile, "UPDATE_OBSERVATION_VALUE", name="adapter") as producer:
        group.create_task(learn())
        await ready.wait()
        while True:
            topic, payload = await messages.get()
            number = _NUMBER.search(payload)
            if topic in observations and number is not None:
                await producer.update({"observation": observations[topic]}, value=number.group().decode())


async def view(profile: Jsap, tell: Callable[[str], None]) -> None:
    """Prints each value as it changes."""
    async with Consumer(profile, "OBSERVATIONS_VALUES", name="view") as values:
        async for notification in values:
            for row in notification.added.bindings():
                place, unit = (lexical(row[name]).rpartition("#")[2] for name in ("location", "unit"))
                value, label, at = (lexical(row[name]) for name in ("value", "label", "at"))
                tell(f"{at[11:19]}  {place:<6} {label:<12} {value} {unit}")


async def log(profile: Jsap, count: int | None = None) -> None:
    """Puts each new value into the history, and ends after so many."""
    logged = 0
    async with Aggregator(profile, "OBSERVATIONS_VALUES", "LOG", name="logger") as values:
        async for notification in values:
            for row in notification.added.bindings():
                await values.update(row, timestamp=lexical(row["at"]))
                logged += 1
            if count is not None and logged >= count:
                return


@asynccontextmanager
async def mqtt_messages(host: str, port: int, topics: list[str]) -> AsyncIterator[Messages]:
    """The messages of a broker, once it has taken the subscriptions; when too many wait, new ones are left out."""
    loop = asyncio.get_running_loop()
    messages: Messages = asyncio.Queue(WAITING_MAX)
    subscribed = asyncio.Event()

    def put(topic: str, payload: bytes | bytearray) -> None:
        if not messages.full():
            messages.put_nowait((topic, bytes(payload)))

    def on_connect(client: mqtt.Client, *_: Any) -> None:
        client.subscribe([(topic, 0) for topic in topics])

    def on_subscribe(*_: Any) -> None:
        loop.call_soon_threadsafe(subscribed.set)

    def on_message(_: mqtt.Client, __: Any, message: mqtt.MQTTMessage) -> None:
        loop.call_soon_threadsafe(put, message.topic, message.payload)

    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.on_connect, client.on_subscribe, client.on_message = on_connect, on_subscribe, on_message
    try:
        await asyncio.to_thread(client.connect, host, port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(
            f"no MQTT broker at {host}:{port} ({reason}); name yours by --set extended.mqtt.host=..."
        ) from error
    client.loop_start()
    try:
        await subscribed.wait()
        yield messages
    finally:
        client.disconnect()
        await asyncio.to_thread(client.loop_stop)


async def monitor(
    profile: Jsap, tell: Callable[[str], None], count: int | None, ready: Callable[[], None] = lambda: None
) -> None:
    """Runs all parts until `count` values are in the history. ready: called when readings are taken.

    Raises GatewayError, OSError when there is no broker.
    """
    broker = profile.extended["mqtt"]
    await manage_topics(profile)
    knows_topics = asyncio.Event()
    async with (
        mqtt_messages(broker["host"], broker["port"], broker["topics"]) as messages,
        asyncio.TaskGroup() as group,
    ):
        working = [group.create_task(adapt(profile, messages, knows_topics)), group.create_task(view(profile, tell))]
        logging = group.create_task(log(profile, count))
        await knows_topics.wait()
        tell("ready")
        ready()
        await logging
        for task in working:
            task.cancel()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Monitoring of MQTT sensors by a gateway.")
    parser.add_argument("--jsap", default=str(PROFILE), help="the profile (default: the one beside this program)")
    parser.add_argument("--set", action="append", default=[], metavar="MEMBER=VALUE", help="extended.mqtt.host=broker")
    parser.add_argument("--count", type=int, metavar="N", help="end after so many values")
    options = parser.parse_args(arguments)
    failures: tuple[BaseException, ...] = ()
    with contextlib.suppress(KeyboardInterrupt):
        try:
            asyncio.run(monitor(load_profile(options.jsap, options.set), print, options.count))
        except* (GatewayError, OSError) as group:
            failures = group.exceptions
    for failure in failures:
        print(f"monitoring: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
