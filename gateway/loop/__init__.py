"""The task that owns the engine.

runner: takes groups of steps, syncs, releases. queue: which step is next, trials, room; steps: runs them; slices: long
steps in slices of 20 ms; failures: what an error means.
Requests: updates, queries, past (answers from the data folder), subscribers, timers (delayed updates that are due),
restore (snapshots and backups too).
Effects: journal (the only place that appends), commits, delays (records of timers), reactions, aggregators (of
applications), removals (of clients), resuming (resumable subscriptions), evaluations (what they cost).
Start: dataset, recovery, doubt (what failed starts teach). current: settings that hold now; upkeep: work for idle time.
"""
