"""A bucket of S3, or of a store that speaks its protocol."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, cast
from urllib.parse import urlsplit

from lamplighter.cloud_sync.destinations.base import (
    Destination,
    StoredObject,
    absent,
    check_object_name,
    display_url,
    errors,
)
from lamplighter.cloud_sync.destinations.fsspec_folder import filesystem

# Size of a part in a multipart upload: the least that S3 takes.
PART_BYTES = 5 * 1024 * 1024


class S3Bucket(Destination):
    """A bucket. Objects are created with conditional writes."""

    lists_from = True

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        parts = urlsplit(url)
        self.url = display_url(url).rstrip("/")
        self._bucket, prefix = parts.netloc, parts.path.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._fs = filesystem("s3", url, options)

    def create(self, name: str, chunks: Iterable[bytes]) -> bool:
        with errors(f"{self.url}/{name}"):
            parts = _parts(chunks)
            first = next(parts, b"")
            second = next(parts, None)
            try:
                # One request instead of three for what fits in a part: requests are what S3 is paid for.
                if second is None:
                    # The condition makes the store decide between two writers of the same name; a look before the write
                    # could not.
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

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Iterator[bytes] | None]:
        # GET, not HEAD: one request decides absence and content, and the answer to a refused GET has the reason.
        body: Any = None
        with errors(f"{self.url}/{name}"), absent():
            body = self._call("get_object", name)["Body"]
        try:
            yield None if body is None else self._chunks(body, name)
        finally:
            if body is not None:
                body.close()

    def _chunks(self, body: Any, name: str) -> Iterator[bytes]:
        from fsspec.asyn import sync

        with errors(f"{self.url}/{name}"):
            while data := sync(self._fs.loop, body.read, PART_BYTES):
                yield data

    def entries(self, folder: str, after: str = "", most: int | None = None) -> list[StoredObject]:
        return list(itertools.islice(self._entries(folder, after), most))

    def _entries(self, folder: str, after: str) -> Iterator[StoredObject]:
        prefix = f"{self._prefix}{check_object_name(folder)}/"
        more: dict[str, str] = {"StartAfter": prefix + after} if after else {}
        while True:
            with errors(f"{self.url}/{folder}"):
                page = self._list(prefix, more)
            for item in page.get("Contents", ()):
                if name := item["Key"].removeprefix(prefix):
                    yield StoredObject(name, item["Size"], item["ETag"].strip('"'))
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
        from fsspec.asyn import sync

        # Without this, s3fs closes its connections when it is garbage-collected, from whatever event loop runs then.
        client = self._fs._s3
        if client is not None:
            sync(self._fs.loop, client.close)

    def _list(self, prefix: str, more: dict[str, str]) -> dict[str, Any]:
        return cast(
            "dict[str, Any]",
            self._fs.call_s3("list_objects_v2", Bucket=self._bucket, Prefix=prefix, Delimiter="/", **more),
        )

    def _call(self, method: str, name: str, **arguments: Any) -> dict[str, Any]:
        key = self._prefix + check_object_name(name)
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
                "complete_multipart_upload", name, UploadId=upload, MultipartUpload={"Parts": done}, IfNoneMatch="*"
            )
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is raised
                self._call("abort_multipart_upload", name, UploadId=upload)
            raise


def _parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in parts of `PART_BYTES`; the last part may be smaller."""
    waiting = bytearray()
    for chunk in chunks:
        waiting += chunk
        while len(waiting) >= PART_BYTES:
            yield bytes(waiting[:PART_BYTES])
            del waiting[:PART_BYTES]
    if waiting:
        yield bytes(waiting)


def _precondition_failed(error: BaseException | None) -> bool:
    """Whether an S3 error means that an object of that name exists."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict) and response.get("Error", {}).get("Code") in ("PreconditionFailed", "412"):
            return True
        error = error.__cause__
    return False
