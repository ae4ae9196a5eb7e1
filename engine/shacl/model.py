"""The values of this package: shapes, their constraints and targets, and results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from lamplighter.engine.sparql.paths import Path
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

# "reject" or "mark", of a shape.
ON_VIOLATION = f"<{_GATEWAY}onViolation>"
# From a result to the node that was validated, which is its focus node unless a value node was.
TARGET_NODE = f"<{_GATEWAY}targetNode>"


def sh(name: str) -> Term:
    """The term of a local name of SHACL."""
    return f"<{SH}{name}>"


def local(term: Term) -> str:
    """The local name of a term of SHACL, the IRI of any other term."""
    return term[1:-1].removeprefix(SH)


# The two components of sh:qualifiedValueShape.
QUALIFIED_MIN, QUALIFIED_MAX = (sh(f"Qualified{kind}CountConstraintComponent") for kind in ("Min", "Max"))


# The severity of shapes that have no other one.
VIOLATION = sh("Violation")

Triple = tuple[Term, Term, Term]
Kind = Literal["class", "node", "subjects", "objects"]


class FocusTarget(NamedTuple):
    """What a shape is about. kind: instances of a class, one node, or subjects or objects of a property."""

    kind: Kind
    term: Term


class ShapeConstraint(NamedTuple):
    """One constraint. name: the local name of its parameter, such as ``minCount``; value: what reading made of it."""

    name: str
    value: Any

    @property
    def component(self) -> Term:
        """The constraint component (SHACL, 4)."""
        return sh(f"{self.name[0].upper()}{self.name[1:]}ConstraintComponent")


class Qualified(NamedTuple):
    """A sh:qualifiedValueShape. siblings: shapes whose nodes do not count, those of sh:qualifiedValueShapesDisjoint."""

    shape: ConstraintShape
    siblings: tuple[ConstraintShape, ...]
    least: int | None
    most: int | None


@dataclass(eq=False, slots=True)
class ConstraintShape:
    """A node shape, or a property shape with a path.

    name: its IRI, or one that follows from what a blank node says and from the shape around it, so that it is the same
    after each start. place: the IRI of this shape, or of the nearest one around it that has a name. path: as it is
    written; route: the same, as it is walked. rejects: whether it says itself that its violations refuse an update,
    None if it does not say.
    """

    name: Term
    place: Term
    path: Path | None = None
    route: Path | None = None
    targets: tuple[FocusTarget, ...] = ()
    constraints: tuple[ShapeConstraint, ...] = ()
    properties: tuple[ConstraintShape, ...] = ()
    severity: Term = VIOLATION
    messages: tuple[Term, ...] = ()
    rejects: bool | None = None


class Violation(NamedTuple):
    """A validation result (SHACL, 3.6.2). path: of the property shape, or what sh:closed does not allow."""

    shape: ConstraintShape
    focus: Term
    path: Path | None
    value: Term | None
    constraint: ShapeConstraint
    component: Term
