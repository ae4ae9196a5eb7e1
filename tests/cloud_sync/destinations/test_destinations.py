"""Destinations: one contract, held by a folder, a real S3 server and a real SFTP server."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lamplighter.cloud_sync.destinations import Destination, destination
from lamplighter.cloud_sync.destinations.base import PART
from lamplighter.cloud_sync.destinations.s3 import PART_BYTES
from lamplighter.engine.errors import ConfigurationError, UpstreamError
from lamplighter.engine.extras import pip_install
from tests.support.destinations import require_module, sftp_server

Opener = Callable[[], Destination]


@pytest.fixture(scope="module", params=["folder", "s3", "sftp"])
def opener(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    """Opens a destination; each time the same one."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        if request.param == "folder":
            url, options = str(folder / "to"), {}
        elif request.param == "s3":
            url, options = "s3://fleet/some/prefix", request.getfixturevalue("s3")
        else:
            require_module("paramiko")
            root, options = stack.enter_context(sftp_server(folder / "server"))
            url = f"{root}{folder / 'to'}"
        (folder / "to").mkdir()

        def opened() -> Destination:
            to = destination(url, options)
            stack.callback(to.close)
            return to

        yield opened


@pytest.fixture
def to(opener: Opener) -> Destination:
    return opener()


def content(to: Destination, name: str) -> bytes:
    with to.open(name) as chunks:
        assert chunks is not None
        return b"".join(chunks)


def test_what_was_created_is_read_and_listed(to: Destination) -> None:
    assert to.create("gw-a/one.ndjson.zst", [b"some", b"thing"])
    assert content(to, "gw-a/one.ndjson.zst") == to.get("gw-a/one.ndjson.zst") == b"something"
    assert [(entry.name, entry.size) for entry in to.entries("gw-a")] == [("one.ndjson.zst", 9)]
    assert "gw-a" in to.folders()


def test_an_object_is_created_once(to: Destination) -> None:
    assert to.create("gw-b/one", [b"first"])
    assert not to.create("gw-b/one", [b"second"])
    assert to.get("gw-b/one") == b"first"
    assert to.get("gw-b/one", 2) == b"fi"


def test_who_writes_meanwhile_was_first(to: Destination) -> None:
    if to.url.startswith("sftp"):
        return  # it has no such thing

    def overtaken() -> Iterator[bytes]:
        yield b"mine"
        if to.lists_from:
            to.put("gw-i/one", b"theirs")
        else:
            Path(to.url, "gw-i/one").write_bytes(b"theirs")

    assert not to.create("gw-i/one", overtaken())
    assert to.get("gw-i/one") == b"theirs"


def test_a_large_object_is_created_once_and_whole(to: Destination) -> None:
    block = bytes(range(256)) * 4096
    blocks = PART_BYTES // len(block) * 2 + 1
    assert to.create("gw-c/large", [block] * blocks)
    assert not to.create("gw-c/large", [block[::-1]] * blocks)
    assert content(to, "gw-c/large") == block * blocks


def test_what_is_put_replaces_what_was_there(to: Destination) -> None:
    to.put("gw-d/answer", b"first")
    before = [entry.version for entry in to.entries("gw-d")]
    to.put("gw-d/answer", b"second, longer")
    assert to.get("gw-d/answer") == b"second, longer"
    assert [entry.size for entry in to.entries("gw-d")] == [14]
    assert before


@pytest.mark.parametrize("blocks", [1, 12])
def test_nothing_is_there_of_an_object_that_broke_off(to: Destination, blocks: int) -> None:
    def breaking() -> Iterator[bytes]:
        for _ in range(blocks):
            yield bytes(1024 * 1024)
        raise OSError("the cable was pulled")

    name = f"gw-e{blocks}/broken"
    with pytest.raises(UpstreamError, match="the cable was pulled"):
        to.create(name, breaking())
    assert to.get(name) is None
    assert list(to.entries(f"gw-e{blocks}")) == []
    assert to.create(name, [b"begun again"])
    assert to.get(name) == b"begun again"
    (entry,) = to.entries(f"gw-e{blocks}")
    assert not entry.name.endswith(PART)


