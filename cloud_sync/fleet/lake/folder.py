"""Paths in the lake folder, for fsspec and for Spark."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lamplighter.cloud_sync.files import write_whole
from lamplighter.engine.errors import ConfigurationError, UpstreamError

# Between the name of a gateway and the number of one of its later histories.
FORK = "~"
_SPARK_SCHEMES = {"file": "file", "s3": "s3a", "s3a": "s3a", "gs": "gs", "gcs": "gs", "abfs": "abfs", "hdfs": "hdfs"}
# The signs of Hadoop's patterns.
_PATTERN = re.compile(r"[\\{}\[\]*?]")
_FSSPEC_SCHEMES = {"s3a:": "s3:"}


class LockLostError(UpstreamError):
    """Another process has the lock of a table that this one wrote. It must not write any more."""


@dataclass(frozen=True)
class Lake:
    """A lake folder. url: a local path, or a URL that fsspec can open, and Spark by Hadoop's name for its scheme."""

    url: str

    @classmethod
    def existing(cls, url: str) -> Lake:
        """A lake with something in it. Raises ConfigurationError for others, such as a path with a typing error."""
        lake = cls(url)
        if not lake.names():
            raise ConfigurationError(f"lake {url!r}: there is no lake; correct the path, or collect into it first")
        return lake

    @cached_property
    def _folder(self) -> str | None:
        """The folder that a local path names. Its files need no fsspec, which a collector does without."""
        return None if ":" in self.url else os.path.normpath(Path(self.url).expanduser().absolute())

    @cached_property
    def _filesystem(self) -> tuple[Any, str]:
        text = self.url
        for hadoop, ours in _FSSPEC_SCHEMES.items():
            if text.startswith(hadoop):
                text = ours + text.removeprefix(hadoop)
        from fsspec.core import url_to_fs

        try:
            fs, root = url_to_fs(text)
        except (ValueError, ImportError) as error:
            raise ConfigurationError(
                f"lake {self.url!r}: {error}; use a folder, or install the package that the URL needs"
            ) from error
        return fs, str(root).rstrip("/")

    @property
    def fs(self) -> Any:
        """The fsspec file system."""
        return self._filesystem[0]

    def path(self, *parts: str) -> str:
        """A path in the lake for `fs`."""
        return "/".join((self._folder or self._filesystem[1], *parts))

    def spark(self, *parts: str) -> str:
        """A path in the lake for Spark."""
        protocol = self.fs.protocol if isinstance(self.fs.protocol, str) else self.fs.protocol[0]
        if protocol not in _SPARK_SCHEMES:
            raise ConfigurationError(
                f"lake {self.url!r}: Spark reads {', '.join(sorted(_SPARK_SCHEMES))}, not {protocol}"
            )
        return f"{_SPARK_SCHEMES[protocol]}://{self.path(*parts)}"

    def spark_input(self, *parts: str) -> str:
        """As `spark`, of what Spark reads: it takes a path that it reads for a pattern, and one that it writes not."""
        return _PATTERN.sub(r"\\\g<0>", self.spark(*parts))

    @property
    def local(self) -> bool:
        return self._folder is not None or "file" in self.fs.protocol

    def exists(self, *parts: str) -> bool:
        path = self.path(*parts)
        return Path(path).exists() if self.local else bool(self.fs.exists(path))

    def content(self, *parts: str) -> bytes:
        """The content of a file. Raises OSError."""
        path = self.path(*parts)
        return Path(path).read_bytes() if self.local else bytes(self.fs.cat_file(path))

    def remove(self, *parts: str) -> None:
        """Removes a file. Raises OSError."""
        path = self.path(*parts)
        if self.local:
            Path(path).unlink()
        else:
            self.fs.rm_file(path)

    def write(self, data: bytes, *parts: str, modified: float | None = None) -> None:
        """Writes a small file atomically. modified: its time, in seconds since 1970, if the lake is a folder."""
        path = self.path(*parts)
        if not self.local:
            self.fs.pipe_file(path, data)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, data, modified)

    def mark(self, *parts: str) -> str | None:
        """What identifies the content of a file for `write_if`: its ETag. None: there is no file; "": the file system
        has no ETags."""
        if self.local:
            return ""
        try:
            return str(self.fs.info(self.path(*parts), refresh=True).get("ETag", ""))
        except FileNotFoundError:
            return None

    def write_if(self, data: bytes, mark: str | None, *parts: str) -> str | None:
        """Writes a small file as `write`, if its mark is still this one. Returns the new mark; None: it has changed.

        Without ETags, a file that exists is replaced in any case. Raises OSError.
        """
        path = self.path(*parts)
        if mark == "":
            self.write(data, *parts)
            return ""
        condition: dict[str, str] = {"mode": "create"} if mark is None else {"IfMatch": mark}
        try:
            said = self.fs.pipe_file(path, data, **condition)
        except OSError as error:
            if not isinstance(error, FileExistsError) and not _refused_by_condition(error):
                raise
            # A request that is repeated after a lost answer is refused because of itself.
            found = self.mark(*parts)
            return found if found is not None and self.fs.cat_file(path) == data else None
        return str(said["ETag"]) if isinstance(said, dict) and "ETag" in said else self.mark(*parts) or ""

    def modification_time(self, *parts: str) -> float | None:
        """When a file was written, in seconds since 1970; None if it is gone.

        Some file systems of fsspec do not tell times and raise NotImplementedError; it is None for those too.
        """
        try:
            if self.local:
                return Path(self.path(*parts)).stat().st_mtime
            return float(self.fs.modified(self.path(*parts)).timestamp())
        except (NotImplementedError, FileNotFoundError):
            return None

    def gateways(self) -> list[str]:
        """The gateways with landed segments, sorted; without their later histories, which no one can reach."""
        return [name for name in self.names("segments") if FORK not in name]

    def names(self, *parts: str) -> list[str]:
        """Names in a folder, sorted; none if it does not exist."""
        try:
            if self.local:  # fsspec takes ten times as long, and a matcher lists its manifests in each pass
                with os.scandir(self.path(*parts)) as listing:
                    return sorted(one.name for one in listing)
            found = self.fs.ls(self.path(*parts), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in found)


def gateway_of(name: str) -> str:
    """The gateway of a history by its name in the lake."""
    return name.partition(FORK)[0]


def _refused_by_condition(error: OSError) -> bool:
    """Whether S3 refused a conditional PUT (412), or another one was under way (409)."""
    said = getattr(error.__cause__, "response", {})
    return said.get("Error", {}).get("Code") in ("PreconditionFailed", "ConditionalRequestConflict")
