"""What the documents say is true: README's commands and the documented settings."""

import ast
import asyncio
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import msgspec
from websockets.asyncio.client import connect

from lamplighter.gateway.settings import Settings
from tests.support.components import require_command
from tests.support.places import ROOT
from tests.support.running_gateway import running_gateway

README = (ROOT / "README.md").read_text()


def test_documented_settings_are_the_defaults() -> None:
    documented = tomllib.loads((ROOT / "lamplighter.toml").read_text())
    assert msgspec.convert(documented, Settings) == Settings()
    defaults = msgspec.to_builtins(Settings())
    del defaults["coap"]["query"]  # the default is in the module's documentation
    assert {table: set(keys) for table, keys in documented.items()} == {
        table: set(keys) for table, keys in defaults.items()
    }


def console(pattern: str) -> list[tuple[str, str]]:
    """README's commands that match, each with the first line of output below it."""
    return re.findall(rf"^\$ ({pattern}.*)\n(.*)$", README, re.M)


def run(command: str, http_port: str) -> str:
    words = shlex.split(command.replace("8000", http_port))
    words[0] = require_command(words[0])
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


def shape(value: Any) -> Any:
    """A JSON value without what differs from run to run."""
    if isinstance(value, dict):
        varying = ("delayed", "spuid", "sequence")
        return {key: "..." if key in varying else shape(member) for key, member in value.items()}
    return [shape(member) for member in value] if isinstance(value, list) else value


def test_readme_commands_do_what_readme_shows(tmp_path: Path) -> None:
    commands = console("curl")
    assert len(commands) == 3
    [sent] = re.findall(r"^> (\{.*)$", README, re.M)
    [first] = re.findall(r"^< (\{.*)$", README, re.M)

    async def follow() -> None:
        async with running_gateway(tmp_path) as addresses:
            port = addresses.query.split(":")[2].partition("/")[0]
            async with connect(addresses.subscribe) as socket:
                await socket.send(sent)
                told = json.loads(await socket.recv())
                assert shape(told) == shape(json.loads(first))
                assert told["notification"]["sequence"] == 0
                for command, output in commands:
                    assert shape(json.loads(await asyncio.to_thread(run, command, port))) == shape(json.loads(output))
                notification = json.loads(await asyncio.wait_for(socket.recv(), 5))["notification"]
                assert notification["sequence"] == 1
                assert len(notification["addedResults"]["results"]["bindings"]) == 1
                late = json.loads(await asyncio.wait_for(socket.recv(), 5))["notification"]
                assert late["sequence"] == 2

    asyncio.run(follow())


def test_readme_python_example_compiles_and_names_what_exists() -> None:
    [example] = re.findall(r"```python\n(.*?)```", README, re.S)
    body = example.replace("asyncio.run(main())", "")
    names: dict[str, Any] = {}
    exec(compile(body, "README.md", "exec"), names)
    assert asyncio.iscoroutinefunction(names["main"])


def test_links_lead_somewhere() -> None:
    for document in (ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_modules_that_architecture_names_are_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for name in set(re.findall(r"`((?:engine|gateway|adapters|tests|apps|ontology|benchmarks)/[\w./-]+\.\w+)`", text)):
        assert (ROOT / name).exists(), name


def test_docstring_of_a_folder_names_its_files() -> None:
    for package in ("adapters", "cloud_sync", "demo", "engine", "gateway", "ontology"):
        for init in (ROOT / package).rglob("__init__.py"):
            folder = init.parent
            named = set(re.findall(r"\w+", ast.get_docstring(ast.parse(init.read_text())) or ""))
            modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
            packages = {path.parent.name for path in folder.glob("*/__init__.py")}
            missing = (modules | packages) - named
            assert not missing, f"{init.relative_to(ROOT)} does not name {sorted(missing)}"
