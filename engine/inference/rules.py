"""The rules: what follows from a triple in one step, and whether a triple follows in one step.

A core of OWL 2 RL/RDF (W3C, OWL 2 Profiles, 4.3), whose names of rules are in the comments:

===================  ===========================================================================
rdfs:subClassOf      cax-sco, scm-sco
rdfs:subPropertyOf   prp-spo1, scm-spo
rdfs:domain, range   prp-dom, prp-rng
owl:inverseOf        prp-inv1, prp-inv2
symmetric            prp-symp, for instances of owl:SymmetricProperty
transitive           prp-trp, for instances of owl:TransitiveProperty
equivalent           scm-eqc1, scm-eqc2, scm-eqp1, scm-eqp2; with cax-sco and prp-spo1 also cax-eqc and prp-eqp
===================  ===========================================================================

The rules hold for all triples alike: a subproperty of rdfs:subClassOf, say, makes subclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from lamplighter.engine.terms import Term
from lamplighter.engine.work import STEP, Meter

_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_RDFS = "http://www.w3.org/2000/01/rdf-schema#"
_OWL = "http://www.w3.org/2002/07/owl#"

TYPE = f"<{_RDF}type>"
SUB_CLASS = f"<{_RDFS}subClassOf>"
SUB_PROPERTY = f"<{_RDFS}subPropertyOf>"
DOMAIN = f"<{_RDFS}domain>"
RANGE = f"<{_RDFS}range>"
INVERSE = f"<{_OWL}inverseOf>"
EQUIVALENT_CLASS = f"<{_OWL}equivalentClass>"
EQUIVALENT_PROPERTY = f"<{_OWL}equivalentProperty>"
SYMMETRIC = f"<{_OWL}SymmetricProperty>"
TRANSITIVE = f"<{_OWL}TransitiveProperty>"

# The predicates that rules name.
VOCABULARY = (TYPE, SUB_CLASS, SUB_PROPERTY, DOMAIN, RANGE, INVERSE, EQUIVALENT_CLASS, EQUIVALENT_PROPERTY)

# Units of work of a fact that is looked at in the search for a rule.
LOOKED_AT = 3 * STEP

Triple = tuple[Term, Term, Term]


class Facts(Protocol):
    """The triples that count. Each answer is a copy, so that triples may be added while it is read."""

    def objects(self, s: Term, p: Term) -> tuple[Term, ...]: ...

    def subjects(self, p: Term, o: Term) -> tuple[Term, ...]: ...

    def pairs(self, p: Term) -> list[tuple[Term, Term]]:
        """(subject, object) of each triple with a predicate."""
        ...

    def has(self, s: Term, p: Term, o: Term) -> bool: ...

    def has_object(self, s: Term, p: Term) -> bool: ...

    def has_subject(self, p: Term, o: Term) -> bool: ...


class Property:
    """The facts about a property. empty: there are none."""

    __slots__ = ("domains", "empty", "inverses", "ranges", "supers", "symmetric", "transitive")

    def __init__(self, facts: Facts, p: Term) -> None:
        self.supers = facts.objects(p, SUB_PROPERTY)
        self.inverses = tuple(dict.fromkeys((*facts.objects(p, INVERSE), *facts.subjects(INVERSE, p))))
        self.domains = facts.objects(p, DOMAIN)
        self.ranges = facts.objects(p, RANGE)
        self.symmetric = facts.has(p, TYPE, SYMMETRIC)
        self.transitive = p in (SUB_CLASS, SUB_PROPERTY) or facts.has(p, TYPE, TRANSITIVE)  # scm-sco, scm-spo
        self.empty = not (
            self.supers or self.inverses or self.domains or self.ranges or self.symmetric or self.transitive
        )


def consequences(facts: Facts, about: Property, triple: Triple) -> Iterator[Triple]:
    """The triples that follow in one step from a triple of the facts, together with others of them, but for `classes`.

    about: what the facts say about its predicate. Some come more than once, and some are no RDF: `is_triple` tells.
    """
    s, p, o = triple
    if not about.empty:
        for q in about.supers:  # prp-spo1
            yield s, q, o
        for q in about.inverses:  # prp-inv1, prp-inv2
            yield o, q, s
        if about.symmetric:  # prp-symp
            yield o, p, s
        if about.transitive:  # prp-trp, scm-sco, scm-spo
            for end in facts.objects(o, p):
                yield s, p, end
            for start in facts.subjects(p, s):
                yield start, p, o
        for c in about.domains:  # prp-dom
            yield s, TYPE, c
        for c in about.ranges:  # prp-rng
            yield o, TYPE, c
    schema = _SCHEMA.get(p)
    if schema is not None:
        yield from schema(facts, s, o)


def classes(facts: Facts, triple: Triple) -> Iterator[Triple]:
    """The triples that follow in one step from a triple by cax-sco: an instance of a class is one of its superclasses.

    It need not be repeated for the triples that it gives.
    """
    # Since the subclasses are transitive (scm-sco), all superclasses are found in this step.
    s, p, o = triple
    if p == TYPE:
        for c in facts.objects(o, SUB_CLASS):
            yield s, TYPE, c
    elif p == SUB_CLASS:
        for x in facts.subjects(TYPE, s):
            yield x, TYPE, o


def is_supported(facts: Facts, about: Property, triple: Triple, meter: Meter) -> bool:
    """Whether a triple that is not among the facts follows from them in one step. about: as in `consequences`; meter:
    counts the facts that are looked at. Raises TooMuchWork."""
    s, p, o = triple

    def each(terms: tuple[Term, ...]) -> tuple[Term, ...]:
        meter.take(LOOKED_AT * len(terms))
        return terms

    if any(facts.has(s, q, o) for q in each(facts.subjects(SUB_PROPERTY, p))):
        return True
    if any(facts.has(o, q, s) for q in about.inverses):
        return True
    if about.symmetric and facts.has(o, p, s):
        return True
    if about.transitive and any(facts.has(middle, p, o) for middle in each(facts.objects(s, p))):
        return True
    if p == TYPE:
        return (
            any(facts.has(c, SUB_CLASS, o) for c in each(facts.objects(s, TYPE)))
            or any(facts.has_object(s, q) for q in each(facts.subjects(DOMAIN, o)))
            or any(facts.has_subject(q, s) for q in each(facts.subjects(RANGE, o)))
        )
    mutual = _MUTUAL.get(p)
    if mutual is not None:  # scm-eqc2, scm-eqp2
        return facts.has(s, mutual, o) and facts.has(o, mutual, s)
    equal = _EQUAL.get(p)
    return equal is not None and (facts.has(s, equal, o) or facts.has(o, equal, s))  # scm-eqc1, scm-eqp1


def is_triple(triple: Triple) -> bool:
    """Whether a consequence is RDF: its subject is an IRI or a blank node, its predicate an IRI."""
    s, p, _ = triple
    return s[0] in "<_" and s[1] != "<" and is_property(p)


def is_property(term: Term) -> bool:
    """Whether a term can be a predicate: an IRI, and no triple term."""
    return term[0] == "<" and term[1] != "<"


def is_schema(triple: Triple) -> bool:
    """Whether a triple says something about properties or classes that the rules use."""
    _, p, o = triple
    return p in _SCHEMA and (p != TYPE or o in (SYMMETRIC, TRANSITIVE))


def mentioned_properties(triple: Triple) -> tuple[Term, ...]:
    """The properties whose triples a triple of the schema makes premises or consequences of rules."""
    s, p, o = triple
    if p in (SUB_PROPERTY, INVERSE, EQUIVALENT_PROPERTY):
        return s, o
    return (s,) if p in (DOMAIN, RANGE, TYPE) else ()


# --- triples of the schema: what they make of the triples that are there ---


def _type(facts: Facts, s: Term, o: Term) -> Iterator[Triple]:
    if o == SYMMETRIC:  # prp-symp
        for x, y in facts.pairs(s):
            yield y, s, x
    elif o == TRANSITIVE:  # prp-trp
        for x, y in facts.pairs(s):
            for end in facts.objects(y, s):
                yield x, s, end


def _sub_class(facts: Facts, s: Term, o: Term) -> Iterator[Triple]:
    if facts.has(o, SUB_CLASS, s):  # scm-eqc2
        yield s, EQUIVALENT_CLASS, o
        yield o, EQUIVALENT_CLASS, s


def _sub_property(facts: Facts, s: Term, o: Term) -> Iterator[Triple]:
    for x, y in facts.pairs(s):  # prp-spo1
        yield x, o, y
    if facts.has(o, SUB_PROPERTY, s):  # scm-eqp2
        yield s, EQUIVALENT_PROPERTY, o
        yield o, EQUIVALENT_PROPERTY, s


def _domain(facts: Facts, s: Term, o: Term) -> Iterator[Triple]:
    for x, _ in facts.pairs(s):  # prp-dom
        yield x, TYPE, o


def _range(facts: Facts, s: Term, o: Term) -> Iterator[Triple]:
    for _, y in facts.pairs(s):  # prp-rng
        yield y, TYPE, o


def _inverse(facts: Facts, s: Term, o: Term) -> Iterator[Triple]:
    for x, y in facts.pairs(s):  # prp-inv1
        yield y, o, x
    for x, y in facts.pairs(o):  # prp-inv2
        yield y, s, x


def _equivalent_class(facts: Facts, s: Term, o: Term) -> Iterator[Triple]:
    yield s, SUB_CLASS, o  # scm-eqc1
    yield o, SUB_CLASS, s


def _equivalent_property(facts: Facts, s: Term, o: Term) -> Iterator[Triple]:
    yield s, SUB_PROPERTY, o  # scm-eqp1
    yield o, SUB_PROPERTY, s


_SCHEMA: dict[Term, Callable[[Facts, Term, Term], Iterator[Triple]]] = {
    TYPE: _type,
    SUB_CLASS: _sub_class,
    SUB_PROPERTY: _sub_property,
    DOMAIN: _domain,
    RANGE: _range,
    INVERSE: _inverse,
    EQUIVALENT_CLASS: _equivalent_class,
    EQUIVALENT_PROPERTY: _equivalent_property,
}
_MUTUAL = {EQUIVALENT_CLASS: SUB_CLASS, EQUIVALENT_PROPERTY: SUB_PROPERTY}
_EQUAL = {sub: equal for equal, sub in _MUTUAL.items()}
