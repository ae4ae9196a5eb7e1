"""NGSI-LD (ETSI GS CIM 009 V1.8.1), the subset for entities: they are RDF in a graph of their own, and the streams of
the SOSA graph are entities that can be read.

- contexts: names <-> IRIs; information: attributes and their values, JSON <-> terms.
- conditions: the text of ``q`` -> syntax tree -> SPARQL; patterns: regular expressions of bounded cost; parameters: all
  parameters of a query.
- graphs: where entities are in the dataset, as graph patterns; reading: queries with the caller's permissions; writing:
  entities as updates.
- door: paths; problems: errors.
"""

from lamplighter.gateway.gates.ngsild.door import NgsiLd

__all__ = ["NgsiLd"]
