"""Modbus TCP adapter: `adapters.resources.polled_adapter`, with this protocol. Only connection loads pymodbus.

protocol: requests to resources -> requests of Modbus; connection: one connection to a device; spans: neighbouring
registers that one request reads (pure); settings: the table ``[modbus]``.
"""
