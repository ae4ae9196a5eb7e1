"""The gateway's state for operators.

figures: health and figures; brokers: state of the MQTT brokers; timings: durations; metrics: Prometheus text.
"""
