"""Ships the change log to the cloud; the package fleet turns shipped logs into tables there.

shipper: what is sent, and what counts as shipped; pace: bandwidth and hours; destinations: folders, S3, SFTP and other
fsspec stores; files: files that are written whole or not at all; answers: confirmations and refusals of the collector;
status: the shipper's files in the data folder; lineage: the proof that a log continues what was shipped; orders: what
the fleet asks of a gateway, signed; order_intake: which of them a gateway executes; order_client: executes them as a
client of the gateway; early_notifications: notifications of the fleet's subscriptions; settings: the table ``[sync]``;
commands: `lamplighter sync`. Runs on the gateway and needs neither the store nor Spark.
"""
