"""The wheel and the sdist: what they hold, and whether the commands work from an installation.

The wheel is built and installed as pip does it for a user. Its dependencies are not downloaded again: a folder has
links to those distributions of the test environment that the wheel asks for, directly or not, and a .pth file adds it
to the installation's path. That is as good as a download. The versions are pinned by the same lock, the metadata of the
built wheel selects them, and a module that the metadata forgets, or that belongs to another extra, cannot be imported.
A .pth file in the linked folder has no effect, so neither has the editable installation of the checkout.
"""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.components import require_documents, require_page
from tests.support.linked_packages import link, needed
from tests.support.places import ROOT

pytestmark = pytest.mark.faults  # it takes long

FOREIGN = "foreign = True\n"
WAIT_S = 120.0


def build(target: str, source: Path, folder: Path) -> Path:
    """Builds without isolation: hatchling is of the test environment."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
    (built,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert len(names) == len(set(names))
        return {name: archive.read(name) for name in names}


def requirements(wheel: Path) -> list[str]:
    (metadata,) = (data for name, data in contents(wheel).items() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(metadata).get_all("Requires-Dist", [])


@dataclass
class Installation:
    """A virtual environment with the wheel. wheel: the file; work: an empty folder, but for what is foreign."""

    wheel: Path
    prefix: Path
    work: Path
    demo: Path

    @property
    def python(self) -> str:
        return str(self.prefix / "bin" / "python")

    @property
    def packages(self) -> Path:
        (found,) = self.prefix.glob("lib/python*/site-packages")
        return found

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        return {**kept, "PYTHONUNBUFFERED": "1", **more}

    def run(self, *command: str, timeout_s: float = WAIT_S, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of the installation in the work folder."""
        return subprocess.run(
            [str(self.prefix / "bin" / command[0]), *command[1:]],
            cwd=self.work,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("installation")
    wheel = build("wheel", ROOT, folder / "dist")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    made = Installation(wheel, folder / "venv", folder / "work", folder / "demo")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", made.python, "install", "--quiet", "--disable-pip-version-check",
         "--no-deps", "--no-index", str(wheel)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    plain, demo = needed(requirements(wheel)), needed(requirements(wheel), "demo")
    (made.packages / "dependencies.pth").write_text(f"{link(plain.values(), folder / 'dependencies')}\n")
    link((demo[name] for name in demo.keys() - plain.keys()), made.demo)
    (made.packages / "adapters").mkdir()
    (made.packages / "adapters" / "__init__.py").write_text(FOREIGN)
    made.work.mkdir()
    (made.work / "engine.py").write_text(FOREIGN)
    return made


def test_one_import_name_is_ours(installation: Installation) -> None:
    (record,) = installation.packages.glob("lamplighter-*.dist-info/RECORD")
    names = [line.split(",")[0] for line in record.read_text().splitlines()]
    assert {name.split("/")[0] for name in names} == {"lamplighter", record.parent.name, ".."}
    beside = {name for name in names if name.startswith("../") and "/share/lamplighter/" not in name}
    assert {Path(name).name for name in beside} == {"lamplighter", "lamplighter-fleet"}


def test_foreign_modules_of_the_same_names_stay_beside_ours(installation: Installation) -> None:
    script = (
        "import lamplighter.gateway.__main__, lamplighter.adapters.mqtt.adapter, lamplighter.engine; "
        "import adapters, engine; "
        "print(lamplighter.__file__, adapters.foreign, engine.foreign)"
    )
    told = installation.run("python", "-c", script)
    assert told.stdout.split() == [str(installation.packages / "lamplighter/__init__.py"), "True", "True"], told.stderr


def test_the_gateway_serves_a_query_and_stops_on_a_signal(installation: Installation) -> None:
    (installation.work / "lamplighter.toml").write_text("[http]\nport = 0\n[websocket]\nport = 0\n")
    gateway = subprocess.Popen(
        [installation.python, "-m", "lamplighter.gateway", "run"],
        cwd=installation.work,
        env=installation.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert gateway.stdout
        lines: list[str] = []
        while not (found := re.search(r"query +(http://\S+)", "".join(lines))):
            lines.append(gateway.stdout.readline())
            assert lines[-1], f"the gateway did not start: {gateway.stderr and gateway.stderr.read()}"
        body = urllib.parse.urlencode({"query": "SELECT (1 + 1 AS ?two) WHERE {}"}).encode()
        with urllib.request.urlopen(found[1], body, timeout=WAIT_S) as answer:
            assert json.load(answer)["results"]["bindings"][0]["two"]["value"] == "2"
        gateway.terminate()
        _, said = gateway.communicate(timeout=WAIT_S)
        assert (gateway.returncode, "Traceback" in said) == (0, False), said
    finally:
        gateway.kill()
        gateway.communicate()


def test_the_web_page_is_in_the_wheel_without_its_sources(installation: Installation) -> None:
    page = require_page()
    packed = {name.removeprefix("lamplighter/gateway/page/") for name in contents(installation.wheel)}
    assert {f"built/assets/{name}" for name in page.files} | {"built/index.html", "built/licenses.txt"} <= packed
    assert not {name for name in packed if name.startswith("source/") or name in ("build.sh", "node.lock")}
    told = installation.run("python", "-c", "from lamplighter.gateway.page.assets import *; print(built_assets())")
    assert told.stdout.startswith("Assets("), told.stderr


def test_the_documents_are_in_the_wheel_without_their_sources(installation: Installation) -> None:
    documents = require_documents()
    packed = set(contents(installation.wheel))
    stored = {f"{name}.gz" if one.packed else name for name, one in documents.files.items()} | {"files.json"}
    assert {f"lamplighter/gateway/page/built-docs/{name}" for name in stored} <= packed
    assert not {name for name in packed if "docs_site" in name}
    script = (
        "from lamplighter.gateway.page import documents as d; "
        "print(len(d.built_documents().content('index.html', packed=0)))"
    )
    told = installation.run("python", "-c", script)
    assert told.stdout.strip() == str(documents.files["index.html"].size), told.stderr


def test_the_demo_plays_with_its_mapping_and_application(installation: Installation) -> None:
    played = installation.run("lamplighter", "demo", "--for", "20", PYTHONPATH=str(installation.demo))
    assert played.returncode == 0, played.stdout + played.stderr
    assert "lamp 1 is ON" in played.stdout


def test_the_demo_names_the_broker_that_is_missing(installation: Installation) -> None:
    told = installation.run("lamplighter", "demo", "--for", "20")
    assert (told.returncode, len(told.stderr.splitlines())) == (2, 1), told.stderr
    assert "pip install 'iotcore<" in told.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["simulate", "--help"], ["collect", "--help"]])
