"""Property paths of shapes: their text, their inverse, and what they consist of (SHACL, 2.3.1).

The trees are those of `engine.sparql.paths`, with terms for steps. What is walked is `normal`: it has inverses at steps
only.
"""

from __future__ import annotations

from collections.abc import Iterator

from lamplighter.engine.sparql.paths import Path, PathAlternative, PathInverse, PathRepeated, PathSequence, PathStep
from lamplighter.engine.terms import Term


def step_of(path: Path) -> tuple[Term, bool] | None:
    """(predicate, whether it is followed from object to subject) of a path of one step, None for any other."""
    match path:
        case PathStep(str() as predicate):
            return predicate, False
        case PathInverse(PathStep(str() as predicate)):
            return predicate, True
    return None


def normal(path: Path) -> Path:
    """The same path with inverses at steps only."""
    match path:
        case PathInverse(inner):
            return inverse(normal(inner))
        case PathSequence(parts):
            return PathSequence(tuple(map(normal, parts)))
        case PathAlternative(parts):
            return PathAlternative(tuple(map(normal, parts)))
        case PathRepeated(inner, zero, repeated):
            return PathRepeated(normal(inner), zero, repeated)
    return path


def inverse(path: Path) -> Path:
    """The path that leads back, for one with inverses at steps only."""
    match path:
        case PathStep():
            return PathInverse(path)
        case PathInverse(inner):
            return inner
        case PathSequence(parts):
            return PathSequence(tuple(inverse(part) for part in reversed(parts)))
        case PathAlternative(parts):
            return PathAlternative(tuple(inverse(part) for part in parts))
        case PathRepeated(inner, zero, repeated):
            return PathRepeated(inverse(inner), zero, repeated)
    raise AssertionError(path)


def concatenate(prefix: Path | None, path: Path) -> Path:
    """The path that follows one and then the other. prefix: None for no step."""
    return path if prefix is None else PathSequence((*_parts(prefix), *_parts(path)))


def _parts(path: Path) -> tuple[Path, ...]:
    return path.parts if isinstance(path, PathSequence) else (path,)


def size_of(path: Path) -> int:
    """How many steps a path has."""
    match path:
        case PathInverse(inner) | PathRepeated(inner, _, _):
            return size_of(inner)
        case PathSequence(parts) | PathAlternative(parts):
            return sum(map(size_of, parts))
    return 1


def occurrences(path: Path, prefix: Path | None) -> Iterator[tuple[Term, bool, Path | None]]:
    """For each step of a path: its predicate, whether it is followed backwards, and the path that leads to it.

    prefix: the path that leads to the first step, None for no step.
    """
    step = step_of(path)
    if step is not None:
        yield *step, prefix
        return
    match path:
        case PathSequence(parts):
            for part in parts:
                yield from occurrences(part, prefix)
                prefix = concatenate(prefix, part)
        case PathAlternative(parts):
            for part in parts:
                yield from occurrences(part, prefix)
        case PathRepeated(inner, _, repeated):
            yield from occurrences(inner, concatenate(prefix, PathRepeated(inner, True, True)) if repeated else prefix)


def text_of(path: Path) -> str:
    """The path in SPARQL's syntax."""
    match path:
        case PathStep(predicate):
            return str(predicate)
        case PathInverse(inner):
            return f"^{text_of(inner)}"
        case PathSequence(parts):
            return f"({'/'.join(map(text_of, parts))})"
        case PathAlternative(parts):
            return f"({'|'.join(map(text_of, parts))})"
        case PathRepeated(inner, zero, repeated):
            return f"{text_of(inner)}{('*' if zero else '+') if repeated else '?'}"
    raise AssertionError(path)
