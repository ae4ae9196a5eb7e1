"""Measurements of the engine and of the gateway; `make bench` runs them."""
