"""A run over the mutants of a sample: which tests judge each of them, and what comes of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from tests.mutation import judging, live, mutants, results, rooms
from tests.mutation.judging import Judge, Verdict
from tests.mutation.lines import Traces
from tests.mutation.mutants import Identity, Mutant
from tests.mutation.results import Result


def judge(sample: Path, folder: Path, out: Path, before: Path | None, seconds: float, side_by_side: int) -> None:
    """Judges the mutants of a sample that are not known to be killed, and writes the results to `out`.

    folder: of the traces. before: results of another commit. seconds: of tests for a mutant.
    """
    identities = [Identity(*item) for item in json.loads(sample.read_text())]
    traces = Traces(folder)
    killers = {item.identity: item.test for item in results.read(before)} if before else {}
    known = {item.identity: item for item in results.read(out)} if out.exists() else {}

    def work(judge: Judge) -> None:
        functions = live.Functions({item.path for item in identities})
        outcome: list[Result] = []
        jobs: list[_Job] = []
        for identity in identities:
            old = known.get(identity) or Result(identity)
            if old.checked:
                outcome.append(old)
                continue
            mutant = mutants.mutant(identity)
            result = results.result(identity, mutant)
            outcome.append(result)
            if mutant is None:
                continue
            tests = traces.tests(mutant) & judge.items.keys()
            result.covering = len(tests)
            result.run = old.run
            result.state = "survived" if old.run else "not covered"
            killer = old.test or killers.get(identity, "")
            if order := _selection(mutant, tests - set(old.run), traces.seconds, killer, seconds):
                result.state = "open"
                jobs.append(_Job(result, functions.changes(mutant), order))
        _Run(judge, outcome, traces.seconds, out, side_by_side).judge(jobs)

    judging.collect(["-m", rooms.TIER, *rooms.TESTS], work)


class _Job:
    def __init__(self, result: Result, changes: judging.Changes, tests: list[str]) -> None:
        self.result = result
        self.changes = changes
        self.tests = tests


class _Run:
    """Judges the mutants of a sample, and what made them fail without them."""

    def __init__(
        self, judge: Judge, outcome: list[Result], seconds: dict[str, float], out: Path, side_by_side: int
    ) -> None:
        self._judge = judge
        self._outcome = outcome
        self._seconds = seconds
        self._out = out
        self._side_by_side = side_by_side
        self._unsound: set[str] = set()

    def judge(self, jobs: list[_Job]) -> None:
        """Fills in the results of the jobs, and writes all results."""
        while jobs:
            kills: list[tuple[_Job, Verdict]] = []

            def done(
                number: int, verdict: Verdict, jobs: list[_Job] = jobs, kills: list[tuple[_Job, Verdict]] = kills
            ) -> None:
                job = jobs[number]
                job.result.seconds += verdict.seconds
                if verdict.state == "passed":
                    job.result.state = "survived"
                    job.result.run = [*job.result.run, *verdict.run]
                else:
                    job.result.state = "timed out" if verdict.state == "timed out" else "killed"
                    job.result.test, job.result.message = verdict.test, verdict.message
                    kills.append((job, verdict))
                print(f"{len(kills)}/{len(jobs)}", job.result.state, job.result.seconds, job.result.test, flush=True)
                results.write(self._out, self._outcome)

            self._verdicts([(job.tests, job.changes) for job in jobs], done)
            jobs = self._again(kills)
        results.write(self._out, self._outcome)

    def _again(self, kills: list[tuple[_Job, Verdict]]) -> list[_Job]:
        """The jobs whose tests fail without the mutant as well, without the tests that do."""
        ends = {(verdict.test, verdict.state): verdict for _, verdict in kills}
        unsound: set[tuple[str, str]] = set()

        def done(number: int, control: Verdict) -> None:
            if control.state != "passed":
                print("fails without a mutant:", control.test, control.state, control.message, flush=True)
                unsound.add(list(ends)[number])
                self._unsound.add(control.test)

        self._verdicts([(verdict.run, []) for verdict in ends.values()], done)
        again: list[_Job] = []
        for job, verdict in kills:
            if (verdict.test, verdict.state) in unsound:
                job.result.state, job.result.test, job.result.message = "open", "", ""
                tests = [test for test in job.tests if test not in self._unsound]
                again.append(_Job(job.result, job.changes, tests))
            else:
                job.result.checked = True
        return again

    def _verdicts(self, jobs: Sequence[tuple[Sequence[str], judging.Changes]], done: judging.Done) -> None:
        self._judge.verdicts(jobs, self._seconds, done, self._side_by_side)


def _selection(mutant: Mutant, tests: set[str], seconds: dict[str, float], killer: str, limit_s: float) -> list[str]:
    """The tests in the order in which they judge, as many as take the seconds.

    First the one that killed the mutant before, then the quick ones, among them those of the module and of its folder;
    tests of a file that take about as long follow each other, since they share fixtures.
    """
    path = Path(mutant.identity.path)
    folder = f"tests/{path.parent}/"

    def order(test: str) -> tuple[bool, int, bool, bool, str]:
        size = round(math.log(max(seconds[test], 0.1), 4))
        return test != killer, size, not test.startswith(f"{folder}test_{path.stem}"), not test.startswith(folder), test

    result = []
    for test in sorted(tests, key=order):
        limit_s -= seconds[test]
        if limit_s < 0 and test != killer:
            break
        result.append(test)
    return result


def attempt(sample: Path, number: int, tests: list[str]) -> int:
    identity = Identity(*json.loads(sample.read_text())[number])
    verdicts: dict[int, Verdict] = {}  # the second one may end first

    def work(judge: Judge) -> None:
        mutant = mutants.mutant(identity)
        assert mutant is not None, "gone"
        print(f"{identity.path}:{mutant.lines[0]} {mutant.before} -> {mutant.after}")
        changes = live.Functions({identity.path}).changes(mutant)
        jobs = [(list(judge.items), changes), (list(judge.items), [])]
        judge.verdicts(jobs, {}, verdicts.__setitem__, 1)

    judging.collect(tests, work)
    with_mutant, without = verdicts[0], verdicts[1]
    print("with it:", with_mutant.state, with_mutant.test, with_mutant.message)
    print("without it:", without.state, without.test, without.message)
    return 0 if with_mutant.state != "passed" and without.state == "passed" else 1
