"""MQTT adapter: publishes readings to the gateway as SOSA observations.

mapping: topic and payload -> reading -> SPARQL update (pure); overlaps: rules that
read one value twice; adapter: batches of updates, acknowledged to the broker
after the commit is durable; inbox: the broker's messages as an iterator; connection: one connection to a broker;
settings: the table ``[mqtt]``.
"""
