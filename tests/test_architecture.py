"""The picture of the house holds: imports point one way, and what must be light is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("ontology", "engine", "adapters", "cloud_sync", "gateway")

ALLOWED = {
    "ontology": set(),
    "engine": {"engine"},
    "adapters": {"adapters", "ontology", "engine.client", "engine.errors", "engine.terms"},
    "cloud_sync": {
        "cloud_sync",
        "ontology",
        "engine.change_log",
        "engine.client",
        "engine.errors",
        "engine.terms",
        "engine.zstd_frames",
    },
    "gateway": {"gateway", "engine", "adapters", "ontology", "cloud_sync"},
}
"""package -> modules of ours (or whole packages) that it may import."""


def imports(path: Path) -> set[str]:
    """The modules that a file imports, those inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            # `from engine import client` imports a module by another way.
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module in PACKAGES}
    return found


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    assert modules(package)
    for path in modules(package):
        for name in imports(path):
            if name.partition(".")[0] in PACKAGES:
                allowed = any(name == one or name.startswith(f"{one}.") for one in ALLOWED[package])
                assert allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_the_check_itself_notices_an_arrow_that_turns_round(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f():\n    from gateway import runner\n")
    assert "gateway.runner" in imports(wrong)


def test_one_adapter_does_not_know_the_other() -> None:
    for package, other in (("adapters/mqtt", "adapters.coap"), ("adapters/coap", "adapters.mqtt")):
        for path in modules(package):
            assert not any(name.startswith(other) for name in imports(path)), path


def test_engine_does_no_io_but_in_its_client() -> None:
    doing_io = {"asyncio", "socket", "websockets", "threading", "time", "os", "pathlib", "logging"}
    for path in modules("engine"):
        tops = {name.partition(".")[0] for name in imports(path)}
        if path.name in ("errors.py", "core.py", "store.py"):
            tops -= {"pathlib"}  # the type of an attribute and of an argument
        if path.name == "core.py":
            tops -= {"time"}  # to measure itself, when it is told to
        if path.parent.name != "client":
            assert not tops & doing_io, f"{path.name} imports {tops & doing_io}"
            assert not any(name.startswith("engine.client") for name in imports(path)), path.name


@pytest.mark.parametrize(
    "module",
    [
        "engine.client",
        "engine.change_log",
        "adapters.mqtt.adapter",
        "adapters.coap.adapter",
        "cloud_sync.__main__",
        "cloud_sync.fleet.collector",
    ],
)
def test_light_processes_load_no_store(module: str) -> None:
    script = (
        f"import sys, {module}; "
        "heavy = ('pyoxigraph', 'rdflib', 'starlette', 'httpx', 'cryptography', 'fsspec', 'pyspark', 'pandas', "
        "'pyarrow', 'numpy'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
