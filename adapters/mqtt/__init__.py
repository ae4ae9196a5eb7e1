"""MQTT adapter: publishes readings to the gateway as SOSA observations.

mapping: topic and payload -> readings (pure); dataset_rules: rules that are triples; overlaps: rules that read a value
twice; adapter: batches of updates, acknowledged to the broker after the commit is durable; inbox: the broker's messages
as an iterator; connection: one connection to a broker; settings: the table ``[mqtt]``.
"""
