"""Runs the demo: broker, gateway with adapters, street, story."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

import lamplighter
from lamplighter.demo.street.broker import HOST, EmbeddedBroker
from lamplighter.demo.street.controls import CLEAR, QUIT, Controls
from lamplighter.demo.street.desktop import has_desktop, show
from lamplighter.demo.street.keys import has_keys, listening
from lamplighter.demo.street.story import Story
from lamplighter.demo.street.street import (
    MQTT_LAMP_RULES,
    MQTT_POST,
    POSTS,
    Sensors,
    description,
    evening,
    lamps,
    now,
    port_taken,
    sensors,
    walk,
    way,
    weather,
)
from lamplighter.engine.client import EngineClient
from lamplighter.engine.errors import GatewayError
from lamplighter.engine.terms import lexical
from lamplighter.gateway.addresses import Addresses
from lamplighter.gateway.log.writer import Recovery
from lamplighter.gateway.page.assets import built_assets
from lamplighter.gateway.service.configuration import Configuration
from lamplighter.gateway.service.process import run_gateway, stop_on_signals
from lamplighter.gateway.settings import Settings

PACKAGE = Path(lamplighter.__file__).parent
OFF_AFTER_S = 4
"""The application's delay, shortened from 30 s."""
CLEAR_S = 5.0
"""Time limit for the last update, which removes the offers."""

_STATES = """PREFIX sosa: <http://www.w3.org/ns/sosa/>
PREFIX gateway: <http://lamplighter.example/ns/gateway#>
SELECT ?lamp ?state ?time WHERE {
  { ?actuation a sosa:Actuation ; sosa:madeByActuator ?lamp ; sosa:hasSimpleResult ?state ; sosa:resultTime ?time }
  UNION { ?lamp gateway:reportedState ?state } }"""
"""Rows with a time are acknowledgements: of a CoAP lamp by itself, of the MQTT lamp by the broker."""


async def run_demo(config: Path | None, data: Path | None, seconds: float | None, *, browser: bool) -> int:
    """Plays until Ctrl-C or for this many seconds. Returns the exit code.

    browser: opens the web page where there is a desktop. With seconds, the code is 0 if a lamp was switched on and off,
        otherwise 1.
    """
    logging.getLogger().setLevel(logging.WARNING)
    stop = stop_on_signals()
    if seconds is not None:
        asyncio.get_running_loop().call_later(seconds, stop.set)
    with _folder() as folder:
        settings_file = _demo_configuration(folder, config)
        configured = _with_lamps(Configuration.read(settings_file, data or folder / "data"))
        with _broker(configured) as (configuration, broker):
            mqtt = configuration.settings.mqtt
            async with lamps(mqtt.host, mqtt.port) as street:
                story = Story(street)
                async with _gateway(configuration, stop) as addresses:
                    picture = f"{addresses.page}page/street" if built_assets() is not None else None
                    _introduce(story, configuration, addresses, picture, embedded=broker is not None)
                    async with EngineClient(addresses.subscribe, name="demo") as client:
                        await client.update(description(configuration.settings.gateway.base_iri, street))
                        story.tell("gateway", "has the street: 10 posts with their lamps")
                        if picture and browser and sys.stdout.isatty() and has_desktop(os.environ):
                            await show(picture)
                        await _play(configuration, client, story, stop, broker)
                good = story.summary()
                return 0 if good or seconds is None else 1


@contextmanager
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="lamplighter-demo-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _demo_configuration(folder: Path, config: Path | None) -> Path:
    """Writes the settings of the demo, its mapping rules and the smart-lighting application to the folder."""
    (folder / "mapping").mkdir()
    (folder / "apps").mkdir()
    shutil.copy(PACKAGE / "mapping" / "street.toml", folder / "mapping")
    (folder / "mapping" / "lamp.toml").write_text(MQTT_LAMP_RULES)
    application = json.loads((PACKAGE / "apps" / "smart-lighting.jsap").read_text())
    application["updates"]["SWITCH_OFF"]["delay"] = f"PT{OFF_AFTER_S}S"
    (folder / "apps" / "smart-lighting.jsap").write_text(json.dumps(application))
    target = folder / "lamplighter.toml"
    target.write_text(config.read_text() if config else _own_settings())
    return target


def _own_settings() -> str:
    """The default ports, or free ones if those are taken. The clock counts as synchronised, for nothing outlives the
    demo."""
    usual = Settings()
    tables = {"http": usual.http.port, "websocket": usual.websocket.port}
    ports = "".join(f"[{table}]\nport = {0 if port_taken(port) else port}\n" for table, port in tables.items())
    return f'[gateway]\nclock_trusted = "always"\n{ports}'


