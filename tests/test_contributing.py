"""CONTRIBUTING.md lists every place of an extension: with all of them a toy works, and without any one it does not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.places import ROOT

TOYS = ROOT / "tests/toys"
COPIED = (
    "adapters",
    "apps",
    "cloud_sync",
    "docs",
    "engine",
    "gateway",
    "lamplighter",
    "mapping",
    "ontology",
    "systemd",
)
Edit = Callable[[Path], None]
"""Does at a place, a path of the copy, what the list says."""


def put(toy: str) -> Edit:
    """Copies a toy there."""

    def edit(place: Path) -> None:
        source = TOYS / toy
        shutil.copytree(source, place) if source.is_dir() else shutil.copyfile(source, place)

    return edit


def insert(*texts: tuple[str, str]) -> Edit:
    """Adds texts behind others. texts: (what is there, what is added)."""

    def edit(place: Path) -> None:
        text = place.read_text()
        for there, added in texts:
            assert text.count(there) == 1, f"{place}: {there}"
            text = text.replace(there, there + added)
        place.write_text(text)

    return edit


ADAPTER: Mapping[str, Edit] = {
    "adapters/toy/": put("adapter"),
    "adapters/specs.py": insert(
        ('Literal["mqtt"', ', "toy"'),
        ("ADAPTERS = (\n", '    AdapterSpec("toy", "lamplighter.adapters.toy.adapter:toy_parts", "toy adapter"),\n'),
    ),
    "gateway/settings/__init__.py": insert(
        ("import MqttSettings\n", "from lamplighter.adapters.toy.settings import ToySettings\n"),
        ("    modbus: ModbusSettings = ModbusSettings()\n", "    toy: ToySettings = ToySettings()\n"),
    ),
    "lamplighter.toml": insert(
        (
            " has the credentials for a device: docs/http-modbus-devices.md.\n",
            '\n[toy]\nenabled = false\ngreeting = "hello"\n',
        )
    ),
    "docs/install-upgrade.md": insert(
        ("`lamplighter-http-devices.service` |", " |\n| `lamplighter-toy.service` |"),
        ("reload-or-restart lamplighter-gateway", " lamplighter-toy"),
    ),
}
ADAPTER_CHECK = """
import asyncio, msgspec, sys, tomllib, urllib.request
from pathlib import Path
from lamplighter.adapters.specs import ADAPTERS, KINDS, Kind
from lamplighter.gateway.__main__ import command_parser
from lamplighter.gateway.service.configuration import Configuration
from lamplighter.gateway.service.process import run_gateway
from lamplighter.gateway.service.units import LONG_RUNNING, units
from lamplighter.gateway.service.enabled import reason_against
from lamplighter.gateway.settings import Settings
from typing import get_args

assert set(get_args(Kind)) == set(KINDS)
folder = Path(sys.argv[1])
config = folder / "lamplighter.toml"
config.write_text("[toy]\\nenabled = true\\n[coap]\\nenabled = false\\n[http]\\nport = 0\\n[websocket]\\nport = 0\\n")
assert not reason_against("toy", config)
assert command_parser().parse_args(["toy", "--config", str(config)]).command
assert "adapter_process toy --config" in units(Path("systemd"))["lamplighter-toy.service"]
documented = tomllib.loads(Path("lamplighter.toml").read_text())
assert documented["toy"] == msgspec.to_builtins(Settings().toy)
operations = Path("docs/install-upgrade.md").read_text()
for spec in ADAPTERS:
    assert f"`{spec.service}.service`" in operations, spec.name
assert " ".join(f"lamplighter-{name}" for name in sorted(LONG_RUNNING)) == " ".join(
    sorted(operations.partition("systemctl reload-or-restart ")[2].partition("\\n")[0].split())
)

def says(url):
    query = "?query=ASK%20%7B%3Curn%3Atoy%3E%20%3Curn%3Asays%3E%20%22hello%22%7D"
    with urllib.request.urlopen(urllib.request.Request(url + query, headers={"Accept": "text/csv"})) as answer:
        return b"true" in answer.read()

async def main():
    stop, heard = asyncio.Event(), []
    async def ask(url):
        heard.append(await asyncio.to_thread(says, url))
        stop.set()
    tasks = []
    ready = lambda addresses, recovery: tasks.append(asyncio.ensure_future(ask(addresses.query)))
    await run_gateway(Configuration.read(config, folder / "data"), stop, ready, adapters=True)
    await asyncio.gather(*tasks)
    assert heard == [True]

asyncio.run(main())
print("works")
"""

FORMAT: Mapping[str, Edit] = {
    "adapters/mqtt/discovery/toy.py": put("device_format.py"),
    "adapters/mqtt/discovery/announcements.py": insert(
        ("mqtt.discovery import (\n", "    toy,\n"), ("*(zigbee2mqtt", ", toy")
    ),
    "adapters/mqtt/settings.py": insert(('    "homeassistant", "zigbee2mqtt"', ', "toy"')),
    "lamplighter.toml": insert(('\ndiscovery = ["homeassistant", "zigbee2mqtt"', ', "toy"')),
    "docs/mqtt-devices.md": insert(("| announcements | read | switched |\n| --- | --- | --- | --- |\n", "| `toy` |\n")),
}
FORMAT_CHECK = """
import tomllib
from pathlib import Path
from typing import get_args
from lamplighter.adapters.mqtt.discovery.announcements import FORMATS, Announcements
from lamplighter.adapters.mqtt.settings import DiscoveryFormat, MqttSettings