def test_the_fleet_has_help_without_the_cloud_s_packages(installation: Installation, arguments: list[str]) -> None:
    told = installation.run("lamplighter-fleet", *arguments)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("usage: lamplighter-fleet")


def test_simulation_and_collection_need_no_cloud_packages(installation: Installation) -> None:
    simulated = ["simulate", "--gateways", "1", "--days", "0.01", "--processes", "1", "fleet"]
    for command in (simulated, ["collect", "fleet/shipped", "lake"], ["status", "lake"]):
        told = installation.run("lamplighter-fleet", *command)
        assert told.returncode == 0, told.stderr


@pytest.mark.parametrize(
    "command",
    [
        "ingest lake",
        "report lake",
        "state lake gw-1 --at 1/1 --output x",
        "export lake --format delta --table streams --output x",
        "export lake --format rdfpatch --gateway gw-1 --output x",
        "compact lake",
        "demo",
    ],
)
def test_a_command_that_needs_the_cloud_s_packages_names_what_to_install(
    installation: Installation, command: str
) -> None:
    told = installation.run("lamplighter-fleet", *command.split())
    assert (told.returncode, len(told.stderr.splitlines())) == (2, 1), told.stderr
    assert "; pip install 'deltalake<" in told.stderr and "'pyspark<" in told.stderr


@pytest.mark.parametrize(("command", "before"), [("silver lake", "ingest"), ("jobs all lake", "silver")])
def test_a_command_behind_those_names_the_one_before_it(installation: Installation, command: str, before: str) -> None:
    told = installation.run("lamplighter-fleet", *command.split())
    assert (told.returncode, len(told.stderr.splitlines())) == (2, 1), told.stderr
    assert f"run lamplighter-fleet {before}" in told.stderr.replace("`", "")


@pytest.mark.parametrize(("url", "package"), [("s3://bucket", "s3fs"), ("sftp://host/folder", "paramiko")])
def test_shipping_and_collecting_name_the_packages_of_a_url(installation: Installation, url: str, package: str) -> None:
    told = installation.run("lamplighter-fleet", "collect", url, "lake")
    assert (told.returncode, len(told.stderr.splitlines())) == (2, 1), told.stderr
    assert "; pip install 'fsspec>" in told.stderr and f" '{package}" in told.stderr