def test_an_empty_object_is_there(to: Destination) -> None:
    to.put("gw-j/empty", b"")
    assert to.get("gw-j/empty") == b""
    assert content(to, "gw-j/empty") == b""


def test_what_is_not_there_is_nothing(to: Destination) -> None:
    assert to.get("gw-f/none") is None
    with to.open("gw-f/none") as chunks:
        assert chunks is None
    assert list(to.entries("gw-f")) == []


def test_listing_goes_on_behind_a_name(to: Destination) -> None:
    for number in (3, 1, 2):
        to.put(f"gw-g/{number}.json", b"")
    to.put("gw-g/snapshots/9.json", b"")
    assert [entry.name for entry in to.entries("gw-g")] == ["1.json", "2.json", "3.json"]
    assert [entry.name for entry in to.entries("gw-g", "1.json")] == ["2.json", "3.json"]


def test_an_s3_listing_has_more_than_one_page(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    to = opener()
    if not to.lists_from:
        return
    plain = to._list  # type: ignore[attr-defined]
    monkeypatch.setattr(to, "_list", lambda prefix, more: plain(prefix, {**more, "MaxKeys": 2}))
    names = [f"{number}.json" for number in range(5)]
    for name in names:
        to.put(f"gw-h/{name}", b"x")
    assert [entry.name for entry in to.entries("gw-h")] == names
    assert "gw-h" in to.folders()


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://fleet", {"endpoint_url": "http://127.0.0.1:9", "key": "k", "secret": "s"}),
        ("sftp://root@127.0.0.1:9/to", {"known_hosts": "/dev/null"}),
    ],
)
def test_a_server_that_is_away_is_named(url: str, options: dict[str, object]) -> None:
    require_module("s3fs" if url.startswith("s3") else "paramiko")
    if url.startswith("s3"):
        options = {**options, "config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": 1}}
    with pytest.raises(UpstreamError, match=r"127.0.0.1:9|s3://fleet"):
        destination(url, options).get("gw/x")


def test_an_sftp_server_with_an_unknown_key_is_not_talked_to(tmp_path: Path) -> None:
    require_module("paramiko")
    with sftp_server(tmp_path / "server") as (url, options):
        (tmp_path / "none").write_text("")
        with pytest.raises(ConfigurationError, match="does not have the key of"):
            destination(f"{url}{tmp_path}", {**options, "known_hosts": str(tmp_path / "none")})


@pytest.mark.parametrize("url", ["sftp://me:secret@host/x", "file://host/x"])
def test_a_destination_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        destination(url, {})
    assert "secret" not in str(caught.value)


def test_a_mount_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError, match="there is no such folder"):
        destination(str(tmp_path / "none"), {}).folders()


@pytest.mark.parametrize(
    ("url", "module", "extra"), [("s3://fleet", "s3fs", "sync-s3"), ("sftp://me@host/x", "paramiko", "sync-sftp")]
)
def test_a_missing_package_is_named_with_its_extra(
    url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_module("fsspec")
    from fsspec.registry import _registry as imported

    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(imported, "s3", raising=False)
    with pytest.raises(ConfigurationError, match=re.escape(f"; {pip_install(extra)}")):
        destination(url, {})


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="nonsense"):
        destination("nonsense://host/x", {})


async def test_a_closed_bucket_leaves_nothing_to_the_garbage_collector(s3: dict[str, object]) -> None:
    before = asyncio.all_tasks()
    to = destination("s3://fleet/closed", s3)
    await asyncio.to_thread(to.put, "gw-a/one", b"something")
    await asyncio.to_thread(to.close)
    del to
    gc.collect()
    await asyncio.gather(*(asyncio.all_tasks() - before))  # s3fs closes the session once more, in this loop
