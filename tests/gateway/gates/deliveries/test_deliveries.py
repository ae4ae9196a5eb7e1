"""Parts of deliveries: URLs and addresses, pauses, the file of positions, secrets."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import threading
from contextlib import AbstractAsyncContextManager
from ipaddress import ip_address
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from lamplighter.engine.change_log import Followed, Receiver
from lamplighter.engine.errors import ConfigurationError, MalformedRequestError
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.gates.apis import api_headers, api_routes
from lamplighter.gateway.gates.deliveries.files import Positions, SecretKeys
from lamplighter.gateway.gates.deliveries.registry import address_refusal, checked_url
from lamplighter.gateway.gates.deliveries.worker import ENDED, ConcurrencyLimit, DeliveryWorker
from lamplighter.gateway.settings import Settings
from tests.support.tables import each_row


@each_row(
    ("url", "ports"),
    [
        ("https://example.org", [443]),
        ("http://example.org/a?b=c&d=%20", [80]),
        ("http://[2001:db8::1]:8080/", [8080]),
        ("http://example.org:1", []),
    ],
)
def test_urls_that_may_be_called(url: str, ports: list[int]) -> None:
    assert checked_url(url, ports, "webhooks", "callback") == url


@each_row(
    "url",
    [
        "",
        "example.org",
        "//example.org/",
        "file:///etc/passwd",
        "gopher://example.org/",
        "HTTP://example.org/",
        "http:example.org",
        "http://",
        "http://:80/",
        "http://a@example.org/",
        "http://a:b@example.org/",
        "http://example.org/#",
        "http://example.org:0/",
        "http://example.org:81/",
        "http://example.org:x/",
        "http://example.org\r\nHost: b/",
        "http://example.org/\t",
        "http://example.org\\@b/",
        "http://exämple.org/",
        "http://[::1",
        "http://example.org/" + "a" * 2000,
    ],
)
def test_urls_that_may_not(url: str) -> None:
    with pytest.raises(MalformedRequestError, match="callback"):
        checked_url(url, [80, 443], "webhooks", "callback")


def test_no_port_is_not_one_of_all_ports() -> None:
    with pytest.raises(MalformedRequestError, match="port 0"):
        checked_url("http://example.org:0/", [], "webhooks", "callback")


def test_addresses_that_may_be_called() -> None:
    public, listed = address_refusal([], "t"), address_refusal(["192.168.7.0/24", "fd00::/8", "127.0.0.1/32"], "t")
    for address in ("8.8.8.8", "2001:4860:4860::8888"):
        assert public(ip_address(address)) == listed(ip_address(address)) == ""
    for address in ("192.168.7.9", "::ffff:192.168.7.9", "fd00::1", "127.0.0.1"):
        assert "not in t" in public(ip_address(address))
        assert listed(ip_address(address)) == ""
    for address in (
        *(
            "192.168.8.9",
            "10.0.0.1",
            "127.0.0.2",
            "169.254.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
        ),
        *("::", "::1", "fe80::1", "ff02::1", "::ffff:127.0.0.2", "64:ff9b::7f00:1", "2002:7f00:1::", "fd00:ec2::254"),
        *("255.255.255.255", "240.0.0.1", "192.0.2.1", "192.168.7.255", "::ffff:169.254.169.254"),
    ):
        assert public(ip_address(address)), address
        assert listed(ip_address(address)), address


def test_bad_networks_stop_the_start() -> None:
    for entry in ("home", "192.168.7.1/24", "::ffff:10.0.0.0/104"):
        with pytest.raises(msgspec.ValidationError, match="networks"):
            msgspec.convert({"webhooks": {"networks": [entry]}}, Settings)


async def begins(slot: AbstractAsyncContextManager[None]) -> bool:
    """Whether a slot is free now."""

    async def use() -> None:
        async with slot:
            pass

    using = asyncio.ensure_future(use())
    await asyncio.sleep(0)
    free = using.done()
    using.cancel()
    return free


async def test_those_that_fail_take_no_slots_of_the_others() -> None:
    slots = ConcurrencyLimit(3)
    async with slots.of("", slow=True):
        assert not await begins(slots.of("", slow=True))
        async with slots.of("", slow=False), slots.of("", slow=False):
            assert not await begins(slots.of("", slow=False))


class Full(Disk):
    def write(self, file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


class Told(Disk):
    """full: whether no folder can be made; synced: the folders that were, and what was in them then."""

    def __init__(self) -> None:
        self.full = True
        self.synced: list[tuple[Path, list[str]]] = []

    def make_folder(self, path: Path) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().make_folder(path)

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        self.synced.append((path, sorted(entry.name for entry in path.iterdir())))


async def test_the_folder_is_made_durable_before_its_files_and_also_after_the_disk_was_full(tmp_path: Path) -> None:
    disk, folder = Told(), tmp_path / "deliveries"
    keys, positions = SecretKeys(disk, folder / "key"), Positions(disk, folder / "webhooks.json", lambda *told: None)
    positions.acknowledge("a", 5)
    assert not await positions.write()
    with pytest.raises(ConfigurationError, match="No space left"):
        keys.secret("one")
    disk.full = False
    assert keys.secret("one")
    assert await positions.write()
    assert disk.synced == [
        (tmp_path, ["deliveries"]),
        (folder, ["key"]),
        (folder, ["key", "webhooks.json"]),
    ]
    assert folder.stat().st_mode & 0o777 == 0o700


async def test_positions_are_kept_in_a_file_and_told_when_they_are(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []
    path = tmp_path / "positions.json"
    positions = Positions(Disk(), path, lambda spuid, sequence: told.append((spuid, sequence)))
    positions.read()
    assert positions.of("a") == -1
    positions.acknowledge("a", 0)
    positions.acknowledge("a", 1)
    positions.acknowledge("b", 7)
    assert told == []
    assert await positions.write()
    assert told == [("a", 1), ("b", 7)]
    positions.forget("b")
    positions.forget("none")
    assert await positions.write()
    again = Positions(Disk(), path, lambda spuid, sequence: None)
    again.read()
    assert (again.of("a"), again.of("b")) == (1, -1)
    written = path.stat().st_mtime_ns
    assert await again.write()
    assert path.stat().st_mtime_ns == written, "nothing has changed"


async def test_positions_of_what_has_ended_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    positions = Positions(Disk(), path, lambda spuid, sequence: None)
    for spuid in "abc":
        positions.acknowledge(spuid, 1)
    positions.retain(["b", "d"])
    assert await positions.write()
    again = Positions(Disk(), path, lambda spuid, sequence: None)
    again.read()
    assert [again.of(spuid) for spuid in "abcd"] == [-1, 1, -1, -1]


def test_doors_with_deliveries_have_their_paths_without_a_gateway(tmp_path: Path) -> None:
    """As `lamplighter check` asks for them."""
    on = msgspec.convert({"webhooks": {"enabled": True}, "ldn": {"enabled": True}}, Settings)
    paths = {place.path for place in api_routes(on, tmp_path)}
    assert {"/webhooks", "/webhooks/", "/ldn", "/ldn/", "/ldn/constraints", "/inbox/"} <= paths
    assert not paths & {place.path for place in api_routes(Settings(), tmp_path)} - {"/subscribe", "/subscribe/"}
    assert "/inbox/" in api_headers(on)["link"]
    assert api_headers(Settings()) == {}


async def test_positions_that_cannot_be_written_are_written_later(tmp_path: Path) -> None:
    told: list[str] = []
    path = tmp_path / "positions.json"
    positions = Positions(Full(), path, lambda spuid, sequence: told.append(spuid))
    positions.acknowledge("a", 5)
    assert not await positions.write()
    assert told == []
    positions._disk = Disk()
    task = asyncio.create_task(positions.keep())
    while not told:
        await asyncio.sleep(0)
    task.cancel()
    assert told == ["a"]


async def test_a_newer_position_outlives_a_write_that_fails(tmp_path: Path) -> None:
    class Late(Disk):
        def create(self, path: Path) -> int:
            positions.acknowledge("a", 6)  # while the older one is being written
            raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "positions.json"
    told: list[tuple[str, int]] = []
    positions = Positions(Late(), path, lambda spuid, sequence: told.append((spuid, sequence)))
    positions.acknowledge("a", 5)
    assert not await positions.write()
    positions._disk = Disk()
    assert await positions.write()
    assert told == [("a", 6)]


async def test_a_write_that_is_under_way_at_the_end_is_waited_for(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    class Slow(Disk):
        def create(self, path: Path) -> int:
            loop.call_soon_threadsafe(begun.set)
            go_on.wait()
            return super().create(path)

    told: list[tuple[str, int]] = []
    positions = Positions(Slow(), tmp_path / "positions.json", lambda spuid, sequence: told.append((spuid, sequence)))
    positions.acknowledge("a", 5)
    keeping = asyncio.create_task(positions.keep())
    await begun.wait()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    last = asyncio.create_task(positions.write())
    await asyncio.sleep(0)
    go_on.set()
    assert await last
    assert told == [("a", 5)]


@pytest.mark.parametrize("content", [b"", b"{", b'{"positions":{"a":"x"}}', b"\xff"])
async def test_a_damaged_file_of_positions_counts_as_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "positions.json"
    path.write_bytes(content)
    positions = Positions(Disk(), path, lambda spuid, sequence: None)
    positions.read()
    assert positions.of("a") == -1


def test_secrets_follow_from_a_key_that_only_the_gateway_can_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    keys = SecretKeys(Disk(), path)
    secret = keys.secret("one")
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(secret) == 64 and secret != keys.secret("two")
    again = SecretKeys(Disk(), path)
    assert again.secret("one") == secret
    assert again.signature("one", b"body") == hmac.new(secret.encode(), b"body", hashlib.sha256).hexdigest()
    sealed = keys.seal("one", "Bearer é")
    assert "Bearer" not in sealed and sealed != keys.seal("one", "Bearer é")
    assert again.unseal("one", sealed) == "Bearer é"
    with pytest.raises(ConfigurationError, match="another key"):
        again.unseal("two", sealed)
    path.write_bytes(b"other" * 6 + b"12")
    with pytest.raises(ConfigurationError, match="another key"):
        SecretKeys(Disk(), path).unseal("one", sealed)
    for damaged in (b"short", bytes(32)):  # a power cut leaves zeros
        path.write_bytes(damaged)
        with pytest.raises(ConfigurationError, match="damaged"):
            SecretKeys(Disk(), path).secret("one")


def recovered(*, known: bool) -> tuple[DeliveryWorker, mock.Mock]:
    """One that has to attach, and what it shares. known: whether the log has it."""
    context = mock.Mock()
    context.runner.delivered.has.return_value = known
    context.runner.subscribe = mock.AsyncMock()
    context.runner.end_delivery = mock.AsyncMock()
    followed = Followed("one", "ASK {}", 0, identity="anna", delivery=Receiver("webhook", "id", "http://e/", "", None))
    return DeliveryWorker(context, followed, 3), context


async def test_one_that_the_log_does_not_have_any_more_does_not_begin_anew() -> None:
    """Its client was removed while no sink was attached; another client may have come under that name."""
    worker, context = recovered(known=False)
    await worker.run()
    assert worker.ended == ENDED
    context.on_end.assert_called_once_with(worker)
    context.runner.subscribe.assert_not_called()


async def test_one_that_ends_while_it_attaches_leaves_no_subscription() -> None:
    worker, context = recovered(known=True)
    context.runner.subscribe.side_effect = lambda *_, **__: worker.end("unsubscribed")
    await worker.run()
    context.runner.end_delivery.assert_awaited_once_with("id")
    assert worker.ended == "unsubscribed"
