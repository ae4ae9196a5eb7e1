"""The package's own scripts, on a folder that stands for a machine; what they call is noted and does nothing."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.units import PACKAGE, UNITS

INSTALLED = [path.name for path in UNITS.iterdir() if path.suffix in (".service", ".socket", ".target", ".timer")]
ENABLED = [name for name in INSTALLED if "[Install]" in (UNITS / name).read_text()]


class Dpkg:
    """root: of the machine; calls: the programs that its scripts called, in order, with their arguments."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._programs = root / "programs"
        self._calls = root / "calls"
        for folder in (
            "programs",
            "run/systemd/system",
            "etc/systemd/system",
            "etc/lamplighter",
            "usr/lib/lamplighter/bin",
            "usr/share/lamplighter/etc",
        ):
            (root / folder).mkdir(parents=True)
        (root / self._state).mkdir(parents=True)
        for name in (
            "deb-systemd-helper",
            "deb-systemd-invoke",
            "dpkg-query",
            "getent",
            "systemctl",
            "systemd-sysusers",
            "systemd-tmpfiles",
            "userdel",
        ):
            self._stand_in(self._programs / name)
        self._stand_in(root / "usr/lib/lamplighter/bin/python")

    _state = "var/lib/systemd/deb-systemd-helper-enabled"

    def _stand_in(self, path: Path, code: int = 0) -> None:
        path.write_text(f'#!/bin/sh\necho "$(basename "$0") $*" >> {self._calls}\nexit {code}\n')
        path.chmod(0o755)

    def fails(self, name: str) -> None:
        self._stand_in(self._programs / name, 1)

    def knows(self, *units: str) -> None:
        for unit in units:
            (self.root / self._state / f"{unit}.dsh-also").touch()

    @property
    def known(self) -> list[Path]:
        return [path for path in (self.root / self._state).rglob("*") if path.is_file()]

    def __call__(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        text = re.sub(r"(?<![\w./])/(?=(etc|run|usr|var)/)", f"{self.root}/", (PACKAGE / script).read_text())
        played = self.root / script
        played.write_text(text)
        self._calls.unlink(missing_ok=True)
        return subprocess.run(
            ["sh", str(played), *arguments],
            env={"PATH": f"{self._programs}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    def brings(self, **texts: str) -> None:
        """What a version has for /etc/lamplighter."""
        for path in self._brought.iterdir():
            path.unlink()
        for name, text in texts.items():
            (self._brought / name).write_text(text)

    @property
    def _brought(self) -> Path:
        return self.root / "usr/share/lamplighter/etc"

    @property
    def settings(self) -> dict[str, str]:
        """What is in /etc/lamplighter."""
        return {path.name: path.read_text() for path in (self.root / "etc/lamplighter").iterdir()}

    def invoked(self, action: str) -> list[str]:
        return [call for call in self.calls if call.startswith(f"deb-systemd-invoke {action}")]


@pytest.fixture
def dpkg(tmp_path: Path) -> Dpkg:
    return Dpkg(tmp_path)


def install_beside(dpkg: Dpkg) -> None:
    """What `lamplighter install` leaves on a machine."""
    (dpkg.root / "etc/systemd/system/lamplighter.target").write_text("[Unit]\n")


# --- beside `lamplighter install` ---


def test_the_package_does_not_go_over_an_installation_of_another_kind(dpkg: Dpkg) -> None:
    install_beside(dpkg)
    done = dpkg("preinst", "install")
    assert done.returncode == 1
    assert "`lamplighter uninstall` first" in done.stderr
    assert dpkg("preinst", "install", "0.1").returncode == 1, "nor where the package was removed before"


@pytest.mark.parametrize("link", ["/dev/null", "/usr/lib/systemd/system/lamplighter.target", ""])
def test_a_unit_that_is_masked_or_not_there_is_no_other_installation(dpkg: Dpkg, link: str) -> None:
    if link:
        (dpkg.root / "etc/systemd/system/lamplighter.target").symlink_to(link)
    assert dpkg("preinst", "install").returncode == 0


def test_purging_leaves_what_another_installation_has(dpkg: Dpkg) -> None:
    install_beside(dpkg)
    dpkg.knows(*ENABLED)
    (dpkg.root / "var/lib/lamplighter/log").mkdir(parents=True)
    (dpkg.root / "etc/credstore").mkdir()
    (dpkg.root / "etc/credstore/lamplighter.mqtt-password").touch()
    done = dpkg("postrm", "purge")
    assert done.returncode == 0
    assert "its data stay" in done.stderr
    assert (dpkg.root / "var/lib/lamplighter/log").exists()
    assert (dpkg.root / "etc/credstore/lamplighter.mqtt-password").exists()
    assert not [call for call in dpkg.calls if call.startswith(("userdel", "deb-systemd-helper"))]
    assert dpkg.known == [], "what the package knew goes, the links of systemd stay"


def test_purging_deletes_its_own(dpkg: Dpkg) -> None:
    for folder in ("var/lib/lamplighter/log", "var/lib/lamplighter-coap", "etc/credstore"):
        (dpkg.root / folder).mkdir(parents=True)
    (dpkg.root / "etc/credstore/lamplighter.mqtt-password").touch()
    assert dpkg("postrm", "purge").returncode == 0
    assert not (dpkg.root / "var/lib/lamplighter").exists()
    assert not (dpkg.root / "var/lib/lamplighter-coap").exists()
    assert not (dpkg.root / "etc/lamplighter").exists()
    assert not list((dpkg.root / "etc/credstore").iterdir())
    assert "userdel lamplighter" in dpkg.calls


# --- what is the operator's ---


def upgrade(dpkg: Dpkg, **texts: str) -> str:
    """What an upgrade to a version with these files for /etc/lamplighter prints."""
    assert dpkg("preinst", "upgrade", "0.1").returncode == 0
    dpkg.brings(**texts)
    done = dpkg("postinst", "configure", "0.1")
    assert (done.returncode, done.stderr) == (0, "")
    assert not list((dpkg.root / "run").glob("lamplighter.*"))
    return done.stdout


def test_files_of_the_operator_are_brought_once_and_followed_until_they_are_edited(dpkg: Dpkg) -> None:
    dpkg.brings(edited="1", followed="1", deleted="1", same="1")
    assert dpkg("postinst", "configure", "").returncode == 0
    assert dpkg.settings == {"edited": "1", "followed": "1", "deleted": "1", "same": "1"}
    own = dpkg.root / "etc/lamplighter"
    (own / "edited").write_text("mine")
    (own / "followed").chmod(0o640)
    (own / "deleted").unlink()
    (own / "added").write_text("already mine")
    printed = upgrade(dpkg, edited="2", followed="2", deleted="2", same="1", added="2", new="2")
    assert dpkg.settings == {"edited": "mine", "followed": "2", "same": "1", "added": "already mine", "new": "2"}
    assert (own / "followed").stat().st_mode & 0o777 == 0o640
    stays = sorted(Path(line.split()[1]).name for line in printed.splitlines())
    assert stays == ["added", "edited"]
    assert "edited" not in upgrade(dpkg, edited="mine", followed="3")
    assert dpkg.settings["followed"] == "3"


def test_conffiles_of_the_first_version_are_followed_until_they_are_edited(dpkg: Dpkg) -> None:
    own = dpkg.root / "etc/lamplighter"
    (own / "edited").write_text("mine")
    (own / "followed").write_text("1")
    sums = {"edited": "c4ca4238a0b923820dcc509a6f75849b", "followed": "c4ca4238a0b923820dcc509a6f75849b"}
    lines = "".join(f" {own}/{name} {value}\n" for name, value in {**sums, "deleted": "0" * 32}.items())
    (dpkg.root / "programs/dpkg-query").write_text(f"#!/bin/sh\necho '{lines}'\n")
    (dpkg.root / "usr/share/lamplighter/etc").rmdir()
    assert dpkg("preinst", "upgrade", "0.1").returncode == 0
    (dpkg.root / "usr/share/lamplighter/etc").mkdir()
    dpkg.brings(edited="2", followed="2", deleted="2", new="2")
    assert dpkg("postinst", "configure", "0.1").returncode == 0
    assert dpkg.settings == {"edited": "mine", "followed": "2", "new": "2"}


def test_what_is_not_known_to_be_unedited_stays(dpkg: Dpkg) -> None:
    """The machine was restarted while the package was unpacked, and its list is gone."""
    (dpkg.root / "etc/lamplighter/lamplighter.toml").write_text("1")
    dpkg.brings(**{"lamplighter.toml": "2"})
    assert "stays as you edited it" in dpkg("postinst", "configure", "0.1").stdout
    assert dpkg.settings == {"lamplighter.toml": "1"}


# --- what is started ---


def test_a_first_installation_starts_all(dpkg: Dpkg) -> None:
    assert dpkg("preinst", "install").returncode == 0
    assert dpkg("postinst", "configure", "").returncode == 0
    assert dpkg.invoked("") == ["deb-systemd-invoke start lamplighter.target"]


def test_an_installation_after_a_removal_starts_all(dpkg: Dpkg) -> None:
    dpkg.knows(*ENABLED)
    assert dpkg("preinst", "install", "0.1").returncode == 0
    assert dpkg("postinst", "configure", "0.1").returncode == 0
    assert dpkg.invoked("") == ["deb-systemd-invoke start lamplighter.target"]
    assert dpkg("preinst", "upgrade", "0.1").returncode == 0
    assert dpkg("postinst", "configure", "0.1").returncode == 0
    assert dpkg.invoked("start") == [], "the next upgrade is one again"


def test_an_upgrade_starts_nothing_that_was_stopped(dpkg: Dpkg) -> None:
    dpkg.knows(*ENABLED)
    assert dpkg("preinst", "upgrade", "0.1").returncode == 0
    assert dpkg("postinst", "configure", "0.1").returncode == 0
    [restarted] = dpkg.invoked("")
    assert restarted.startswith("deb-systemd-invoke try-restart ")


@pytest.mark.parametrize("running", [True, False])
def test_an_upgrade_starts_what_is_new_if_the_rest_runs(dpkg: Dpkg, running: bool) -> None:
    dpkg.knows(*(name for name in ENABLED if name != "lamplighter-sync.timer"))
    if not running:
        dpkg.fails("systemctl")
        text = (dpkg.root / "programs/systemctl").read_text()
        (dpkg.root / "programs/systemctl").write_text(text.replace("exit 1", '[ "$1" = daemon-reload ]'))
    assert dpkg("postinst", "configure", "0.1").returncode == 0
    assert dpkg.invoked("start") == (["deb-systemd-invoke start lamplighter-sync.timer"] if running else [])


def test_byte_code_is_not_compiled_with_the_callers_folder_in_the_path(dpkg: Dpkg) -> None:
    dpkg("postinst", "configure", "")
    [compiled] = [call for call in dpkg.calls if "compileall" in call]
    assert compiled.startswith("python -P -m compileall ")
