"""Real servers that segments are shipped to, on loopback: S3 and SFTP."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.brokers import free_port
from tests.support.components import require_command, require_module

START_TIMEOUT_S = 120.0


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Raises AssertionError when the process ends, or does not listen in time."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.5).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"nothing listens on {port}: {log.read_text()}")


def weed_command() -> str:
    """SeaweedFS, from the wheel of that name beside this Python or from the machine."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else require_command("weed")


@contextmanager
def s3_server(folder: Path) -> Iterator[dict[str, object]]:
    """A SeaweedFS with S3 on loopback that makes no bucket unasked, as AWS; the storage options for it."""
    command = weed_command()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "s3.json").write_text(
        '{"identities": [{"name": "test", "credentials": [{"accessKey": "key", "secretKey": "secret"}],'
        ' "actions": ["Admin", "Read", "List", "Write", "Tagging"]}]}'
    )
    ports = {name: free_port() for name in ("master", "volume", "filer", "s3")}
    grpc = {f"{name}.port.grpc": free_port() for name in ports}
    arguments = [f"-{name}.port={port}" for name, port in ports.items()] + [f"-{n}={p}" for n, p in grpc.items()]
    log = folder / "weed.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [command, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3",
             f"-s3.config={folder / 's3.json'}", "-volume.max=100", "-master.volumeSizeLimitMB=64",
             "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false",
             *arguments],
            stdout=out, stderr=subprocess.STDOUT, cwd=folder,
        )  # fmt: skip
    try:
        wait_for_port(ports["s3"], process, log)
        _wait_for_volumes(ports["master"], process, log)
        yield {"key": "key", "secret": "secret", "endpoint_url": f"http://127.0.0.1:{ports['s3']}"}
    finally:
        process.kill()
        process.wait()


def _wait_for_volumes(master: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the volume server has told the master of itself: S3 listens before, and refuses each PUT until then."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError, ValueError), urllib.request.urlopen(f"http://127.0.0.1:{master}/dir/status") as answer:
            if json.load(answer)["Topology"]["Max"]:
                return
        time.sleep(0.05)
    raise AssertionError(f"SeaweedFS has no volumes: {log.read_text()}")


@contextmanager
def sftp_server(folder: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """An OpenSSH server on loopback that serves this user's files: the URL of its root, and the storage options."""
    command, keygen = require_command("sshd"), require_command("ssh-keygen")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("host", "client"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    port = free_port()
    (folder / "authorized_keys").write_text((folder / "client.pub").read_text())
    (folder / "authorized_keys").chmod(0o600)
    kind, key = (folder / "host.pub").read_text().split()[:2]
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    (folder / "sshd.conf").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host'}\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {folder / 'authorized_keys'}\nPasswordAuthentication no\nSubsystem sftp internal-sftp\n"
        "PermitRootLogin prohibit-password\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where its unprivileged part lives
    log = folder / "sshd.log"
    with log.open("wb") as out:
        process = subprocess.Popen([command, "-D", "-e", "-f", folder / "sshd.conf"], stdout=out, stderr=out)
    try:
        wait_for_port(port, process, log)
        options = {"key_filename": str(folder / "client"), "known_hosts": str(folder / "known_hosts")}
        yield f"sftp://{os.environ.get('USER', 'root')}@127.0.0.1:{port}", options
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """Storage options of a real S3 server that has a bucket named ``fleet``; conftest.py takes it in."""
    require_module("s3fs")
    import s3fs
    from fsspec.asyn import sync

    with s3_server(tmp_path_factory.mktemp("s3")) as options:
        fs = s3fs.S3FileSystem(**options, skip_instance_cache=True)
        fs.call_s3("create_bucket", Bucket="fleet")
        sync(fs.loop, fs._s3.close)  # otherwise the garbage collector closes it, in the event loop of some test
        yield options
