"""A simulated house: devices of eleven makes at an MQTT broker, each with a true state that it can be asked.

makes: what each make announces, publishes and obeys, as its documentation says; play: their connection to the broker,
hands that switch them, and silence.
"""

from lamplighter.demo.house.makes import MAKES, HouseDevice, Value
from lamplighter.demo.house.play import House

__all__ = ["MAKES", "House", "HouseDevice", "Value"]
