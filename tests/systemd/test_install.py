"""`lamplighter install` into a folder that stands for a machine's root."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.errors import ConfigurationError
from gateway.install import Installer, base_interpreter, environment_files, sources
from tests.systemd.test_units import TOP


class Machine:
    """root: its files; said: what the installer said; asked: programs that it would have run."""

    def __init__(self, root: Path, systemd: int = 252) -> None:
        self.root = root
        self.systemd = systemd
        self.said: list[str] = []
        self.asked: list[Sequence[str]] = []

    def run(self, command: Sequence[str]) -> str:
        self.asked.append(command)
        return f"systemd {self.systemd} ({self.systemd}.1)\n" if command[0] == "systemctl" else ""

    def installer(self, *, dry: bool = False) -> Installer:
        self.said.clear()
        return Installer(root=self.root, dry=dry, run=self.run, say=self.said.append)

    def files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    one = Machine(tmp_path_factory.mktemp("machine"))
    one.installer().install()
    return one


def test_a_dry_run_says_all_and_does_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.installer(dry=True).install()
    assert not machine.files()
    assert f"write {tmp_path}/etc/systemd/system/lamplighter-gateway.service" in machine.said


def test_what_is_installed_runs_by_itself(machine: Machine) -> None:
    prefix = machine.root / "usr/lib/lamplighter"
    command = [prefix / "bin/python", "-P", prefix / "bin/lamplighter", "--version"]
    told = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("lamplighter ")
    where = "import sys, gateway, pyoxigraph, cloud_sync; print(sys.prefix, gateway.__file__, pyoxigraph.__file__)"
    places = subprocess.run(
        [prefix / "bin/python", "-P", "-c", where], cwd="/", capture_output=True, text=True, check=True
    )
    assert all(place.startswith(str(prefix)) for place in places.stdout.split())


def test_what_is_installed_has_no_test_tools(machine: Machine) -> None:
    names = {path.name for path in machine.root.glob("usr/lib/lamplighter/lib/*/site-packages/*")}
    assert {"engine", "gateway", "msgspec", "paho"} <= names
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
    ):
        assert (machine.root / name).is_file(), name
    settings = machine.root / "etc/lamplighter/lamplighter.toml"
    assert settings.read_bytes() == (TOP / "systemd/lamplighter.toml").read_bytes()
    assert (machine.root / "usr/local/bin/lamplighter").is_symlink()


def test_once_more_changes_nothing_and_keeps_what_the_operator_has_changed(machine: Machine) -> None:
    settings = machine.root / "etc/lamplighter/lamplighter.toml"
    settings.write_text(settings.read_text() + "# mine\n")
    unit = machine.root / "etc/systemd/system/lamplighter-mqtt.service"
    unit.write_text("old")
    before = machine.files()
    machine.installer().install()
    assert f"keep {settings}" in machine.said
    assert f"write {unit}" in machine.said
    after = machine.files()
    assert after.pop(unit) == (TOP / "systemd/lamplighter-mqtt.service").read_bytes()
    del before[unit]
    assert after == before
    assert f"keep {machine.root}/usr/lib/lamplighter, which is this environment already" in machine.said
    settings.write_bytes((TOP / "systemd/lamplighter.toml").read_bytes())


@pytest.mark.parametrize(("systemd", "steps"), [(252, 0), (257, 3)])
def test_newer_systemd_waits_longer_from_one_restart_to_the_next(tmp_path: Path, systemd: int, steps: int) -> None:
    machine = Machine(tmp_path, systemd)
    machine.installer(dry=True).install()
    assert sum("restart-steps" in line for line in machine.said) == steps


def test_another_version_takes_the_place_of_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.install.environment_files", lambda: iter([(TOP / "LICENSE", Path("one.py"))]))
    machine = Machine(tmp_path)
    machine.installer().install()
    monkeypatch.setattr("gateway.install.environment_files", lambda: iter([(TOP / "LICENSE", Path("two.py"))]))
    machine.installer().install()
    assert {path.name for path in (tmp_path / "usr/lib/lamplighter/lib").rglob("*.py")} == {"two.py"}
    assert [path.name for path in (tmp_path / "usr/lib").iterdir()] == ["lamplighter"]


def test_uninstall_keeps_settings_and_data_until_it_is_told_to_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.install.environment_files", lambda: iter([(TOP / "LICENSE", Path("one.py"))]))
    machine = Machine(tmp_path)
    machine.installer().install()
    data = tmp_path / "var/lib/lamplighter/log"
    data.mkdir(parents=True)
    (data / "segment").write_text("x")
    machine.installer().uninstall(purge=False)
    left = {str(path.relative_to(tmp_path)) for path in machine.files()}
    assert left == {
        "etc/lamplighter/lamplighter.toml",
        "etc/lamplighter/mapping/street.toml",
        "etc/lamplighter/apps/smart-lighting.jsap",
        "var/lib/lamplighter/log/segment",
    }
    machine.installer().uninstall(purge=True)
    assert machine.files() == {}


def test_a_package_is_apts_to_remove(tmp_path: Path) -> None:
    (tmp_path / "var/lib/dpkg/info").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/info/lamplighter.list").touch()
    (tmp_path / "usr/lib/lamplighter").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="apt purge lamplighter"):
        Machine(tmp_path).installer().uninstall(purge=True)


def test_only_root_installs_on_the_machine_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ConfigurationError, match="only root"):
        Installer().install()


def test_the_interpreter_is_one_that_services_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys._base_executable", "/root/.pyenv/versions/9/bin/python", raising=False)
    monkeypatch.setattr("gateway.install.Path.exists", lambda path: str(path).startswith("/usr/bin"))
    assert str(base_interpreter()).startswith("/usr/bin/python3")
    monkeypatch.setattr("gateway.install.Path.exists", lambda path: False)
    with pytest.raises(ConfigurationError, match="in a home"):
        base_interpreter()


def test_sources_are_complete() -> None:
    assert (sources() / "systemd/lamplighter.target").exists()
    names = {str(name) for _, name in environment_files()}
    assert {"gateway/__main__.py", "cloud_sync/__main__.py", "adapters/mqtt/adapter.py"} <= names
    assert any(name.startswith("lamplighter-") and name.endswith("METADATA") for name in names)
