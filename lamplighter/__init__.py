"""Lamplighter, a semantic edge gateway: SPARQL publish-subscribe for MQTT, CoAP, HTTP and Modbus devices.

The packages lie at the top of the repository; the links beside this file give them their one import name. The wheel has
them here (pyproject.toml).
"""
