"""What systemd lets a service see and write, and its user: the machine as a start meets it, whoever looks."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SERVICE_FOLDER = Path("/etc/lamplighter")  # the folder with the settings of systemd's units
STATE = Path("/var/lib")
_SYSTEMCTL_S = 10
_PROPERTIES = "User,StateDirectory,ReadWritePaths,InaccessiblePaths,ProtectSystem,ProtectHome,PrivateTmp"
_HOMES, _TEMPORARY = (Path("/home"), Path("/root"), Path("/run/user")), (Path("/tmp"), Path("/var/tmp"))

Show = Callable[[Sequence[str]], str]  # runs `systemctl` with arguments and returns its output; "" if it cannot


def systemctl(arguments: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            ["systemctl", *arguments], capture_output=True, text=True, timeout=_SYSTEMCTL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


@dataclass(frozen=True)
class UnitView:
    """A unit of systemd. user: of its processes, "" if there is no such unit; then nothing is hidden.

    state: folders that systemd makes for it; writable: further ones that it may write; strict: it may write no others;
    hidden: folders that it does not see, with the line of the unit that hides them.
    """

    name: str = ""
    user: str = ""
    state: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    strict: bool = False
    hidden: tuple[tuple[Path, str], ...] = ()

    @classmethod
    def of(cls, config: Path | None, name: str, show: Show = systemctl) -> UnitView:
        """The unit, if the settings file is that of the units."""
        if config is None or config.resolve().parent != SERVICE_FOLDER:
            return cls()
        text = show(["show", f"--property={_PROPERTIES}", name])
        said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        if not said.get("User"):
            return cls()
        hidden = [(Path(one.lstrip("-+")), "InaccessiblePaths=") for one in said.get("InaccessiblePaths", "").split()]
        if said.get("ProtectHome") in ("yes", "tmpfs"):
            hidden += [(one, "ProtectHome=") for one in _HOMES]
        if said.get("PrivateTmp") not in (None, "no"):
            hidden += [(one, "PrivateTmp=") for one in _TEMPORARY]
        state = tuple(STATE / one for one in said.get("StateDirectory", "").split())
        writable = tuple(Path(one.lstrip("-+")) for one in said.get("ReadWritePaths", "").split())
        return cls(name, said["User"], state, writable, said.get("ProtectSystem") == "strict", tuple(hidden))

    def hides(self, path: Path) -> str:
        """The line of the unit that hides a path; empty if it is seen."""
        return next((line for folder, line in self.hidden if path.absolute().is_relative_to(folder)), "")

    def may_write(self, folder: Path) -> bool:
        """Whether the unit leaves the folder writable; the owner of the folder is another question."""
        allowed = (*self.state, *self.writable)
        return not self.strict or any(folder.absolute().is_relative_to(one) for one in allowed)

    @property
    def user_id(self) -> int | None:
        """None without a unit, and for a user that is not there yet."""
        try:
            return pwd.getpwnam(self.user).pw_uid if self.user else None
        except KeyError:
            return None

    @property
    def seen_as_user(self) -> bool:
        """Whether this process looks with the eyes of the unit's user."""
        return self.user_id == os.geteuid()

    @contextlib.contextmanager
    def eyes(self) -> Iterator[None]:
        """As root, looks at files with the rights of the unit's user meanwhile."""
        try:
            account = pwd.getpwnam(self.user) if self.user and os.geteuid() == 0 else None
        except KeyError:  # the unit is there, its user is not yet
            account = None
        if account is None:
            yield
            return
        group, groups = os.getegid(), os.getgroups()
        os.setgroups(os.getgrouplist(self.user, account.pw_gid))
        os.setegid(account.pw_gid)
        os.seteuid(account.pw_uid)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(group)
            os.setgroups(groups)
