"""Every file that a process keeps for its next start: damaged, of another version, and of a newer one."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lamplighter.adapters.coap.context_files import make_context
from lamplighter.adapters.coap.contexts import Contexts
from lamplighter.cloud_sync.order_intake import OrderIntake, read_order_state
from lamplighter.cloud_sync.status import Status, read_status, write_shipped, write_status
from lamplighter.engine.errors import GatewayError
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.gates.changes.positions import PositionsOf
from lamplighter.gateway.gates.deliveries.files import Positions, SecretKeys
from lamplighter.gateway.gates.sensorthings.retained import RetainedTopics
from lamplighter.gateway.log.damage import DamageReport, KnownDamage, read_damage
from lamplighter.gateway.log.data_folder import DataFolder
from lamplighter.gateway.log.persistent_store import PersistentStore
from lamplighter.gateway.security.certificates import own_identity
from lamplighter.gateway.security.permissions import Permissions
from lamplighter.gateway.security.registry import ClientRegistry
from lamplighter.gateway.security.revocations import ClockReading, RevokedToken, RevokedTokens
from lamplighter.gateway.security.tokens import TokenIssuer
from lamplighter.gateway.state.stored_applications import StoredApplication, StoredApplications
from tests.support.gateway_parts import FakeClock

DISK = Disk()
NOW = ClockReading("boot", 0, 0, True)


@dataclass(frozen=True)
class StateFile:
    """make: writes it below a data folder; read: as a start does; change: writes it anew, as in operation; None for a
    file that is never changed. cure: words of the error; empty: a start goes on without the file, and nothing is lost.
    truncated: whether half of it is not such a file."""

    make: Callable[[Path], Any]
    read: Callable[[Path], Any]
    change: Callable[[Path], Any] | None = None
    cure: str = ""
    truncated: bool = True


def clients(data: Path) -> ClientRegistry:
    return ClientRegistry(data / "security", FakeClock(), DISK, 10, 60)


def tokens(data: Path) -> TokenIssuer:
    return TokenIssuer(data / "security", FakeClock(), DISK, 60)


def revoke(data: Path, name: str = "2") -> Any:
    return RevokedTokens(data / "security", DISK).add(RevokedToken(name, "a", NOW, 10**12), NOW)


def positions(data: Path) -> Positions:
    found = Positions(DISK, data / "deliveries/webhooks.json", lambda spuid, sequence: None)
    found.read()
    return found


def deliver(data: Path) -> Any:
    found = positions(data)
    found.acknowledge("b", 7)
    return found.write()


def orders(data: Path) -> None:
    intake = OrderIntake(data, None, "gw", (), None)  # type: ignore[arg-type]
    intake.update(number=intake.state.number + 1)
    intake.save()


def store(data: Path) -> PersistentStore:
    return PersistentStore(data / "store", SimpleNamespace(data=data, gateway="gw", disk=DISK), "boot")  # type: ignore[arg-type]


def damage(data: Path) -> None:
    KnownDamage(data, DISK).add(DamageReport("now", "a reason"))


def put_application(data: Path, name: str) -> None:
    found = StoredApplications(data, DISK)
    found.write([*found.applications, StoredApplication(name, "{}")])


def identity(data: Path) -> str:
    folder = DataFolder(data, DISK)
    try:
        folder.open()
        return folder.gateway
    finally:
        folder.close()


def restricted(data: Path) -> Any:
    caller = SimpleNamespace(name="a", access=SimpleNamespace(read=SimpleNamespace(every=False)))
    return PositionsOf(data, DISK, "gw")._key and caller


def contexts(data: Path) -> Path:
    return data / "contexts"


def opened(data: Path) -> None:
    """Opens the contexts, which writes their numbers."""
    found = Contexts.load(contexts(data))
    try:
        if found.problems:
            raise GatewayError(found.problems["hall"])
        found.named("hall").new_sequence_number()
    finally:
        found.close()


def retained(data: Path) -> dict[Any, Any]:
    found = RetainedTopics()
    found.load(data / "sensorthings-mqtt-retained.jsonl")
    return dict(found.topics)


def key_of_coap(data: Path) -> None:
    make_context(contexts(data), "hall", "192.168.7.20")


KEY = "devices key hall"
# Those of the log, its seals and the snapshots are in tests/gateway/history/test_verification.py.
FILES = {
    "security/clients.json": StateFile(
        lambda data: clients(data).add("a", Permissions()),
        clients,
        lambda data: clients(data).add("b", Permissions()),
        "restore a copy of it",
    ),
    "security/keys.json": StateFile(tokens, tokens, lambda data: tokens(data).rotate(), "restore a copy of it"),
    "security/revoked.json": StateFile(
        lambda data: revoke(data, "1"), lambda data: RevokedTokens(data / "security", DISK), revoke, "restore a copy"
    ),
    "security/authority.pem": StateFile(
        lambda data: own_identity(data / "security", (), DISK),
        lambda data: own_identity(data / "security", (), DISK),
        cure="restore a copy",
    ),
    "security/changes.key": StateFile(restricted, restricted, cure="remove it"),
    "deliveries/key": StateFile(
        lambda data: SecretKeys(DISK, data / "deliveries/key").secret("a"),
        lambda data: SecretKeys(DISK, data / "deliveries/key").secret("a"),
        cure="remove it",
    ),
    "deliveries/webhooks.json": StateFile(deliver, positions, deliver),
    "applications.json": StateFile(
        lambda data: put_application(data, "a"),
        lambda data: StoredApplications(data, DISK),
        lambda data: put_application(data, "b"),
        "restore a copy of it",
    ),
    "identity": StateFile(identity, identity, cure="log show", truncated=False),
    "damage.json": StateFile(damage, read_damage, damage),
    "orders.json": StateFile(orders, read_order_state, orders, "restore it"),
    "sync.json": StateFile(
        lambda data: write_status(data, Status()), read_status, lambda data: write_status(data, Status(at=1.0))
    ),
    "shipped.json": StateFile(
        lambda data: write_shipped(data, (1, 1)), read_status, lambda data: write_shipped(data, (1, 2))
    ),
    "store.json": StateFile(
        lambda data: store(data).mark_closed(),
        lambda data: store(data)._is_trusted(),
        lambda data: store(data).mark_closed(),
    ),
    "sensorthings-mqtt-retained.jsonl": StateFile(
        lambda data: (data / "sensorthings-mqtt-retained.jsonl").write_text('["<urn:s>", ["a"]]\n'), retained
    ),
    "contexts/hall/settings.json": StateFile(key_of_coap, opened, cure=KEY),
    "contexts/hall/secret.json": StateFile(key_of_coap, opened, cure=KEY),
    "contexts/hall/sequence.json": StateFile(key_of_coap, opened, opened, KEY),
}
OTHERS = (
    "security/device.pem",  # made again
    "sensorthings-mqtt.json",  # places: without them Observations are published again
    "deliveries/*.json",  # as webhooks.json
    "damage-accepted.json",  # for people and `verify`, which lists what it names again if it cannot be read
    "lock",
    "sync.lock",
    "contexts/lock",
    "run/*",
    "log/*",
    "history/*",  # made again from the log, also if damaged
    "snapshots/*",
    "store/*",  # rebuilt
)


def is_listed(path: str) -> bool:
    """Whether a file, relative to its data folder, is in this table."""
    return path in FILES or any(fnmatch(path, one) for one in OTHERS)


def done(work: Any) -> Any:
    """The result of a call, which may be a coroutine."""
    return asyncio.run(work) if inspect.iscoroutine(work) else work


def made(data: Path, name: str) -> Path:
    for folder in ("security", "deliveries"):
        (data / folder).mkdir(mode=0o700)
    done(FILES[name].make(data))
    return data / name


def written(path: Path, content: bytes) -> None:
    """In place: a context knows its own file."""
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(content)


@pytest.mark.parametrize("name", FILES)
def test_damage_is_named_with_a_cure_or_costs_nothing(tmp_path: Path, name: str) -> None:
    row, path = FILES[name], made(tmp_path, name)
    whole = path.read_bytes()
    for content in (b"", b"\0" * len(whole), *([whole[: len(whole) // 2]] if row.truncated else [])):
        written(path, content)
        if not row.cure:
            done(row.read(tmp_path))
            path.touch()  # one that is of no use may be gone
        else:
            with pytest.raises(GatewayError) as refused:
                done(row.read(tmp_path))
            assert str(path.parent) in str(refused.value) and row.cure in str(refused.value)
            assert path.read_bytes() == content, "whoever restores it finds it as it was"
        written(path, whole)
        done(row.read(tmp_path))


JSON = [name for name in FILES if name.endswith(".json")]


@pytest.mark.parametrize("name", [name for name in JSON if FILES[name].change is not None])
def test_members_of_another_version_stay(tmp_path: Path, name: str) -> None:
    row, path = FILES[name], made(tmp_path, name)
    document = json.loads(path.read_text())
    of = document[0] if isinstance(document, list) else document
    of["new member"] = {"x": [1]}
    written(path, json.dumps(document).encode())
    done(row.read(tmp_path))
    before = path.read_bytes()
    assert row.change is not None
    done(row.change(tmp_path))
    after = json.loads(path.read_text())
    assert (after[0] if isinstance(after, list) else after)["new member"] == {"x": [1]}
    assert path.read_bytes() != before or name in ("store.json", "damage.json")


@pytest.mark.parametrize("name", [name for name in JSON if FILES[name].cure])
def test_a_file_of_a_newer_version_is_left_to_it(tmp_path: Path, name: str) -> None:
    row, path = FILES[name], made(tmp_path, name)
    document = json.loads(path.read_text())
    content = json.dumps({"format": 2, "items": document}).encode()
    written(path, content)
    with pytest.raises(GatewayError, match="newer version") as refused:
        done(row.read(tmp_path))
    assert str(path) in str(refused.value) and row.cure not in str(refused.value)
    assert path.read_bytes() == content
