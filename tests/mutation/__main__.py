"""Mutation testing: whether the tests notice small changes of the code of some rooms.

    python -m tests.mutation sample SAMPLE                 which mutants: 400 of them, the same for the same code
    python -m tests.mutation trace FOLDER                  which tests run which lines, and FOLDER/coverage.json
    python -m tests.mutation judge SAMPLE FOLDER RESULT    what the tests make of each mutant
    python -m tests.mutation show RESULT                   a table, and the mutants that live
    python -m tests.mutation compare BEFORE AFTER          the mutants that died before and live now; 1 if there are any
    python -m tests.mutation attempt SAMPLE NUMBER TESTS   what some tests make of one mutant
    python -m tests.mutation all FOLDER                    sample, trace, judge and show

To judge the same mutants again on another commit: `trace` there into a folder of its own, then `judge` with the same
sample and `--before RESULT`, so that the tests that killed a mutant before are the first to run, then `compare`. A run
that has been interrupted is continued: what is killed in RESULT stays so, and what lives runs the tests that it has not
passed yet.

A mutant is judged by the tests that run its line, the quick ones first, until one fails or `--seconds` are over. What
made a mutant fail is run once more without the mutant, and does not count if it fails again.

Why not one of the known tools: mutmut copies the sources and names a module by the path of its file, but here
`lamplighter.engine` is the folder `engine`; cosmic-ray starts pytest anew for each mutant, and to collect these tests
takes it a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mutation import judging, live, mutants, results, rooms, runs
from tests.mutation.lines import Traces


def sample(path: Path, count: int, seed: int) -> None:
    functions = live.Functions({rooms.place(file) for _, file in rooms.files()})
    chosen = mutants.sample(count, seed, lambda mutant: bool(functions.changes(mutant)))
    path.write_text("[\n" + ",\n".join(json.dumps(mutant.identity) for mutant in chosen) + "\n]\n")


def trace(folder: Path, processes: int, tests: Sequence[str] = rooms.TESTS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "pytest", "-p", "tests.mutation.tracing", "--traces", str(folder)),
        *("-p", "no:cacheprovider", "-m", rooms.TIER, "--quiet", "--processes", str(processes)),
        *tests,
    ]
    # A test that fails because tracing makes it slow has still run its lines.
    subprocess.run(command, check=False, env=os.environ | {"W3C_SEED": str(judging.SEED)})
    (folder / "coverage.json").write_text(json.dumps(Traces(folder).coverage(), indent=1))


def show(path: Path) -> None:
    found = results.read(path)
    print("\n".join(results.table(found)), "\n")
    for number, item in enumerate(found):
        if item.state not in results.KILLED:
            print(results.listed(number, item))


def compare(before: Path, after: Path) -> int:
    later = results.read(after)
    print("\n".join(results.table(later)), "\n")
    numbers = results.revived(results.read(before), later)
    for number in numbers:
        print(results.listed(number, later[number]))
    print(f"{len(numbers)} mutants died before and live now")
    return 1 if numbers else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests.mutation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("sample")
    one.add_argument("sample", type=Path)
    two = commands.add_parser("trace")
    two.add_argument("folder", type=Path)
    three = commands.add_parser("judge")
    three.add_argument("sample", type=Path)
    three.add_argument("folder", type=Path)
    three.add_argument("result", type=Path)
    four = commands.add_parser("show")
    four.add_argument("result", type=Path)
    five = commands.add_parser("compare")
    five.add_argument("before", type=Path)
    five.add_argument("after", type=Path)
    six = commands.add_parser("attempt")
    six.add_argument("sample", type=Path)
    six.add_argument("number", type=int)
    six.add_argument("tests", nargs="+")
    seven = commands.add_parser("all")
    seven.add_argument("folder", type=Path)
    for command in (one, seven):
        command.add_argument("--count", type=int, default=400)
        command.add_argument("--seed", type=int, default=1)
    for command in (two, three, seven):
        command.add_argument("--processes", type=int, default=2)
    for command in (three, seven):
        command.add_argument("--before", type=Path, help="results of another commit")
        command.add_argument("--seconds", type=float, default=90.0, help="of tests for a mutant")
    it = parser.parse_args()
    match it.command:
        case "sample":
            sample(it.sample, it.count, it.seed)
        case "trace":
            trace(it.folder, it.processes)
        case "judge":
            runs.judge(it.sample, it.folder, it.result, it.before, it.seconds, it.processes)
        case "show":
            show(it.result)
        case "compare":
            return compare(it.before, it.after)
        case "attempt":
            return runs.attempt(it.sample, it.number, it.tests)
        case "all":
            it.folder.mkdir(parents=True, exist_ok=True)
            names = it.folder / "sample.json", it.folder / "traces", it.folder / "results.json"
            if not names[0].exists():
                sample(names[0], it.count, it.seed)
            trace(names[1], it.processes)
            runs.judge(*names, it.before, it.seconds, it.processes)
            show(names[2])
    return 0


if __name__ == "__main__":
    sys.exit(main())
