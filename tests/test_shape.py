"""The shape of the code: each class has a name of its own, long classes and functions have a reason, and what makes a
reader hop gets no more: classes with many collaborators, methods that pass on, functions named by a participle."""

import ast
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
    "adapters/mqtt/adapter.py: MqttAdapter": "brokers, rules, readings and devices meet in it",
    "cloud_sync/fleet/collection/manifest.py: Manifest": "all queries share one connection and its transactions",
    "engine/client/connection.py: EngineClient": "one socket, and the tables of what is pending on it",
    "engine/core.py: Engine": "the interface of the library",
    "engine/matching/codegen.py: CodeGenerator": "a method for each kind of node, which call each other",
    "engine/matching/following.py: Follower": "matching a commit, taking it back and repeating it share its state",
    "engine/matching/joins.py: JoinCodegen": "each join depends on what is known so far",
    "engine/store/quad_store.py: QuadStore": "pending changes, native store and graph names are used together",
    "engine/updating/by_plan.py: UpdatePlan._one": "a further call would slow down every update",
    "gateway/gates/websocket.py: _Connection": "reading, answering and sending share their counts",
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
    reasons = "\n".join(["def f():", *["    # because"] * 60, "    g = 1"])
    assert [(item.lines, too_long(item)) for item in parsed(reasons).definitions] == [(2, False)]


# --- what makes a reader hop ------------------------------------------------------------------------------------

PRODUCT = ("adapters", "cloud_sync", "engine", "gateway", "ontology")
COLLABORATORS_MAX = 6
VALUES = {"Struct", "NamedTuple", "TypedDict", "Enum", "IntEnum", "StrEnum", "Exception", "Protocol"}
"""Bases of classes that hold values."""
IRREGULAR = re.compile(
    "told|shown|taken|said|known|found|made|gone|kept|held|given|sent|meant|begun|done|drawn|left|lost|put|read|run|"
    "seen|set|spent|thrown|understood|withdrawn|written|won|bound|built|caught|chosen|forgotten|heard|cut|due|fed|got|"
    "grown|hidden|laid|met|paid|sought|sold|split|stood|struck|sunk|sworn|thought|torn|worn|wound|asked|owed"
)
NO_PARTICIPLES = ("need", "feed", "seed", "embed", "shed")
HOPS = {"classes with many collaborators": 5, "methods that pass on": 19, "functions named by a participle": 273}
"""How many there are. A change that has fewer lowers the number; none may raise it."""


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = function.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def names_of(nodes: list[ast.expr]) -> set[str]:
    inner = [getattr(node, "func", node) for node in nodes]
    return {str(getattr(node, "id", getattr(node, "attr", ""))) for node in inner}


def collaborators(node: ast.ClassDef) -> list[str]:
    """What a class with behaviour is made from: parameters of ``__init__``, or fields of a dataclass with methods."""
    bases = names_of(node.bases)
    if bases & VALUES or any(name.endswith("Error") for name in bases):
        return []
    functions = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    if "dataclass" in names_of(node.decorator_list):
        passive = {"property", "cached_property", "classmethod", "staticmethod"}
        methods = [
            one for one in functions if not one.name.startswith("__") and not names_of(one.decorator_list) & passive
        ]
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and one.value is None]
        return [ast.unparse(one.target) for one in fields] if len(methods) >= 2 else []
    return next((parameters(one) for one in functions if one.name == "__init__"), [])


def passes_on(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether all that it does is to call a method of an attribute with its own arguments."""
    body = [one for one in function.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    if len(body) != 1 or function.name.startswith("__"):
        return False
    call = getattr(body[0], "value", None)
    call = call.value if isinstance(call, ast.Await) else call
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    owner = call.func.value
    if not (isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name) and owner.value.id == "self"):
        return False
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    return [getattr(value, "id", None) for value in values] == parameters(function)


def is_participle(name: str) -> bool:
    word = name.lstrip("_")
    return "_" not in word and (
        IRREGULAR.fullmatch(word) is not None or (word.endswith("ed") and word not in NO_PARTICIPLES)
    )


def hops(trees: list[tuple[str, ast.Module]]) -> dict[str, list[str]]:
    """For each name in `HOPS`, the places. trees: by file."""
    places: dict[str, list[str]] = {name: [] for name in HOPS}
    for path, tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_participle(node.name):
                places["functions named by a participle"].append(f"{path}: {node.name}")
            if not isinstance(node, ast.ClassDef):
                continue
            if len(collaborators(node)) > COLLABORATORS_MAX:
                places["classes with many collaborators"].append(f"{path}: {node.name}")
            for one in node.body:
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and passes_on(one):
                    places["methods that pass on"].append(f"{path}: {node.name}.{one.name}")
    return places


def test_a_reader_hops_no_more_than_before() -> None:
    paths = [path for folder in PRODUCT for path in modules(folder)]
    found = hops([(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths])
    counts = {name: len(places) for name, places in found.items()}
    assert counts == HOPS, "lower the numbers, or say it in a simpler way: \n" + "\n".join(
        place for name, places in found.items() if counts[name] > HOPS[name] for place in places
    )


def test_the_check_itself_notices_a_hop() -> None:
    text = """
class C:
    def __init__(self, a, b, c, d, e, f, g): ...
    def one(self, a, *, b): return self._d.other(a, b=b)
    async def two(self, a): await self._d.other(a)
    def three(self, a): return self._d.other(a, 1)
    def taken(self): ...
@dataclass
class D:
    a: A; b: B; c: C; d: D; e: E; f: F; g: G
    def one(self): ...
    def two(self): ...
class V(NamedTuple):
    a: A; b: B; c: C; d: D; e: E; f: F; g: G
    def feed(self): ...
"""
    assert hops([("x", ast.parse(text))]) == {
        "classes with many collaborators": ["x: C", "x: D"],
        "methods that pass on": ["x: C.one", "x: C.two"],
        "functions named by a participle": ["x: taken"],
    }
