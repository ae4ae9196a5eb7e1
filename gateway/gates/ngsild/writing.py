"""Changes of entities as SPARQL updates (5.6). Terms are made by `engine.terms`, so no value leaves its place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lamplighter.engine.terms import Term, iri, literal
from lamplighter.gateway.gates.ngsild.graphs import KIND_TERMS, EntityGraphs
from lamplighter.gateway.gates.ngsild.information import Attribute, Fragment, member_iri

_KINDS = ", ".join(KIND_TERMS)


class EntityUpdates:
    def __init__(self, graphs: EntityGraphs, entity: Term) -> None:
        self._graphs = graphs
        self._graph = graphs.graph
        self._entity = entity

    def create(self, types: Collection[str], attributes: Mapping[str, Attribute]) -> str:
        """Changes nothing where the entity exists."""
        triples = [self._type(one) for one in types]
        triples += [self._attribute(iri(name), one) for name, one in attributes.items()]
        return (
            f"INSERT {{ GRAPH {self._graph} {{ {' '.join(triples)} }} }} "
            f"WHERE {{ FILTER NOT EXISTS {{ GRAPH {self._graph} {{ {self._entity} ?p ?o }} }} }}"
        )

    def put(self, attributes: Mapping[str, Attribute | None], types: Iterable[str] = ()) -> str:
        """Replaces or adds attributes, None removes one, and adds types; nothing where there is no such entity."""
        texts = [
            f"INSERT {{ GRAPH {self._graph} {{ {self._type(one)} }} }} "
            f"WHERE {{ GRAPH {self._graph} {{ {self._entity} a ?t }} }}"
            for one in types
        ]
        for name, one in attributes.items():
            term = iri(name)
            pattern = f"{self._entity} {term} ?n . ?n ?p ?o"
            if one is None:
                texts.append(f"DELETE WHERE {{ GRAPH {self._graph} {{ {pattern} }} }}")
                continue
            texts.append(
                f"DELETE {{ GRAPH {self._graph} {{ {pattern} }} }} "
                f"INSERT {{ GRAPH {self._graph} {{ {self._attribute(term, one)} }} }} "
                f"WHERE {{ GRAPH {self._graph} {{ {self._entity} a ?t OPTIONAL {{ {pattern} }} }} }}"
            )
        return " ;\n".join(texts)

    def merge(self, name: Term, fragment: Fragment) -> str:
        """Replaces members of an attribute's value that is there."""
        members: list[tuple[str, Term | None]] = []
        if fragment.value is not None:
            members.append(("hasObject" if fragment.kind == "Relationship" else "hasValue", fragment.value))
        if fragment.observed_at is not None:
            members.append(("observedAt", fragment.observed_at or None))
        if fragment.unit_code is not None:
            members.append(("unitCode", literal(fragment.unit_code) if fragment.unit_code else None))
        texts = []
        for member, value in members:
            old = f"?n {member_iri(member)} ?o"
            inserted = (
                "" if value is None else f"INSERT {{ GRAPH {self._graph} {{ ?n {member_iri(member)} {value} }} }} "
            )
            texts.append(
                f"DELETE {{ GRAPH {self._graph} {{ {old} }} }} {inserted}"
                f"WHERE {{ GRAPH {self._graph} {{ {self._entity} {name} ?n OPTIONAL {{ {old} }} }} }}"
            )
        return " ;\n".join(texts)

    def delete(self) -> str:
        graph, entity = self._graph, self._entity
        return (
            f"DELETE {{ GRAPH {graph} {{ ?n ?q ?v }} }} WHERE {{ GRAPH {graph} {{ {entity} ?p ?n . ?n a ?k ; ?q ?v }} "
            f"FILTER(?k IN ({_KINDS})) }} ;\nDELETE WHERE {{ GRAPH {graph} {{ {entity} ?p ?o }} }}"
        )

    def _type(self, name: str) -> str:
        return f"{self._entity} a {iri(name)} ."

    def _attribute(self, name: Term, found: Attribute) -> str:
        node = self._graphs.node(self._entity, name)
        member = member_iri("hasObject" if found.kind == "Relationship" else "hasValue")
        text = f"{self._entity} {name} {node} . {node} a {member_iri(found.kind)} ; {member} {found.value}"
        if found.observed_at is not None:
            text += f" ; {member_iri('observedAt')} {found.observed_at}"
        if found.unit_code is not None:
            text += f" ; {member_iri('unitCode')} {literal(found.unit_code)}"
        return f"{text} ."
