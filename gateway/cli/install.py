"""`lamplighter install` and `uninstall`: the services on any machine with Debian 12 or 13, or Raspberry Pi OS.

From a virtual environment, its files are copied to /usr/lib/lamplighter, as in the package: a service needs a folder
that belongs to root and is not in a home. If the package is installed, only the steps of its scripts are repeated. Each
step is printed, and skipped if it is already done.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import lamplighter
from lamplighter.adapters.specs import ADAPTERS
from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.command_tree import LOCAL_MANUALS, LOCAL_PLACES, PROGRAM, texts
from lamplighter.gateway.cli.console import confirm
from lamplighter.gateway.cli.options import add_confirmation
from lamplighter.gateway.service.units import LONG_RUNNING, STATES, UNIT_KINDS, unit_names, units

_PACKAGE = Path(lamplighter.__file__).parent
_PREFIX = "usr/lib/lamplighter"
_SHARE = "share/lamplighter"
_UNITS = "etc/systemd/system"
_PACKAGE_UNITS = "usr/lib/systemd/system"
_SETTINGS = "etc/lamplighter"
_STATE = "var/lib/lamplighter"
_DOCUMENTS = "usr/share/doc/lamplighter"
_COMMAND = "usr/local/bin/lamplighter"
_COMMAND_TARGET = f"/{_PREFIX}/bin/lamplighter"
_JOURNAL = "journald.conf.d/50-lamplighter.conf"
_NOT_INSTALLED = ("demo", "mapping", "apps")  # for experiments; settings and profiles have their own places
_EXTRAS = ("mcp", "sync-s3", "sync-sftp", *(spec.extra for spec in ADAPTERS if spec.extra))
_TARGET = "lamplighter.target"
_START = """\
#!/usr/lib/lamplighter/bin/python -P
import sys

from lamplighter.gateway.__main__ import main

