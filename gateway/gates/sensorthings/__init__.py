"""OGC SensorThings API 1.1 (OGC 18-088): the SOSA graph as Things, Datastreams and Observations, without a copy.

- tokens, expressions: text of ``$filter`` and ``$orderby`` -> syntax tree; options: all query options; addresses:
  resource paths; ids: IRIs <-> ids.
- entities: the entity types as graph patterns, and the JSON of each; geometry: positions as GeoJSON.
- patterns, compilation, queries: syntax trees -> SPARQL; reading: runs it with the caller's permissions.
- creation: new Observations as updates; notices: Observations published over MQTT; retained: which of them the broker
  keeps.
- api: paths and errors.
"""

from lamplighter.gateway.gates.sensorthings.api import SensorThings

__all__ = ["SensorThings"]
