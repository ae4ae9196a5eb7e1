"""The devices of a simulated house at a broker, and hands that switch them."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from lamplighter.demo.house.makes import MAKES, DeviceMessage, HouseDevice, Value, ZigbeeLamp

CONNECT_S = 60.0
LIST = "zigbee2mqtt/bridge/devices"
BRIDGE_STATE = "zigbee2mqtt/bridge/state"


class House:
    """Devices of some makes in turn, while the context is open. They connect again by themselves, as devices do, and
    say then what they say at each connection. All use one connection: a broker sees the messages, not the clients.

    chance: decides what hands do. makes: with the number of a device. Messages have QoS 0, the default of these makes.
    """

    def __init__(
        self,
        count: int,
        port: int,
        *,
        host: str = "127.0.0.1",
        chance: random.Random,
        makes: Sequence[Callable[[int], HouseDevice]] = MAKES,
    ) -> None:
        self.devices = [makes[number % len(makes)](number) for number in range(count)]
        self.connections = 0
        self._chance = chance
        self._lock = threading.RLock()
        self._obeying = {topic: device for device in self.devices for topic in device.commands()}
        self._asked: dict[str, list[HouseDevice]] = {}
        for device in self.devices:
            for topic in device.questions():
                self._asked.setdefault(topic, []).append(device)
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=f"house-{chance.getrandbits(32):08x}")
        self._client.reconnect_delay_set(1, 2)
        self._client.max_queued_messages_set(0)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        self._place = host, port
        self._ready = threading.Event()
        self._unanswered = 0

    def __enter__(self) -> House:
        """Returns when the devices take commands. Raises OSError or TimeoutError if the broker does not answer."""
        self._client.connect(*self._place)
        self._client.loop_start()
        if not self._ready.wait(CONNECT_S):
            raise TimeoutError(f"the broker at {self._place} does not answer the house")
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    # --- what people and nature do ---

    def happen(self, device: HouseDevice, name: str, value: Value) -> None:
        """One value of a device changes, and it says so."""
        with self._lock:
            device.truth[name] = value
            self._say(device, device.changed(name))

    def switch(self, count: int) -> list[HouseDevice]:
        """Hands switch devices, and values change by themselves: so many times. Returns the devices."""
        found = []
        for _ in range(count):
            device = self._chance.choice([one for one in self.devices if not one.is_silent])
            found.append(device)
            self._change(device)
        return found

    def switch_each(self) -> None:
        """Changes each device that is not silent, and each of its values."""
        for device in self.devices:
            if not device.is_silent:
                for name in (*device.settable(), *device.measured()):
                    self._set(device, name)

    def _change(self, device: HouseDevice) -> None:
        self._set(device, self._chance.choice([*device.settable(), *device.measured()]))

    def _set(self, device: HouseDevice, name: str) -> None:
        with self._lock:
            states, nature = device.settable().get(name), device.measured().get(name)
            others = [state for state in states or () if state != device.truth[name]]
            device.truth[name] = nature(self._chance) if nature is not None else self._chance.choice(others)
            self._say(device, device.changed(name))

    def report(self) -> None:
        """All devices say who they are and what state they have."""
        with self._lock:
            for device in self.devices:
                self._introduce(device)

    def silence(self, device: HouseDevice) -> None:
        """Takes a device's power. The broker says that it is gone, if the make has a last will."""
        with self._lock:
            self._say(device, device.online(False))
            device.is_silent = True

    def end_silence(self, device: HouseDevice) -> None:
        with self._lock:
            device.is_silent = False
            self._introduce(device)

    def truth(self) -> dict[tuple[str, str, str], Value]:
        """What is so, by format, identifier and name of the value, but for silent devices."""
        with self._lock:
            return {
                (*device.identity, name): value
                for device in self.devices
                if not device.is_silent
                for name, value in device.truth.items()
            }

    # --- the broker ---

    def _introduce(self, device: HouseDevice) -> None:
        self._say(device, [*device.announcements(), *device.online(True), *device.report()])

    def _say(self, device: HouseDevice, messages: Iterable[DeviceMessage]) -> None:
        for topic, payload, retain in messages if not device.is_silent else ():
            self._client.publish(topic, payload, qos=0, retain=retain)

    def _on_connect(self, client: mqtt.Client, *_: Any) -> None:
        with self._lock:
            self.connections += 1
            client.publish(BRIDGE_STATE, '{"state":"online"}', qos=0, retain=True)
            bridged = [one for one in self.devices if isinstance(one, ZigbeeLamp)]
            client.publish(LIST, json.dumps([one.listed() for one in bridged]), qos=0, retain=True)
            for device in self.devices:
                self._introduce(device)
            topics = [(topic, 1) for topic in {**self._obeying, **self._asked}]
            portions = [topics[begin : begin + 100] for begin in range(0, len(topics), 100)]
            self._unanswered = len(portions)
            for portion in portions:
                client.subscribe(portion)

    def _on_subscribe(self, *_: Any) -> None:
        self._unanswered -= 1
        if self._unanswered == 0:
            self._ready.set()

    def _on_message(self, client: mqtt.Client, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        with self._lock:
            payload = message.payload.decode(errors="replace")
            for asked in self._asked.get(message.topic, ()):
                self._say(asked, asked.answer(message.topic, payload))
            device = self._obeying.get(message.topic)
            if device is None or device.is_silent:
                return
            changed = device.obey(message.topic, payload)
            if changed is not None:
                self._say(device, device.changed(changed))


def settable(devices: Sequence[HouseDevice]) -> list[tuple[HouseDevice, str, Value]]:
    """All that commands can set: device, name of the value, and a state."""
    return [
        (device, name, state) for device in devices for name, states in device.settable().items() for state in states
    ]