sys.exit(main())
"""

# Runs a program and returns what it printed. Raises ConfigurationError when it fails.
Run = Callable[[Sequence[str]], str]


def run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConfigurationError(f"{command[0]}: {error.strerror}; this needs a machine with systemd") from error
    if done.returncode:
        raise ConfigurationError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def sources() -> Path:
    """The folder with systemd/, mapping/, apps/: the project's, or the wheel's. Raises ConfigurationError."""
    for folder in (_PACKAGE.parent, Path(sys.prefix) / _SHARE):
        if (folder / "systemd" / _TARGET).exists():
            return folder
    raise ConfigurationError(f"{Path(sys.prefix) / _SHARE} is missing; reinstall the package lamplighter")


class Installer:
    """root: of the machine's files; not / in tests, which start nothing."""

    def __init__(
        self, *, root: Path = Path("/"), dry: bool = False, run: Run = run, say: Callable[[str], None] = print
    ) -> None:
        self._root = root
        self._dry = dry
        self._run = run
        self._say = say
        self._live = root == Path("/")
        self._changed = False
        self._rewritten: list[str] = []  # units

    # --- install ---

    def install(self, parser: argparse.ArgumentParser) -> None:
        """Finished steps stay; another run continues. parser: for the manual pages. Raises ConfigurationError."""
        self._check_machine()
        packaged = self._has_package_files()
        if packaged:
            self._say("the package lamplighter is installed; its files are used")
            folder = self._path(_PACKAGE_UNITS)
            new = self._new(folder, self._unit_names(folder))
        else:
            if self._is_in_dpkg():
                self._say("the package lamplighter was removed; purging it would delete settings in /etc/lamplighter")
            top = sources()
            folder, texts = self._path(_UNITS), units(top / "systemd")
            new = self._new(folder, list(texts))
            self._copy_environment()
            self._copy_units(top / "systemd", texts)
            self._copy_settings(top)
            self._write_manuals(parser)
        if not self._live:
            return
        if packaged:
            self._command("create the user lamplighter", "systemd-sysusers", "lamplighter.conf")
            self._command("make its folders", "systemd-tmpfiles", "--create", "lamplighter.conf")
        else:
            self._command("create the user lamplighter", "systemd-sysusers", "/etc/sysusers.d/lamplighter.conf")
            self._command("make its folders", "systemd-tmpfiles", "--create", "/etc/tmpfiles.d/lamplighter.conf")
        self._command("reload systemd's units", "systemctl", "daemon-reload")
        new = [name for name in new if "[Install]" in self._text(folder / name)]
        # Of the others too: a version may name more units that start one of them.
        rewritten = [name for name in self._rewritten if name not in new and self._is_enabled(name)]
        if new or rewritten:
            self._command("enable it at boot", "systemctl", "enable", *new, *rewritten)
        if self._changed:
            services = [f"lamplighter-{name}.service" for name in LONG_RUNNING]
            self._command("restart running services; their sockets stay open", "systemctl", "try-restart", *services)
        if _TARGET in new:
            self._command("start it now", "systemctl", "start", _TARGET)
        else:
            if new:
                self._command("start new services", "systemctl", "start", *new)
            self._say("services that were stopped or disabled stay so; `systemctl start lamplighter.target` starts all")
        self._say("installed; `systemctl status 'lamplighter*'` shows its state, /etc/lamplighter has its settings")

    def _new(self, folder: Path, names: Sequence[str]) -> list[str]:
        """The units that an operator cannot have disabled or stopped: new ones, or all if none is enabled."""
        enabled = self._is_enabled("lamplighter*")
        return [name for name in names if not enabled or not (folder / name).exists()]

    def _is_enabled(self, pattern: str) -> bool:
        return any(link.exists() for link in self._path(_UNITS).glob(f"*.wants/{pattern}"))

    def _check_machine(self) -> None:
        if not self._live:
            return
        if os.geteuid() != 0 and not self._dry:
            raise ConfigurationError("only root can install services; use sudo, or --dry-run to see what would be done")
        if not Path("/run/systemd/system").exists():
            raise ConfigurationError("this machine does not run systemd, which the services need")

    def _has_package_files(self) -> bool:
        return self._is_in_dpkg() and (self._path(_PACKAGE_UNITS) / _TARGET).exists()

    def _is_in_dpkg(self) -> bool:
        """Whether dpkg knows the package; also a removed one, until it is purged."""
        return self._path("var/lib/dpkg/info/lamplighter.list").exists()

    def _copy_environment(self) -> None:
        prefix, interpreter = self._path(_PREFIX), base_interpreter()
        minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
        if Path(sys.prefix).resolve() == prefix.resolve():
            self._say(f"keep {prefix}, which is running this command")
            return
        new, before = prefix.with_name("lamplighter.new"), prefix.with_name("lamplighter.before")
        wanted = {Path("lib") / minor / "site-packages" / name: source for source, name in environment_files()}
        wanted |= {Path(_SHARE) / name: source for source, name in shared_files()}
        if _has_just(prefix, wanted) and (prefix / "bin/python").resolve() == interpreter:
            self._say(f"keep {prefix}, which is already this environment")
            return
        self._changed = True
        self._say(f"copy the environment {sys.prefix} to {prefix}, with the interpreter {interpreter}")
        if self._dry:
            return
        for left in (new, before):
            shutil.rmtree(left, ignore_errors=True)
        (new / "bin").mkdir(parents=True)
        for name, source in wanted.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, new / name)
        (new / "bin/python").symlink_to(interpreter)
        (new / "pyvenv.cfg").write_text(
            f"home = {interpreter.parent}\ninclude-system-site-packages = false\n"
            f"version = {sys.version_info.major}.{sys.version_info.minor}\n"
        )
        (new / "bin/lamplighter").write_text(_START)
        (new / "bin/lamplighter").chmod(0o755)
        _readable_for_all(new)
        self._run([str(new / "bin/python"), "-P", "-m", "compileall", "-q", "-j", "0", str(new / "lib")])
        if prefix.exists():
            prefix.rename(before)
        new.rename(prefix)
        shutil.rmtree(before, ignore_errors=True)

    def _copy_units(self, source: Path, texts: Mapping[str, str]) -> None:
        self._rewritten = [name for name, text in texts.items() if self._write(f"{_UNITS}/{name}", text.encode())]
        for folder in ("sysusers.d", "tmpfiles.d"):
            self._write(f"etc/{folder}/lamplighter.conf", (source / folder / "lamplighter.conf").read_bytes())
        command = self._path(_COMMAND)
        if not command.is_symlink() and not command.exists():
            self._say(f"link {command}")
            if not self._dry:
                command.parent.mkdir(parents=True, exist_ok=True)
                command.symlink_to(_COMMAND_TARGET)

    def _copy_settings(self, top: Path) -> None:
        """Installs the settings; existing files are kept."""
        files = [("lamplighter.toml", top / "systemd/lamplighter.toml")]
        for folder, pattern in (("mapping", "*.toml"), ("apps", "*.jsap")):
            files += [(f"{folder}/{one.name}", one) for one in sorted((top / folder).glob(pattern))]
        for name, source in files:
            self._write(f"{_SETTINGS}/{name}", source.read_bytes(), keep=True)
        self._write("usr/share/lamplighter/lamplighter.toml", (top / "lamplighter.toml").read_bytes())
        # For machines that start from a card; the operator decides.
        self._write(f"usr/share/lamplighter/{_JOURNAL}", (top / "systemd" / _JOURNAL).read_bytes())
        for document in sorted((top / "docs").glob("*.md")):  # the units name one of them
            self._write(f"{_DOCUMENTS}/{document.name}", document.read_bytes())

    def _write_manuals(self, parser: argparse.ArgumentParser) -> None:
        """Writes the manual pages and completions of this version, and removes pages of commands that it lacks."""
        files = texts(parser, LOCAL_PLACES, LOCAL_MANUALS)
        for name, text in files.items():
            self._write(name, text.encode(), restart=False)
        for path in self._manuals():
            if path not in {self._path(name) for name in files}:
                self._remove(path)

    def _manuals(self) -> list[Path]:
        folder = self._path(LOCAL_MANUALS)
        return [*folder.glob(f"{PROGRAM}.1"), *sorted(folder.glob(f"{PROGRAM}-*.1"))]

    # --- uninstall ---

    def uninstall(self, *, purge: bool) -> None:
        """purge: also settings, data, secrets and user; they are kept otherwise. Raises ConfigurationError."""
        self._check_machine()
        if self._has_package_files():
            how = "purge" if purge else "remove"
            raise ConfigurationError(f"it was installed as a package; use `apt {how} lamplighter`")
        folder = self._path(_UNITS)
        names = self._unit_names(folder)
        if self._live and names:
            self._command("stop it", "systemctl", "stop", *names)
            self._command("disable it at boot", "systemctl", "disable", *names)
        paths = [folder / name for name in names]
        paths += [self._path(f"etc/{name}/lamplighter.conf") for name in ("sysusers.d", "tmpfiles.d")]
        paths += [self._path(_PREFIX), self._path("usr/share/lamplighter"), self._path(_DOCUMENTS)]
        paths += [*map(self._path, LOCAL_PLACES.values()), *self._manuals()]
        command = self._path(_COMMAND)
        if command.is_symlink() and command.readlink() == Path(_COMMAND_TARGET):
            paths.append(command)
        if purge:
            paths += [self._path(name) for name in (_SETTINGS, _STATE, *STATES)]
            paths.append(self._path("run/lamplighter"))
            paths += sorted(self._path("etc/credstore").glob("lamplighter.*"))
        for path in paths:
            self._remove(path)
        if self._live:
            self._command("reload systemd's units", "systemctl", "daemon-reload")
            if purge and "lamplighter:" in Path("/etc/passwd").read_text():
                self._command("remove the user lamplighter", "userdel", "lamplighter")
        if not purge:
            self._say(f"kept: {self._path(_SETTINGS)} and {self._path(_STATE)}; --purge removes them")

    # --- steps ---

    def _path(self, name: str) -> Path:
        return self._root / name

    @staticmethod
    def _unit_names(folder: Path) -> list[str]:
        return unit_names([path.name for kind in UNIT_KINDS for path in folder.glob(f"lamplighter*.{kind}")])

    @staticmethod
    def _text(path: Path) -> str:
        return path.read_text() if path.exists() else "[Install]"  # in a dry run it may not exist

    def _command(self, what: str, *command: str) -> None:
        self._say(f"{what}: {' '.join(command)}")
        if not self._dry:
            self._run(command)

    def _write(self, name: str, content: bytes, *, keep: bool = False, restart: bool = True) -> bool:
        """Returns whether the file had to be written. keep: an existing file; restart: whether running services are
        restarted afterwards."""
        path = self._path(name)
        if path.exists() and (keep or path.read_bytes() == content):
            self._say(f"keep {path}")
            return False
        self._changed |= restart
        self._say(f"write {path}")
        if not self._dry:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o644)
        return True

    def _remove(self, path: Path) -> None:
        if not path.exists() and not path.is_symlink():
            return
        self._say(f"remove {path}")
        if self._dry:
            return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def base_interpreter() -> Path:
    """The interpreter for the services. Raises ConfigurationError for one that they cannot read."""
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (base, Path("/usr/bin") / name):
        if path.exists() and not path.is_relative_to("/home") and not path.is_relative_to("/root"):
            return path
    raise ConfigurationError(
        f"{base} is in a home directory, which services cannot read; install {name} of the system (apt)"
    )


