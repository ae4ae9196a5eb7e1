"""The command ``lamplighter bundle``: one file for people who help, without secrets.

Two measures keep secrets out: only what is listed below goes in, and each text is searched for the secrets of this
gateway and for what looks like one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import msgspec

from lamplighter.adapters.coap.context_files import contexts_folder
from lamplighter.cloud_sync.settings import storage_options
from lamplighter.engine.client.files import json_document, read_file
from lamplighter.engine.errors import ChangeLogError, ConfigurationError, GatewayError, UpstreamError
from lamplighter.engine.tables import count_text
from lamplighter.gateway.cli.check_command import check_configuration
from lamplighter.gateway.cli.command_table import Adder
from lamplighter.gateway.cli.console import ProgressBar, confirm, print_result
from lamplighter.gateway.cli.endpoint import add_reach_options, call_gateway
from lamplighter.gateway.cli.options import add_confirmation, config_folder, settings_and_data
from lamplighter.gateway.clock import MachineClock
from lamplighter.gateway.gates.protection_check import FOLDER
from lamplighter.gateway.history.verification import verify
from lamplighter.gateway.security.registry import CLIENTS
from lamplighter.gateway.service.preflight import CREDENTIALS
from lamplighter.gateway.settings import Settings

_REMOVED = "[removed]"
_SECRET_KEYS = {"username"}  # keys of the settings whose values are removed; secrets themselves are in files
_JOURNAL_LINES = 5000
_PROGRAM_S = 60  # longest run of journalctl or systemctl
_LEAST_CHARACTERS = 6  # of a secret that is searched for; a shorter one would be found everywhere
_STORED = re.compile(r"[A-Za-z0-9+/=_-]{24,}")
_SECRET_NAME = (
    r"(?i)\b([\w-]{0,40}(?:secret(?:_hex|_access_key)?|password|token|passwd|psk|(?:access|account|api)_?key))"
)
# Private keys, tokens, credentials of headers and URLs, and values named like secrets.
_SUSPICIOUS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL), _REMOVED),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]*){1,2}"), _REMOVED),
    (re.compile(r"(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]{6,}"), rf"\1 {_REMOVED}"),
    (re.compile(r"([a-z][a-z0-9+.-]{0,30}://)(?:[^/\s@\"']+|[^/\s:@\"']*:[^\s\"']{0,200})@"), rf"\1{_REMOVED}@"),
    (re.compile(rf"{_SECRET_NAME}([\"']?\s*[=:]\s*)(\"[^\"\n]*\"|'[^'\n]*')"), rf'\1\2"{_REMOVED}"'),
    (re.compile(rf"{_SECRET_NAME}([\"']?\s*[=:]\s*[\"']?)[^\s\"',}}]+"), rf"\1\2{_REMOVED}"),
)

Part = tuple[str, Callable[[], str]]  # the name of a file, and what makes its text


def add_bundle_command(command: Adder) -> None:
    bundle = command("bundle", _bundle)
    bundle.add_argument("file", nargs="?", type=Path, help="default: lamplighter-bundle-<time>.tar.gz")
    bundle.add_argument(
        "--no-verify", action="store_true", help="leave out the check of the change log, which takes long"
    )
    bundle.add_argument("--json", action="store_true", help="print the names of file and parts as JSON")
    add_reach_options(bundle)
    add_confirmation(bundle)


def _bundle(options: argparse.Namespace) -> int:
    file: Path = options.file or Path(f"lamplighter-bundle-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    if file.exists() and not confirm(f"Replace the existing file {file}?", yes=options.yes):
        return 1
    settings, data = settings_and_data(options)
    secrets = sorted(known_secrets(settings, config_folder(options), data), key=len, reverse=True)
    names = client_names(data)
    parts = _parts(options, settings, data)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with (
            os.fdopen(descriptor, "wb") as out,
            tarfile.open(fileobj=out, mode="w:gz") as archive,
            ProgressBar("bundle", "parts", len(parts)) as bar,
        ):
            for name, make in parts:
                _add(archive, name, without_names(without_secrets(_text_or_reason(make), secrets), names))
                bar.advance(1)
    except OSError as error:
        raise ChangeLogError(str(error.strerror), path=file, hint="name a file that can be written") from error
    value = {"file": str(file), "parts": [name for name, _ in parts]}
    print_result(options, value, f"wrote {file}: {count_text(len(parts), 'part')}; read it before you send it")
    return 0


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode(errors="replace")
    entry = tarfile.TarInfo(f"lamplighter-bundle/{name}")
    entry.size, entry.mtime = len(content), int(datetime.now(UTC).timestamp())
    archive.addfile(entry, io.BytesIO(content))


def _text_or_reason(make: Callable[[], str]) -> str:
    """The text of a part, or why there is none: the bundle is for gateways with faults."""
    try:
        return make()
    except (GatewayError, OSError, ValueError) as error:
        return f"not available: {error}\n"


# --- parts -------------------------------------------------------------------------------------------------------


def _parts(options: argparse.Namespace, settings: Settings, data: Path) -> list[Part]:
    folder = config_folder(options)

    def answer_text(path: str) -> str:
        with call_gateway(options, "GET", path) as answer:
            return answer.read().decode(errors="replace")

    def health() -> str:
        found = json.loads(answer_text("/figures"))
        return _json(
            {name: found.get(name) for name in ("engine", "components", "applications", "brokers", "coap", "polled")}
        )

    parts: list[Part] = [
        ("about.json", lambda: _json(_about(data))),
        ("settings.json", lambda: _json(shown_settings(settings))),
        ("check.txt", lambda: _check_text(options)),
        ("health.json", health),
        ("figures.json", lambda: answer_text("/figures")),
        ("metrics.txt", lambda: answer_text("/metrics")),
        ("files.txt", lambda: "".join(_file_lines(data, folder))),
        ("journal.txt", _journal),
        ("services.txt", lambda: _output(["systemctl", "status", "--no-pager", "--lines=0", "lamplighter*"])),
    ]
    if not options.no_verify:
        parts.append(("verify.json", lambda: _json(_log_report(settings, data))))
    return parts


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, default=str) + "\n"


def _about(data: Path) -> dict[str, Any]:
    usage = shutil.disk_usage(data if data.exists() else Path())
    return {
        "lamplighter": version("lamplighter"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "time": datetime.now(UTC).isoformat(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "disk": {"total": usage.total, "free": usage.free},
        "packages": {one.metadata["Name"]: one.version for one in distributions()},
    }


def shown_settings(settings: Settings) -> Any:
    """The settings by table and key, without the values of `_SECRET_KEYS`."""

    def redact(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: _REMOVED if key in _SECRET_KEYS and one else redact(one) for key, one in value.items()}

    return redact(msgspec.to_builtins(settings))


def _check_text(options: argparse.Namespace) -> str:
    try:
        _, found = check_configuration(options)
    except ConfigurationError as error:
        return f"{error}\n"
    return "".join(f"{line}\n" for line in ("valid", *found.notes))


def _file_lines(data: Path, folder: Path) -> Iterator[str]:
    """Sizes and names of the files in the data folder, and of applications and mapping rules."""
    for top in (data, folder / "apps", folder / "mapping"):
        for path in sorted(top.rglob("*")):
            yield f"{path.lstat().st_size:>12} {oct(path.lstat().st_mode)[-4:]} {path}\n"


def _journal() -> str:
    return _output(["journalctl", "--no-pager", "--lines", str(_JOURNAL_LINES), "--unit", "lamplighter*"])


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROGRAM_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise UpstreamError(f"{command[0]} did not end in {_PROGRAM_S} s") from error
    return (done.stdout + done.stderr).decode(errors="replace")


def _log_report(settings: Settings, data: Path) -> Any:
    return verify(data, MachineClock(settings.gateway.clock_trusted)).members()


# --- secrets -----------------------------------------------------------------------------------------------------


def known_secrets(settings: Settings, folder: Path, data: Path) -> set[str]:
    """The secrets in the files of this gateway: keys, passwords, options. Those that this user may not read cannot be
    read for the bundle either. folder: with the settings file."""
    brokers = settings.mqtt.all_brokers().values()
    found = {broker.username for broker in brokers}
    for file in [*(Path(one.password_file) for one in brokers if one.password_file), *_credentials()]:
        found |= {line.strip() for line in _text(file).splitlines()}
    for file in [*data.glob(f"{FOLDER}/*"), *contexts_folder(data).rglob("*")]:
        found |= set(_STORED.findall(_text(file)))
    try:
        found |= set(_strings(storage_options(settings.sync.options_file, folder)))
    except (ConfigurationError, OSError):
        found |= set(_text(folder / settings.sync.options_file).splitlines()) if settings.sync.options_file else set()
    return {one for one in found if len(one) >= _LEAST_CHARACTERS}


def _credentials() -> list[Path]:
    try:
        return sorted(CREDENTIALS.glob("lamplighter.*"))
    except OSError:
        return []


def _text(file: Path) -> str:
    try:
        return read_file(file).decode(errors="replace")
    except OSError:  # a folder, or not ours
        return ""


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
    else:
        yield str(value)


def without_secrets(text: str, secrets: list[str]) -> str:
    """The text without the secrets, and without what looks like one. secrets: the longest first."""
    for one in secrets:
        text = text.replace(one, _REMOVED)
    for pattern, instead in _SUSPICIOUS:
        text = pattern.sub(instead, text)
    return text


def client_names(data: Path) -> list[str]:
    """The names of the clients; none where there is no file of them that can be read."""
    with contextlib.suppress(OSError, msgspec.DecodeError, KeyError, TypeError):
        return sorted(str(one["name"]) for one in json_document(read_file(data / FOLDER / CLIENTS))["clients"])
    return []


def without_names(text: str, names: list[str]) -> str:
    """The text with a number for each client's name; the same number in all texts."""
    numbers: dict[str, str] = {}
    for at, name in enumerate(names, 1):
        numbers[name] = numbers[json.dumps(name)[1:-1]] = f"[client {at}]"
    if not numbers:
        return text
    longest_first = "|".join(map(re.escape, sorted(numbers, key=len, reverse=True)))
    return re.sub(rf"(?<![\w-])(?:{longest_first})(?![\w-])", lambda found: numbers[found[0]], text)
