"""The reference for inferred graphs: rules as CONSTRUCT queries, run by pyoxigraph until nothing changes.

Shares no code with the engine. The rules are those of OWL 2 Profiles, 4.3, tables 5, 7 and 9, that
docs/inference-shapes.md lists; cax-eqc and prp-eqp are among them, although the others imply them.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyoxigraph as ox

_PREFIXES = (
    "PREFIX rdf: <http://www.w3.org/1999/02/22-rdf-syntax-ns#> "
    "PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#> "
    "PREFIX owl: <http://www.w3.org/2002/07/owl#> "
)
RULES = {
    "cax-sco": "CONSTRUCT { ?x a ?d } WHERE { ?c rdfs:subClassOf ?d . ?x a ?c }",
    "scm-sco": "CONSTRUCT { ?c rdfs:subClassOf ?e } WHERE { ?c rdfs:subClassOf ?d . ?d rdfs:subClassOf ?e }",
    "cax-eqc1": "CONSTRUCT { ?x a ?d } WHERE { ?c owl:equivalentClass ?d . ?x a ?c }",
    "cax-eqc2": "CONSTRUCT { ?x a ?c } WHERE { ?c owl:equivalentClass ?d . ?x a ?d }",
    "scm-eqc1": "CONSTRUCT { ?c rdfs:subClassOf ?d . ?d rdfs:subClassOf ?c } WHERE { ?c owl:equivalentClass ?d }",
    "scm-eqc2": "CONSTRUCT { ?c owl:equivalentClass ?d } WHERE { ?c rdfs:subClassOf ?d . ?d rdfs:subClassOf ?c }",
    "prp-spo1": "CONSTRUCT { ?x ?q ?y } WHERE { ?p rdfs:subPropertyOf ?q . ?x ?p ?y }",
    "scm-spo": "CONSTRUCT { ?p rdfs:subPropertyOf ?r } WHERE { ?p rdfs:subPropertyOf ?q . ?q rdfs:subPropertyOf ?r }",
    "prp-eqp1": "CONSTRUCT { ?x ?q ?y } WHERE { ?p owl:equivalentProperty ?q . ?x ?p ?y }",
    "prp-eqp2": "CONSTRUCT { ?x ?p ?y } WHERE { ?p owl:equivalentProperty ?q . ?x ?q ?y }",
    "scm-eqp1": "CONSTRUCT { ?p rdfs:subPropertyOf ?q . ?q rdfs:subPropertyOf ?p } "
    "WHERE { ?p owl:equivalentProperty ?q }",
    "scm-eqp2": "CONSTRUCT { ?p owl:equivalentProperty ?q } "
    "WHERE { ?p rdfs:subPropertyOf ?q . ?q rdfs:subPropertyOf ?p }",
    "prp-dom": "CONSTRUCT { ?x a ?c } WHERE { ?p rdfs:domain ?c . ?x ?p ?y }",
    "prp-rng": "CONSTRUCT { ?y a ?c } WHERE { ?p rdfs:range ?c . ?x ?p ?y }",
    "prp-symp": "CONSTRUCT { ?y ?p ?x } WHERE { ?p a owl:SymmetricProperty . ?x ?p ?y }",
    "prp-trp": "CONSTRUCT { ?x ?p ?z } WHERE { ?p a owl:TransitiveProperty . ?x ?p ?y . ?y ?p ?z }",
    "prp-inv1": "CONSTRUCT { ?y ?q ?x } WHERE { ?p owl:inverseOf ?q . ?x ?p ?y }",
    "prp-inv2": "CONSTRUCT { ?y ?p ?x } WHERE { ?p owl:inverseOf ?q . ?x ?q ?y }",
}


def inferred(asserted: Iterable[ox.Triple]) -> set[ox.Triple]:
    """The triples that follow from others, and are not among them."""
    store = ox.Store()
    store.extend(ox.Quad(*triple) for triple in asserted)
    given = {quad.triple for quad in store}
    before = -1
    while len(store) != before:
        before = len(store)
        for rule in RULES.values():
            found = store.query(_PREFIXES + rule)
            assert isinstance(found, ox.QueryTriples)
            store.extend([ox.Quad(triple.subject, triple.predicate, triple.object) for triple in found])
    return {quad.triple for quad in store} - given
