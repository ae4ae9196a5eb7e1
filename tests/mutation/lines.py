"""What `tracing` wrote down: the tests that run a line, their durations, and the share of the lines that tests run."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import coverage

from tests.mutation import rooms, tracing
from tests.mutation.mutants import Mutant
from tests.support.places import ROOT


class Traces:
    """The results of a traced run, in the folder that its processes wrote to."""

    def __init__(self, folder: Path) -> None:
        combined = folder / "combined"
        if not combined.exists():
            parts = coverage.Coverage(data_file=str(combined), config_file=False, messages=False)
            parts.combine([str(path) for path in folder.glob(f"{tracing.DATA}.*")], keep=True)
            parts.save()
        self.data = coverage.CoverageData(str(combined))
        self.data.read()
        self.seconds: dict[str, float] = {}
        self._of_file: defaultdict[str, list[str]] = defaultdict(list)
        for path in folder.glob(f"{tracing.DURATIONS}.*.json"):
            self.seconds |= json.loads(path.read_text())["seconds"]
        for test in self.seconds:
            self._of_file[test.partition("::")[0]].append(test)
        self._contexts = cache(self.data.contexts_by_lineno)

    def tests(self, mutant: Mutant) -> set[str]:
        """The tests that run the mutated code."""
        contexts = self._contexts(str(ROOT / mutant.identity.path))
        first, last = mutant.lines
        found = {test for line in range(first, last + 1) for test in contexts.get(line, ())}
        # Code within a statement of several lines can be without a line of its own.
        found = found or set(contexts.get(mutant.statement, ()))
        return {
            test for context in found if context for test in ([context], self._of_file[context])["::" not in context]
        }

    def coverage(self) -> dict[str, dict[str, Any]]:
        """Lines, lines that tests run and their percentage, of each room and of all ("total").

        A line that only runs when a module is imported counts like any other.
        """
        measured = coverage.Coverage(data_file=self.data.data_filename(), config_file=False, messages=False)
        measured.load()
        lines: Counter[str] = Counter()
        run: Counter[str] = Counter()
        for room, path in rooms.files():
            _, statements, _, missing, _ = measured.analysis2(str(path))
            for name in (room, "total"):
                lines[name] += len(statements)
                run[name] += len(statements) - len(missing)
        return {
            name: {"lines": lines[name], "run": run[name], "percent": round(100 * run[name] / lines[name], 2)}
            for name in lines
        }
