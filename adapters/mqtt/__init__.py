"""MQTT adapter: publishes readings to the gateway as SOSA observations.

mapping: topic and payload -> reading -> SPARQL update (pure); adapter: queue, batches, and acknowledgement to the
broker after the commit is durable; connection: one connection to a broker; settings: the table ``[mqtt]``.
"""
