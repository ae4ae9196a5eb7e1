"""Which tests run a line is written down by every process of a traced run."""

from __future__ import annotations

import json
from pathlib import Path

from tests.mutation import __main__ as command
from tests.mutation import mutants
from tests.mutation.lines import Traces

FILES = ("tests/engine/change_log/test_codec.py", "tests/engine/change_log/test_rdf_patch.py")
AFTER_CONFTEST = "tests/whole_gateway/gates/test_listeners.py"
"""A conftest imports the rooms before this one is collected."""


def test_each_of_two_processes_writes_down_the_lines_of_its_tests(tmp_path: Path) -> None:
    command.trace(tmp_path, 2, [*FILES, AFTER_CONFTEST])
    traces = Traces(tmp_path)
    assert {test.partition("::")[0] for test in traces.seconds} == {*FILES, AFTER_CONFTEST}
    found: dict[str, set[str]] = {"encode": set(), "Record.delta": set()}
    for identity, _ in mutants.identities("engine/change_log/codec.py"):
        if identity.function in found and (mutant := mutants.mutant(identity)):
            found[identity.function] |= {test.partition("::")[0] for test in traces.tests(mutant)}
    assert found == {"encode": {FILES[0]}, "Record.delta": {FILES[1]}}
    coverage = json.loads((tmp_path / "coverage.json").read_text())
    assert 50 < coverage["engine/change_log"]["percent"] < 100, "what an import runs counts"
    assert coverage["total"]["run"] == sum(part["run"] for room, part in coverage.items() if room != "total")
