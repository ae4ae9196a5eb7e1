"""The values of this package: shapes, their constraints and targets, and results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from lamplighter.engine.shacl.vocabulary import sh
from lamplighter.engine.sparql.paths import Path
from lamplighter.engine.terms import Term

VIOLATION = sh("Violation")
"""The severity of shapes that have no other one."""

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
