"""The tables: landed segments -> bronze -> silver, and the commands that read them. They run on Spark.

bronze: a row per record (segment_rows: what a batch of it has); silver: streams, observations, actuations and
gateway_health; readings, streams and terms: the pure functions of silver; facts: descriptions in snapshots
and in few records; past: the datasets of gateways as of any record; state: the command
for one gateway; export: Delta and RDF Patch; compact: merges small files; merged_matches: those of matches.
"""
