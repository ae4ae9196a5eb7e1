"""What a start meets on the machine: packages, files of secrets, data folder, ports, systemd's sockets, free space.

Each is looked at by the function with which a start uses it. Nothing is written, and ports are open for a moment only.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from lamplighter.adapters.mqtt.credentials import MQTT_PASSWORD, read_credentials, table_of, with_passwords
from lamplighter.adapters.specs import ADAPTERS, import_object
from lamplighter.cloud_sync.destinations import local_folder
from lamplighter.cloud_sync.settings import storage_options
from lamplighter.engine.client.files import open_file, read_text
from lamplighter.engine.client.places import Place, places
from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.addresses import in_url, in_use
from lamplighter.gateway.gates.protection_check import check_passed_host
from lamplighter.gateway.service.data_check import check_data, unwritable
from lamplighter.gateway.service.port_check import lock_holder, port_faults, systemd_sockets
from lamplighter.gateway.service.unit_view import Show, UnitView, systemctl
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.settings.refusals import place_text
from lamplighter.gateway.systemd import Supervisor

GATEWAY, SYNC = "lamplighter-gateway.service", "lamplighter-sync.service"
CREDENTIALS = Path("/etc/credstore")


@dataclass(frozen=True)
class MachineFindings:
    """faults: with which a start fails; notes: what is not checked, or needs attention."""

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def credential_names() -> frozenset[str] | None:
    """The files in systemd's store of credentials that have a secret; None if this user may not look."""
    try:
        return frozenset(one.name for one in CREDENTIALS.iterdir() if one.is_file() and one.stat().st_size)
    except FileNotFoundError:
        return frozenset()
    except OSError:
        return None


def preflight(
    settings: Settings,
    config: Path | None,
    data: Path,
    show: Show = systemctl,
    stored: frozenset[str] | None = frozenset(),
) -> MachineFindings:
    """Looks at everything. config: the settings file; stored: as of `credential_names`."""
    return _Look(settings, config, data, show, stored).findings()


