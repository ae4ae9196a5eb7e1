"""Settings that name a place: files, folders, hosts, URLs, users, ports. One type each, for all tables.

A type is a text with the name of its kind, so values stay plain texts. `with_absolute_places` checks all of them in a
table and makes paths absolute. `lamplighter check` asks the machine for them (`gateway.service.preflight`).
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

import msgspec

Kind = Literal["file", "secret", "folder", "data", "host", "served", "websocket", "http", "destination", "user", "name"]
Table = TypeVar("Table", bound=msgspec.Struct)

# A file that the settings name; a relative path begins at the folder of lamplighter.toml.
File = Annotated[str, msgspec.Meta(extra={"place": "file"})]
# The same, or the name of a credential that systemd passes to the process.
Secret = Annotated[str, msgspec.Meta(extra={"place": "secret"})]
# A folder that a command may replace by its option; who uses it makes it absolute, likewise.
Folder = Annotated[str, msgspec.Meta(extra={"place": "folder"})]
# A folder; a relative path begins at the data folder.
DataFolder = Annotated[str, msgspec.Meta(extra={"place": "data"})]
# A name or an address alone.
Host = Annotated[str, msgspec.Meta(extra={"place": "host"})]
# The same as requests name it: an IPv6 address may have the brackets of a URL.
ServedHost = Annotated[str, msgspec.Meta(extra={"place": "served"})]
WebsocketUrl = Annotated[str, msgspec.Meta(extra={"place": "websocket"})]
HttpUrl = Annotated[str, msgspec.Meta(extra={"place": "http"})]
# A folder, or a URL of a store.
Destination = Annotated[str, msgspec.Meta(extra={"place": "destination"})]
# A user of this machine.
LocalUser = Annotated[str, msgspec.Meta(extra={"place": "user"})]
# As whom the gateway logs in somewhere else.
UserName = Annotated[str, msgspec.Meta(extra={"place": "name"})]
# The path of a URL.
UrlPath = Annotated[str, msgspec.Meta(pattern=r"^/[A-Za-z0-9._~/-]*[A-Za-z0-9._~-]$")]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
# A port to listen on; 0: one that the system chooses.
ListenPort = Annotated[int, msgspec.Meta(ge=0, le=65535)]

_HOST = re.compile(r"[\w-]+(\.[\w-]+)*\.?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_USER = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*:/*)?.*@")
_CREDENTIALS = "CREDENTIALS_DIRECTORY"


class Place(NamedTuple):
    """A value that is not empty. names: its table and key."""

    names: tuple[str, ...]
    kind: Kind
    value: str


class PlaceFault(NamedTuple):
    names: tuple[str, ...]
    what: str


def places(table: msgspec.Struct, names: tuple[str, ...] = ()) -> list[Place]:
    """All places in a table."""
    found: list[Place] = []

    def note(place: Place) -> str:
        found.append(place)
        return place.value

    _replace(table, names, note)
    return found


def with_absolute_places(table: Table, folder: Path) -> tuple[Table, list[PlaceFault]]:
    """The table with absolute paths, and what is wrong with its places. folder: of the settings file."""
    faults: list[PlaceFault] = []

    def take(place: Place) -> str:
        problem = place_problem(place.kind, place.value)
        if problem:
            faults.append(PlaceFault(place.names, problem))
        return place.value if problem else _absolute_path(place, folder.absolute())

    return _replace(table, (), take), faults


def place_problem(kind: Kind, value: str) -> str:
    """What is wrong with a value, and what to write instead; empty if nothing is."""
    try:
        _CHECKS[kind](value)
    except ValueError as error:
        return str(error)
    return ""


def without_credentials(message: str, document: Any) -> str:
    """A message about a document of settings, which more people read than the file, without users, passwords and
    parameters of the addresses in it."""
    if isinstance(document, Mapping | list):
        for one in document.values() if isinstance(document, Mapping) else document:
            message = without_credentials(message, one)
    elif isinstance(document, str):
        bare = _USER.sub(r"\1...@", document.partition("?")[0] if _SCHEME.match(document) else document)
        if bare != document:
            message = message.replace(document, bare).replace(repr(document)[1:-1], bare)
    return message


def value_problems(value: Any, kind: Any) -> list[str]:
    """The same for the value of a key of some type, or for the values in it."""
    place = kind_of(kind)
    if place is None or not value or isinstance(value, Mapping):
        return []
    return [*filter(None, (place_problem(place, one) for one in ([value] if isinstance(value, str) else value)))]


def kinds(table: type[msgspec.Struct]) -> Iterator[tuple[str, Any, Kind | None]]:
    """Each key of a table and of those in it, as ``mqtt.brokers.*.host``, with its type, and its kind."""
    for name, kind in _fields(table).items():
        inner = next((one for one in (kind, *get_args(kind)) if _is_table(one)), None)
        if inner is None:
            yield name, kind, kind_of(kind)
        else:
            prefix = name if inner is kind else f"{name}.*"
            yield from ((f"{prefix}.{below}", of, its) for below, of, its in kinds(inner))


# --- walking -------------------------------------------------------------------------------------------------


def _replace(table: Table, names: tuple[str, ...], change: Callable[[Place], str]) -> Table:
    """The table with each of its places replaced."""
    changes = {}
    for name, kind in _fields(type(table)).items():
        old = getattr(table, name)
        new = _value(old, kind, (*names, name), change)
        if new != old:
            changes[name] = new
    return msgspec.structs.replace(table, **changes) if changes else table


def _value(value: Any, kind: Any, names: tuple[str, ...], change: Callable[[Place], str]) -> Any:
    if isinstance(value, msgspec.Struct):
        return _replace(value, names, change)
    if isinstance(value, Mapping):
        return {key: _value(one, kind, (*names, key), change) for key, one in value.items()}
    place = kind_of(kind)
    if place is None or not value:
        return value
    if isinstance(value, str):
        return change(Place(names, place, value))
    return type(value)(change(Place(names, place, one)) for one in value)


@functools.cache
def _fields(table: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(table)}


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def kind_of(kind: Any) -> Kind | None:
    """Of a type, or of the values in it."""
    if get_origin(kind) is Annotated:
        for meta in kind.__metadata__:
            if isinstance(meta, msgspec.Meta) and meta.extra and "place" in meta.extra:
                found: Kind = meta.extra["place"]
                return found
        return kind_of(get_args(kind)[0])
    inner = [one for one in get_args(kind) if one not in (NoneType, ...)]
    return next(filter(None, map(kind_of, inner)), None)


# --- kinds ---------------------------------------------------------------------------------------------------


def _absolute_path(place: Place, folder: Path) -> str:
    value = place.value
    if place.kind == "secret" and "/" not in value:
        passed = os.environ.get(_CREDENTIALS)
        if passed and Path(passed, value).exists():
            return str(Path(passed, value))
    if place.kind in ("file", "secret") or (place.kind == "destination" and not _SCHEME.match(value)):
        return str(folder / value)
    return value


def _check_path(value: str) -> None:
    if "://" in value or value.startswith(("~", "file:")):
        raise ValueError(f"{value!r} is no path; write one such as /etc/lamplighter/name, or a name beside this file")
    if not value.isprintable():
        raise ValueError(f"{value!r} has characters that no name of a file should have; write it without them")


def check_host(value: str) -> None:
    """Raises ValueError for what is not a name or an address alone."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(value)
        return
    if re.fullmatch(r"[0-9.]+", value):
        with contextlib.suppress(OSError):
            socket.inet_aton(value)  # short forms of addresses, such as 127.1
            return
    if value.startswith("[") and value.endswith("]"):
        cure = f"write the address without brackets, {value[1:-1]}"
    elif "://" in value or value.count(":") == 1:
        cure = "write the name or address alone; the port is a key of its own, and there is no scheme"
    elif re.fullmatch(r"[0-9.]+", value) or not _HOST.fullmatch(value):
        cure = "write a name or an address without a port, such as lamps.example or 192.168.7.2"
    else:
        return
    raise ValueError(f"{value!r} is not a host; {cure}")


