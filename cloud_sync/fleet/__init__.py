"""The fleet pipeline: shipped change logs -> tables -> jobs -> report (docs/fleet.md).

collection: the collector takes shipped objects into the lake; lake: the lake folder, and tables as batches of Parquet
files; tables: bronze and silver, state, export and compaction; sparql: SPARQL compiled to columns; events: compound
events of records; subscriptions: SPARQL queries over the events of all gateways; delivery: their notifications to
sinks; deletion: removal of a gateway's data, and retention; jobs: functions from tables to results, and a command for
each; report: one page with plots of the results; session: the engine of a command; local: DuckDB in place of Spark;
submit, package: the same commands by `spark-submit`; metrics: the outcome of a command for Prometheus; subcommands: how
a module declares its command; lazy: Spark and Arrow at first use. `lamplighter-fleet` runs all of them.
"""
