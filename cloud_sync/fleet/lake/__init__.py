"""The lake: a folder or a bucket with the tables of a fleet.

folder: places in the lake, for fsspec and for Spark; batches: a table as batches of Parquet files, each with a
manifest; delta_log: the same for readers of Delta; landings: what has landed, in the order of its numbers;
landed_segments: the files of what has landed, and packs of them; frontier: how far ingest is in the log; match_batches:
the ids of batches of matches; locks: one writer of a table at a time; forgotten: gateways that are kept out; tables:
the columns of the tables, and how to read them.
"""

from lamplighter.cloud_sync.fleet.lake.batches import Batches, Refused, TableBatch, live_of, no_rows, quads_max
from lamplighter.cloud_sync.fleet.lake.folder import Lake

__all__ = ["Batches", "Lake", "Refused", "TableBatch", "live_of", "no_rows", "quads_max"]