settings = MqttSettings()
assert tuple(tomllib.loads(Path("lamplighter.toml").read_text())["mqtt"]["discovery"]) == settings.discovery
for name in get_args(DiscoveryFormat):
    assert f"| `{name}` |" in Path("docs/mqtt-devices.md").read_text(), name
known = Announcements(settings.discovery, devices_max=10)
changes = known.read("", "toys/duck/announce", b'{"topic": "toys/duck/celsius", "colour": 1, "factor": 10}')
[device], [left_out] = changes.devices, changes.left_out
assert (left_out.device, left_out.reason) == ("toy/duck", "not used: factor")
assert (device.identity, [sensor.kind for sensor in device.sensors]) == ("toy/duck", ["gateway:temperature"])
print("works")
"""

INTERFACE: Mapping[str, Edit] = {
    "gateway/gates/toy/": put("interface"),
    "gateway/gates/apis.py": insert(
        (
            "    if context.settings.changes.enabled:\n"
            "        from lamplighter.gateway.gates.changes import ChangeFeed\n\n"
            "        api_list.append(ChangeFeed(context.runner, context.settings, context.data))\n",
            "    if context.settings.toy.enabled:\n"
            "        from lamplighter.gateway.gates.toy import Toy\n\n"
            "        api_list.append(Toy(context.runner, context.settings))\n",
        )
    ),
    "gateway/settings/__init__.py": insert(
        (
            "    mqtt_select: tuple[str, ...] = ()\n",
            '\n\nclass ToySettings(_Table, frozen=True):\n    enabled: bool = False\n    greeting: str = "hello"\n',
        ),
        ("    changes: ChangesSettings = ChangesSettings()\n", "    toy: ToySettings = ToySettings()\n"),
    ),
    "lamplighter.toml": insert((" for replication\n", '\n[toy]\nenabled = false\ngreeting = "hello"\n')),
    "docs/choose-interface.md": insert(
        (
            "| interface | for | who connects | continues by | switch on |\n| --- | --- | --- | --- | --- |\n",
            "| Toy | tests | client | requests only | `[toy]` |\n",
        ),
    ),
}
INTERFACE_CHECK = """
import asyncio, json, msgspec, re, sys, tomllib, urllib.request
from pathlib import Path
from lamplighter.gateway.service.configuration import Configuration
from lamplighter.gateway.service.process import run_gateway
from lamplighter.gateway.settings import Settings

folder = Path(sys.argv[1])
config = folder / "lamplighter.toml"
config.write_text("[toy]\\nenabled = true\\n[http]\\nport = 0\\n[websocket]\\nport = 0\\n")
assert tomllib.loads(Path("lamplighter.toml").read_text())["toy"] == msgspec.to_builtins(Settings().toy)
interfaces = Path("docs/choose-interface.md").read_text()
assert "| Toy |" in interfaces

def answer(url, content=None):
    kind = {"Content-Type": "application/sparql-update"} if content else {}
    with urllib.request.urlopen(urllib.request.Request(url, content, kind)) as found:
        return found.read()

def greetings(addresses):
    answer(addresses.update, b"INSERT DATA { <urn:toy> <urn:greets> 'anna' }")
    top = addresses.query.rpartition("/")[0]
    assert b"/toy" in answer(top + "/")
    return json.loads(answer(top + "/toy"))

async def main():
    stop, heard, tasks = asyncio.Event(), [], []
    async def ask(addresses):
        try:
            heard.append(await asyncio.to_thread(greetings, addresses))
        finally:
            stop.set()
    ready = lambda addresses, recovery: tasks.append(asyncio.ensure_future(ask(addresses)))
    await run_gateway(Configuration.read(config, folder / "data"), stop, ready, adapters=False)
    await asyncio.gather(*tasks)
    assert heard == [{"hello": ['"anna"']}]

asyncio.run(main())
print("works")
"""

STAGE: Mapping[str, Edit] = {
    "engine/inference/toy.py": put("inference_stage.py"),
    "engine/core.py": insert(
        ("        self._validation: Validation | None = None\n", "        self._toy: Toy | None = None\n"),
        ("derives = self._inference is not None", " or self._toy is not None"),
        (
            "                delta = self._inference.complete(delta)\n",
            "            if self._toy is not None:\n                delta = self._toy.complete(delta)\n",
        ),
        ("            for part in (self._inference, ", "self._toy, "),
        (
            "    # --- validation ---\n",
            "\n    def begin_toy(self) -> None:\n"
            "        from lamplighter.engine.inference.toy import Toy\n\n"
            "        self._toy = Toy(self._store)\n"
            "        self._begin_deriving()\n",
        ),
    ),
    "docs/inference-shapes.md": insert(("| vocabulary | rules |\n| --- | --- |\n", "| `urn:toy:says` | heard |\n")),
}
STAGE_CHECK = """
from pathlib import Path
from lamplighter.engine import Engine
from lamplighter.engine.inference import toy

