"""Ships the change log to the cloud; the package fleet turns shipped logs into tables there.

shipper: what is sent, and what counts as shipped; pace: bandwidth and hours; destinations: folders, S3, SFTP and other
fsspec stores; files: files that are written whole or not at all; answers: confirmations and refusals of the collector;
status: the shipper's files in the data folder; settings: the table ``[sync]``; commands: `lamplighter sync`. Runs on
the gateway and needs neither the store nor Spark.
"""
