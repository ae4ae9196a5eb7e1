"""`make run`: a simulated street around a real gateway, with real MQTT and real CoAP.

play: starts broker, gateway and street; street: sensors, lamps (one of them on MQTT) and people; story: the lines on
the terminal.
"""

from lamplighter.demo.street.play import run_demo

__all__ = ["run_demo"]
