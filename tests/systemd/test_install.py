"""`lamplighter install` into a folder that stands for a machine's root."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.__main__ import command_parser
from lamplighter.gateway.cli.command_tree import LOCAL_MANUALS, LOCAL_PLACES, SHELLS, manuals, tree
from lamplighter.gateway.cli.install import Installer, base_interpreter, environment_files, sources
from tests.support.components import require_command
from tests.support.places import ROOT
from tests.support.units import UNITS

pytestmark = pytest.mark.faults  # it takes long


class Machine:
    """root: its files; said: what the installer said; asked: programs that it would have run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.said: list[str] = []
        self.asked: list[Sequence[str]] = []

    def run(self, command: Sequence[str]) -> str:
        self.asked.append(command)
        return ""

    def installer(self, *, dry: bool = False) -> Installer:
        self.said.clear()
        return Installer(root=self.root, dry=dry, run=self.run, say=self.said.append)

    def install(self, *, dry: bool = False) -> None:
        self.installer(dry=dry).install(command_parser())

    def files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    one = Machine(tmp_path_factory.mktemp("machine"))
    one.install()
    return one


def test_a_dry_run_says_all_and_does_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.install(dry=True)
    assert not machine.files()
    assert f"write {tmp_path}/etc/systemd/system/lamplighter-gateway.service" in machine.said


def test_what_is_installed_runs_by_itself(machine: Machine) -> None:
    prefix = machine.root / "usr/lib/lamplighter"
    command = [prefix / "bin/python", "-P", prefix / "bin/lamplighter", "--version"]
    told = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("lamplighter ")
    where = "import sys, lamplighter.gateway as own, pyoxigraph; print(sys.prefix, own.__file__, pyoxigraph.__file__)"
    places = subprocess.run(
        [prefix / "bin/python", "-P", "-c", where], cwd="/", capture_output=True, text=True, check=True
    )
    assert all(place.startswith(str(prefix)) for place in places.stdout.split())


def test_what_is_installed_has_no_test_tools(machine: Machine) -> None:
    names = {path.name for path in machine.root.glob("usr/lib/lamplighter/lib/*/site-packages/*")}
    assert {"lamplighter", "msgspec", "paho"} <= names
    assert not names & {"pytest", "mypy", "pyspark", "ruff", "hatchling", "iotcore", "tests"}


def test_units_settings_and_users_are_there(machine: Machine) -> None:
    for name in (
        "etc/systemd/system/lamplighter.target",
        "etc/systemd/system/lamplighter-http.socket",
        "etc/sysusers.d/lamplighter.conf",
        "etc/tmpfiles.d/lamplighter.conf",
        "etc/lamplighter/mapping/street.toml",
        "etc/lamplighter/apps/smart-lighting.jsap",
        "usr/share/lamplighter/lamplighter.toml",
        "usr/share/lamplighter/journald.conf.d/50-lamplighter.conf",
    ):
        assert (machine.root / name).is_file(), name
    for unit in (machine.root / "etc/systemd/system").glob("lamplighter-*.service"):
        (document,) = re.findall("^Documentation=file:///(.+)$", unit.read_text(), re.MULTILINE)
        assert (machine.root / document).is_file(), unit.name
    settings = machine.root / "etc/lamplighter/lamplighter.toml"
    assert settings.read_bytes() == (ROOT / "systemd/lamplighter.toml").read_bytes()
    assert (machine.root / "usr/local/bin/lamplighter").is_symlink()


def test_manual_pages_and_completions_are_where_programs_look_for_them(machine: Machine) -> None:
    for shell, place in LOCAL_PLACES.items():
        assert (machine.root / place).read_text() == SHELLS[shell](tree(command_parser()))
    folder = machine.root / LOCAL_MANUALS
    assert {path.stem for path in folder.iterdir()} == {name for name, _ in manuals(tree(command_parser()))}
    for shell, options, variable in (("zsh", ["-f"], "fpath"), ("fish", [], "fish_complete_path")):
        line = [require_command(shell), *options, "-c", f"echo ${variable}"]
        looked = subprocess.run(line, capture_output=True, text=True, check=True, timeout=120).stdout.split()
        assert str(Path("/", LOCAL_PLACES[shell]).parent) in looked


