"""A Debian machine of the tests' own: a tree of this machine's release, started by systemd in a container, offline."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.components import require_command
from tests.support.places import ROOT

WORK = ROOT / "build/machine"
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "init-system-helpers",
    "python3",
    "curl",
    "mosquitto",
    "mosquitto-clients",
)
START_S = 120


def release() -> str:
    found = re.search(r"^VERSION_CODENAME=(\w+)$", Path("/etc/os-release").read_text(), re.M)
    assert found is not None
    return found[1]


@contextmanager
def alone() -> Iterator[None]:
    """What only one process of the tests may do at a time."""
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def remove(folder: Path) -> None:
    """Not what is mounted there: while a tree is made, /dev/shm of this machine is."""
    run("rm", "-rf", "--one-file-system", str(folder))


def base_tree() -> Path:
    """Debian's packages that the tests need, made once."""
    suite = release()
    name = hashlib.sha256(" ".join((suite, *PACKAGES)).encode()).hexdigest()[:12]
    tree = WORK / f"{suite}-{name}"
    with alone():
        if not tree.exists():
            made = tree.with_suffix(".new")
            remove(made)
            options = [
                "--variant=minbase",
                f"--include={','.join(PACKAGES)}",
                '--aptopt=APT::Install-Recommends "false"',
            ]
            run(require_command("mmdebstrap"), *options, suite, str(made))
            made.rename(tree)
    return tree


def built_package(tree: Path) -> Path:
    """The Debian package of a checkout for this machine."""
    tools = tree / "build/deb/tools"
    if tree != ROOT and not tools.exists():
        tools.parent.mkdir(parents=True, exist_ok=True)
        tools.symlink_to(ROOT / "build/deb/tools")
    with alone():
        # The strongest compression takes 20 s of a processor, and is not what is looked at.
        built = run("env", "LEVEL=1", "bash", str(tree / "image/deb/build.sh")).splitlines()[-1]
    return Path(built.removeprefix("deb: ").partition(",")[0])


def rebuild(package: Path, target: Path, version: str, change: Callable[[Path], None]) -> None:
    """The same package as another version, with some of its files changed."""
    tree = WORK / f"rebuilt-{os.getpid()}"
    run("dpkg-deb", "--raw-extract", str(package), str(tree))
    control = tree / "DEBIAN/control"
    control.write_text(re.sub("(?m)^Version: ", f"Version: {version}", control.read_text()))
    change(tree)
    run("dpkg-deb", "--build", "-Znone", "--root-owner-group", str(tree), str(target))
    remove(tree)


def with_bytecode(tree: Path) -> None:
    """Brings what each installation would compile, and what each removal would look for."""
    library = tree / "usr/lib/lamplighter/lib"
    run(sys.executable, "-m", "compileall", "-q", "-j", "0", "-s", str(tree), "-p", "/", str(library))
    for script in ("postinst", "prerm"):
        lines = (tree / "DEBIAN" / script).read_text().splitlines(keepends=True)
        others = [line for line in lines if "compileall" not in line and "__pycache__" not in line]
        assert len(others) == len(lines) - 1
        (tree / "DEBIAN" / script).write_text("".join(others))


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


class Machine:
    """One machine, from its first start until `end`. root: its files."""

    def __init__(self, name: str) -> None:
        self.root = WORK / name
        remove(self.root)
        run("cp", "-a", "--reflink=auto", str(base_tree()), str(self.root))
        self.put("/etc/dpkg/dpkg.cfg.d/tests", "force-unsafe-io\n")  # the disk is synced for each file otherwise
        # Nothing is asked of a systemd of this machine: there may be none.
        command = [
            require_command("systemd-nspawn"),
            f"--directory={self.root}",
            f"--machine=lamplighter-{os.getpid()}",
            "--boot",
            "--register=no",
            "--keep-unit",
            "--private-network",
            "--console=pipe",
        ]
        environment = {**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
        with (WORK / f"{name}.log").open("w") as log:
            self._container = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        self._init = 0
        self.wait(self._is_up, START_S, "the start of the machine")

    def _is_up(self) -> bool:
        assert self._container.poll() is None, "the container ended; build/machine/*.log says why"
        children = Path(f"/proc/{self._container.pid}/task/{self._container.pid}/children").read_text().split()
        if not children:
            return False
        self._init = int(children[0])
        return self.code("systemctl is-system-running") == 0

    def end(self) -> None:
        """At once, as by a power cut: nobody looks at it any more."""
        if self._init and self._container.poll() is None:
            os.kill(self._init, signal.SIGKILL)
        try:
            self._container.wait(30)
        except subprocess.TimeoutExpired:
            self._container.kill()
            self._container.wait(30)
        remove(self.root)

    def _command(self, command: str) -> list[str]:
        return ["nsenter", "--target", str(self._init), "--all", "sh", "-c", command]

    def __call__(self, command: str) -> str:
        """What a shell command of root's prints; it has to go well."""
        return run(*self._command(command)).strip()

    def code(self, command: str) -> int:
        """Its exit code."""
        return subprocess.run(self._command(command), capture_output=True, check=False).returncode

    def begin(self, command: str) -> subprocess.Popen[str]:
        """Beside what follows."""
        return subprocess.Popen(self._command(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def put(self, path: str, text: str) -> None:
        (self.root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path.lstrip("/")).write_text(text)

    def show(self, unit: str, property: str) -> str:
        return self(f"systemctl show --property={property} --value {unit}")

    def journal(self, words: str) -> str:
        return self(f"journalctl --no-pager --output=cat {words}")

    def wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if condition():
                return
            time.sleep(0.2)  # another machine has no other way to tell
        raise AssertionError(f"{what} did not come true within {timeout_s} s")
