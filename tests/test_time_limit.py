"""A test that hangs ends the run and shows where it hangs, in one process and in workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.places import ROOT
from tests.support.tables import each_row

HANGS = {
    "python": "while True: pass",
    "native": "import re\n    re.match('(a*)*b', 'a' * 60)",
    "wait": "import threading\n    threading.Event().wait()",
}


@each_row(("hang", "processes"), [("python", "0"), ("wait", "0"), ("native", "0"), ("native", "1")], is_amount=True)
def test_a_test_that_hangs_ends_the_run_with_its_stack(tmp_path: Path, hang: str, processes: str) -> None:
    file = tmp_path / "test_hang.py"
    file.write_text(f"import pytest\n\n@pytest.mark.timeout(1)\ndef test_hang():\n    {HANGS[hang]}\n")
    config = ROOT / "pyproject.toml"
    options = ["-c", str(config), "-p", "tests.conftest", "--processes", processes]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(file)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f'"{file}", line {5 + (hang != "python")} in test_hang' in done.stderr
