"""The test files that a change can reach: ``make test TESTS=changed``, or ``python -m tests.support.changed [COMMIT]``.

A test reaches what it imports, what that imports, and so on, wherever in a file the import stands; a text that names a
module (``"lamplighter.gateway.__main__"``, of a process that is started) counts as an import. A file that is no module
is reached by each module whose text has its name.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.support.places import ROOT

_PRODUCT = {"adapters", "cloud_sync", "demo", "engine", "gateway", "ontology"}
_OTHERS = {"benchmarks", "tests"}
_EVERYTHING = {"pyproject.toml", "requirements-test.lock", "requirements.lock", "tests/conftest.py"}
"""Files whose change can break any test."""
_MODULE = re.compile(r"[a-z_]\w*(\.[a-zA-Z_]\w*)+")


def changed_files(since: str) -> set[str]:
    """Paths of files that differ from a commit: committed, uncommitted and untracked ones."""
    commands = (["git", "diff", "--name-only", since], ["git", "ls-files", "--others", "--exclude-standard"])
    return {line for command in commands for line in subprocess.check_output(command, cwd=ROOT, text=True).splitlines()}


def reached_tests(changed: Iterable[str]) -> list[str]:
    """Paths of the test files that these files can break, sorted; ``["tests"]`` if that may be any."""
    changed = set(changed)
    if changed & _EVERYTHING:
        return ["tests"]
    modules = {path: ROOT / path for path in _python_files()}
    texts = {path: file.read_text() for path, file in modules.items()}
    importers = _importers(texts)
    reached = {path for path in changed if path in modules}
    names = {Path(path).name for path in changed if path not in modules}
    if names:
        pattern = re.compile("|".join(rf"(?<![\w.-]){re.escape(name)}(?![\w-])" for name in sorted(names)))
        reached |= {path for path, text in texts.items() if pattern.search(text)}
    waiting = list(reached)
    while waiting:
        new = importers.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    # Fixtures of a folder are not imported by its tests.
    folders = {str(Path(path).parent) for path in reached if Path(path).name == "conftest.py"}
    tests = {path for path in modules if path.startswith("tests/") and Path(path).name.startswith("test_")}
    return sorted(
        path for path in tests if path in reached or any(str(parent) in folders for parent in Path(path).parents)
    )


def _python_files() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    return [path for path in listed if path.partition("/")[0] in _PRODUCT | _OTHERS and (ROOT / path).is_file()]


def _importers(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """The path of a module -> those of the modules that import it."""
    importers: dict[str, set[str]] = {}
    for path, text in texts.items():
        for name in _imported(ast.parse(text)):
            imported = _path_of(name, texts)
            if imported is not None:
                importers.setdefault(imported, set()).add(path)
    return importers


def _imported(tree: ast.Module) -> Iterator[str]:
    """Names of modules, and of what may be one: ``from a import b`` gives a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (found[0] for found in _MODULE.finditer(node.value))


def _path_of(name: str, texts: Mapping[str, str]) -> str | None:
    parts = name.split(".")
    if parts[0] == "lamplighter":
        parts = parts[1:]
    if not parts or parts[0] not in _PRODUCT | _OTHERS:
        return None
    stem = "/".join(parts)
    return next((path for path in (f"{stem}.py", f"{stem}/__init__.py", f"{stem}/__main__.py") if path in texts), None)


def main() -> int:
    since = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    print(*reached_tests(changed_files(since)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
