"""The task that owns the engine.

runner: takes groups of steps, syncs, releases. queue: which step is next, trials, room; steps: runs them; slices: long
steps in slices of 20 ms; failures: what an error means.
Requests: updates, visible_delta (the delta in their answers), queries, past (answers from the data folder),
subscribers, delivered (subscriptions that the gateway delivers), timers (delayed updates that are due), clock_commits,
restore (snapshots and backups too).
Effects: ledger (the only place that appends), commits, obligations (what the log still lacks), reactions, delays
(records of timers), aggregators (of applications), removals (of clients), resuming (resumable subscriptions),
evaluations (what they cost).
Start: dataset, recovery, recovery_attempt (what failed starts teach), inference_start, validation_start (SHACL shapes).
current: settings that hold now; upkeep: work for idle time.
"""
