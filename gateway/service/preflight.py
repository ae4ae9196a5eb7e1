"""What a start meets on the machine: packages, files of secrets, data folder, ports, systemd's sockets, free space.

Each is looked at by the function with which a start uses it. Nothing is written, and ports are open for a moment only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import msgspec

from lamplighter.adapters.mqtt.credentials import read_credentials, table_of, with_passwords
from lamplighter.adapters.mqtt.settings import BrokerSettings
from lamplighter.adapters.specs import ADAPTERS, import_object
from lamplighter.cloud_sync.settings import storage_options
from lamplighter.engine.errors import ConfigurationError
from lamplighter.gateway.gates.listeners import Listener, tcp_listener
from lamplighter.gateway.gates.opening import check_passed_host
from lamplighter.gateway.settings import Settings
from lamplighter.gateway.systemd import Supervisor

SERVICE_FOLDER = Path("/etc/lamplighter")  # the folder with the settings of systemd's units
CREDENTIALS = Path("/etc/credstore")
SOCKETS = ("lamplighter-http.socket", "lamplighter-ws.socket")
_LISTEN = re.compile(r"Listen=\[?(?P<host>[^\]]*)\]?:(?P<port>[0-9]+) \(Stream\)")
_SYSTEMCTL_S = 10

Show = Callable[[Sequence[str]], str]  # runs `systemctl` with arguments and returns its output; "" if it cannot


@dataclass(frozen=True)
class MachineFindings:
    """faults: with which a start fails; notes: what is not checked, or needs attention."""

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def systemctl(arguments: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            ["systemctl", *arguments], capture_output=True, text=True, timeout=_SYSTEMCTL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def preflight(settings: Settings, config: Path | None, data: Path, show: Show = systemctl) -> MachineFindings:
    """Looks at everything. config: the settings file."""
    found = MachineFindings()
    service = config is not None and config.resolve().parent == SERVICE_FOLDER
    _check_brokers(settings, service, found)
    _check_adapters(settings, config, found)
    _check_shipping(settings, config, service, found)
    _check_orders(settings, config, found)
    _check_data(settings, data, found)
    passed = _systemd_sockets(show) if service else []
    for host, port in passed:
        try:
            check_passed_host(settings, host, f"{host}:{port}")
        except ConfigurationError as error:
            found.faults.append(str(error))
    _check_ports(settings, data, passed, found)
    return found


# --- files of secrets ----------------------------------------------------------------------------------------


def _check_brokers(settings: Settings, service: bool, found: MachineFindings) -> None:
    mqtt = with_passwords(settings.mqtt, Supervisor(os.environ).credential)
    for name, broker in mqtt.all_brokers().items():
        table = table_of(name)
        if service and broker.password_file and "/" not in broker.password_file:
            broker = _with_credential(broker, f"{table}.password_file", found)
        try:
            read_credentials(broker, table)
        except ConfigurationError as error:
            unreadable = isinstance(error.__cause__, PermissionError)
            (found.notes if unreadable else found.faults).extend(str(error).splitlines())


def _check_adapters(settings: Settings, config: Path | None, found: MachineFindings) -> None:
    """Looks for the packages and files of the adapters that are enabled."""
    for spec in ADAPTERS:
        table = getattr(settings, spec.table)
        if not spec.is_enabled(table):
            continue
        if spec.package and find_spec(spec.package) is None:
            found.faults.append(
                f"[{spec.table}] enabled = true needs {spec.package}, which is not installed; {spec.cure}"
            )
        if not spec.check:
            continue
        try:
            import_object(spec.check)(table, config.parent if config else Path())
        except ConfigurationError as error:
            unreadable = isinstance(error.__cause__, PermissionError)
            (found.notes if unreadable else found.faults).extend(str(error).splitlines())


def _with_credential(broker: BrokerSettings, key: str, found: MachineFindings) -> BrokerSettings:
    """The broker without its password, which systemd passes to the adapter only."""
    try:
        if not _has_credential(broker.password_file):
            found.faults.append(f"{key}: {CREDENTIALS / broker.password_file} does not exist; write the password there")
    except PermissionError:
        found.notes.append(f"not checked, only root may read it: {CREDENTIALS / broker.password_file}")
    return msgspec.structs.replace(broker, password_file="")


def _has_credential(name: str) -> bool:
    """Whether there is a credential of that name. Raises PermissionError."""
    return (CREDENTIALS / name).is_file()


def _check_shipping(settings: Settings, config: Path | None, service: bool, found: MachineFindings) -> None:
    file, folder = settings.sync.options_file, config.parent if config else Path()
    if not settings.sync.destination or not file:
        return
    try:
        if service and "/" not in file and _has_credential(file):
            return
        storage_options(file, folder)
    except PermissionError:
        found.notes.append(f"not checked, only root may read it: {CREDENTIALS / file}")
    except ConfigurationError as error:
        unreadable = isinstance(error.__cause__, PermissionError)
        (found.notes if unreadable else found.faults).append(f"sync.options_file: {error}")


def _check_orders(settings: Settings, config: Path | None, found: MachineFindings) -> None:
    orders, folder = settings.sync.orders, config.parent if config else Path()
    if not orders.key_file:
        return
    from lamplighter.cloud_sync.orders import trusted_keys  # most gateways need neither
    from lamplighter.engine.client.oauth import Credentials

    checks: list[Callable[[], object]] = [lambda: trusted_keys(folder / orders.key_file)]
    if orders.credentials_file:
        checks.append(lambda: Credentials.load(folder / orders.credentials_file))
    elif settings.security.enabled:
        found.faults.append("sync.orders.credentials_file is empty; with security.enabled, orders need a client")
    for check in checks:
        try:
            check()
        except ConfigurationError as error:
            unreadable = isinstance(error.__cause__, PermissionError)
            (found.notes if unreadable else found.faults).append(f"sync.orders: {error}")


# --- data folder and disk --------------------------------------------------------------------------------------


def _check_data(settings: Settings, data: Path, found: MachineFindings) -> None:
    folders = [data, *(data / name for name in ("log", "snapshots", "damaged"))]
    if settings.security.enabled:
        folders.append((data / settings.security.socket_folder).resolve())
    for folder in folders:
        try:
            existing = _existing(folder)
        except OSError:
            found.notes.append(f"not checked, this user may not look at it: {folder}")
            return
        if not existing.is_dir():
            found.faults.append(f"data folder {data}: {existing} is not a folder; name another with --data")
            return
    existing = _existing(data)
    if not os.access(existing, os.W_OK | os.X_OK):
        if existing.stat().st_uid == os.geteuid():
            found.faults.append(f"data folder {data}: {existing} cannot be written; name another with --data")
        else:
            found.notes.append(f"not checked, only another user may write it: {existing}")
        return
    free = shutil.disk_usage(existing).free
    wanted = settings.log.bytes_max - _bytes(data)
    if free < wanted:
        found.notes.append(
            f"free disk space: {_megabytes(free)} at {existing}, and log, snapshots and damaged files may grow by "
            f"{_megabytes(wanted)} more (log.bytes_max); lower log.bytes_max, or free space"
        )


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists. Raises OSError where one may not be looked at."""
    for one in (path.absolute(), *path.absolute().parents):
        try:
            one.stat()
            return one
        except FileNotFoundError:
            continue
        except NotADirectoryError:  # a file is above it
            continue
    raise FileNotFoundError(path)


