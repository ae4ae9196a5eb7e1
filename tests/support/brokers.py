"""Real MQTT brokers on loopback, with their files in a temporary folder."""

from __future__ import annotations

import getpass
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.components import require_command

START_TIMEOUT_S = 120.0
PUBLISH_TIMEOUT_S = 120.0


_PORTS = range(10000, 32000)  # below those that the system gives to clients, which come and go during a test
_ports_given: set[int] = set()
_chance = random.SystemRandom()  # tests side by side, and Hypothesis, seed the other one alike


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port of 127.0.0.1 that nothing listens on; no two calls in one process give the same."""
    while True:
        port = _chance.choice(_PORTS)
        if port in _ports_given:
            continue
        with socket.socket(type=kind) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _ports_given.add(port)
        return port


class Mosquitto:
    """A mosquitto process; `start` after `stop` uses the same port and the same files."""

    def __init__(self, command: str, folder: Path, port: int, settings: Sequence[str]) -> None:
        self.port = port
        self._log: deque[str] = deque(maxlen=1000)
        self._command = command
        self._config = folder / "mosquitto.conf"
        self._config.write_text(
            "\n".join(
                [
                    f"user {getpass.getuser()}",  # else mosquitto gives root up, and with it the right to our files
                    f"persistence_location {folder}/",
                    f"listener {port} 127.0.0.1",
                    *settings,
                ]
            )
            + "\n",
            encoding="utf-8",
        )
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def log(self) -> list[str]:
        """The last lines that it has written so far. A thread reads them, so this is a copy."""
        return list(self._log)

    def start(self) -> None:
        """Returns when the broker takes connections."""
        assert self._process is None
        running = threading.Event()
        process = subprocess.Popen(
            [self._command, "-c", str(self._config), "-v"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

        def read_log() -> None:
            assert process.stderr
            for line in process.stderr:
                self._log.append(line.rstrip())
                if line.rstrip().endswith("running"):
                    running.set()
            running.set()  # it ended

        self._process = process
        self._reader = threading.Thread(target=read_log, daemon=True)
        self._reader.start()
        assert running.wait(START_TIMEOUT_S) and process.poll() is None, self.log
        # mosquitto says that it is running before it is: a SIGTERM between the two would be forgotten. Its main loop
        # is there once it has hung up on nonsense, be the listener plain or TLS.
        with socket.create_connection(("127.0.0.1", self.port), timeout=START_TIMEOUT_S) as probe:
            probe.sendall(bytes(16))
            with suppress(ConnectionResetError):
                while probe.recv(1024):
                    pass

    def publish(
        self, *messages: tuple[str, str | bytes], retain: bool = False, port: int | None = None, qos: int = 1
    ) -> None:
        """Publishes and returns when the broker has acknowledged all; with QoS 0, when all were sent.

        port: of another listener. Raises AssertionError when the broker hangs up or takes too long.
        """
        client = mqtt.Client(CallbackAPIVersion.VERSION2)
        client.max_inflight_messages_set(0)
        client.connect("127.0.0.1", port or self.port)
        try:
            sent = [client.publish(topic, payload, qos=qos, retain=retain) for topic, payload in messages]
            deadline = time.monotonic() + PUBLISH_TIMEOUT_S
            while not all(message.is_published() for message in sent):
                assert client.loop(0.1) == 0 and time.monotonic() < deadline, "the broker does not take the messages"
        finally:
            client.disconnect()
            client.loop_write()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends the process; with persistence it saves its sessions at SIGTERM. Nothing to do when it is not running."""
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.wait(START_TIMEOUT_S)
        assert self._reader and self._process.stderr
        self._reader.join(START_TIMEOUT_S)
        self._process.stderr.close()
        self._process = None


@contextmanager
def subscribed(client: mqtt.Client, broker: Mosquitto, *filters: str) -> Iterator[mqtt.Client]:
    """The client, connected. The broker has granted its subscriptions."""
    granted = threading.Event()
    client.on_subscribe = lambda *_: granted.set()
    client.connect("127.0.0.1", broker.port)
    client.subscribe([(one, 1) for one in filters])
    client.loop_start()
    try:
        assert granted.wait(START_TIMEOUT_S), f"the broker does not grant {filters}"
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


@contextmanager
def mosquitto(port: int | None = None, *, settings: Sequence[str] = ("allow_anonymous true",)) -> Iterator[Mosquitto]:
    """A running mosquitto, by default on a free port, open to all on loopback, and without persistence.

    settings: lines of mosquitto.conf. Skips the test when mosquitto is not installed.
    """
    command = require_command("mosquitto")
    with tempfile.TemporaryDirectory(prefix="mosquitto-") as folder:
        broker = Mosquitto(command, Path(folder), free_port() if port is None else port, settings)
        try:
            broker.start()
            yield broker
        finally:
            broker.stop()
