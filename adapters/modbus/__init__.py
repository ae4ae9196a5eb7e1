"""Modbus adapter.

spans: registers that one request reads (pure).
"""
