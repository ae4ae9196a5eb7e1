"""Where segments go: a folder, an S3 bucket, an SFTP server, or another store that fsspec can reach.

base: the interface `Destination`, and what its backends share; folder: a folder of this machine, or a mounted one, with
nothing but Python; fsspec_folder: a store that fsspec can write to and rename in, such as an SFTP server; s3:
a bucket of S3 or of a store with its protocol; renewed: one whose options may change while it is open.

Names of objects are relative, with slashes. An object is there as a whole or not at all, even when its writer is
killed. Backends that need fsspec are imported when a URL names them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from lamplighter.cloud_sync.destinations.base import Destination, StoredObject, display_url
from lamplighter.cloud_sync.destinations.folder import LocalFolder
from lamplighter.cloud_sync.destinations.renewed import RenewedDestination
from lamplighter.engine.errors import ConfigurationError

__all__ = ["Destination", "LocalFolder", "StoredObject", "destination", "renewed_destination"]


def destination(url: str, options: dict[str, Any]) -> Destination:
    """Opens a destination: a folder for a path or a ``file:`` URL, otherwise the backend of the URL's protocol.

    options: as of `cloud_sync.settings.storage_options`. Raises ConfigurationError, UpstreamError.
    """
    folder = local_folder(url)
    if folder is not None:
        return LocalFolder(folder)
    parts = urlsplit(url)
    if parts.password:
        raise ConfigurationError(f"{display_url(url)}: move the password to the file that sync.options_file names")
    if parts.scheme in ("s3", "s3a"):
        from lamplighter.cloud_sync.destinations.s3 import S3Bucket

        return S3Bucket(url, options)
    if parts.scheme in ("sftp", "ssh"):
        from lamplighter.cloud_sync.destinations.fsspec_folder import SftpFolder

        return SftpFolder(url, options)
    from lamplighter.cloud_sync.destinations.fsspec_folder import FsspecFolder

    return FsspecFolder(url, options)


def renewed_destination(url: str, read: Callable[[], dict[str, Any]]) -> Destination:
    """As `destination`, for a process that stays. read: reads the options, as often as they are needed."""
    return RenewedDestination(partial(destination, url), read)


def local_folder(url: str) -> Path | None:
    """The folder of this machine that a destination names, None for another store. Raises ConfigurationError."""
    parts = urlsplit(url)
    if parts.scheme not in ("", "file", "local"):
        return None
    if parts.netloc not in ("", "localhost"):
        raise ConfigurationError(f"{display_url(url)}: not a folder of this machine; write /path or file:///path")
    return Path(unquote(parts.path)) if parts.scheme else Path(url)