assert f"| `{toy.SAYS.strip('<>')}` |" in Path("docs/inference-shapes.md").read_text()
engine = Engine()
engine.begin_toy()
delta = engine.update("INSERT DATA { <urn:s> <urn:toy:says> 'x' }").delta
assert [quad.p for quad in delta.added] == [toy.SAYS, toy.HEARD]
assert not engine.update("INSERT DATA { <urn:s> <urn:toy:says> 'x' }").delta.changes
def fail(delta):
    raise ValueError
engine._toy.complete = fail
try:
    engine.update("CLEAR ALL")
except ValueError:
    assert engine._toy.refusals == 1 and len(list(engine.store.quads(None))) == 2
    print("works")
"""

JOB: Mapping[str, Edit] = {
    "cloud_sync/fleet/jobs/toy.py": put("fleet_job.py"),
    "cloud_sync/fleet/jobs/analysis.py": insert(
        ("    reactions,\n", "    toy,\n"),
        (
            "    @cached_property\n    def hourly(self) -> DataFrame:\n"
            '        return aggregates.aggregates(self.readings, "hour")\n',
            "\n    @cached_property\n    def toys(self) -> DataFrame:\n        return toy.toys(self.readings)\n",
        ),
    ),
    "cloud_sync/fleet/jobs/results.py": insert(
        ('_RESULTS = """\n', "toys | toy | readings by gateway\n    gw | gw\n    gw count\n")
    ),
    "cloud_sync/fleet/jobs/commands.py": insert(('    "all": "all jobs",\n', '    "toy": "readings by gateway",\n')),
    "docs/fleet-tables.md": insert(
        ("| job | result | columns |\n| --- | --- | --- |\n", "| `toy` | `toys` | gw count |\n")
    ),
}
JOB_CHECK = """
import argparse
from pathlib import Path
from lamplighter.cloud_sync.fleet.jobs.analysis import Analysis
from lamplighter.cloud_sync.fleet.jobs.commands import JOBS, add_commands, results_of
from lamplighter.cloud_sync.fleet.jobs.results import RESULTS

class Readings:
    def groupBy(self, *names):
        self.names = names
        return self
    def count(self):
        return f"counts by {self.names}"

analysis = Analysis(None, None, None, None)
analysis.readings = Readings()
assert analysis.toys == "counts by ('gw',)"
parser = argparse.ArgumentParser()
add_commands(parser.add_subparsers())
assert results_of(parser.parse_args(["jobs", "toy", "lake"]).job) == ("toys",)
for result in RESULTS.values():
    assert hasattr(Analysis, result.name) and result.job in JOBS, result.name
    assert f"\\n| `{result.job}` | " in Path("docs/fleet-tables.md").read_text(), result.job
print("works")
"""

LISTS = {
    "Add an adapter": (ADAPTER, ADAPTER_CHECK),
    "Add a format of announcements": (FORMAT, FORMAT_CHECK),
    "Add an interface": (INTERFACE, INTERFACE_CHECK),
    "Add an inference stage": (STAGE, STAGE_CHECK),
    "Add a fleet job": (JOB, JOB_CHECK),
}
"""heading of CONTRIBUTING.md -> what is done at each place, and a program that fails unless the toy works."""
PLACES = [(heading, place) for heading, (edits, _) in LISTS.items() for place in ("", *edits)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project."""
    copy = tmp_path_factory.mktemp("project")
    for name in COPIED:
        ignored = shutil.ignore_patterns("source", "images")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    shutil.copyfile(ROOT / "lamplighter.toml", copy / "lamplighter.toml")
    return copy


@pytest.mark.parametrize("heading", LISTS)
def test_the_list_has_these_places(heading: str) -> None:
    [section] = re.findall(rf"^## {heading}\n(.*?)^## ", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S)
    places = re.findall(r"^\| `(\S+)` \| ", section, re.M)
    assert [place.replace("NAME", "toy") for place in places] == list(LISTS[heading][0])


@pytest.mark.parametrize(("heading", "missing"), PLACES, ids=lambda text: text or "all")
def test_a_toy_works_with_all_places_and_with_all_only(
    project: Path, tmp_path: Path, heading: str, missing: str
) -> None:
    edits, check = LISTS[heading]
    before = {place: (project / place).read_bytes() for place in edits if (project / place).is_file()}
    try:
        for place, edit in edits.items():
            if place != missing:
                edit(project / place)
        done = subprocess.run(
            [sys.executable, "-c", check, str(tmp_path)],
            cwd=project,
            env={"PYTHONPATH": str(project)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    finally:
        for place in edits:
            path = project / place
            if place in before:
                path.write_bytes(before[place])
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    assert (done.stdout == "works\n") is (not missing), done.stderr