def _check_served_host(value: str) -> None:
    bare = value.removeprefix("[").removesuffix("]")
    check_host(bare if ":" in bare else value)


def _url_check(schemes: tuple[str, ...], example: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        try:
            parts = urlsplit(value)
            good = parts.scheme in schemes and (bool(parts.hostname) or parts.scheme.endswith("+unix"))
            _ = parts.port
        except ValueError:
            good = False
        if not good:
            raise ValueError(f"{value!r} is no such address; write one such as {example}")

    return check


def _check_destination(value: str) -> None:
    scheme = _SCHEME.match(value)
    if scheme is None:
        return _check_path(value)
    parts = urlsplit(value)
    if parts.scheme in ("file", "local"):
        return None
    is_bucket = parts.scheme in ("s3", "s3a")
    # The host of another store may be in the options file.
    if not value.startswith("//", scheme.end()) or (is_bucket and not parts.netloc):
        cure = "s3://bucket/prefix" if is_bucket else f"{parts.scheme}://host/path"
        raise ValueError(f"{value!r} names no {cure.split('/')[2]}; write {cure}, with two slashes")
    return None


def _check_user(value: str) -> None:
    if not re.fullmatch(r"[^\s:/,]+", value):
        raise ValueError(f"{value!r} is no name of a user; write names as in /etc/passwd, each in quotes of its own")


def _check_name(value: str) -> None:
    if not value.isprintable() or value != value.strip():
        raise ValueError(f"{value!r} has spaces at an end, or characters that cannot be seen; write it without them")


_CHECKS: dict[Kind, Callable[[str], None]] = {
    "file": _check_path,
    "secret": _check_path,
    "folder": _check_path,
    "data": _check_path,
    "host": check_host,
    "served": _check_served_host,
    "websocket": _url_check(("ws", "wss", "ws+unix"), "wss://localhost:9443/secure/subscribe"),
    "http": _url_check(("http", "https"), "https://localhost:8443/oauth/token"),
    "destination": _check_destination,
    "user": _check_user,
    "name": _check_name,
}