INSTALL = """
import sys
from pathlib import Path
from lamplighter.gateway.__main__ import command_parser
from lamplighter.gateway.cli.install import Installer
Installer(root=Path(sys.argv[1]), run=lambda command: "").install(command_parser())
"""
IMPORT_ALL = """
import importlib, pkgutil, lamplighter
extras = (
    *("lamplighter.cloud_sync.fleet.", "lamplighter.engine.rdflib", "lamplighter.engine.client.rdflib"),
    "lamplighter.gateway.gates.mcp",
    *("lamplighter.adapters.modbus.connection", "lamplighter.adapters.modbus.protocol"),
)
names = [one.name for one in pkgutil.walk_packages(lamplighter.__path__, "lamplighter.")]
names = [name for name in names if not name.startswith(extras) and "__main__" not in name]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


@pytest.fixture(scope="module")
def machine(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a machine on which the wheel's `lamplighter install` has set up the services."""
    root = tmp_path_factory.mktemp("machine")
    made = installation.run("python", "-c", INSTALL, str(root))
    assert made.returncode == 0, made.stderr
    return root


def installed(machine: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command line of a unit on that machine."""
    for folder in ("/usr/lib/lamplighter/", "/etc/lamplighter/"):
        command = command.replace(folder, f"{machine}{folder}")
    command = re.sub(rf"(?<!\S){machine}(\S*)/bin/lamplighter", rf"{machine}\1/bin/python -P \g<0>", command)
    # systemd writes one dollar sign as two.
    return subprocess.run(
        ["/bin/sh", "-c", command.replace("$$", "$")], cwd=machine, capture_output=True, text=True, timeout=WAIT_S
    )


def test_services_are_installed_from_the_wheel(machine: Path) -> None:
    (packages,) = machine.glob("usr/lib/lamplighter/lib/python*/site-packages")
    ours = {path.name for path in (packages / "lamplighter").iterdir()}
    assert ours == {"__init__.py", "py.typed", "adapters", "cloud_sync", "engine", "gateway", "ontology"}
    assert (machine / "usr/lib/lamplighter/share/lamplighter/systemd/lamplighter.target").is_file()
    told = installed(machine, f"/usr/lib/lamplighter/bin/python -P -c '{IMPORT_ALL}'")
    assert told.returncode == 0, told.stderr
    assert int(told.stdout) > 100


def test_each_command_of_the_units_runs(machine: Path) -> None:
    units = sorted((machine / "etc/systemd/system").glob("lamplighter-*.service"))
    found = [line for unit in units for line in re.findall(r"^Exec(?:Start|Condition)=(.*)$", unit.read_text(), re.M)]
    assert len(found) == 11
    for command in found:
        shell = command.startswith("/bin/sh")
        told = installed(machine, command if shell else f"{command} --help")
        assert "No module" not in told.stderr and told.returncode in ((0, 1) if shell else (0,)), told.stderr


def test_the_demo_is_not_on_a_gateway(machine: Path) -> None:
    told = installed(machine, "/usr/lib/lamplighter/bin/lamplighter demo")
    assert (told.returncode, len(told.stderr.splitlines())) == (2, 1), told.stderr
    assert "`make run` in a checkout" in told.stderr
    told = installed(machine, "/usr/lib/lamplighter/bin/python -P -m lamplighter.cloud_sync.fleet --help")
    assert told.returncode == 0 and "collect" in told.stdout and "simulate" not in told.stdout, told.stderr


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that the sdist unpacks to."""
    folder = tmp_path_factory.mktemp("sdist")
    subprocess.run(["tar", "-xzf", build("sdist", ROOT, folder / "dist"), "-C", folder], check=True)
    (unpacked,) = folder.glob("lamplighter-*")
    yield unpacked


def test_the_sdist_has_each_file_once(sdist: Path) -> None:
    assert sorted(path.name for path in (sdist / "lamplighter").iterdir()) == ["__init__.py", "py.typed"]
    assert (sdist / "engine/core.py").is_file()


def test_the_sdist_makes_the_same_wheel(installation: Installation, sdist: Path, tmp_path: Path) -> None:
    again = contents(build("wheel", sdist, tmp_path))
    first = contents(installation.wheel)
    assert again.keys() == first.keys()
    assert [name for name in first if first[name] != again[name]] == []


def test_an_editable_installation_is_a_path_to_the_checkout(tmp_path: Path) -> None:
    script = "import sys, hatchling.build as build; build.build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("*.whl")
    own = {name: data for name, data in contents(wheel).items() if "-0" not in name.split("/")[0]}
    assert [(Path(name).suffix, data.decode().strip()) for name, data in own.items()] == [(".pth", str(ROOT))]
