"""The task that owns the engine.

runner: makes the parts and keeps them running. queue: which task is next, dry runs, room, settings and permissions that
hold now; executor: runs tasks, distributes what comes of them, syncs, releases; time_slicer: long tasks in slices of 20
ms; failures: what an error means.
Requests: requests (the table of kinds), updates, queries, past (answers from the data folder), subscribers, delivered
(subscriptions that the gateway delivers), scheduler (of delayed updates and instants), timers (delayed updates that are
due), clock_commits, restore (snapshots and backups too).
Effects: ledger (the only place that appends), obligations (what the log still lacks), reactions, delays (records of
timers), aggregators (of applications), declarations (which applications run), removals (of clients), resumption
(resumable subscriptions), evaluations (what they cost), re_evaluations (shares of what the store repeats).
Start: dataset, recovery, recovery_attempt (what failed starts teach), derivation_start (inference, SHACL shapes).
upkeep: work for idle time; history_keeper: the index of past values.
"""
