"""Demonstrations, which are not installed on a gateway.

street: a simulated street around a real gateway (`make run`); house: devices of eleven makes at a broker, with the
truth of each; fleet: a simulated fleet with ground truth (`make demo-fleet`).
"""
