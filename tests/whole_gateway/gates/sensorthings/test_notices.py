"""Notifications over MQTT: conformance class A.8 of SensorThings 1.1, against mosquitto."""

from __future__ import annotations

import asyncio
import json
import queue
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from lamplighter.engine import Engine
from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.gates.sensorthings.notices import PLACE_FILE, QUERIES
from tests.support.brokers import Mosquitto, mosquitto, subscribed
from tests.support.event_loops import until
from tests.support.running_gateway import TIMEOUT_S, health, http, running_gateway, until_it_is, update
from tests.support.small_house import PREFIXES, SMALL_HOUSE
from tests.support.tables import each_row

STREAM = "v1.1/Datastreams('stream~1')/Observations"
EVENTS = "v1.1/Datastreams('stream~2')/Observations"


class Messages:
    """What a client of the broker has received, by topic: those of two topics come in any order."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queues: defaultdict[str, asyncio.Queue[Any]] = defaultdict(asyncio.Queue)

    def on_message(self, _client: mqtt.Client, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        if message.topic.startswith("v1.1/"):
            received = json.loads(message.payload or "{}").get("result")
            self._loop.call_soon_threadsafe(lambda: self._queues[message.topic].put_nowait(received))

    async def until(self, topic: str, result: Any) -> list[Any]:
        """The results that came on a topic up to this one, since the last call for it. None: of an empty message, which
        deletes a retained one."""
        found = [await asyncio.wait_for(self._queues[topic].get(), TIMEOUT_S)]
        while found[-1] != result:
            found.append(await asyncio.wait_for(self._queues[topic].get(), TIMEOUT_S))
        return found


@contextmanager
def listening(broker: Mosquitto, *filters: str) -> Iterator[Messages]:
    messages = Messages()
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.on_message = messages.on_message
    with subscribed(client, broker, *filters):
        yield messages


def tables(broker: Mosquitto, **more: object) -> dict[str, Any]:
    return tables_at(broker.port, **more)


def tables_at(port: int, **more: object) -> dict[str, Any]:
    return {"sensorthings": {"enabled": True, "mqtt": True, **more}, "mqtt": {"host": "127.0.0.1", "port": port}}


@asynccontextmanager
async def broker_without_acknowledgements() -> AsyncIterator[tuple[int, asyncio.Event]]:
    """Its port, and an event that is set when a message has come."""
    came = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            if data[0] >> 4 == 1:  # CONNECT; level 5 has properties in its answer
                writer.write(b"\x20\x03\0\0\0" if data[data.index(b"MQTT") + 4] == 5 else b"\x20\x02\0\0")
            if data[0] >> 4 == 3:  # PUBLISH
                came.set()
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], came


async def set_result(at: Addresses, value: int) -> None:
    text = f"""{PREFIXES}
DELETE {{ <observation/1> sosa:hasSimpleResult ?old }} INSERT {{ <observation/1> sosa:hasSimpleResult {value} }}
WHERE {{ <observation/1> sosa:hasSimpleResult ?old }}"""
    assert (await update(at, text)).status == 200


async def test_each_new_observation_is_published(tmp_path: Path) -> None:
    select = "result,resultTime"
    with mosquitto() as broker, listening(broker, "v1.1/#") as messages:
        async with running_gateway(tmp_path, **tables(broker, mqtt_select=[select])) as at:
            assert (await update(at, SMALL_HOUSE)).status == 200
            await messages.until(STREAM, 20.5)
            await set_result(at, 21)
            assert await messages.until(STREAM, 21) == [21]
            await set_result(at, 22)
            assert await messages.until(f"{STREAM}?$select={select}", 22) == [20.5, 21, 22]
            made = await http(
                f"{at.query.removesuffix('/query')}/{EVENTS}".replace("~", "%7E"), "POST", '{"result": "new"}'
            )
            assert made.status == 201, made.body
            *first, new = await messages.until(EVENTS, "new")
            assert (set(first), new) == ({False, True}, "new")
        with listening(broker, STREAM) as late:
            assert await late.until(STREAM, 22) == [22], "the last one is retained"


async def test_a_message_is_the_observation_as_it_is_read(tmp_path: Path) -> None:
    found: asyncio.Queue[Any] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.on_message = lambda _c, _u, message: loop.call_soon_threadsafe(found.put_nowait, json.loads(message.payload))
    with mosquitto() as broker, subscribed(client, broker, STREAM):
        async with running_gateway(tmp_path, **tables(broker)) as at:
            assert (await update(at, SMALL_HOUSE)).status == 200
            told = await asyncio.wait_for(found.get(), TIMEOUT_S)
            read = (await http(told["@iot.selfLink"])).json
            assert told == read


async def test_what_was_missed_comes_in_order_after_a_restart(tmp_path: Path) -> None:
    with mosquitto() as broker:
        with listening(broker, STREAM) as messages:
            async with running_gateway(tmp_path, **tables(broker)) as at:
                assert (await update(at, SMALL_HOUSE)).status == 200
                await messages.until(STREAM, 20.5)
                await set_result(at, 1)
                await messages.until(STREAM, 1)
                broker.stop()
                for value in (2, 3, 4):
                    await set_result(at, value)
        off = {"sensorthings": {"enabled": True}}
        async with running_gateway(tmp_path, **off) as at:
            await set_result(at, 5)
        broker.start()
        with listening(broker, STREAM) as messages:
            async with running_gateway(tmp_path, **tables(broker)) as at:
                await set_result(at, 6)
                came = await messages.until(STREAM, 6)
        assert came == [2, 3, 4, 5, 6] or came == [1, 2, 3, 4, 5, 6], "the last may come again"


@each_row("starts", [1, 2])
async def test_what_changes_while_the_first_are_on_their_way_is_published(tmp_path: Path, starts: int) -> None:
    """starts: how often the gateway starts before something is acknowledged."""
    async with running_gateway(tmp_path) as at:
        assert (await update(at, SMALL_HOUSE)).status == 200
    values = iter(range(1, 100))
    async with broker_without_acknowledgements() as (port, came):
        for _ in range(starts):
            async with running_gateway(tmp_path, **tables_at(port)) as at:
                await asyncio.wait_for(came.wait(), TIMEOUT_S)
                came.clear()
                for _ in range(3):
                    await set_result(at, next(values))
    with mosquitto() as broker, listening(broker, STREAM) as messages:
        async with running_gateway(tmp_path, **tables(broker)) as at:
            last = next(values)
            await set_result(at, last)
            came_now = await messages.until(STREAM, last)
            assert list(dict.fromkeys(came_now)) == list(range(1, last + 1))

            async def resumable() -> int:
                return int((await health(at))["resumable"]["subscriptions"])

            # The other query may still publish what its former subscription has missed.
            await until_it_is(resumable, len(QUERIES))


async def removed(at: Addresses, number: int) -> None:
    text = f"""{PREFIXES}
