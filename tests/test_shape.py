"""The shape of the code: each class has a name of its own, and long classes and functions have a reason."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.places import ROOT
from tests.support.sources import Definition, modules, parsed, source

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


def ours() -> Iterator[tuple[Path, Definition]]:
    for folder in FOLDERS:
        for path in modules(folder):
            for definition in source(path).definitions:
                yield path.relative_to(ROOT), definition


def too_long(definition: Definition) -> bool:
    return definition.lines > (CLASS_LINES_MAX if definition.is_class else FUNCTION_LINES_MAX)


def test_each_class_has_a_name_of_its_own() -> None:
    places = defaultdict(list)
    for path, definition in ours():
        if definition.is_class:
            places[definition.name.rpartition(".")[2]].append(f"{path}:{definition.first_line}")
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in shared.items() if name not in SAME_NAME} == {}
    assert set(SAME_NAME) <= set(shared), "an exception that is none any more"


def test_long_classes_and_functions_have_a_reason() -> None:
    found = {f"{path}: {definition.name}": definition.docstring for path, definition in ours() if too_long(definition)}
    assert set(found) - set(LONG) == set(), "split it, or give the reason"
    assert set(LONG) - set(found) == set(), "an exception that is none any more"
    without = [place for place, docstring in found.items() if not REASON.search(" ".join((docstring or "").split()))]
    assert without == [], "the docstring does not give the reason"


def test_the_check_itself_notices_what_is_long() -> None:
    long = "\n".join(["class C:", "    def f():", *["        1"] * 60, "    g = 1"])
    assert [(item.name, too_long(item)) for item in parsed(long).definitions] == [("C", False), ("C.f", True)]
    assert [too_long(item) for item in parsed("\n".join(["class C:", *["    x = 1"] * 300])).definitions] == [True]
