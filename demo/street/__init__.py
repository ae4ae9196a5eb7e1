"""The demo: a simulated street around a real gateway, real MQTT and real CoAP."""

from lamplighter.demo.street.play import run_demo

__all__ = ["run_demo"]
