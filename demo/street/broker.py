"""The embedded broker of the demo, which can be cut off and restored."""

from __future__ import annotations

import asyncio

from lamplighter.demo.street.street import free_port
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.extras import pip_install

HOST = "127.0.0.1"


class EmbeddedBroker:
    """An MQTT broker on loopback, in a process of its own. It keeps its port across restarts.

    Raises ConfigurationError when the package is not installed.
    """

    def __init__(self) -> None:
        try:
            from iotcore import Broker
        except ImportError as error:
            raise ConfigurationError(
                f"the demo needs an MQTT broker; {pip_install('demo')} for an embedded one, or set mqtt.host"
            ) from error
        self.port = free_port()
        self._broker = Broker(port=self.port, listen=HOST)

    @property
    def running(self) -> bool:
        return bool(self._broker.is_running)

    def start(self) -> None:
        """Returns when the broker listens."""
        self._broker.start()

    def stop(self) -> None:
        self._broker.stop()

    async def switch(self) -> None:
        """Stops the broker if it runs, otherwise starts it."""
        await asyncio.to_thread(self.stop if self.running else self.start)