class _Look:
    """One look at the machine."""

    def __init__(
        self, settings: Settings, config: Path | None, data: Path, show: Show, stored: frozenset[str] | None
    ) -> None:
        self._settings, self._config, self._data, self._show, self._stored = settings, config, data, show, stored
        self._folder = config.parent if config else Path()
        self._unit = UnitView.of(config, GATEWAY, show)
        self._found = MachineFindings()
        self._text = ""
        with contextlib.suppress(OSError, UnicodeDecodeError):  # there is none, or it was just read
            self._text = read_text(config) if config else ""

    def findings(self) -> MachineFindings:
        found = self._found
        wrong = {".".join(place.names[:-1]) for place in places(self._settings) if not self._is_good(place)}
        self._check_brokers(wrong)
        self._check_adapters(wrong)
        if not any(table.startswith("sync") for table in wrong):
            self._check_shipping()
            self._check_orders()
        check_data(self._settings, self._data, self._unit, found.faults, found.notes)
        passed = systemd_sockets(self._show) if self._unit.name else []
        for one in passed:
            try:
                check_passed_host(self._settings, one.host, f"{in_url(one.host)}:{one.port}")
            except ConfigurationError as error:
                found.faults.append(str(error))
        used = in_use(self._data)
        holder = lock_holder(self._data / "lock") if used else None
        if used is None or (used and holder is None):
            found.notes.append(f"ports are not checked: a gateway uses {self._data}, or this user may not look")
        else:
            for names, what, fatal in port_faults(self._settings, passed, holder, self._unit.user_id):
                (found.faults if fatal else found.notes).append(self._at(names, what))
        return found

    def _at(self, names: tuple[str, ...], what: str) -> str:
        """A message with file, line and key."""
        if not names or self._config is None:
            return f"{'.'.join(names)}: {what}" if names else what
        return f"{place_text(self._config, self._text, *names)}: {'.'.join(names)}: {what}"

    def _take(self, names: tuple[str, ...], error: ConfigurationError) -> None:
        """A reader's error: a fault, or a note where only another user may read."""
        unreadable = isinstance(error.__cause__, PermissionError)
        for line in str(error).splitlines():
            (self._found.notes if unreadable else self._found.faults).append(self._at(names, line))

    # --- places that the settings name ---

    def _is_good(self, place: Place) -> bool:
        """Asks the machine for a place; reports what is wrong."""
        if place.kind in ("file", "secret"):
            problem = self._file_problem(place)
        elif place.kind == "user":
            problem = _user_problem(place.value)
        elif place.kind == "destination":
            problem = self._destination_problem(place.value)
        else:
            return True
        if problem:
            needed = _is_used(self._settings, place.names[0])
            (self._found.faults if needed else self._found.notes).append(self._at(place.names, problem))
        return not problem

    def _file_problem(self, place: Place) -> str:
        path = self._folder / place.value
        line = self._unit.hides(path)
        if line:
            return f"{path}: {self._unit.name} does not see it ({line}); move it to {self._folder}"
        try:
            open_file(path).close()
        except FileNotFoundError:
            return self._missing(place, path)
        except PermissionError:
            # An adapter's unit has the same user, and hides the gateway's state: it leaves these files to the gateway.
            closed = any(path.is_relative_to(one) and not os.access(one, os.X_OK) for one in self._unit.state)
            if self._unit.seen_as_user and not closed:
                user = self._unit.user
                return f"{path}: the service's user may not read it; `chgrp {user} {path}; chmod g+r {path}`"
            self._found.notes.append(f"not checked, only another user may read it: {path}")
        except OSError as error:
            return f"{path}: {error.strerror}"
        return ""

    def _missing(self, place: Place, path: Path) -> str:
        text = f"there is no file {path}; make it, or write the path of another"
        if place.kind != "secret" or path.parent != self._folder or not self._unit.name:
            return text
        if self._stored is None:
            self._found.notes.append(f"not checked, only root may read it: {CREDENTIALS / path.name}")
            return ""
        return "" if path.name in self._stored else f"{text}, or write the secret to {CREDENTIALS / path.name}"

    def _destination_problem(self, value: str) -> str:
        try:
            folder = local_folder(value)
        except ConfigurationError as error:
            return str(error)
        if urlsplit(value).password:
            return "move the password to the file that sync.options_file names"
        unit = UnitView.of(self._config, SYNC, self._show)
        return "" if folder is None or not unit.name or unit.may_write(folder) else unwritable(folder, unit)

    # --- files as their readers take them ---

    def _check_brokers(self, wrong: set[str]) -> None:
        mqtt = with_passwords(self._settings.mqtt, Supervisor(os.environ).credential)
        for name, broker in mqtt.all_brokers().items():
            table = table_of(name)
            names = (*table.split("."),)
            default = self._stored is None or MQTT_PASSWORD in self._stored
            if broker.username and not broker.password_file and not (name == "default" and default):
                text = "there is no password for it; name its file with password_file, unless the broker asks for none"
                self._found.notes.append(self._at((*names, "username"), text))
            if table in wrong:
                continue
            if broker.password_file and not _is_there(self._folder / broker.password_file):  # a credential
                broker = msgspec.structs.replace(broker, password_file="")
            try:
                read_credentials(broker, table)
            except ConfigurationError as error:
                self._take(names, error)

    def _check_adapters(self, wrong: set[str]) -> None:
        """Looks for the packages and files of the adapters that are enabled."""
        for spec in ADAPTERS:
            table = getattr(self._settings, spec.table)
            if not spec.is_enabled(table):
                continue
            if spec.package and find_spec(spec.package) is None:
                text = f"needs {spec.package}, which is not installed; {spec.cure}"
                self._found.faults.append(self._at((spec.table, "enabled"), text))
            if not spec.check or any(one.startswith(spec.table) for one in wrong):
                continue
            try:
                import_object(spec.check)(table, self._folder)
            except ConfigurationError as error:
                self._take((spec.table,), error)

    def _check_shipping(self) -> None:
        file = self._settings.sync.options_file
        if self._settings.sync.destination and file and _is_there(self._folder / file):
            try:
                storage_options(file, self._folder)
            except ConfigurationError as error:
                self._take(("sync", "options_file"), error)

    def _check_orders(self) -> None:
        orders = self._settings.sync.orders
        if not orders.key_file:
            return
        from lamplighter.cloud_sync.orders import trusted_keys  # most gateways need neither
        from lamplighter.engine.client.oauth import Credentials

        checks: list[tuple[str, Callable[[], object]]] = [
            ("key_file", lambda: trusted_keys(self._folder / orders.key_file))
        ]
        if orders.credentials_file:
            checks.append(("credentials_file", lambda: Credentials.load(self._folder / orders.credentials_file)))
        elif self._settings.security.enabled:
            text = "it is empty; with security.enabled, orders need a client"
            self._found.faults.append(self._at(("sync", "orders", "credentials_file"), text))
        for key, check in checks:
            try:
                check()
            except ConfigurationError as error:
                self._take(("sync", "orders", key), error)


def _is_used(settings: Settings, table: str) -> bool:
    """Whether a start looks at the table."""
    spec = next((one for one in ADAPTERS if one.table == table), None)
    if spec is not None:
        return spec.is_enabled(getattr(settings, table))
    if table == "sync":
        return bool(settings.sync.destination or settings.sync.orders.key_file)
    return bool(getattr(getattr(settings, table), "enabled", True))


def _user_problem(name: str) -> str:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return f"this machine has no user {name!r}; write a name that `getent passwd` lists"
    return ""


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
