"""The simulated street: sensors that publish over MQTT, lamps on CoAP and one on MQTT, and people who walk."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Protocol

import aiocoap
import paho.mqtt.client as mqtt
from aiocoap import resource
from paho.mqtt.enums import CallbackAPIVersion

POSTS = 10
MQTT_POST = 2
"""The post whose lamp is on MQTT."""
MQTT_LAMP_RULES = f"""[[command]]
actuator = "lamp/{MQTT_POST}"
topic = "street/{MQTT_POST}/lamp/set"
state = {{topic = "street/{MQTT_POST}/lamp"}}
"""
"""The mapping file of that lamp."""
SUBSCRIBE_S = 30.0
STEP_S = 1.0
"""Walking time between posts."""
TEMPERATURE_EVERY_S = 5.0


class Lamp(Protocol):
    """state: of the lamp itself, "ON" or "OFF"."""

    number: int
    state: str


class CoapLamp(resource.Resource):  # type: ignore[misc]  # the library ships no types
    """A lamp: a CoAP server with one resource ``/lamp``, which accepts ON and OFF by PUT."""

    def __init__(self, number: int, port: int) -> None:
        super().__init__()
        self.number = number
        self.uri = f"coap://127.0.0.1:{port}/lamp"
        self.state = "OFF"

    async def render_put(self, request: aiocoap.Message) -> aiocoap.Message:
        self.state = request.payload.decode()
        return aiocoap.Message(code=aiocoap.CHANGED)

    async def render_get(self, request: aiocoap.Message) -> aiocoap.Message:
        return aiocoap.Message(payload=self.state.encode())


class MqttLamp:
    """A lamp with a connection of its own to the broker. It reports each state that it takes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = "OFF"
        self.subscribed = threading.Event()
        self._topic = f"street/{number}/lamp"
        self._client = _client("lamp")
        self._client.on_connect = lambda client, *_: client.subscribe(f"{self._topic}/set", qos=1)
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message

    def open(self, host: str, port: int) -> None:
        """Returns when the lamp receives states. Raises OSError when the broker cannot be reached."""
        self._client.connect(host, port)
        self._client.loop_start()
        if not self.subscribed.wait(SUBSCRIBE_S):
            self.close()
            raise TimeoutError(f"the broker at {host}:{port} does not answer the lamp")

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_subscribe(self, *_: Any) -> None:
        self._report()
        self.subscribed.set()

    def _on_message(self, client: mqtt.Client, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        if message.payload in (b"ON", b"OFF"):
            self.state = message.payload.decode()
            self._report()

    def _report(self) -> None:
        self._client.publish(self._topic, self.state, qos=1)


@asynccontextmanager
async def lamps(host: str, port: int) -> AsyncIterator[list[Lamp]]:
    """Runs the lamps: a CoAP server on a port of its own for each post, and one MQTT lamp at the broker.

    Raises OSError when the broker cannot be reached.
    """
    async with AsyncExitStack() as stack:
        found: list[Lamp] = []
        for number in range(1, POSTS + 1):
            if number == MQTT_POST:
                on_mqtt = MqttLamp(number)
                await asyncio.to_thread(on_mqtt.open, host, port)
                stack.push_async_callback(asyncio.to_thread, on_mqtt.close)
                found.append(on_mqtt)
                continue
            own_port = free_port(socket.SOCK_DGRAM)
            lamp = CoapLamp(number, own_port)
            site = resource.Site()
            site.add_resource(["lamp"], lamp)
            context = await aiocoap.Context.create_server_context(
                site, bind=("127.0.0.1", own_port), transports=["simplesocketserver"]
            )
            stack.push_async_callback(context.shutdown)
            found.append(lamp)
        yield found


def _client(name: str) -> mqtt.Client:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=f"{name}-{random.getrandbits(32):08x}")
    client.reconnect_delay_set(1, 2)
    return client


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    """A free loopback port."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_taken(port: int) -> bool:
    """Whether a process listens on a loopback port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Sensors:
    """The presence and temperature sensors of all posts, on one connection to the broker."""

    def __init__(self, client: mqtt.Client) -> None:
        self._client = client
        self._present: dict[int, bool] = {}
        self.broken: set[int] = set()
        """Posts whose sensors are silent."""

    def presence(self, post: int, present: bool) -> None:
        self._present[post] = present
        if post not in self.broken:
            self._client.publish(f"street/{post}/presence", str(present).lower(), qos=1)

    def mend(self, post: int) -> None:
        """The sensors of the post report again, and the presence sensor at once."""
        self.broken.discard(post)
        self.presence(post, self._present.get(post, False))

    def temperature(self, post: int, degrees: float) -> None:
        if post in self.broken:
            return
        self._client.publish(f"street/{post}/temperature", f"{degrees:.1f}", qos=1)


@contextmanager
def sensors(host: str, port: int) -> Iterator[Sensors]:
    """Connects the sensors; paho's own thread sends. Raises OSError when the broker cannot be reached."""
    client = _client("street")
    client.connect(host, port)
    client.loop_start()
    try:
        yield Sensors(client)
    finally:
        client.disconnect()
        client.loop_stop()


def description(base_iri: str, street: Sequence[Lamp]) -> str:
    """The update that describes the street (lighting ontology, Roffia 2016, IV.A)."""
    parts = []
    for lamp in street:
        post, road = f"<{base_iri}post/{lamp.number}>", f"<{base_iri}road/1>"
        address = f"gateway:coapResource <{lamp.uri}> ; " if isinstance(lamp, CoapLamp) else ""
        parts.append(
            f"{road} a lighting:Road ; lighting:isConnectedTo {post} . {post} a lighting:Post ; "
            f"lighting:hasLamp <{base_iri}lamp/{lamp.number}> . "
            f"<{base_iri}lamp/{lamp.number}> a lighting:Lamp ; {address}lighting:hasStatus 'OFF' ."
        )
    return (
        "PREFIX lighting: <http://lamplighter.example/ns/lighting#> "
        "PREFIX gateway: <http://lamplighter.example/ns/gateway#>\n"
        "INSERT DATA {\n  " + "\n  ".join(parts) + "\n}"
    )


async def walk(posts: Sequence[int], arrive: Callable[[int], None], leave: Callable[[int], None]) -> None:
    """One person who walks from post to post, and may turn back."""
    for post in posts:
        arrive(post)
        await asyncio.sleep(STEP_S)
        leave(post)


async def weather(publish: Callable[[int, float], None]) -> None:
    """Publishes slowly changing temperatures."""
    degrees = [random.uniform(8, 12) for _ in range(POSTS)]
    while True:
        for post in range(1, POSTS + 1):
            degrees[post - 1] += random.uniform(-0.3, 0.3)
            publish(post, degrees[post - 1])
        await asyncio.sleep(TEMPERATURE_EVERY_S)


async def evening(person: Callable[[Sequence[int]], Awaitable[None]]) -> None:
    """People who walk through the street one after the other, until cancelled. The second one turns back half way."""
    await person(range(1, POSTS + 1))
    await asyncio.sleep(2)
    await person([10, 9, 8, 7, 8, 9, 10])
    while True:
        await asyncio.sleep(random.uniform(2, 5))
        await person(way())


def way() -> list[int]:
    """The posts from one end of the street to the other."""
    posts = list(range(1, POSTS + 1))
    return posts if random.random() < 0.5 else posts[::-1]


def now() -> float:
    """Wall-clock seconds, as in the timestamps of readings and actuations."""
    return time.time()