def environment_files() -> Iterator[tuple[Path, Path]]:
    """The files of Lamplighter and its dependencies: the path of each, and its name in site-packages."""
    for package in sorted(_PACKAGE.iterdir()):
        folder = package.resolve()  # in a checkout it is a link
        for path in [folder] if folder.is_file() else sorted(folder.rglob("*")):
            if package.name not in _NOT_INSTALLED and path.is_file() and "__pycache__" not in path.parts:
                yield path, Path(_PACKAGE.name) / package.name / path.relative_to(folder)
    for one in _requirements():
        for file in one.files or ():
            name = Path(str(file))
            # Of lamplighter itself only the version: the rest may belong to an editable installation.
            ours = one.name == "lamplighter" and name.name not in ("METADATA", "entry_points.txt")
            source = Path(str(one.locate_file(file)))
            if ".." in name.parts or "__pycache__" in name.parts or name.suffix == ".pth" or ours:
                continue
            if source.is_file():
                yield source, name


def shared_files() -> Iterator[tuple[Path, Path]]:
    """Files for a later `install` by the installed environment; names below share/."""
    top = sources()
    yield top / "lamplighter.toml", Path("lamplighter.toml")
    for pattern in ("systemd/**/*", "mapping/*.toml", "apps/*.jsap"):
        for path in sorted(top.glob(pattern)):
            if path.is_file():
                yield path, path.relative_to(top)


