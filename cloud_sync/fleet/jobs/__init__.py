"""What the silver tables tell of a fleet: pure functions from DataFrames to DataFrames, and a command for each.

All take *readings*, the table observations with the time of each reading found by `clocks.timed`. Sessions
keep UTC; hours and days are those of UTC. docs/fleet.md explains each job with a query.
"""

from lamplighter.cloud_sync.fleet.jobs.commands import add_commands

__all__ = ["add_commands"]
