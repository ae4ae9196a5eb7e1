"""NGSI-LD (ETSI GS CIM 009 V1.8.1), the subset for entities and their subscriptions: entities are RDF in a graph of
their own, and the streams of the SOSA graph are entities that can be read.

::

    requests ─▶ door ─┬─▶ reading, writing: entities
                      └─▶ subscribing ─▶ gates.deliveries ─▶ notifying: rows that changed ─▶ Notifications ─▶ receiver

- contexts: names <-> IRIs; information: attributes and their values, JSON <-> terms.
- conditions: the text of ``q`` -> syntax tree -> SPARQL, and regular expressions of bounded cost; parameters: all
  parameters of a query.
- graphs: where entities are in the dataset, as graph patterns; reading: queries with the caller's permissions; writing:
  entities as updates.
- subscriptions: what is written of one; watching: its query, and what the rows of a commit tell; subscribing: its
  operations; notifying: what its receiver gets.
- api: paths; messages: contexts, bodies and answers of requests; problems: errors.
"""

from lamplighter.gateway.gates.ngsild.api import NgsiLd

__all__ = ["NgsiLd"]
