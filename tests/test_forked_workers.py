"""`--processes N` runs each test once and reports what one process would report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.support.places import ROOT


def run(folder: Path, *options: str) -> tuple[int, str]:
    """Runs the tests of a folder in workers, with a cache beside it; exit code and output."""
    cache = f"cache_dir={folder.parent / folder.name}-cache"
    words = ["-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest", "-o", cache, *options]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def counts(output: str) -> dict[str, int]:
    """The closing line: ``{"failed": 1, "passed": 3}``."""
    line = next(line for line in reversed(output.splitlines()) if re.match(r"=* ?\d+ (passed|failed)", line))
    return {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", line)}


def test_each_test_runs_once_and_a_file_stays_in_one_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text(
            "import os\nimport pytest\n\n"
            "@pytest.fixture(scope='module')\ndef module():\n    return os.getpid()\n\n"
            "@pytest.mark.parametrize('number', range(5))\ndef test_it(module, number, tmp_path):\n"
            "    assert module == os.getpid() and os.listdir(tmp_path) == []\n"
            f"    with open({str(log)!r}, 'a') as file:\n        print('{name}', number, module, file=file)\n"
        )
    code, output = run(tmp_path, "--processes", "3")
    assert (code, counts(output)) == (0, {"passed": 20}), output
    lines = [line.split() for line in log.read_text().splitlines()]
    assert sorted(line[:2] for line in lines) == [[name, str(number)] for name in "abcd" for number in range(5)]
    assert len({(name, process) for name, _, process in lines}) == 4
    assert len({process for _, _, process in lines}) <= 3


def test_what_is_new_or_took_long_begins_first_the_next_time(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text("def test_it():\n    pass\n")

    def order() -> list[str]:
        code, output = run(tmp_path, "--processes", "1", "-v")
        assert code == 0, output
        return re.findall(r"test_(.)\.py::test_it PASSED", output)

    assert order() == ["a", "b", "c"]
    [kept] = tmp_path.with_name(f"{tmp_path.name}-cache").glob("v/lamplighter/seconds-*")
    took = {
        name: next(seconds for seconds, last in enumerate("abc") if f"test_{last}.py" in name)
        for name in json.loads(kept.read_text())
    }
    kept.write_text(json.dumps(took))  # a busy machine gives others
    (tmp_path / "test_d.py").write_text("def test_it():\n    pass\n")
    assert order() == ["d", "c", "b", "a"]


def test_failures_skips_and_errors_are_reported_with_what_was_printed(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(
        "import pytest\n\ndef test_bad():\n    print('printed before')\n    assert 1 == 2\n\n"
        "def test_skipped():\n    pytest.skip('for a reason')\n"
    )
    (tmp_path / "test_b.py").write_text(
        "import pytest\n\n@pytest.fixture\ndef broken():\n    raise ValueError('no set-up')\n\n"
        "def test_error(broken):\n    pass\n\ndef test_good():\n    print('not shown')\n"
    )
    code, output = run(tmp_path, "--processes", "2")
    assert (code, counts(output)) == (1, {"failed": 1, "passed": 1, "skipped": 1, "error": 1}), output
    for part in ("printed before", "assert 1 == 2", "for a reason", "ValueError: no set-up"):
        assert part in output
    assert "not shown" not in output


def test_a_worker_that_dies_fails_its_test_and_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(
        "import os\n\ndef test_death():\n    os._exit(7)\n\ndef test_after():\n    pass\n"
    )
    code, output = run(tmp_path, "--processes", "2")
    assert code == 1 and "died in" in output and "test_a.py::test_death" in output, output


def test_the_first_failure_ends_a_run_that_is_asked_to(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("".join(f"def test_{number}():\n    assert False\n\n" for number in range(50)))
    code, output = run(tmp_path, "--processes", "1", "-x")
    assert (code, counts(output)) == (1, {"failed": 1}), output


def test_a_file_that_cannot_be_loaded_ends_the_run_before_its_tests(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("import nosuchmodule\n")
    (tmp_path / "test_b.py").write_text("def test_good():\n    pass\n")
    code, output = run(tmp_path, "--processes", "2")
    assert code == 2 and "nosuchmodule" in output, output


def test_each_row_of_a_table_that_fails_is_reported_by_a_worker(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(
        "from tests.support.tables import each_row\n\n"
        "@each_row('number, square', [(1, 1), (2, 5), (3, 9), (4, 15)])\ndef test_squares(number, square):\n"
        "    assert number**2 == square\n\n"
        "@each_row('word', ['good', 'bad'])\ndef test_words(word):\n    assert word == 'good'\n"
    )
    code, output = run(tmp_path, "--processes", "2")
    assert (code, counts(output)) == (1, {"failed": 2}), output
    for part in (
        "2 of 4 rows of test_squares fail",
        *("row 1: number=2, square=5", "row 3: number=4, square=15", "test_words, row 1: word='bad'"),
        *("assert (2 ** 2) == 5", "assert (4 ** 2) == 15", "assert 'bad' == 'good'"),
    ):
        assert part in output
    assert re.search(r"^total .* 6 rows of tables$", output, re.M), output
