"""The mutants of a module: small changes of the code within its functions, and the sample of them.

Left out: what is evaluated when a module or class is made (decorators, defaults, annotations, bodies of classes), for
a live function's code has none of it; assertions, the errors that are raised, log lines and f-strings.
"""

from __future__ import annotations

import ast
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import NamedTuple

from tests.mutation import rooms
from tests.support.places import ROOT

_SWAPS: dict[type[ast.cmpop], type[ast.cmpop]] = {}
for _one, _other in (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.In, ast.NotIn),
    (ast.Is, ast.IsNot),
):
    _SWAPS |= {_one: _other, _other: _one}
_NEGATED_BY_SWAP = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Identity(NamedTuple):
    """What finds a mutant again when the code around it has changed.

    text: the line on which the mutated code begins. number: among the mutants that have the rest in common.
    """

    path: str
    function: str
    text: str
    kind: str
    number: int


@dataclass(frozen=True)
class Mutant:
    """A change of one place. lines: first and last line of the mutated code. statement: first line of its statement."""

    identity: Identity
    lines: tuple[int, int]
    statement: int
    before: str
    after: str
    code: CodeType
    """The mutated module."""


class _Site(NamedTuple):
    node: ast.AST
    kind: str
    function: str
    statement: int
    apply: Callable[[], ast.AST]
    """Changes the tree. Returns the node that is there now."""


class _Sites:
    """The places of a module that can be changed, and how, in the order of the text."""

    def __init__(self, tree: ast.Module) -> None:
        self.sites: list[_Site] = []
        self._function = ""
        self._statement = 0
        self._body(tree, "")

    def _body(self, node: ast.AST, name: str) -> None:
        """Looks for functions in a module or a class."""
        if isinstance(node, _FUNCTIONS):
            self._in_function(node, name + node.name)
        elif isinstance(node, ast.ClassDef):
            for child in node.body:
                self._body(child, f"{name}{node.name}.")
        elif isinstance(node, ast.Module):
            for child in node.body:
                self._body(child, name)

    def _in_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> None:
        outside = self._function, self._statement
        self._function = name
        for index, child in enumerate(node.body):
            if index or ast.get_docstring(node, clean=False) is None:
                self._visit(child, node, "body", index)
        self._function, self._statement = outside

    def _visit(self, node: ast.AST, parent: ast.AST, field: str, index: int | None) -> None:
        if isinstance(node, _FUNCTIONS):
            self._in_function(node, f"{self._function}.<locals>.{node.name}")
            return
        if isinstance(node, ast.ClassDef | ast.Assert | ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.Expr) and _is_log_line(node.value):
            return
        if isinstance(node, ast.stmt):
            self._statement = node.lineno

        def replace(new: ast.AST) -> ast.AST:
            ast.copy_location(new, node)
            if index is None:
                setattr(parent, field, new)
            else:
                getattr(parent, field)[index] = new
            return new

        for kind, apply in _changes(node, replace):
            self.sites.append(_Site(node, kind, self._function, self._statement, apply))
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "op", "ops", "ctx", "pattern"):
                continue
            if isinstance(value, list):
                for place, child in enumerate(value):
                    if isinstance(child, ast.AST):
                        self._visit(child, node, name, place)
            elif isinstance(value, ast.AST) and not (name == "args" and isinstance(node, ast.Lambda)):
                self._visit(value, node, name, None)


def _is_log_line(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("logger.", "_logger.", "logging."))


def _changes(node: ast.AST, replace: Callable[[ast.AST], ast.AST]) -> Iterator[tuple[str, Callable[[], ast.AST]]]:
    """Kind and change of each mutation of one node."""

    def put(name: str, value: object) -> Callable[[], ast.AST]:
        def apply() -> ast.AST:
            setattr(node, name, value)
            return node

        return apply

    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                if other := _SWAPS.get(type(op)):
                    yield (
                        f"{type(op).__name__} to {other.__name__}",
                        put("ops", [*ops[:place], other(), *ops[place + 1 :]]),
                    )
        case ast.BoolOp(op=op):
            other_op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield f"{type(op).__name__} to {type(other_op).__name__}", put("op", other_op)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not removed", lambda: replace(operand)
        case ast.BinOp(op=ast.Add() | ast.Sub() as op) | ast.AugAssign(op=ast.Add() | ast.Sub() as op):
            sign = ast.Sub() if isinstance(op, ast.Add) else ast.Add()
            yield f"{type(op).__name__} to {type(sign).__name__}", put("op", sign)
        case ast.Constant(value=bool(value)):
            yield "other truth value", put("value", not value)
        case ast.Constant(value=int(value)):
            yield "one more", put("value", value + 1)
            if value > 0:
                yield "one less", put("value", value - 1)
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "returns None", put("value", ast.copy_location(ast.Constant(None), value))
        case ast.Break():
            yield "break to continue", lambda: replace(ast.Continue())
        case ast.Continue():
            yield "continue to break", lambda: replace(ast.Break())
        case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())):
            yield "statement removed", lambda: replace(ast.Pass())
    if isinstance(node, ast.AugAssign):
        yield "statement removed", lambda: replace(ast.Pass())
    if isinstance(node, ast.If | ast.While | ast.IfExp) and _worth_negating(test := node.test):
        negated = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
        yield "condition negated", put("test", negated)
    if isinstance(node, ast.comprehension):
        for place, test in enumerate(node.ifs):
            if _worth_negating(test):
                negated = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
                yield "condition negated", put("ifs", [*node.ifs[:place], negated, *node.ifs[place + 1 :]])


