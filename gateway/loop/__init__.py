"""The task that owns the engine.

runner: the queue and its steps; recovery: snapshot and log at the start; subscribers: sinks of subscriptions; slices:
long steps in turns with the gates; upkeep: what is done while the queue is empty.
"""
