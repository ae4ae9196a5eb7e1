"""The task that owns the engine.

runner: the queue, its steps and their groups; journal: appends records; recovery: the start from snapshot and log;
subscribers: subscriptions and their clients; resuming: resumable subscriptions across restarts; slices: long steps in
slices of 20 ms; upkeep: work for idle time.
"""
