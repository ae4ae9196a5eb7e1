"""Producers and consumers for devices, one package per protocol; each runs as a process of its own."""
