"""Registered clients: who may register, what is stored, and that it survives a power cut."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from lamplighter.engine.errors import (
    ConfigurationError,
    GatewayError,
    MalformedRequestError,
    UnauthorizedError,
)
from lamplighter.engine.terms import iri
from lamplighter.gateway.disk import Disk
from lamplighter.gateway.security.permissions import Permissions
from lamplighter.gateway.security.registry import CLIENTS, ClientRegistry
from tests.support.gateway_parts import FakeClock
from tests.support.simulated_disk import PowerCut, SimulatedDisk
from tests.support.tables import each_row

READER = Permissions(read=["*"])
NOTHING = Permissions()


def registry(
    folder: Path, clock: FakeClock | None = None, *, disk: Disk | None = None, most: int = 3
) -> ClientRegistry:
    return ClientRegistry(folder, clock or FakeClock(), disk or Disk(), most, 600)


async def register(ours: ClientRegistry, name: str, code: str | None = None, mode: str = "listed") -> str:
    return (await ours.register(name, code, mode, NOTHING))[1]  # type: ignore[arg-type]


async def refused(ours: ClientRegistry, name: str, code: str | None = None, mode: str = "listed") -> str:
    with pytest.raises(UnauthorizedError) as caught:
        await register(ours, name, code, mode)
    assert caught.value.status == 401
    return caught.value.code


async def test_a_listed_client_registers_once(tmp_path: Path) -> None:
    ours = registry(tmp_path)
    assert await refused(ours, "lamp") == "not_authorized_identity"
    await ours.add("lamp", READER)
    secret = await register(ours, "lamp")
    assert await refused(ours, "lamp") == "not_authorized_identity"
    assert ours.authenticate("lamp", secret).permissions == READER
    assert registry(tmp_path).authenticate("lamp", secret).name == "lamp"


async def test_secrets_are_long_never_the_same_and_not_kept(tmp_path: Path) -> None:
    ours = registry(tmp_path)
    secrets = {await register(ours, name, mode="open") for name in ("a", "b", "c")}
    assert len(secrets) == 3
    assert all(len(secret) >= 43 for secret in secrets), "256 bits in base64"
    kept = (tmp_path / CLIENTS).read_text()
    assert not any(secret in kept for secret in secrets)
    assert (tmp_path / CLIENTS).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("name", "secret"), [("lamp", "wrong"), ("lamp", ""), ("nobody", "wrong"), ("listed", "")])
async def test_wrong_name_and_wrong_secret_are_refused_alike(tmp_path: Path, name: str, secret: str) -> None:
    ours = registry(tmp_path)
    await register(ours, "lamp", mode="open")
    await ours.add("listed", READER)
    with pytest.raises(
        UnauthorizedError, match="client_id and client_secret do not match a registered client"
    ) as caught:
        ours.authenticate(name, secret)
    assert (caught.value.code, caught.value.status) == ("unauthorized_client", 400)


async def test_a_code_is_good_once_for_its_name_and_as_people_type_it(tmp_path: Path) -> None:
    ours = registry(tmp_path)
    code = await ours.code("lamp", READER, NOTHING)
    for mode in ("code", "listed", "open"):
        assert await refused(ours, "lamp", mode=mode) == "not_authorized_identity", (
            "its code is asked for in every mode"
        )
    assert await refused(ours, "other", code, "code") == "not_authorized_identity"
    secret = await register(ours, "lamp", code.lower().replace("-", " "), "code")
    assert ours.authenticate("lamp", secret).permissions == READER
    assert await refused(ours, "lamp", code, "code") == "not_authorized_identity"


async def test_in_mode_code_a_listed_name_is_not_enough(tmp_path: Path) -> None:
    ours = registry(tmp_path)
    await ours.add("lamp", READER)
    assert await refused(ours, "lamp", mode="code") == "not_authorized_identity"


async def test_a_code_lives_for_a_time_that_nobody_can_step(tmp_path: Path) -> None:
    clock = FakeClock()
    ours = registry(tmp_path, clock)
    code = await ours.code("lamp", None, READER)
    clock.advance(600)
    assert await refused(ours, "lamp", code) == "not_authorized_identity"
    code = await ours.code("lamp", None, NOTHING)
    clock.advance(599)
    assert await register(ours, "lamp", code)
    client = ours.clients.get("lamp")
    assert client is not None and client.permissions == READER, "a new code leaves them as they were"


async def test_wrong_codes_do_not_end_a_code(tmp_path: Path) -> None:
    """Else anybody could deny a device its registration."""
    ours = registry(tmp_path)
    code = await ours.code("lamp", READER, NOTHING)
    for _ in range(100):
        assert await refused(ours, "lamp", "0000-0000") == "not_authorized_identity"
    assert await register(ours, "lamp", code)


async def test_a_restart_forgets_codes_but_not_that_one_is_needed(tmp_path: Path) -> None:
    code = await registry(tmp_path).code("lamp", READER, NOTHING)
    again = registry(tmp_path)
    assert await refused(again, "lamp", code) == "not_authorized_identity"
    assert await refused(again, "lamp") == "not_authorized_identity"


async def test_a_removed_client_is_another_one_when_it_comes_back(tmp_path: Path) -> None:
    ours = registry(tmp_path)
    secret = await register(ours, "lamp", mode="open")
    before = ours.authenticate("lamp", secret).registration
    told: list[str] = []
    ours.changed.append(told.append)
    await ours.remove("lamp")
    assert told == ["lamp"]
    with pytest.raises(UnauthorizedError):
        ours.authenticate("lamp", secret)
    again = await register(ours, "lamp", mode="open")
    assert ours.authenticate("lamp", again).registration != before


async def test_the_code_of_a_removed_client_is_good_for_no_other_one_of_its_name(tmp_path: Path) -> None:
    ours = registry(tmp_path)
    code = await ours.code("lamp", READER, NOTHING)
    await ours.remove("lamp")
    await ours.add("lamp", NOTHING)
    assert await refused(ours, "lamp", code, "code") == "not_authorized_identity"


async def test_permissions_change_and_are_kept(tmp_path: Path) -> None:
    ours = registry(tmp_path)
    told: list[str] = []
    ours.changed.append(told.append)
    secret = await register(ours, "lamp", mode="open")
    await ours.permit("lamp", Permissions(write=["http://e/g", "default"], operate=True))
    assert told == ["lamp"]
    client = registry(tmp_path).authenticate("lamp", secret)
    access = client.permissions.access
    assert access.write.names == {iri("http://e/g"), None}
    assert access.read.names == frozenset()
    assert client.permissions.operate


async def test_there_is_an_end_to_clients(tmp_path: Path) -> None:
    ours = registry(tmp_path, most=2)
    for name in ("a", "b"):
        await register(ours, name, mode="open")
    assert await refused(ours, "c", mode="open") == "storing_credentials"
    await ours.remove("a")
    assert await register(ours, "c", mode="open")


async def test_what_cannot_be_stored_is_not_registered(tmp_path: Path) -> None:
    class Full(Disk):
        def create(self, path: Path) -> int:
            raise OSError(28, "No space left on device")

    ours = registry(tmp_path, disk=Full())
    assert await refused(ours, "lamp", mode="open") == "storing_credentials"
    assert ours.clients.get("lamp") is None


@pytest.mark.parametrize("name", ["", " a", "a\n", "\x1b[31m", "a" * 201, "\u202ea"])
async def test_names_are_printable_and_short(tmp_path: Path, name: str) -> None:
    with pytest.raises(MalformedRequestError, match="printable"):
        await register(registry(tmp_path), name, mode="open")


@pytest.mark.parametrize(
    "change",
    [lambda ours: ours.remove("x"), lambda ours: ours.permit("x", READER), lambda ours: ours.code("a", None, READER)],
)
async def test_what_is_not_there_or_has_registered_is_told(tmp_path: Path, change: object) -> None:
    ours = registry(tmp_path)
    await register(ours, "a", mode="open")
    with pytest.raises(MalformedRequestError, match=r"there is no client x|a has registered"):
        await change(ours)  # type: ignore[operator]
    with pytest.raises(MalformedRequestError, match="already"):
        await ours.add("a", READER)


@each_row("content", ["", "{", '{"clients": 5}', '{"clients":[{"name":"a","permissions":{"read":["x"]}}]}'])
def test_damage_stops_the_start_and_says_how_to_go_on(tmp_path: Path, content: str) -> None:
    (tmp_path / CLIENTS).write_text(content)
    with pytest.raises(ConfigurationError, match=r"clients\.json is damaged .*register again"):
        registry(tmp_path)


async def test_a_power_cut_leaves_the_clients_before_or_after(tmp_path: Path) -> None:
    seen = set()
    for operation in range(1, 8):
        disk = SimulatedDisk(tmp_path / f"disk{operation}")
        folder = disk.root / "security"
        disk.make_folder(folder)
        disk.sync_folder(disk.root)
        ours = registry(folder, disk=disk)
        first = await register(ours, "first", mode="open")
        disk.stop_at(operation)
        second = None
        with contextlib.suppress(PowerCut, GatewayError):
            second = await register(ours, "second", mode="open")
        for seed in range(4):
            after = tmp_path / f"cut{operation}-{seed}"
            disk.cut(random.Random(seed), after)
            left = registry(after / "security")
            assert left.authenticate("first", first).name == "first"
            if second is not None:
                assert left.authenticate("second", second).name == "second", "it was told, so it is kept"
            seen.add(left.clients.get("second") is not None)
    assert seen == {True, False}


async def test_clients_of_one_address_leave_room_for_those_of_others(tmp_path: Path) -> None:
    """And have it again when the operator removes one."""
    ours = registry(tmp_path, most=4)

    async def begin(name: str, origin: str) -> None:
        await ours.register(name, None, "open", NOTHING, origin)

    for name in ("a", "b"):
        await begin(name, "192.0.2.1")
    with pytest.raises(UnauthorizedError, match=r"this client holds 2 of security\.clients_max = 4"):
        await begin("c", "192.0.2.1")
    await begin("d", "192.0.2.2")
    await ours.remove("a")
    await begin("c", "192.0.2.1")
    await ours.add("listed", READER)
    assert await refused(ours, "e", mode="open") == "storing_credentials", "all are taken"
    assert await register(ours, "listed")