def _with_lamps(configuration: Configuration) -> Configuration:
    """The configuration with CoAP commands to loopback allowed, because the street's lamps are there, and with a free
    port for the CoAP server."""
    coap = configuration.settings.coap
    networks, server = (*coap.networks, "127.0.0.0/8"), msgspec.structs.replace(coap.server, port=0)
    coap = msgspec.structs.replace(coap, networks=networks, server=server)
    settings = msgspec.structs.replace(configuration.settings, coap=coap)
    return _with_settings(configuration, settings)


def _with_settings(configuration: Configuration, settings: Settings) -> Configuration:
    """The configuration of the gateway with other settings."""
    folder, data, applications = configuration.folder, configuration.data, configuration.applications
    return Configuration(settings, folder, data, applications, shapes=configuration.shapes)


@contextmanager
def _broker(configuration: Configuration) -> Iterator[tuple[Configuration, EmbeddedBroker | None]]:
    """The configured broker, or an embedded one on loopback."""
    if configuration.settings.mqtt.host:
        yield configuration, None
        return
    broker = EmbeddedBroker()
    mqtt = msgspec.structs.replace(configuration.settings.mqtt, host=HOST, port=broker.port)
    settings = msgspec.structs.replace(configuration.settings, mqtt=mqtt)
    broker.start()
    try:
        yield _with_settings(configuration, settings), broker
    finally:
        broker.stop()


@asynccontextmanager
async def _gateway(configuration: Configuration, stop: asyncio.Event) -> AsyncIterator[Addresses]:
    """Runs the gateway with its adapters for the duration of the block. Raises its failure."""
    started: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()

    def ready(addresses: Addresses, recovery: Recovery) -> None:
        started.set_result(addresses)

    gateway = asyncio.create_task(run_gateway(configuration, leave, ready, adapters=True))
    gateway.add_done_callback(lambda _: started.cancel())
    try:
        addresses = await started
    except asyncio.CancelledError:
        await gateway  # raises the reason why it did not start
        raise
    gateway.add_done_callback(lambda _: stop.set())
    try:
        yield addresses
    finally:
        leave.set()
        await gateway


def _introduce(
    story: Story, configuration: Configuration, addresses: Addresses, picture: str | None, *, embedded: bool
) -> None:
    mqtt = configuration.settings.mqtt
    story.note("\n  Lamplighter: a street of ten lamps\n")
    story.note("  sensor --MQTT--> gateway: triples, subscriptions, application --CoAP--> lamp")
    story.note(f"  {'':<60} --MQTT--> lamp {MQTT_POST}\n")
    story.note(f"  broker     mqtt://{mqtt.host}:{mqtt.port}{' (embedded)' if embedded else ''}")
    story.note(addresses.table().removesuffix("\n"))
    if picture:
        story.note(f"  street     {picture}")
    story.note()
    story.note(f"  Presence switches a lamp on; {OFF_AFTER_S} s without presence switch it off. Ctrl-C stops.\n")


async def _play(
    configuration: Configuration,
    client: EngineClient,
    story: Story,
    stop: asyncio.Event,
    broker: EmbeddedBroker | None,
) -> None:
    """People, weather, keys and wishes, until stopped."""
    mqtt, base_iri = configuration.settings.mqtt, configuration.settings.gateway.base_iri
    with sensors(mqtt.host, mqtt.port) as published:
        scene = _Scene(story, published, broker)
        controls = Controls(scene.actions, scene.offers, base_iri)
        await controls.offer(client)
        with _keys(controls, story, stop):
            tasks = [
                asyncio.create_task(scene.watch(client)),
                asyncio.create_task(evening(scene.person)),
                asyncio.create_task(weather(published.temperature)),
                asyncio.create_task(controls.take_wishes(client)),
                asyncio.create_task(controls.act(client)),
            ]
            stopped = asyncio.create_task(stop.wait())
            done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in [*tasks, stopped]:
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)
            for task in done - {stopped}:
                task.result()
            with contextlib.suppress(TimeoutError, GatewayError):  # the gateway may have stopped by itself
                await asyncio.wait_for(client.update(CLEAR), CLEAR_S)


