"""The terms of SHACL and of RDF that shapes are written with."""

from __future__ import annotations

from lamplighter.engine.terms import Term

_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_RDFS = "http://www.w3.org/2000/01/rdf-schema#"
_GATEWAY = "http://lamplighter.example/ns/gateway#"
SH = "http://www.w3.org/ns/shacl#"

TYPE = f"<{_RDF}type>"
FIRST, REST, NIL = f"<{_RDF}first>", f"<{_RDF}rest>", f"<{_RDF}nil>"
LANG_STRING = f"<{_RDF}langString>"
SUB_CLASS = f"<{_RDFS}subClassOf>"
CLASS = f"<{_RDFS}Class>"

ON_VIOLATION = f"<{_GATEWAY}onViolation>"
""""reject" or "mark", of a shape."""
TARGET_NODE = f"<{_GATEWAY}targetNode>"
"""From a result to the node that was validated, which is its focus node unless a value node was."""


def sh(name: str) -> Term:
    """The term of a local name of SHACL."""
    return f"<{SH}{name}>"


def local(term: Term) -> str:
    """The local name of a term of SHACL, the IRI of any other term."""
    return term[1:-1].removeprefix(SH)


QUALIFIED_MIN, QUALIFIED_MAX = (sh(f"Qualified{kind}CountConstraintComponent") for kind in ("Min", "Max"))
"""The two components of sh:qualifiedValueShape."""
