"""Destinations beyond this machine: S3 and whatever speaks its protocol, SFTP, and what else fsspec reaches."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from lamplighter.cloud_sync.destination import (
    CHUNK,
    PART,
    SMALL_BYTES_MAX,
    Entry,
    absent,
    checked,
    errors,
    readable,
    shown,
)
from lamplighter.engine.errors import ConfigurationError

PART_BYTES = 5 * 1024 * 1024
"""Of an S3 object that goes in several parts: the least that S3 takes."""


def _filesystem(protocol: str, url: str, options: dict[str, Any]) -> Any:
    try:
        import fsspec

        with errors(shown(url)):
            return fsspec.filesystem(protocol, skip_instance_cache=True, **options)
    except ImportError as error:
        raise ConfigurationError(
            f"{shown(url)}: {error}; install the extra for it: pip install 'lamplighter[sync-s3]' for S3, "
            "'lamplighter[sync-sftp]' for SFTP"
        ) from error


class FsspecFolder:
    """Anything that fsspec can write to and rename in, SFTP above all.

    SFTP cannot be told to put a file on its disk; what its server loses in a power cut before that has no confirmation,
    and is sent again.
    """

    lists_from = False

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        parts = urlsplit(url)
        self.url = shown(url).rstrip("/")
        self._root = f"{parts.netloc}{parts.path}".rstrip("/")
        if parts.scheme in ("sftp", "ssh"):
            options = {"host": parts.hostname, **_sftp_options(url, options)}
            options |= {name: value for name, value in (("port", parts.port), ("username", parts.username)) if value}
            self._root = parts.path.rstrip("/")
        self._fs = _filesystem(parts.scheme, url, options)
        if parts.scheme in ("sftp", "ssh"):
            # Else each write waits for the acknowledgement that TCP holds back, for 40 ms.
            self._fs.client.get_transport().sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

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

    def get(self, name: str) -> bytes | None:
        with errors(f"{self.url}/{name}"), absent(), self._fs.open(self._path(name), "rb") as file:
            return cast("bytes", file.read(SMALL_BYTES_MAX))
        return None

    def chunks(self, name: str) -> Iterator[bytes]:
        with errors(f"{self.url}/{name}"), absent(), self._fs.open(self._path(name), "rb") as file:
            while data := file.read(CHUNK):
                yield data

    def exists(self, name: str) -> bool:
        with errors(f"{self.url}/{name}"):
            return bool(self._fs.exists(self._path(name)))

    def entries(self, folder: str, after: str = "", most: int | None = None) -> list[Entry]:
        with errors(f"{self.url}/{folder}"), absent():
            self._fs.invalidate_cache()  # a listing that is remembered would hide what has come since
            return readable(map(_entry, self._listed(folder)), after, most)
        return []

    def _listed(self, folder: str) -> list[dict[str, Any]]:
        """The files in a folder. What fsspec returns is all in memory."""
        return [info for info in self._fs.ls(self._path(folder), detail=True) if info["type"] == "file"]

    def folders(self) -> list[str]:
        with errors(self.url):
            self._fs.invalidate_cache()
            found = self._fs.ls(self._root, detail=True)
            return sorted(info["name"].rpartition("/")[2] for info in found if info["type"] == "directory")

    def close(self) -> None:
        if hasattr(self._fs, "client"):  # SFTP has a thread that would go on
            self._fs.client.close()

    def _path(self, name: str) -> str:
        return f"{self._root}/{checked(name)}"

    def _write(self, path: str, chunks: Iterable[bytes]) -> None:
        parent = path.rpartition("/")[0]
        if not self._fs.exists(parent):
            self._fs.makedirs(parent, exist_ok=True)
        with self._fs.open(path + PART, "wb") as file:
            if hasattr(file, "set_pipelined"):
                file.set_pipelined(True)  # SFTP: closing waits for all answers, instead of each write for its own
            for chunk in chunks:
                file.write(chunk)
        self._fs.mv(path + PART, path)


def _entry(info: dict[str, Any]) -> Entry:
    return Entry(info["name"].rpartition("/")[2], info["size"], str(info.get("mtime") or info.get("created")))


def _sftp_options(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options with a check of the server's key against ``known_hosts``, a file; fsspec itself would trust any."""
    options = dict(options)
    known = Path(options.pop("known_hosts", "~/.ssh/known_hosts")).expanduser()
    try:
        import paramiko
    except ImportError as error:
        raise ConfigurationError(f"{shown(url)}: {error}; pip install 'lamplighter[sync-sftp]'") from error

    class Known(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            try:
                keys = paramiko.HostKeys(str(known))
            except OSError as error:
                raise ConfigurationError(f"{known}: {error.strerror}; ssh-keyscan {hostname} > {known}") from error
            if not keys.check(hostname, key):
                raise ConfigurationError(
                    f"{shown(url)}: {known} does not have the key of {hostname}; if it is the right machine add it "
                    "there, or name another file as known_hosts in the options"
                )

    options.setdefault("timeout", 30)
    return {"host_key_policy": Known(), "allow_agent": False, "look_for_keys": False, **options}


class S3Bucket:
    """A bucket of S3 or of anything that speaks its protocol; objects are created by conditional writes."""

    lists_from = True

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        parts = urlsplit(url)
        self.url = shown(url).rstrip("/")
        self._bucket, prefix = parts.netloc, parts.path.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._fs = _filesystem("s3", url, options)

    def create(self, name: str, chunks: Iterable[bytes]) -> bool:
        with errors(f"{self.url}/{name}"):
            parts = _parts(chunks)
            first = next(parts, b"")
            second = next(parts, None)
            try:
                if second is None:
                    self._call("put_object", name, Body=first, IfNoneMatch="*")
                else:
                    self._create_in_parts(name, first, second, parts)
            except FileExistsError:
                return False
            except OSError as error:
                if _precondition_failed(error):
                    return False
                raise
            return True

    def put(self, name: str, data: bytes) -> None:
        with errors(f"{self.url}/{name}"):
            self._call("put_object", name, Body=data)

    def get(self, name: str) -> bytes | None:
        with errors(f"{self.url}/{name}"), absent():
            return cast("bytes", self._fs.cat_file(self._path(name)))
        return None

    def chunks(self, name: str) -> Iterator[bytes]:
        opened = self._fs.open
        with errors(f"{self.url}/{name}"), absent(), opened(self._path(name), "rb", block_size=PART_BYTES) as file:
            while data := file.read(PART_BYTES):
                yield data

    def exists(self, name: str) -> bool:
        with errors(f"{self.url}/{name}"), absent():
            self._call("head_object", name)
            return True
        return False

    def entries(self, folder: str, after: str = "", most: int | None = None) -> list[Entry]:
        return list(itertools.islice(self._entries(folder, after), most))

    def _entries(self, folder: str, after: str) -> Iterator[Entry]:
        prefix = f"{self._prefix}{checked(folder)}/"
        more: dict[str, str] = {"StartAfter": prefix + after} if after else {}
        while True:
            with errors(f"{self.url}/{folder}"):
                page = self._list(prefix, more)
            for item in page.get("Contents", ()):
                if name := item["Key"].removeprefix(prefix):
                    yield Entry(name, item["Size"], item["ETag"].strip('"'))
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def folders(self) -> list[str]:
        found: list[str] = []
        more: dict[str, str] = {}
        with errors(self.url):
            while True:
                page = self._list(self._prefix, more)
                found += [
                    item["Prefix"].removeprefix(self._prefix).rstrip("/") for item in page.get("CommonPrefixes", ())
                ]
                if not page.get("IsTruncated"):
                    return sorted(found)
                more = {"ContinuationToken": page["NextContinuationToken"]}

    def close(self) -> None:
        del self._fs  # which closes its connections when nobody has it any more

    def _list(self, prefix: str, more: dict[str, str]) -> dict[str, Any]:
        return cast(
            "dict[str, Any]",
            self._fs.call_s3("list_objects_v2", Bucket=self._bucket, Prefix=prefix, Delimiter="/", **more),
        )

    def _path(self, name: str) -> str:
        return f"{self._bucket}/{self._prefix}{checked(name)}"

    def _call(self, method: str, name: str, **arguments: Any) -> dict[str, Any]:
        key = self._prefix + checked(name)
        return cast("dict[str, Any]", self._fs.call_s3(method, Bucket=self._bucket, Key=key, **arguments))

    def _create_in_parts(self, name: str, first: bytes, second: bytes, rest: Iterator[bytes]) -> None:
        upload = self._call("create_multipart_upload", name)["UploadId"]
        try:
            done: list[dict[str, Any]] = []

            def send(data: bytes) -> None:
                number = len(done) + 1
                tag = self._call("upload_part", name, UploadId=upload, PartNumber=number, Body=data)["ETag"]
                done.append({"PartNumber": number, "ETag": tag})

            send(first)
            send(second)
            for data in rest:
                send(data)
            self._call(
                "complete_multipart_upload",
                name,
                UploadId=upload,
                MultipartUpload={"Parts": done},
                IfNoneMatch="*",
            )
        except BaseException:
            with contextlib.suppress(Exception):  # what went wrong first is what counts
                self._call("abort_multipart_upload", name, UploadId=upload)
            raise


def _parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in parts of `PART_BYTES`, the last one excepted."""
    waiting = bytearray()
    for chunk in chunks:
        waiting += chunk
        while len(waiting) >= PART_BYTES:
            yield bytes(waiting[:PART_BYTES])
            del waiting[:PART_BYTES]
    if waiting:
        yield bytes(waiting)


def _precondition_failed(error: BaseException | None) -> bool:
    """Whether an error of S3 says that an object of that name was there."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict) and response.get("Error", {}).get("Code") in ("PreconditionFailed", "412"):
            return True
        error = error.__cause__
    return False