@contextmanager
def _keys(controls: Controls, story: Story, stop: asyncio.Event) -> Iterator[None]:
    """Listens to the keys of the terminal, if there is one."""
    if not has_keys():
        yield
        return
    with listening(lambda key: stop.set() if key == QUIT else controls.press(key)):
        story.note(f"  Keys: {controls.line}, {QUIT} quit\n")
        yield


class _Scene:
    """Reports events of the street as they happen: readings of sensors, and acknowledgements of lamps."""

    def __init__(self, story: Story, published: Sensors, broker: EmbeddedBroker | None) -> None:
        self._story = story
        self._sensors = published
        self._broker = broker
        self._came: dict[int, float] = {}
        self._left: dict[int, float] = {}
        self._put_out: dict[int, float] = {}
        self._people: Counter[int] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self.offers = {"p": "add a person", "s": "break a sensor"}
        self.actions = {"p": self._add_person, "s": self._switch_sensor}
        if broker is not None:
            self.offers["b"] = "cut the broker"
            self.actions["b"] = self._switch_broker

    async def person(self, posts: Sequence[int]) -> None:
        await walk(posts, self._arrive, self._leave)

    async def _add_person(self) -> str:
        self._story.tell("person", "one more person walks")
        self._begin(self.person(way()))
        return "add a person"

    async def _switch_sensor(self) -> str:
        if self._sensors.broken:
            [post] = self._sensors.broken
            (self._came if self._people[post] else self._left)[post] = now()
            self._sensors.mend(post)
            self._story.tell("sensor", f"post {post}: sensors report again")
            return "break a sensor"
        post = random.randint(1, POSTS)
        self._sensors.broken.add(post)
        self._story.tell("trouble", f"post {post}: sensors are broken")
        return f"mend the sensors of post {post}"

    async def _switch_broker(self) -> str:
        assert self._broker is not None
        await self._broker.switch()
        if self._broker.running:
            self._story.tell("gateway", "the broker is back")
            return "cut the broker"
        self._story.tell("trouble", "the broker is cut off")
        return "restore the broker"

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _arrive(self, post: int) -> None:
        self._people[post] += 1
        if self._people[post] > 1:
            return
        self._sensors.presence(post, True)
        if post in self._sensors.broken:
            self._story.tell("trouble", f"post {post}: nobody is seen", "broken sensors")
            return
        self._came[post] = now()
        self._story.tell("sensor", f"post {post}: presence")

    def _leave(self, post: int) -> None:
        self._people[post] -= 1
        if self._people[post]:
            return
        self._sensors.presence(post, False)
        if post in self._sensors.broken:
            return
        left = now()
        self._left[post] = left
        self._story.tell("sensor", f"post {post}: no presence", f"lamp off in {OFF_AFTER_S} s")
        self._begin(self._tell_if_kept_on(post, left))

    async def _tell_if_kept_on(self, post: int, left: float) -> None:
        """Reports a delayed update that did nothing because of new presence (event negation)."""
        await asyncio.sleep(OFF_AFTER_S + 0.5)
        if self._came.get(post, 0) > left > self._put_out.get(post, 0):
            self._story.kept_on += 1
            came_back = self._came[post] - left
            self._story.tell("timer", f"lamp {post} stays on", f"presence after {came_back:.1f} s")

    async def watch(self, client: EngineClient) -> None:
        """Reports the states of lamps: the acknowledgement of a CoAP lamp, the report of the MQTT lamp."""
        async with contextlib.aclosing(client.subscribe(_STATES)) as notifications:
            async for notification in notifications:
                for row in notification.added.bindings():
                    number = re.search(r"lamp/(\d+)$", lexical(row["lamp"]))
                    if not number or not notification.sequence or ("time" in row) == (int(number[1]) == MQTT_POST):
                        continue
                    when = datetime.fromisoformat(lexical(row["time"])).timestamp() if "time" in row else now()
                    self._switched(int(number[1]), lexical(row["state"]), when)

    def _switched(self, number: int, state: str, when: float) -> None:
        text = f"lamp {number} reports {state} over MQTT" if number == MQTT_POST else f"lamp {number} is {state}"
        if state == "ON" and number in self._came:
            milliseconds = (when - self._came[number]) * 1000
            self._story.lit_ms.append(milliseconds)
            self._story.tell("lamp on", text, f"{milliseconds:.1f} ms after the reading")
        elif state == "OFF" and number in self._left:
            self._put_out[number] = when
            seconds = when - self._left[number]
            self._story.put_out_s.append(seconds)
            self._story.tell("lamp off", text, f"{seconds:.3f} s after presence")
