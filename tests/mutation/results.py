"""The results of a mutation run: their file, and what is said about them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.mutation import rooms
from tests.mutation.mutants import Identity, Mutant

KILLED = ("killed", "timed out")
"""The states of a mutant that the tests notice."""
STATES = (*KILLED, "survived", "not covered", "gone", "open")


@dataclass
class Result:
    """What the tests make of a mutant.

    state: one of `STATES`; gone: the code no longer has its place; open: not judged yet. test: the one that fails or
    exceeds its limit. checked: whether that test passes without the mutant. covering: how many tests run the line.
    run: the tests that a survivor has passed.
    """

    identity: Identity
    line: int = 0
    before: str = ""
    after: str = ""
    state: str = ""
    test: str = ""
    message: str = ""
    checked: bool = False
    seconds: float = 0.0
    covering: int = 0
    run: list[str] = field(default_factory=list)


def result(identity: Identity, mutant: Mutant | None) -> Result:
    """The result before any test has run."""
    if mutant is None:
        return Result(identity, state="gone")
    return Result(identity, mutant.lines[0], mutant.before, mutant.after)


def write(path: Path, results: list[Result]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps([asdict(item) | {"identity": item.identity} for item in results], indent=0))
    part.replace(path)


def read(path: Path) -> list[Result]:
    return [Result(**item | {"identity": Identity(*item["identity"])}) for item in json.loads(path.read_text())]


def table(results: list[Result]) -> Iterator[str]:
    """Lines with the number of mutants of each room, by their states."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    names = {rooms.place(file): name for name, file in rooms.files()}
    for item in results:
        for name in (names.get(item.identity.path, "gone"), "total"):
            counts[name][item.state] += 1
    yield f"{'room':<20}{'mutants':>9}" + "".join(f"{state:>13}" for state in STATES)
    for name in (*rooms.ROOMS, "gone", "total"):
        if count := counts[name]:
            yield f"{name:<20}{count.total():>9}" + "".join(f"{count[state]:>13}" for state in STATES)


def listed(number: int, item: Result) -> str:
    """A mutant for the reader, with its number in the sample."""
    name = item.identity
    return (
        f"{number:>4}  {name.path}:{item.line} {name.function}: {name.kind} ({item.state}, {item.covering} tests)\n"
        f"      {item.before}\n   -> {item.after}"
    )


def revived(before: list[Result], after: list[Result]) -> list[int]:
    """The numbers of the mutants that died before and live now."""
    states = {item.identity: item.state for item in before}
    return [
        number
        for number, item in enumerate(after)
        if states.get(item.identity) in KILLED and item.state not in (*KILLED, "gone")
    ]
