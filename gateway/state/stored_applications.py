"""Applications that were put while the gateway ran: a file of the data folder, which each start reads.

The file of an application with the same name in ``apps/`` has precedence. What this version cannot read stays in the
file, and is not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lamplighter.engine.client.state_files import StateFile
from lamplighter.engine.errors import ChangeLogError, ConfigurationError, JsapError, LimitExceededError
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.state.applications import Application, parse_application

FILE = "applications.json"  # in the data folder
STORED_MAX = 200
PROFILE_BYTES_MAX = 256 * 1024
PROFILES_BYTES_MAX = 8 * 1024 * 1024  # of all of them
NAME = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,99}")
_CURE = "restore a copy of it, or remove it: the applications in it then end"


class StoredApplication(msgspec.Struct, frozen=True):
    """profile: the JSAP document, as it was put. changed: when. template, values: what it was made from; empty if it
    was not made from a template."""

    name: str
    profile: str
    changed: str = ""
    template: str = ""
    values: dict[str, Any] = {}

    def application(self) -> Application:
        """Raises JsapError."""
        return parse_application(self.name, self.profile.encode())


class _Document(msgspec.Struct, frozen=True):
    format: int = 1
    applications: list[StoredApplication] = []


class StoredApplications:
    """The file. data: the data folder. applications: what it has, in the order of their names."""

    def __init__(self, data: Path, disk: Disk) -> None:
        """Raises ConfigurationError if the file is damaged, or a newer version wrote it."""
        self._path = data / FILE
        self._disk = disk
        self._file: StateFile[_Document] = StateFile(self._path, _Document, _CURE)
        document = self._file.read()
        self.applications: Sequence[StoredApplication] = () if document is None else tuple(document.applications)

    def get(self, name: str) -> StoredApplication | None:
        return next((one for one in self.applications if one.name == name), None)

    def write(self, applications: Iterable[StoredApplication]) -> None:
        """Writes other applications; they are durable on return. Raises LimitExceededError, ChangeLogError; then the
        file is as it was."""
        after = tuple(sorted(applications, key=lambda one: one.name))
        check_amount(after)
        try:
            self._disk.write_file(self._path, [self._file.encode(_Document(applications=list(after)))])
        except OSError as error:
            hint = "free some space; nothing was changed"
            raise ChangeLogError(str(error.strerror), path=self._path, hint=hint) from error
        self._file.commit()
        self.applications = after


def check_amount(applications: Sequence[StoredApplication]) -> None:
    """Raises LimitExceededError for more than can be stored."""
    if len(applications) > STORED_MAX:
        raise LimitExceededError(f"at most {STORED_MAX} applications can be stored; remove some, or use files in apps/")
    sizes = [len(one.profile.encode()) for one in applications]
    if max(sizes, default=0) > PROFILE_BYTES_MAX or sum(sizes) > PROFILES_BYTES_MAX:
        raise LimitExceededError(
            f"a stored application has at most {PROFILE_BYTES_MAX} bytes, and all together have {PROFILES_BYTES_MAX}"
        )


def check_name(name: str) -> None:
    """Raises ConfigurationError for what cannot be the name of an application."""
    if not NAME.fullmatch(name):
        raise ConfigurationError(f"name {name[:100]!r}: use letters, digits, - and _, at most 100 characters")


def readable(stored: Iterable[StoredApplication]) -> tuple[list[Application], dict[str, str]]:
    """Those that can be run, and by name what is wrong with the others."""
    applications, faults = [], {}
    for one in stored:
        try:
            applications.append(one.application())
        except JsapError as error:
            faults[one.name] = str(error)
    return applications, faults