def _bytes(data: Path) -> int:
    used = 0
    for name in ("log", "snapshots", "damaged"):
        with contextlib.suppress(OSError):  # a gateway removes files meanwhile
            used += sum(file.stat().st_size for file in (data / name).iterdir())
    return used


def _megabytes(count: int) -> str:
    return f"{max(count, 0) / 1_000_000:,.0f} MB"


# --- ports -----------------------------------------------------------------------------------------------------


def _systemd_sockets(show: Show) -> list[tuple[str, int]]:
    """Host and port of each TCP socket that systemd opens for the gateway."""
    text = show(["show", "--property=ActiveState,UnitFileState,Listen", *SOCKETS])
    found = []
    for unit in text.split("\n\n"):
        lines = unit.splitlines()
        if "ActiveState=active" in lines or "UnitFileState=enabled" in lines:
            listening = (_LISTEN.fullmatch(line) for line in lines)
            found += [(match["host"] or "::", int(match["port"])) for match in listening if match is not None]
    return found


def _check_ports(settings: Settings, data: Path, passed: Sequence[tuple[str, int]], found: MachineFindings) -> None:
    """Opens each port as a start does. Not if a gateway uses the data folder: the ports are its own."""
    if _in_use(data) is not False:
        found.notes.append(f"ports are not checked: a gateway uses {data}, or this user may not look")
        return
    held = {port for _, port in passed}
    listeners: list[Listener] = []
    for table, host, port in _gates(settings):
        if port in held:
            continue
        try:
            listeners.append(tcp_listener(table, host, port, 1))
        except ConfigurationError as error:
            found.faults.append(str(error))
    for listener in listeners:
        listener.socket.close()


def _gates(settings: Settings) -> Iterator[tuple[str, str, int]]:
    """Table, host and port of each gate."""
    security = settings.security
    if security.enabled:
        yield "security", security.host, security.https_port
        yield "security", security.host, security.wss_port
    else:
        yield "http", settings.http.host, settings.http.port
        yield "websocket", settings.websocket.host, settings.websocket.port


def _in_use(data: Path) -> bool | None:
    """Whether a gateway uses the data folder; None if this user cannot know."""
    try:
        lock = os.open(data / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
