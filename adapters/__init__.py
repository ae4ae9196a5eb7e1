"""Adapters connect devices to the gateway: one package per protocol, one process per adapter.

specs: the adapters, each declared once, and their packages: mqtt: sensors that publish over MQTT; coap: devices with
CoAP; http: devices with a web server; modbus: devices with registers; parts: what an adapter is made from; resources:
what devices with resources share, whatever their protocol; mapping: rules, messages -> readings; model: readings ->
SPARQL updates; devices: discovered devices, and desired states; networks: the networks that an adapter may send to;
client: what adapters need of the client library; lasting_updates: updates sent until they are taken or refused;
counting: their counters as triples; presence: since when they read their devices; literals: booleans and times. An
adapter uses the public protocol only (`engine.client`). It loads neither the store nor the gateway.
"""