def _worth_negating(test: ast.expr) -> bool:
    """Whether no other mutation negates the condition."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return not isinstance(test.ops[0], _NEGATED_BY_SWAP)
    return not isinstance(test, ast.Constant) and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))


def identities(path: str) -> list[tuple[Identity, tuple[int, int]]]:
    """All mutants of a file in the order of the text, with the first and last line of the mutated code."""
    return _identities(path, (ROOT / path).read_text())


@cache
def _identities(path: str, source: str) -> list[tuple[Identity, tuple[int, int]]]:
    texts = source.splitlines()
    counts: Counter[tuple[str, str, str]] = Counter()
    result = []
    for site in _Sites(ast.parse(source)).sites:
        lines = _lines(site.node)
        key = site.function, texts[lines[0] - 1].strip(), site.kind
        result.append((Identity(path, *key, counts[key]), lines))
        counts[key] += 1
    return result


def mutant(identity: Identity) -> Mutant | None:
    """The mutant, or None if the code no longer has its place."""
    path = ROOT / identity.path
    known = [name for name, _ in identities(identity.path)] if path.exists() else []
    if identity not in known:
        return None
    tree = ast.parse(path.read_text())
    site = _Sites(tree).sites[known.index(identity)]
    lines = _lines(site.node)
    before = _text(site.node)
    after = _text(site.apply())
    code = compile(
        ast.fix_missing_locations(tree), str(ROOT / "lamplighter" / identity.path), "exec", dont_inherit=True
    )
    return Mutant(identity, lines, site.statement, before, after, code)


def _lines(node: ast.AST) -> tuple[int, int]:
    """First and last line of what decides: of an `if` its condition, of a comprehension its conditions."""
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        node = node.test
    first, last = (node.ifs[0], node.ifs[-1]) if isinstance(node, ast.comprehension) else (node, node)
    assert isinstance(first, ast.expr | ast.stmt) and isinstance(last, ast.expr | ast.stmt)
    return first.lineno, last.end_lineno or last.lineno


def _text(node: ast.AST) -> str:
    """One line with the node's source; of a compound statement its condition."""
    if isinstance(node, ast.If | ast.While):
        node = node.test
    if isinstance(node, ast.comprehension):
        return "if " + " if ".join(map(ast.unparse, node.ifs))
    return " ".join(ast.unparse(node).split())


def sample(count: int, seed: int, fits: Callable[[Mutant], bool]) -> list[Mutant]:
    """As many mutants, spread over the rooms like their lines, at most one of a line.

    fits: whether the mutant can be put into a live process.
    """
    rng = random.Random(seed)
    chosen: list[Mutant] = []
    for room, number in _shares(count).items():
        by_line: defaultdict[tuple[str, int], list[Identity]] = defaultdict(list)
        for path in (path for name, path in rooms.files() if name == room):
            for identity, (line, _) in identities(rooms.place(path)):
                by_line[identity.path, line].append(identity)
        places = sorted(by_line)
        rng.shuffle(places)
        missing = number
        while missing:
            on_line = by_line[places.pop()]
            kind = rng.choice(sorted({identity.kind for identity in on_line}))
            candidate = mutant(rng.choice([identity for identity in on_line if identity.kind == kind]))
            if candidate is not None and fits(candidate):
                chosen.append(candidate)
                missing -= 1
    return sorted(chosen, key=lambda item: (item.identity.path, item.lines))


def _shares(count: int) -> dict[str, int]:
    """How many mutants each room gets, by its lines."""
    lines: Counter[str] = Counter()
    for room, path in rooms.files():
        lines[room] += len(path.read_text().splitlines())
    total = lines.total()
    shares = {room: count * number // total for room, number in lines.items()}
    rest = sorted(lines, key=lambda room: -(count * lines[room] % total))
    for room in rest[: count - sum(shares.values())]:
        shares[room] += 1
    return shares
