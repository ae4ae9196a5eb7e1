"""Jobs: silver tables -> answers. Pure functions from DataFrames to DataFrames, and a command for each.

Jobs: aggregates, anomalies, clocks, dead_sensors, fleet_health, gaps, lamps, reactions. analysis: all jobs over one
set of tables, with shared intermediate results; results: their names, Parquet and CSV; texts: rows as text; commands:
`lamplighter-fleet jobs`. *Readings* is the table observations with the times of `clocks.with_times`. Times, hours and
days are in UTC. docs/fleet-tables.md has the columns of each.
"""

from lamplighter.cloud_sync.fleet.jobs.commands import add_commands

__all__ = ["add_commands"]
