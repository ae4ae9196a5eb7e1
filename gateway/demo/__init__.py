"""The demo: a simulated street around a real gateway, real MQTT and real CoAP."""

from gateway.demo.play import run_demo

__all__ = ["run_demo"]