def test_pages_of_former_commands_go_and_services_are_not_restarted_for_pages(live: Machine) -> None:
    folder = live.root / LOCAL_MANUALS
    (folder / "lamplighter-former.1").write_text("old")
    (folder / "lamplighter-load.1").write_text("old")
    (folder / "lamp.1").write_text("of another program")
    live.asked.clear()
    live.install()
    assert not (folder / "lamplighter-former.1").exists()
    assert (folder / "lamplighter-load.1").read_text() != "old"
    assert (folder / "lamp.1").exists()
    assert asked(live, "try-restart") == []


def test_once_more_changes_nothing_and_keeps_what_the_operator_has_changed(machine: Machine) -> None:
    settings = machine.root / "etc/lamplighter/lamplighter.toml"
    settings.write_text(settings.read_text() + "# mine\n")
    unit = machine.root / "etc/systemd/system/lamplighter-mqtt.service"
    unit.write_text("old")
    before = machine.files()
    machine.install()
    assert f"keep {settings}" in machine.said
    assert f"write {unit}" in machine.said
    after = machine.files()
    assert after.pop(unit) == (UNITS / "lamplighter-mqtt.service").read_bytes()
    del before[unit]
    assert after == before
    assert f"keep {machine.root}/usr/lib/lamplighter, which is already this environment" in machine.said
    settings.write_bytes((ROOT / "systemd/lamplighter.toml").read_bytes())


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that systemd has started, on which it is installed already, and runs; its environment is one file."""
    monkeypatch.setattr(
        "lamplighter.gateway.cli.install.environment_files", lambda: iter([(ROOT / "LICENSE", Path("one.py"))])
    )
    monkeypatch.setattr(Installer, "_check_machine", lambda installer: setattr(installer, "_live", True))
    machine = Machine(tmp_path)
    machine.install()
    for name in ("lamplighter.target", "lamplighter-mqtt.service"):
        link = tmp_path / "etc/systemd/system/lamplighter.target.wants" / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(tmp_path / "etc/systemd/system" / name)
    return machine


def asked(machine: Machine, action: str) -> list[list[str]]:
    return [list(command[2:]) for command in machine.asked if list(command[:2]) == ["systemctl", action]]


def test_a_first_installation_enables_and_starts_all(live: Machine) -> None:
    [enabled] = asked(live, "enable")
    assert {"lamplighter.target", "lamplighter-gateway.service", "lamplighter-sync.timer"} < set(enabled)
    assert "lamplighter-sync.service" not in enabled
    assert asked(live, "start") == [["lamplighter.target"]]


def test_one_that_was_interrupted_before_anything_was_enabled_is_a_first_one(live: Machine) -> None:
    for link in (live.root / "etc/systemd/system/lamplighter.target.wants").iterdir():
        link.unlink()
    live.asked.clear()
    live.install()
    assert asked(live, "start") == [["lamplighter.target"]]


def test_an_upgrade_leaves_stopped_what_was_and_starts_what_is_new(live: Machine) -> None:
    live.asked.clear()
    (live.root / "etc/systemd/system/lamplighter-gateway.service").write_text("old")
    live.install()
    assert (asked(live, "enable"), asked(live, "start"), len(asked(live, "try-restart"))) == ([], [], 1)
    (live.root / "etc/systemd/system/lamplighter-sync.timer").unlink()
    live.install()
    assert asked(live, "enable") == asked(live, "start") == [["lamplighter-sync.timer"]]


def test_what_is_enabled_is_enabled_again_where_its_unit_has_changed(live: Machine) -> None:
    for name in ("lamplighter-mqtt.service", "lamplighter-coap.service"):  # the second one was disabled
        (live.root / "etc/systemd/system" / name).write_text("old")
    live.asked.clear()
    live.install()
    assert (asked(live, "enable"), asked(live, "start")) == ([["lamplighter-mqtt.service"]], [])


def test_byte_code_is_not_compiled_with_the_callers_folder_in_the_path(live: Machine) -> None:
    [compiled] = [command for command in live.asked if "compileall" in command]
    assert list(compiled[1:4]) == ["-P", "-m", "compileall"]


def test_what_the_package_leaves_when_it_is_removed_is_no_package(live: Machine) -> None:
    (live.root / "var/lib/dpkg/info").mkdir(parents=True)
    (live.root / "var/lib/dpkg/info/lamplighter.list").touch()
    (live.root / "etc/systemd/system/lamplighter-mqtt.service").write_text("old")
    live.install()
    unit = live.root / "etc/systemd/system/lamplighter-mqtt.service"
    assert unit.read_bytes() == (UNITS / "lamplighter-mqtt.service").read_bytes()
    assert any("the package lamplighter was removed" in line for line in live.said)
    live.installer().uninstall(purge=False)
    assert not unit.exists()


def test_the_command_of_somebody_else_stays(live: Machine) -> None:
    command = live.root / "usr/local/bin/lamplighter"
    for make in (lambda: command.write_text("mine"), lambda: command.symlink_to("/opt/mine")):
        command.unlink()
        make()
        live.install()
        live.installer().uninstall(purge=False)
        assert command.is_symlink() or command.read_text() == "mine"
    assert command.readlink() == Path("/opt/mine")


def test_another_version_takes_the_place_of_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "lamplighter.gateway.cli.install.environment_files", lambda: iter([(ROOT / "LICENSE", Path("one.py"))])
    )
    machine = Machine(tmp_path)
    machine.install()
    monkeypatch.setattr(
        "lamplighter.gateway.cli.install.environment_files", lambda: iter([(ROOT / "LICENSE", Path("two.py"))])
    )
    machine.install()
    assert {path.name for path in (tmp_path / "usr/lib/lamplighter/lib").rglob("*.py")} == {"two.py"}
    assert [path.name for path in (tmp_path / "usr/lib").iterdir()] == ["lamplighter"]


def test_uninstall_keeps_settings_and_data_until_it_is_told_to_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lamplighter.gateway.cli.install.environment_files", lambda: iter([(ROOT / "LICENSE", Path("one.py"))])
    )
    machine = Machine(tmp_path)
    machine.install()
    data = tmp_path / "var/lib/lamplighter/log"
    data.mkdir(parents=True)
    (data / "segment").write_text("x")
    (tmp_path / "var/lib/lamplighter-coap").mkdir()
    (tmp_path / "var/lib/lamplighter-coap/key").write_text("x")
    machine.installer().uninstall(purge=False)
    left = {str(path.relative_to(tmp_path)) for path in machine.files()}
    assert left == {
        "etc/lamplighter/lamplighter.toml",
        "etc/lamplighter/mapping/street.toml",
        "etc/lamplighter/apps/smart-lighting.jsap",
        "var/lib/lamplighter/log/segment",
        "var/lib/lamplighter-coap/key",
    }
    machine.installer().uninstall(purge=True)
    assert machine.files() == {}


def test_a_package_is_apts_to_remove(tmp_path: Path) -> None:
    (tmp_path / "var/lib/dpkg/info").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/info/lamplighter.list").touch()
    (tmp_path / "usr/lib/systemd/system").mkdir(parents=True)
    (tmp_path / "usr/lib/systemd/system/lamplighter.target").touch()
    with pytest.raises(ConfigurationError, match="apt purge lamplighter"):
        Machine(tmp_path).installer().uninstall(purge=True)


def test_only_root_installs_on_the_machine_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ConfigurationError, match="only root"):
        Installer().install(command_parser())


def test_the_interpreter_is_one_that_services_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys._base_executable", "/root/.pyenv/versions/9/bin/python", raising=False)
    monkeypatch.setattr("lamplighter.gateway.cli.install.Path.exists", lambda path: str(path).startswith("/usr/bin"))
    assert str(base_interpreter()).startswith("/usr/bin/python3")
    monkeypatch.setattr("lamplighter.gateway.cli.install.Path.exists", lambda path: False)
    with pytest.raises(ConfigurationError, match="in a home"):
        base_interpreter()


def test_sources_are_complete() -> None:
    assert (sources() / "systemd/lamplighter.target").exists()
    names = {str(name) for _, name in environment_files()}
    own = {"gateway/__main__.py", "cloud_sync/__main__.py", "adapters/mqtt/adapter.py", "__init__.py"}
    assert {f"lamplighter/{name}" for name in own} <= names
    assert not any(name.startswith("lamplighter/demo") for name in names)
    assert any(name.startswith("lamplighter-") and name.endswith("METADATA") for name in names)
