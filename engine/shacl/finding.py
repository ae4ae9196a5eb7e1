"""Finding: the focus nodes that quads concern, and the violations of nodes in the state of the CTS."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.shacl.compiling import CompiledShapes, Found, RootShape
from lamplighter.engine.shacl.model import ConstraintShape, Violation, sh
from lamplighter.engine.shacl.sources import ShapeSources
from lamplighter.engine.terms import Quad, Term

# (target node, violation) -> whether it refuses an update.
Violations = dict[tuple[Term, Violation], bool]
_MARKS = (sh("Warning"), sh("Info"))


class Touched(dict[tuple[RootShape, Term], set[int] | None]):
    """(root, node) -> the parts of the root whose violations of the node may have changed, None for all."""


class ViolationFinder:
    """Finds violations of some shapes. quads_max: how many may be found at once. Its methods raise TooMuchWork."""

    def __init__(self, shapes: CompiledShapes, sources: ShapeSources, quads_max: int) -> None:
        self.shapes = shapes
        self._sources = sources
        self._quads_max = quads_max
        self._meter = shapes.data.meter

    def targets(self, quads: Sequence[Quad]) -> set[tuple[RootShape, Term]]:
        """The focus nodes of now that these quads would make focus nodes."""
        triggers = self.shapes.triggers
        return {
            (root, node)
            for s, p, o, _ in quads
            for at_object, back, targets, _ in triggers.get(p, ())
            if back is None
            for root in targets
            if root.is_target(node := o if at_object else s)
        }

    def touch(self, quads: Sequence[Quad], touched: Touched, known: Container[tuple[RootShape, Term]] | None) -> None:
        """Adds the focus nodes that quads concern, with the parts of the roots. Paths lead back as they are now.

        known: the focus nodes before quads were added; None for quads that are removed, which make none.
        """
        triggers, any_, meter = self.shapes.triggers, self.shapes.any, self._meter
        for s, p, o, _ in quads:
            found = triggers.get(p, ())
            for at_object, back, targets, roots in (*found, *any_) if any_ else found:
                node = o if at_object else s
                nodes = (node,) if back is None else back(node)
                meter.left -= 5 * len(nodes) * (len(roots) + len(targets))
                if meter.left < 0:
                    meter.more()
                for focus in nodes:
                    for root in targets:
                        key = root, focus
                        if known is None or key in known:
                            touched.setdefault(key, set())
                        else:
                            touched[key] = None
                    for root, numbers in roots:
                        key = root, focus
                        if key not in touched:
                            touched[key] = set(numbers)
                        else:
                            parts = touched[key]
                            if parts is not None:
                                parts.update(numbers)

    def suspects(self, touched: Touched, marked: Container[Term] | None) -> list[Term]:
        """The nodes that have a violation now, or had one. marked: those that had one."""
        found: Found = []
        suspects: dict[Term, None] = {}
        meter = self._meter
        for (root, node), numbers in touched.items():
            if node in suspects:
                continue
            if marked is not None and node in marked:
                suspects[node] = None
                continue
            if root.is_target(node):
                parts = root.parts
                for number in range(len(parts)) if numbers is None else numbers:
                    parts[number](node, found)
                if found:
                    suspects[node] = None
                    found.clear()
            meter.left -= 5
            if meter.left < 0:
                meter.more()
        return list(suspects)

    def violations(self, nodes: Iterable[Term]) -> Violations:
        """All violations of some nodes. Raises LimitExceededError."""
        violations: Violations = {}
        found: Found = []
        for node in nodes:
            for root in self.shapes.roots:
                if root.is_target(node):
                    for part in root.parts:
                        part(node, found)
                    self._note(root, node, found, violations)
        return violations

    def all(self) -> Violations:
        """The violations of all focus nodes. Raises LimitExceededError."""
        violations: Violations = {}
        found: Found = []
        for root in self.shapes.roots:
            for node in dict.fromkeys(root.targets()):
                for part in root.parts:
                    part(node, found)
                self._note(root, node, found, violations)
        return violations

    def _note(self, root: RootShape, node: Term, found: Found, violations: Violations) -> None:
        for violation in found:
            key = node, violation
            violations[key] = violations.get(key, False) or self._rejects(root.shape, violation.shape)
        found.clear()
        if len(violations) > self._quads_max:
            raise too_many(self._quads_max)

    def _rejects(self, root: ConstraintShape, shape: ConstraintShape) -> bool:
        """Whether a violation refuses an update: what the shape says, else its severity, else what its root says."""
        if shape.rejects is not None:
            return shape.rejects
        if shape.severity in _MARKS:
            return False
        return self._sources.rejects if root.rejects is None else root.rejects


def too_many(quads_max: int) -> LimitExceededError:
    """The error for more violations than may be recorded at once."""
    return LimitExceededError(
        f"the shapes find more violations than limits.delta_quads_max = {quads_max} allows to record at once; correct "
        "the shapes, or send the update in parts"
    )
