"""Destinations whose credentials change while a process has them open."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lamplighter.cloud_sync.destinations import Destination, LocalFolder, renewed_destination
from lamplighter.cloud_sync.destinations.renewed import RenewedDestination
from lamplighter.cloud_sync.fleet.collection.collector import Collector
from lamplighter.cloud_sync.settings import storage_options
from lamplighter.engine.errors import ConfigurationError, UpstreamError


class Opened:
    """Makes folders whose requests fail when they are told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.options: dict[str, Any] | ConfigurationError = {"key": 1}
        self.made: list[Folder] = []

    def read(self) -> dict[str, Any]:
        if isinstance(self.options, ConfigurationError):
            raise self.options
        return dict(self.options)

    def make(self, options: dict[str, Any]) -> Destination:
        self.made.append(Folder(self.folder, options))
        return self.made[-1]


class Folder(LocalFolder):
    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        super().__init__(path)
        self.options = options
        self.closed = self.refuses = False
        self.held: tuple[threading.Event, threading.Event] | None = None

    def get(self, name: str, most: int = 0) -> bytes | None:
        raise AssertionError

    def put(self, name: str, data: bytes) -> None:
        assert not self.closed
        if self.held is not None:
            self.held[0].set()
            self.held[1].wait(60)
            assert not self.closed
        if self.refuses:
            raise UpstreamError("refused")
        super().put(name, data)

    def close(self) -> None:
        assert not self.closed
        self.closed = True


def test_other_options_and_a_failed_request_open_it_again(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    with closing(RenewedDestination(opened.make, opened.read)) as to:
        to.put("one", b"1")
        to.put("two", b"2")
        assert len(opened.made) == 1
        opened.options = {"key": 2}
        to.put("three", b"3")
        assert [one.options["key"] for one in opened.made] == [1, 2]
        opened.options = ConfigurationError("half of a file")
        to.put("four", b"4")  # with those of before
        opened.made[1].refuses = True
        with pytest.raises(UpstreamError, match="refused"):
            to.put("five", b"5")
        with pytest.raises(UpstreamError, match="half of a file"):
            to.put("five", b"5")
        opened.options = {"key": 2}
        to.put("five", b"5")  # what the same options name may be other
        assert to.get("five") == b"5"
        assert [one.name for one in to.entries("x")] == []
    assert [one.closed for one in opened.made] == [True, True, True]


def test_what_is_in_use_is_closed_behind_its_last_request(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    begun, ends = threading.Event(), threading.Event()
    with closing(RenewedDestination(opened.make, opened.read)) as to:
        opened.made[0].held = begun, ends
        thread = threading.Thread(target=to.put, args=("slow", b"1"))
        thread.start()
        assert begun.wait(60)
        opened.options = {"key": 2}
        to.put("other", b"2")
        assert not opened.made[0].closed
        ends.set()
        thread.join()
        assert opened.made[0].closed
        assert (tmp_path / "slow").read_bytes() == b"1"


def test_a_collector_takes_a_secret_that_changes(s3: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "s3.toml"

    def write(secret: str) -> None:
        file.touch(mode=0o600)
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in (s3 | {"secret": secret}).items())
        file.write_text(text)

    write("secret")
    source = renewed_destination("s3://fleet/renewed", partial(storage_options, "s3.toml", tmp_path))
    with Collector(source, tmp_path / "lake") as collector:
        collector.collect()
        write("old")
        with pytest.raises(UpstreamError, match="signature we calculated does not match"):
            collector.collect()
        write("secret")
        collector.collect()