def _requirements() -> list[Distribution]:
    """The installed distributions that Lamplighter requires, also indirectly, and those of its extras."""
    found: dict[str, Distribution] = {}
    names = [("lamplighter", frozenset(_EXTRAS))]
    while names:
        name, extras = names.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # of another platform, or of an extra that is not installed
            continue
        for text in found[name].requires or ():
            asked = re.match(r"([A-Za-z0-9._-]+)\s*(?:\[([^]]*)])?", text)
            extra = re.search(r"""extra\s*==\s*["']([^"']+)["']""", text)
            if asked and (extra is None or extra[1] in extras):
                wanted = frozenset((asked[2] or "").replace(" ", "").split(",")) - {""}
                names.append((re.sub(r"[-_.]+", "-", asked[1]).lower(), wanted))
    return list(found.values())


def _has_just(prefix: Path, wanted: Mapping[Path, Path]) -> bool:
    """Whether lib and share of a folder have exactly these files."""
    found = {
        path.relative_to(prefix)
        for folder in ("lib", "share")
        for path in (prefix / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    return found == set(wanted) and all(
        filecmp.cmp(source, prefix / name, shallow=False) for name, source in wanted.items()
    )


def _readable_for_all(folder: Path) -> None:
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
        elif not path.is_symlink():
            path.chmod(0o755 if path.parent.name == "bin" else 0o644)


# --- the command ------------------------------------------------------------------------------------------


def add_install_commands(command: Adder) -> None:
    for name, function in (("install", _install), ("uninstall", _uninstall)):
        one = command(name, function, settings=False)
        one.add_argument("--dry-run", action="store_true", help="print the steps without executing them")
    one.add_argument("--purge", action="store_true", help="also delete settings, data, secrets and the user")
    add_confirmation(one)


def _install(options: argparse.Namespace) -> int:
    Installer(dry=options.dry_run).install(options.command_parser())
    return 0


def _uninstall(options: argparse.Namespace) -> int:
    folders = ", ".join(f"/{name}" for name in (_SETTINGS, _STATE, *STATES))
    question = f"Delete settings, data and secrets in {folders} and /etc/credstore?"
    if options.purge and not options.dry_run and not confirm(question, yes=options.yes):
        return 1
    Installer(dry=options.dry_run).uninstall(purge=options.purge)
    return 0
