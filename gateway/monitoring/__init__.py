"""The gateway's state for operators.

figures: health and figures; timings: durations; metrics: Prometheus text.
"""
