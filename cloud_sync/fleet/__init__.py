"""The fleet pipeline: shipped change logs -> tables -> jobs -> report (docs/fleet.md).

Collection: collector takes in what was shipped; segment_check judges one object; landing puts it into the lake or into
quarantine; manifest is the collector's ledger; missing finds gaps.
Lake: lake has tables as batches with manifests; tables has their columns; session starts Spark.
Tables: bronze has a row per record; silver has streams, observations, actuations and health; streams, readings and
terms are its pure functions.
Tools: state is a gateway's dataset as of any record; compact merges small files; export writes Delta and RDF Patch.
Packages: jobs and report.
"""
