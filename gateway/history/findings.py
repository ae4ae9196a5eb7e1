"""What a verification finds: problems with their cures, and facts that are no problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from lamplighter.engine.change_log import Record
from lamplighter.gateway.log.damage import AcceptedProblem
from lamplighter.gateway.log.snapshots import Place

Progress = Callable[[str, int, int], None]  # called with the next file, the bytes read, and the bytes of all files

MAKE_A_BACKUP = "make a backup (`lamplighter backup FILE`), because the card may be failing"
LOST = f"restore the shipped copy, if there is one, and {MAKE_A_BACKUP}"
UNSEALED = f"the records are in the segment; {MAKE_A_BACKUP}"


@dataclass(frozen=True)
class DataProblem:
    """A problem. place: the position in the file, or the records."""

    path: Path
    place: str
    what: str
    cure: str

    @property
    def is_lasting(self) -> bool:
        """Whether it may stay for ever, since nothing on this machine can mend it; an operator may accept it."""
        return self.cure in (LOST, UNSEALED)

    def __str__(self) -> str:
        return f"{self.path}: {self.place}{': ' if self.place else ''}{self.what}; {self.cure}"


@dataclass
class Report:
    """The result. notes: facts that are no problem, such as gap records; accepted_problems: those that are found again
    and an operator has accepted, which are no problems any more."""

    gateway: str = ""
    segments: int = 0
    sealed: int = 0
    records: int = 0
    first: Place | None = None
    last: Place | None = None
    snapshots: list[Place] = field(default_factory=list)
    quads: int = 0
    replayed: int = 0
    problems: list[DataProblem] = field(default_factory=list)
    accepted_problems: list[AcceptedProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def members(self) -> dict[str, Any]:
        """For JSON; problems as texts."""
        accepted = msgspec.to_builtins(self.accepted_problems)
        return {**vars(self), "problems": list(map(str, self.problems)), "accepted_problems": accepted}


class Findings:
    """Collects the report, and tells the progress. total: bytes of all files that will be read."""

    def __init__(self, data: Path, progress: Progress) -> None:
        self.report = Report()
        self.total = 0
        self._data = data
        self._progress = progress
        self._done = 0

    def problem(self, path: Path, place: str, what: str, cure: str) -> None:
        self.report.problems.append(DataProblem(path, place, what, cure))

    def reading(self, path: Path, what: str = "") -> None:
        self._progress(f"{what}{path.parent.name}/{path.name}", self._done, self.total)
        self._done += size(path)

    def check_gateway(self, path: Path, record: Record) -> None:
        """Checks once whether the records are of this gateway."""
        if record.gw != self.report.gateway and not any(
            problem.path.name == "identity" for problem in self.report.problems
        ):
            self.problem(
                self._data / "identity",
                "",
                f"it says {self.report.gateway!r}, and {path.name} has records of {record.gw!r}",
                "write the `gw` of the records into it, or look where the file came from",
            )


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
