"""The gateway's state for operators.

figures: health and figures; brokers: state of the MQTT brokers; adapter_services: why an adapter does not run; timings:
durations; metrics: Prometheus text.
"""
