"""`make run`: a simulated street around a real gateway, with real MQTT and real CoAP.

play: starts broker, gateway and street; street: sensors, lamps (one of them on MQTT) and people; broker: the embedded
broker; story: the lines on the terminal; controls: what people do to the street, by keys or over the dataset; keys: of
the terminal; desktop: opens the web page.
"""

from lamplighter.demo.street.play import run_demo

__all__ = ["run_demo"]
