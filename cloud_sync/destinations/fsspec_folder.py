"""A folder of any file system that fsspec knows."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from lamplighter.cloud_sync.destinations.base import (
    PART,
    Destination,
    StoredObject,
    absent,
    check_object_name,
    chunks_of,
    display_url,
    errors,
    readable,
)
from lamplighter.engine.errors import ConfigurationError
from lamplighter.engine.extras import pip_install

_EXTRAS = {"s3": "sync-s3", "sftp": "sync-sftp", "ssh": "sync-sftp"}


def filesystem(protocol: str, url: str, options: dict[str, Any]) -> Any:
    """The fsspec file system for a URL. Raises ConfigurationError when a package is missing, UpstreamError."""
    try:
        from fsspec import get_filesystem_class

        kind = get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:  # ValueError: no such protocol
        extra = _EXTRAS.get(protocol)
        cure = pip_install(extra) if extra else "name a folder, or a URL with s3: or sftp:"
        raise ConfigurationError(f"{display_url(url)}: {error}; {cure}") from error
    with errors(display_url(url)):
        return kind(skip_instance_cache=True, **options)


class FsspecFolder(Destination):
    """root: the path in that file system; by default what the URL has behind its scheme."""

    lists_from = False

    def __init__(self, url: str, options: dict[str, Any], *, root: str | None = None) -> None:
        parts = urlsplit(url)
        self.url = display_url(url).rstrip("/")
        self._root = (f"{parts.netloc}{parts.path}" if root is None else root).rstrip("/")
        self._fs = filesystem(parts.scheme, url, options)

    def create(self, name: str, chunks: Iterable[bytes]) -> bool:
        path = self._path(name)
        with errors(f"{self.url}/{name}"):
            if self._fs.exists(path):
                return False
            self._write(path, chunks)
            return True

    def put(self, name: str, data: bytes) -> None:
        with errors(f"{self.url}/{name}"):
            self._write(self._path(name), [data])

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Iterator[bytes] | None]:
        with contextlib.ExitStack() as opened:
            file: BinaryIO | None = None
            with errors(f"{self.url}/{name}"), absent():
                file = opened.enter_context(self._fs.open(self._path(name), "rb"))
            yield None if file is None else chunks_of(file, f"{self.url}/{name}")

    def entries(self, folder: str, after: str = "", most: int | None = None) -> list[StoredObject]:
        with errors(f"{self.url}/{folder}"), absent():
            self._fs.invalidate_cache()  # a cached listing hides new objects
            return readable(map(_entry, self._list(folder)), after, most)
        return []

    def _list(self, folder: str) -> list[dict[str, Any]]:
        """The files in a folder. fsspec keeps the whole listing in memory."""
        return [info for info in self._fs.ls(self._path(folder), detail=True) if info["type"] == "file"]

    def folders(self) -> list[str]:
        with errors(self.url):
            self._fs.invalidate_cache()
            found = self._fs.ls(self._root, detail=True)
            return sorted(info["name"].rpartition("/")[2] for info in found if info["type"] == "directory")

    def close(self) -> None:
        pass

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_object_name(name)}"

    def _write(self, path: str, chunks: Iterable[bytes]) -> None:
        parent = path.rpartition("/")[0]
        if not self._fs.exists(parent):
            self._fs.makedirs(parent, exist_ok=True)
        with self._fs.open(path + PART, "wb") as file:
            if hasattr(file, "set_pipelined"):
                file.set_pipelined(True)  # SFTP: only closing waits for the server's answers, not each write
            for chunk in chunks:
                file.write(chunk)
        self._fs.mv(path + PART, path)


def _entry(info: dict[str, Any]) -> StoredObject:
    return StoredObject(info["name"].rpartition("/")[2], info["size"], str(info.get("mtime") or info.get("created")))


class SftpFolder(FsspecFolder):
    """The server's key is checked against ``known_hosts``.

    SFTP has no request that makes a file durable. An object that the server loses in a power cut has no confirmation,
    and the shipper sends it again.
    """

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        parts = urlsplit(url)
        options = {"host": parts.hostname, **_options(url, options)}
        options |= {name: value for name, value in (("port", parts.port), ("username", parts.username)) if value}
        super().__init__(url, options, root=parts.path)
        # Without this option each write waits 40 ms for an acknowledgement that TCP delays.
        self._fs.client.get_transport().sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._fs.client.close()  # ends its thread


def _options(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options with a policy that checks the server's key in ``known_hosts``. By default fsspec trusts any key."""
    options = dict(options)
    known = Path(options.pop("known_hosts", "~/.ssh/known_hosts")).expanduser()
    try:
        import paramiko
    except ImportError as error:
        raise ConfigurationError(f"{display_url(url)}: {error}; {pip_install('sync-sftp')}") from error

    class KnownHosts(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            try:
                keys = paramiko.HostKeys(str(known))
            except OSError as error:
                raise ConfigurationError(
                    f"{known}: {error.strerror}; create it with ssh-keyscan {hostname} > {known}"
                ) from error
            if not keys.check(hostname, key):
                raise ConfigurationError(
                    f"{display_url(url)}: {known} does not have the key of {hostname}; check the key and add it, or "
                    "set known_hosts in the options file"
                )

    options.setdefault("timeout", 30)
    return {"host_key_policy": KnownHosts(), "allow_agent": False, "look_for_keys": False, **options}
