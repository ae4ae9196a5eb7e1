"""Where entities are in the dataset, as graph patterns about ``?e``.

Kept entities are in a graph of their own: ``?e a TYPE ; ATTRIBUTE ?n`` and ``?n a ngsi-ld:Property ; ngsi-ld:hasValue
VALUE``. Streams of the SOSA graph are entities without a copy: their newest result is a Property, and what they are
about are Relationships. What a stream is about stands on the stream itself (model "event") or on its live observation
(model "latest").
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final, Literal

from lamplighter.engine.terms import Term, iri
from lamplighter.gateway.gates.ngsild.information import KINDS, member_iri
from lamplighter.ontology import vocabulary as v

Member = Literal["value", "observedAt", "unitCode"]  # what a condition is about
RDF_TYPE: Final = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>"
KIND_TERMS: Final = {member_iri(kind): kind for kind in KINDS}
_KINDS: Final = ", ".join(KIND_TERMS)
_MEMBERS: Final = {
    "value": f"{member_iri('hasValue')}|{member_iri('hasObject')}",
    "observedAt": str(member_iri("observedAt")),
    "unitCode": str(member_iri("unitCode")),
}
_LIVE, _RESULT, _TIME = iri(v.LIVE_OBSERVATION), iri(v.HAS_SIMPLE_RESULT), iri(v.RESULT_TIME)
RESULT: Final = iri(v.HAS_SIMPLE_RESULT)
STREAM_TYPE: Final = iri(v.STREAM)
_ABOUT: Final = {
    iri(one): f"{iri(one)}|({_LIVE}/{iri(one)})"
    for one in (v.OBSERVED_PROPERTY, v.MADE_BY_SENSOR, v.HAS_FEATURE_OF_INTEREST)
}


def _newest(stream: str) -> tuple[str, str]:
    """The live observation with its ``?v`` and ``?t``: in the default graph, or the newest event."""
    found = f"{stream} {_LIVE} ?o . ?o {_RESULT} ?v"
    later = f"GRAPH ?h2 {{ {stream} {_LIVE} ?o2 . ?o2 {_TIME} ?t2 }}"
    return (
        f"{stream} a {STREAM_TYPE} . {found} OPTIONAL {{ ?o {_TIME} ?t }}",
        f"{stream} a {STREAM_TYPE} . GRAPH ?h {{ {found} . ?o {_TIME} ?t }} "
        # Two events of the same instant have to have one newest, or the entity had two values: the greater name
        # decides.
        f"FILTER NOT EXISTS {{ {later} FILTER(?t2 > ?t || (?t2 = ?t && STR(?o2) > STR(?o))) }}",
    )


class EntityGraphs:
    """The patterns. graph: of the kept entities."""

    def __init__(self, base_iri: str) -> None:
        self.graph: Term = iri(f"{base_iri}ngsi-ld")
        self._nodes = f"{base_iri}ngsi-ld/attribute/"

    def node(self, entity: Term, attribute: Term) -> Term:
        # Known from entity and attribute alone, so an update replaces a value without reading it first.
        return iri(self._nodes + hashlib.sha256(f"{entity} {attribute}".encode()).hexdigest()[:32])

    def entities(self, types: Collection[Term]) -> str:
        """All entities, or those of any of the types."""
        kept = f"GRAPH {self.graph} {{ ?e a ?type }} FILTER(?type NOT IN ({_KINDS}))"
        if types:
            kept += f" FILTER(?type IN ({', '.join(types)}))"
        # The second branch would look at all streams only to throw them away.
        if types and STREAM_TYPE not in types:
            return f"{kept} FILTER(ISIRI(?e))"
        return f"{{ {kept} }} UNION {{ ?e a {STREAM_TYPE} }} FILTER(ISIRI(?e))"

    def having(self, attributes: Collection[Term]) -> str:
        """A condition: the entity has one of the attributes."""
        listed = ", ".join(attributes)
        found = [
            f"EXISTS {{ GRAPH {self.graph} {{ ?e ?a ?n . ?n a ?k }} FILTER(?a IN ({listed}) && ?k IN ({_KINDS})) }}"
        ]
        if RESULT in attributes:
            found += [f"EXISTS {{ {one} }}" for one in _newest("?e")]
        about = [path for attribute, path in _ABOUT.items() if attribute in attributes]
        if about:
            found.append(f"EXISTS {{ ?e a {STREAM_TYPE} ; {'|'.join(about)} ?v }}")
        return " || ".join(found)

    def values(self, attribute: Term, member: Member, *, followed: bool = False) -> list[str]:
        """The patterns, any of which may find values ``?v`` of an attribute of ``?e``. followed: for the query of a
        subscription, whose plan needs patterns without alternatives; results that are events are not among them."""
        paths = _MEMBERS[member].split("|") if followed else [_MEMBERS[member]]
        found = [f"GRAPH {self.graph} {{ ?e {attribute} ?n . ?n {path} ?v }}" for path in paths]
        if attribute == RESULT and member != "unitCode":
            newest = _newest("?e")
            if member == "observedAt":
                newest = (
                    # The time is what is asked for, so it takes the name of the value. `?t2` before `?t`, which is a
                    # part of it.
                    newest[0].replace("?v", "?r").replace("?t", "?v"),
                    newest[1].replace("?v", "?r").replace("?t2", "?x").replace("?t", "?v"),
                )
            found += newest[:1] if followed else newest
        elif attribute in _ABOUT and member == "value":
            about = _ABOUT[attribute].split("|") if followed else [_ABOUT[attribute]]
            found += [f"?e a {STREAM_TYPE} ; {path} ?v" for path in about]
        return found

    def value_pattern(self, attribute: Term, suffix: str, kind: Term | None = None) -> str:
        """The values of an attribute: ?k ?v ?t ?code with a suffix. attribute: its IRI or a variable; kind: the type of
        the entities, which stands beside the other patterns, since a plan finds changes only there at once."""
        node, one = f"?n{suffix}", f"?e a {kind} ." if kind else ""
        return (
            f"GRAPH {self.graph} {{ {one} ?e {attribute} {node} . {node} a ?k{suffix} ; {_MEMBERS['value']} ?v{suffix} "
            f"OPTIONAL {{ {node} {_MEMBERS['observedAt']} ?t{suffix} }} "
            f"OPTIONAL {{ {node} {_MEMBERS['unitCode']} ?code{suffix} }} }} "
            f"FILTER(?k{suffix} IN ({_KINDS})) FILTER(ISIRI(?e))"
        )

    def followed_stream(self, suffix: str) -> str:
        """The live results of streams: ?v ?t ?unit ?code with a suffix."""
        observation = f"?n{suffix}"
        return (
            f"?e a {STREAM_TYPE} ; {_LIVE} {observation} . {observation} {_RESULT} ?v{suffix} "
            f"OPTIONAL {{ {observation} {_TIME} ?t{suffix} }} OPTIONAL {{ ?e {iri(v.HAS_UNIT)} ?unit{suffix} }} "
            f"OPTIONAL {{ ?e {iri(v.UNKNOWN_UNIT)} ?code{suffix} }} FILTER(ISIRI(?e))"
        )

    def type_pattern(self, variable: str, types: Collection[Term] = (), kind: Term | None = None) -> str:
        """The kept entities with the types that they have, or with those of these. kind: as in `value_pattern`."""
        test = f"{variable} IN ({', '.join(types)})" if types else f"{variable} NOT IN ({_KINDS})"
        one = f"?e a {kind} ." if kind else ""
        return f"GRAPH {self.graph} {{ {one} ?e a {variable} }} FILTER({test}) FILTER(ISIRI(?e))"

    def parts(self, entities: Collection[Term]) -> str:
        """A query for what entities consist of: rows of ?e ?p ?v, and ?kind ?t ?unit ?code of attributes."""
        values = f"VALUES ?e {{ {' '.join(entities)} }}"
        here, events = _newest("?e")
        code = f"OPTIONAL {{ ?e {iri(v.HAS_UNIT)} ?unit }} OPTIONAL {{ ?e {iri(v.UNKNOWN_UNIT)} ?code }}"
        branches = [
            f"{values} GRAPH {self.graph} {{ ?e a ?v }} BIND({RDF_TYPE} AS ?p)",
            f"{values} GRAPH {self.graph} {{ ?e ?p ?n . ?n a ?kind ; {_MEMBERS['value']} ?v "
            f"OPTIONAL {{ ?n {_MEMBERS['observedAt']} ?t }} OPTIONAL {{ ?n {_MEMBERS['unitCode']} ?code }} "
            f"FILTER(?kind IN ({_KINDS})) }}",
            f"{values} ?e a {STREAM_TYPE} BIND({STREAM_TYPE} AS ?v) BIND({RDF_TYPE} AS ?p)",
            f"{values} {here} {code} BIND({RESULT} AS ?p) BIND({member_iri('Property')} AS ?kind)",
            f"{values} {events} {code} BIND({RESULT} AS ?p) BIND({member_iri('Property')} AS ?kind)",
            *(
                f"{values} ?e a {STREAM_TYPE} ; {path} ?v BIND({attribute} AS ?p) "
                f"BIND({member_iri('Relationship')} AS ?kind)"
                for attribute, path in _ABOUT.items()
            ),
        ]
        return f"SELECT ?e ?p ?v ?kind ?t ?unit ?code {{ {{ {' } UNION { '.join(branches)} }} }}"

    def types(self) -> str:
        """A query for the types that entities have: rows of ?type."""
        streams = f"{{ ?e a {STREAM_TYPE} BIND({STREAM_TYPE} AS ?type) }}"
        return (
            f"SELECT DISTINCT ?type {{ {{ GRAPH {self.graph} {{ ?e a ?type }} FILTER(?type NOT IN ({_KINDS})) }} "
            f"UNION {streams} }} ORDER BY ?type LIMIT 1001"
        )

    def attributes_query(self, entity: Term) -> str:
        """A query for the attributes of a kept entity, with their kinds: rows of ?p ?kind; and whether it is a stream:
        a row in which ?kind is its type."""
        return (
            f"SELECT ?p ?kind {{ {{ GRAPH {self.graph} {{ {entity} ?p ?n OPTIONAL {{ ?n a ?kind }} }} }} UNION "
            f"{{ {entity} a {STREAM_TYPE} BIND({RDF_TYPE} AS ?p) BIND({STREAM_TYPE} AS ?kind) }} }}"
        )
