"""Property paths: the tree of a path, and what is known of a path of variable length (SPARQL 1.1 Query, 9 and 18.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lamplighter.engine.sparql.algebra import Hops, Part


@dataclass(frozen=True)
class PathStep:
    part: Part


@dataclass(frozen=True)
class PathInverse:
    path: Path


@dataclass(frozen=True)
class PathSequence:
    parts: tuple[Path, ...]


@dataclass(frozen=True)
class PathAlternative:
    parts: tuple[Path, ...]


@dataclass(frozen=True)
class PathRepeated:
    """A path with ``*`` (zero_length, repeated), ``+`` (repeated) or ``?`` (zero_length)."""

    path: Path
    zero_length: bool
    repeated: bool


@dataclass(frozen=True)
class PathNegated:
    """A negated property set."""


Path = PathStep | PathInverse | PathSequence | PathAlternative | PathRepeated | PathNegated


def steps_of(path: Path) -> Iterator[Part | None]:
    """The predicates that a path may follow, None for any."""
    match path:
        case PathStep(step):
            yield step
        case PathInverse(inner) | PathRepeated(inner, _, _):
            yield from steps_of(inner)
        case PathSequence(parts) | PathAlternative(parts):
            for part in parts:
                yield from steps_of(part)
        case PathNegated():
            yield None


def zero_length(path: Path) -> bool:
    """Whether a path joins a node to itself without following a quad."""
    match path:
        case PathRepeated(inner, zero, _):
            return zero or zero_length(inner)
        case PathInverse(inner):
            return zero_length(inner)
        case PathSequence(parts):
            return all(zero_length(part) for part in parts)
        case PathAlternative(parts):
            return any(zero_length(part) for part in parts)
    return False


def hops_of(path: Path) -> Hops | None:
    """The hops of a path that is one hop, or repetitions of one hop; None for a path that is neither.

    Within a repetition, inner repetitions make no difference: ``(p|q+)*`` is ``(p|q)*``.
    """
    match path:
        case PathInverse(inner):
            found = hops_of(inner)
            return None if found is None else _invert(found)
        case PathRepeated(inner, zero, repeated):
            found = _hop(inner) if repeated else hops_of(inner)
            if found is None:
                return None
            return Hops(found.steps, zero or found.zero_length, repeated or found.repeated)
    found = _hop(path)
    return None if found is None or found.repeated else found


def _hop(path: Path) -> Hops | None:
    """The hops of which a path may consist. repeated: whether it may consist of several."""
    match path:
        case PathStep(part):
            return Hops(((part, False),), zero_length=False, repeated=False)
        case PathInverse(inner):
            found = _hop(inner)
            return None if found is None else _invert(found)
        case PathRepeated(inner, zero, repeated):
            found = _hop(inner)
            return None if found is None else Hops(found.steps, zero or found.zero_length, repeated or found.repeated)
        case PathAlternative(parts):
            every = [_hop(part) for part in parts]
            known = [found for found in every if found is not None]
            if len(known) < len(every):
                return None
            steps = dict.fromkeys(step for found in known for step in found.steps)
            return Hops(tuple(steps), any(found.zero_length for found in known), any(found.repeated for found in known))
    return None


def _invert(hops: Hops) -> Hops:
    return Hops(tuple((part, not inverse) for part, inverse in hops.steps), hops.zero_length, hops.repeated)
