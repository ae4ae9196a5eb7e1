"""What the modules of the repository define and import. Each file is parsed once in a process."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from tests.support.places import ROOT


class Definition(NamedTuple):
    """A class or a function."""

    name: str
    """As in `Runner.run`."""
    is_class: bool
    first_line: int
    lines: int
    """Without those that are comments: a reason makes nothing longer."""
    docstring: str | None
    members: tuple[str, ...]
    """Of a class: its functions, and attributes that are declared in it."""


class Source(NamedTuple):
    """A module."""

    imports: tuple[tuple[str, tuple[str, ...]], ...]
    """Module -> names that are imported from it, those inside functions too; none where the module itself is."""
    definitions: tuple[Definition, ...]
    called: frozenset[str]
    """Names of functions and methods that are called."""


def parsed(text: str) -> Source:
    tree = ast.parse(text)
    modules: list[tuple[str, tuple[str, ...]]] = []
    called: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called.add(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        elif isinstance(node, ast.Import):
            modules += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            modules.append((node.module or "", tuple(alias.name for alias in node.names)))
    code = list(accumulate(not line.lstrip().startswith("#") for line in text.splitlines()))
    return Source(tuple(modules), tuple(_definitions(tree, "", [0, *code])), frozenset(called))


def _definitions(node: ast.AST, prefix: str, code: Sequence[int]) -> Iterator[Definition]:
    """code: how many of the first lines are no comments, by their number."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            assert child.end_lineno is not None
            name = prefix + child.name
            is_class = isinstance(child, ast.ClassDef)
            yield Definition(
                name,
                is_class,
                child.lineno,
                code[child.end_lineno] - code[child.lineno - 1],
                ast.get_docstring(child),
                tuple(_members(child)) if is_class else (),
            )
            yield from _definitions(child, f"{name}.", code)
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):  # no expression contains a definition
            yield from _definitions(child, prefix, code)


def _members(node: ast.AST) -> Iterator[str]:
    for member in ast.iter_child_nodes(node):
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
            yield member.name
        elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            yield member.target.id


@cache
def source(path: Path) -> Source:
    """A module of the repository."""
    try:
        return parsed(path.read_text())
    except (AssertionError, SyntaxError) as error:
        raise AssertionError(f"{path}: {error}") from error


@cache
def modules(folder: str) -> tuple[Path, ...]:
    """The files of the modules in a folder of the repository and below it."""
    return tuple(sorted((ROOT / folder).rglob("*.py")))
