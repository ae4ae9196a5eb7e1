"""docs/inference-shapes.md is true: its example prints what is shown below it, and its table has the tested rules."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO

from tests.support.inference_oracle import RULES
from tests.support.places import ROOT

DOCUMENT = (ROOT / "docs" / "inference-shapes.md").read_text().partition("\n## Validate updates\n")[0]


def test_the_example_prints_what_is_shown() -> None:
    [(code, shown)] = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", DOCUMENT, re.S)
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "docs/inference-shapes.md", "exec"), {})
    assert printed.getvalue() == shown


def test_the_rules_are_those_that_the_oracle_runs() -> None:
    assert sorted(re.findall(r"\b(?:cax|prp|scm)-\w+", DOCUMENT)) == sorted(RULES)