DELETE {{ ?thing ?p ?o }} WHERE {{
  {{ <stream/{number}> ?p ?o BIND(<stream/{number}> AS ?thing) }}
  UNION {{ <stream/{number}> gateway:liveObservation ?thing . ?thing ?p ?o }} }} ;
DELETE {{ GRAPH ?g {{ ?s ?p ?o }} }} WHERE {{ GRAPH ?g {{ <stream/{number}> ?is ?there . ?s ?p ?o }} }}"""
    assert (await update(at, text)).status == 200


def retained(broker: Mosquitto) -> set[str]:
    """The topics of the retained messages."""
    found: queue.Queue[str] = queue.Queue()
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.on_message = lambda _client, _userdata, message: found.put(message.topic)
    with subscribed(client, broker, "v1.1/#"):
        client.publish("v1.1/end", "", 1)
        return set(iter(lambda: found.get(timeout=TIMEOUT_S), "v1.1/end"))


async def test_nothing_is_retained_of_a_datastream_that_is_removed(tmp_path: Path) -> None:
    select = "result"
    with mosquitto() as broker, listening(broker, "v1.1/#") as messages:
        async with running_gateway(tmp_path, **tables(broker, mqtt_select=[select])) as at:
            assert (await update(at, SMALL_HOUSE)).status == 200
            await messages.until(STREAM, 20.5)
            await messages.until(f"{STREAM}?$select={select}", 20.5)
            await removed(at, 1)
            await messages.until(f"{STREAM}?$select={select}", None)
            assert {topic for topic in retained(broker) if topic.startswith(STREAM)} == set()
            await until(lambda: any(topic.startswith(EVENTS) for topic in retained(broker)))


@each_row("resumed, settings", [(True, {"mqtt_select": ["result"]}), (False, {"mqtt_select": ["result"]}), (True, {})])
async def test_what_left_while_the_door_was_away_is_deleted_at_its_next_start(
    tmp_path: Path, resumed: bool, settings: dict[str, Any]
) -> None:
    """resumed: whether the subscription goes on where it was."""
    with mosquitto() as broker:
        with listening(broker, "v1.1/#") as messages:
            async with running_gateway(tmp_path, **tables(broker, mqtt_select=["result"])) as at:
                assert (await update(at, SMALL_HOUSE)).status == 200
                await messages.until(f"{STREAM}?$select=result", 20.5)
                place = tmp_path / "data" / PLACE_FILE
        async with running_gateway(tmp_path, sensorthings={"enabled": True}) as at:
            await removed(at, 1)
        assert {topic for topic in retained(broker) if topic.startswith(STREAM)}
        if not resumed:
            place.unlink(missing_ok=True)
        with listening(broker, "v1.1/#") as messages:
            async with running_gateway(tmp_path, **tables(broker, **settings)) as at:
                await messages.until(f"{STREAM}?$select=result", None)
                assert {topic for topic in retained(broker) if topic.startswith(STREAM)} == set()


async def test_a_broken_connection_is_made_again(tmp_path: Path) -> None:
    with mosquitto() as broker:
        async with running_gateway(tmp_path, **tables(broker)) as at:
            assert (await update(at, SMALL_HOUSE)).status == 200
            with listening(broker, STREAM) as messages:
                await messages.until(STREAM, 20.5)
            broker.stop()
            for value in range(5):
                await set_result(at, value)
            broker.start()
            with listening(broker, STREAM) as messages:
                await set_result(at, 99)
                came = await messages.until(STREAM, 99)
            assert came[-1] == 99
            after = came[1:] if came[0] == 20.5 else came  # which may not have been acknowledged
            assert after == sorted(after)


def test_plans_follow_the_observations() -> None:
    """A query that is evaluated again with each reading would cost as much as all streams."""
    engine = Engine()
    engine.update(SMALL_HOUSE)
    followed = [engine.subscribe(query) for query in QUERIES]
    assert [one.spu_class for one in followed] == ["seeded", "seeded"]
    assert [len(one.first.rows) for one in followed] == [1, 2]
    engine.close()


@pytest.mark.parametrize(
    ("own", "told"),
    [({"mqtt": True}, "set host in [mqtt]"), ({"mqtt": True, "mqtt_select": ["colour"]}, "has no 'colour'")],
)
async def test_bad_settings_stop_the_start(tmp_path: Path, own: dict[str, Any], told: str) -> None:
    host = {"mqtt": {"host": "127.0.0.1"}} if "mqtt_select" in own else {}
    with pytest.raises(Exception, match=told.replace("[", r"\[")):
        async with running_gateway(tmp_path, sensorthings={"enabled": True, **own}, **host):
            pass
