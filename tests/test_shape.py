"""The shape of the code: each class has a name of its own, and long classes and functions have a reason."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.places import ROOT

FOLDERS = ("adapters", "benchmarks", "cloud_sync", "demo", "engine", "gateway", "ontology")

SAME_NAME = {
    "LiveGraph": "public in engine.rdflib and engine.client.rdflib: the same graph beside an engine or a gateway",
    "Notification": "public in engine and engine.client: the same message before and after the wire",
}
"""name of several classes -> why."""

CLASS_LINES_MAX = 300
FUNCTION_LINES_MAX = 60

LONG = {
    "adapters/devices/output.py: Output": "an actuator is found by rows, rules, queries, targets and devices",
    "adapters/mqtt/connection.py: BrokerConnection": "callbacks, socket and acknowledgements of one paho client",
    "adapters/mqtt/discovery/homeassistant.py: _Entity": "a method for each component, over one configuration",
    "engine/client/connection.py: EngineClient": "one socket, and the tables of what is pending on it",
    "engine/core.py: Engine": "the interface of the library",
    "engine/matching/codegen.py: Writer": "a method for each kind of node, which call each other",
    "engine/matching/following.py: Follower": "matching a commit, taking it back and repeating it share its state",
    "engine/matching/joins.py: JoinWriter": "each join depends on what is known so far",
    "engine/store/quad_store.py: QuadStore": "pending changes, native store and graph names are used together",
    "engine/updating/by_plan.py: UpdatePlan._one": "a further call would slow down every update",
    "gateway/gates/websocket.py: _Connection": "reading, answering and sending share their counts",
    "gateway/log/writer.py: LogWriter": "append, sync and the end of a segment share the files",
    "gateway/loop/runner.py: Runner": "the interface of the loop",
    "gateway/loop/runner.py: Runner.__init__": "the list of the parts",
}
"""place of a class or function above the limit -> why it is not split. Its docstring has the reason in a sentence that
begins with "It is one class because" or "It is one function because"."""

REASON = re.compile(r"It is one (class|function) because \w")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(text: str) -> Iterator[tuple[str, Definition]]:
    """Each class and function of a module with its name, as in `Runner.run`."""

    def below(node: ast.AST, prefix: str) -> Iterator[tuple[str, Definition]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Definition):
                yield prefix + child.name, child
                yield from below(child, f"{prefix}{child.name}.")
            else:
                yield from below(child, prefix)

    yield from below(ast.parse(text), "")


def ours() -> Iterator[tuple[Path, str, Definition]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name, node in definitions(path.read_text()):
                yield path.relative_to(ROOT), name, node


def too_long(node: Definition) -> bool:
    assert node.end_lineno is not None
    lines = node.end_lineno - node.lineno + 1
    return lines > (CLASS_LINES_MAX if isinstance(node, ast.ClassDef) else FUNCTION_LINES_MAX)


def test_each_class_has_a_name_of_its_own() -> None:
    places = defaultdict(list)
    for path, _, node in ours():
        if isinstance(node, ast.ClassDef):
            places[node.name].append(f"{path}:{node.lineno}")
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in shared.items() if name not in SAME_NAME} == {}
    assert set(SAME_NAME) <= set(shared), "an exception that is none any more"


def test_long_classes_and_functions_have_a_reason() -> None:
    found = {f"{path}: {name}": ast.get_docstring(node) for path, name, node in ours() if too_long(node)}
    assert set(found) - set(LONG) == set(), "split it, or give the reason"
    assert set(LONG) - set(found) == set(), "an exception that is none any more"
    without = [place for place, docstring in found.items() if not REASON.search(" ".join((docstring or "").split()))]
    assert without == [], "the docstring does not give the reason"


def test_the_check_itself_notices_what_is_long() -> None:
    long = "\n".join(["class C:", "    def f():", *["        1"] * 60, "    g = 1"])
    assert [(name, too_long(node)) for name, node in definitions(long)] == [("C", False), ("C.f", True)]
    assert [too_long(node) for _, node in definitions("\n".join(["class C:", *["    x = 1"] * 300]))] == [True]
