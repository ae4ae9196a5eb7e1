"""The S3 server of the fleet demo, beside other programs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from lamplighter.demo.fleet import store as demo_store
from lamplighter.demo.fleet.store import Store, store
from tests.support.components import require_module
from tests.support.destinations import weed_command

# What SeaweedFS listens on by default.
FIXED = (6060, 7333, 8080, 8111, 8181, 8333, 8888, 9101, 9333)


@contextmanager
def taken_ports(ports: tuple[int, ...]) -> Iterator[None]:
    with ExitStack() as stack:
        for port in ports:
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", port))
            one.listen()
        yield


def check(bucket: Store, name: str) -> None:
    with closing(bucket.open()) as to:
        assert to.create(f"gw/{name}", [b"x"])
        assert [one.name for one in to.entries("gw")] == [name]


def test_two_at_once_use_free_ports_only(tmp_path: Path) -> None:
    weed_command()
    require_module("s3fs")
    with taken_ports(FIXED), store(tmp_path / "one") as one, store(tmp_path / "other") as other:
        check(one, "a")
        check(other, "b")


def test_a_port_that_was_taken_since_it_was_found_free_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weed_command()
    require_module("s3fs")
    found = demo_store._free_ports
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        answers = iter([[other.getsockname()[1]] * 8])
        monkeypatch.setattr(demo_store, "_free_ports", lambda count: next(answers, None) or found(count))
        with store(tmp_path / "s3") as bucket:
            check(bucket, "a")
