"""The task that owns the engine.

runner: takes groups of steps, syncs, releases. queue: which step is next, trials, room; steps: runs them; slices: long
steps in slices of 20 ms; failures: what an error means.
Requests: updates, told_delta (the delta in their answers), queries, past (answers from the data folder), subscribers,
delivered (subscriptions that the gateway delivers), timers (delayed updates that are due), passing (commits of the
clock), restore (snapshots and backups too).
Effects: journal (the only place that appends), commits, delays (records of timers), reactions, aggregators (of
applications), removals (of clients), resuming (resumable subscriptions), evaluations (what they cost).
Start: dataset, recovery, doubt (what failed starts teach), inferring (inferred graphs), validating (SHACL shapes).
current: settings that hold now; upkeep: work for idle time.
"""
