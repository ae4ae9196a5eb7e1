"""Demonstrations, which are not installed on a gateway.

street: a simulated street around a real gateway (`make run`); fleet: a simulated fleet with ground truth (`make
demo-fleet`).
"""
