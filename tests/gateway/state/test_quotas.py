"""A client over its quota is refused with the name of the quota. Other clients are unaffected."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest

from lamplighter.engine.access import FULL
from lamplighter.engine.change_log import Followed
from lamplighter.engine.errors import LimitExceededError, QueueFullError
from lamplighter.engine.protocol import Results, Resume
from lamplighter.engine.sharing import Usage
from lamplighter.engine.terms import Bag
from lamplighter.gateway.gates.outbox import Outbox
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.security import peers
from lamplighter.gateway.security.callers import ANYBODY, LOCAL, Caller
from lamplighter.gateway.security.peers import Peer
from lamplighter.gateway.service.supervision import Overruled, overruled_quotas, warn_of_quotas
from lamplighter.gateway.settings import GatewaySettings, QuotaSettings, ResumeSettings, Settings, read_settings
from lamplighter.gateway.sharing import TotalBudget
from lamplighter.gateway.state.client_budgets import ClientBudgets
from lamplighter.gateway.state.quotas import ConnectionLease
from lamplighter.gateway.state.resumption import ResumableSubscriptions
from tests.gateway.security.test_permissions import Ear
from tests.support.gateway_parts import CLIENT, FakeClock, recovered, recovered_runner, time_passes, update

FLOOD, OTHER = (Caller(name, FULL, False, registered=True) for name in ("flood", "other"))
TEXT = "SELECT ?o { ?s <p:> ?o }"
INSERT = "INSERT DATA { <s:> <p:> 1 }"


def settings(**members: int) -> Settings:
    return Settings(quotas=QuotaSettings(**members))


def test_defaults_stay_far_from_what_all_share() -> None:
    all_, one = Settings(), QuotaSettings()
    assert one.delayed_max * 5 <= all_.delayed.pending_max
    assert one.resumable_max * 4 <= all_.resume.subscriptions_max
    assert one.retained_bytes_max * 4 <= all_.resume.bytes_max
    assert one.connections_max * 2 <= min(all_.http.connections_max, all_.websocket.connections_max)
    assert one.subscriptions_max >= all_.websocket.subscriptions_per_client_max, "that is of one connection"
    assert overruled_quotas(all_) == []


SMALL_ROOMS = {
    "delayed.pending_max": ("quotas.delayed_max", 20_000),
    "resume.subscriptions_max": ("quotas.resumable_max", 250),
    "resume.bytes_max": ("quotas.retained_bytes_max", 4 * 1024 * 1024),
    "http.connections_max": ("quotas.connections_max", 100),
    "websocket.connections_max": ("quotas.connections_max", 100),
    "websocket.unsent_bytes_max": ("quotas.outbox_bytes_max", 32 * 1024 * 1024),
}
"""The room of all -> the quota of it, and its default."""


@pytest.mark.parametrize("room", SMALL_ROOMS)
def test_a_quota_above_a_clients_share_starts_and_both_settings_are_named(
    room: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quota, default = SMALL_ROOMS[room]
    table, key = room.split(".")
    file = tmp_path / "lamplighter.toml"
    for size, wanted in ((2 * default, []), (2 * default - 2, [Overruled(quota, room, default - 1)])):
        file.write_text(f"[{table}]\n{key} = {size}\n")
        assert overruled_quotas(read_settings(file)) == wanted
    warn_of_quotas(read_settings(file))
    [line] = [record.getMessage() for record in caplog.records]
    assert f"quota={quota} room={room} share={default - 1}" in line


def test_what_is_queued_for_one_client_is_at_most_half_of_what_is_queued_for_all(tmp_path: Path) -> None:
    mebibyte = 1024 * 1024
    for quota, most in ((8, 8), (16, 16), (17, 16), (1000, 16)):
        document = {"quotas": {"outbox_bytes_max": quota * mebibyte}, "websocket": {"unsent_bytes_max": 32 * mebibyte}}
        with closing(recovered(tmp_path / str(quota), settings=msgspec.convert(document, Settings))) as runner:
            assert runner.outbox_bytes_max() == most * mebibyte


async def test_delayed_updates_of_one_client_have_a_limit(tmp_path: Path) -> None:
    clock, some = FakeClock(), settings(delayed_max=3)
    async with recovered_runner(tmp_path, clock, settings=some) as runner:
        kept = [await update(runner, INSERT, delay="PT1H", caller=FLOOD) for _ in range(2)]
        await update(runner, INSERT, delay="PT1S", caller=FLOOD)
        for _ in range(3):
            with pytest.raises(LimitExceededError, match=r"delayed updates .* quotas\.delayed_max = 3") as caught:
                await update(runner, INSERT, delay="PT1H", caller=FLOOD)
        assert (caught.value.status, caught.value.code) == (403, "limit_exceeded")
        for caller in (OTHER, OTHER, LOCAL, LOCAL, LOCAL, LOCAL, ANYBODY):
            await update(runner, INSERT, delay="PT1H", caller=caller)
        assert await update(runner, INSERT, caller=FLOOD), "what is not delayed goes"
    async with recovered_runner(tmp_path, clock, settings=some) as runner:
        with pytest.raises(LimitExceededError):
            await update(runner, INSERT, delay="PT1H", caller=FLOOD)
        await time_passes(runner, clock, 1)
        await update(runner, INSERT, delay="PT1H", caller=FLOOD)
        with pytest.raises(LimitExceededError):
            await update(runner, INSERT, delay="PT1H", caller=FLOOD)
        await runner.updates.cancel(kept[0].delayed or "", CLIENT, FLOOD)
        await update(runner, INSERT, delay="PT1H", caller=FLOOD)
        assert runner.figures.status()["quotas"]["delayed_max"] == 3


async def test_so_have_the_bytes_of_their_texts(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, settings=settings(delayed_bytes_max=1000)) as runner:
        large = f"INSERT DATA {{ <s:> <p:> '{'é' * 300}' }}"
        await update(runner, large, delay="PT1H", caller=FLOOD)
        with pytest.raises(LimitExceededError, match=r"quotas\.delayed_bytes_max = 1000"):
            await update(runner, large, delay="PT1H", caller=FLOOD)
        await update(runner, INSERT, delay="PT1H", caller=FLOOD)
        await update(runner, large, delay="PT1H", caller=OTHER)
        await update(runner, f"INSERT DATA {{ <s:> <p:> '{'x' * 2000}' }}", delay="PT1H", caller=LOCAL)


async def subscribe(runner: Runner, caller: Caller, keep: str | None = None) -> str:
    resume = None if keep is None else Resume(keep)
    return await runner.subscribe(TEXT, Ear(), None, None, resume=resume, caller=caller)


async def test_subscriptions_of_one_client_have_a_limit_over_all_its_connections(tmp_path: Path) -> None:
    async with recovered_runner(tmp_path, settings=settings(subscriptions_max=4, resumable_max=2)) as runner:
        ear = Ear()
        mine = await runner.subscribe(TEXT, ear, None, None, caller=FLOOD)
        await subscribe(runner, FLOOD)
        for _ in range(2):
            await subscribe(runner, FLOOD, "PT1H")
        with pytest.raises(LimitExceededError, match=r"quotas\.subscriptions_max = 4"):
            await subscribe(runner, FLOOD)
        await runner.unsubscribe(mine, ear, caller=FLOOD)
        with pytest.raises(LimitExceededError, match=r"resumable subscriptions .* quotas\.resumable_max = 2"):
            await subscribe(runner, FLOOD, "PT1H")
        await subscribe(runner, FLOOD)
        for caller in (OTHER, OTHER, OTHER, OTHER, LOCAL, LOCAL, LOCAL, LOCAL, LOCAL):
            await subscribe(runner, caller)
        assert runner.figures.status()["quotas"]["subscriptions_max"] == 4
    async with recovered_runner(tmp_path, settings=settings(resumable_max=2)) as runner:
        with pytest.raises(LimitExceededError, match="resumable_max"):
            await subscribe(runner, FLOOD, "PT1H")


def test_what_is_retained_for_one_client_costs_itself_only() -> None:
    few = QuotaSettings(retained_bytes_max=2000)
    found: ResumableSubscriptions[object] = ResumableSubscriptions(ResumeSettings(), lambda: few)
    for identity in ("flood", "other"):
        for number in range(5):
            handle = f"{identity}{number}"
            found.begin(Followed(f"sepa://{handle}", TEXT, 1, identity=identity), handle)
    results = Results(Bag(("o",), [('"x"',)]), Bag(("o",)))
    for number in range(5):
        found.deliver(f"other{number}", results)
    others = found.usage_bytes.of("other")
    for number in range(200):
        found.deliver(f"flood{number % 5}", results)
        assert found.usage_bytes.of("flood") <= 2000
    assert found.usage_bytes.of("other") == others
    for spuid in [f"sepa://{identity}{number}" for identity in ("flood", "other") for number in range(5)]:
        found.end(spuid)
    assert (len(found.usage), len(found.usage_bytes), found.totals()["retained_bytes"]) == (0, 0, 0)


async def test_what_waits_for_one_client_is_counted_over_its_connections() -> None:
    shares = ClientBudgets()
    boxes = [Outbox(10_000) for _ in range(3)]
    for box in boxes:
        shares.join("flood", box, lambda: 5000)
    other = Outbox(10_000)
    shares.join("other", other, lambda: 5000)
    for size in (900, 900, 900, 900):
        boxes[0].put(b"x" * size)
    other.put(b"x" * 4000)
    boxes[1].put(b"x" * 1000)
    assert not any(box.overflowed.is_set() for box in (*boxes, other))
    assert shares.most() == 4600
    boxes[1].put(b"x" * 1000)
    assert [box.overflowed.is_set() for box in (*boxes, other)] == [True, False, False, False], "the slowest"
    for box in (*boxes, other):
        shares.leave(box)
    assert shares.most() == 0


# --- connections -------------------------------------------------------------------------------------------


def test_connections_count_for_users_and_addresses_but_not_for_the_gateway_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage, two = Usage(), QuotaSettings(connections_max=2)
    unix, tcp = socket.socket(socket.AF_UNIX), socket.socket()
    user = [0]
    monkeypatch.setattr(peers, "peer", lambda one: Peer(1, user[0]) if one.family == socket.AF_UNIX else None)

    def held(connected: socket.socket, address: str = "", *, plain: bool = True) -> ConnectionLease:
        new = ConnectionLease(usage, lambda: two, 100)
        new.by_origin(connected, address, plain=plain)
        return new

    with unix, tcp:
        for user[0] in (0, os.geteuid()):
            for _ in range(5):
                held(unix)
        for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
            for _ in range(5):
                held(tcp, address)
        for _ in range(5):
            held(tcp, "192.0.2.1", plain=False)  # a token tells who it is
        assert len(usage) == 0
        user[0] = 4711
        mine = [held(unix), held(unix)]
        with pytest.raises(LimitExceededError, match=r"quotas\.connections_max = 2"):
            held(unix)
        user[0] = 4712
        held(unix)
        for address in ("192.0.2.1", "::ffff:192.0.2.1"):
            held(tcp, address)
        with pytest.raises(LimitExceededError):
            held(tcp, "192.0.2.1")
        held(tcp, "192.0.2.2")
        user[0] = 4711
        mine[0].end()
        held(unix)
        assert len(usage) == 4


def test_what_a_connection_asked_for_before_it_ended_counts_for_nobody_later() -> None:
    usage = Usage()
    held = ConnectionLease(usage, QuotaSettings, 100)
    held.by(FLOOD.name)
    held.end()
    held.by(FLOOD.name)  # its last request has its turn now
    held.by(OTHER.name)
    assert len(usage) == 0


async def test_a_restart_from_a_snapshot_counts_as_before_and_resuming_counts_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    some = settings(subscriptions_max=3, resumable_max=3, delayed_max=2, delayed_bytes_max=100)
    async with recovered_runner(tmp_path, clock, settings=some) as runner:
        spuids = [await subscribe(runner, FLOOD, "PT1H") for _ in range(2)]
        await update(runner, INSERT, delay="PT1H", caller=FLOOD)
        await runner.log_keeper.take_snapshot()
        spuids.append(await subscribe(runner, FLOOD, "PT1H"))
        await update(runner, INSERT, delay="PT1H", caller=FLOOD)
    for _ in range(2):
        async with recovered_runner(tmp_path, clock, settings=some) as runner:
            before = runner.figures.status()["quotas"]
            assert before["resumable_max"] == 3
            assert before["delayed_max"] == 2
            assert before["delayed_bytes_max"] == 2 * len(INSERT)
            for spuid in [*spuids, *spuids]:  # the second time it is taken over
                resume = Resume("PT1H", spuid, 0)
                assert await runner.subscribe(TEXT, Ear(), None, None, resume=resume, caller=FLOOD) == spuid
            for resume in (None, Resume("PT1H"), Resume("PT1H", "sepa://subscription/lost", 0)):
                with pytest.raises(LimitExceededError, match="subscriptions_max = 3"):
                    await runner.subscribe(TEXT, Ear(), None, None, resume=resume, caller=FLOOD)
            with pytest.raises(LimitExceededError, match="delayed"):
                await update(runner, INSERT, delay="PT1H", caller=FLOOD)
            assert runner.figures.status()["quotas"] == before
            await runner.log_keeper.take_snapshot()


def test_no_client_takes_all_of_a_room() -> None:
    room, stack = TotalBudget(lambda: 64, "places"), ExitStack()
    taken = []
    for client in ("a", "b", "c", ""):
        count = 0
        while not room.refusal(client):
            stack.enter_context(room.hold(client))
            count += 1
        taken.append(count)
    assert taken == [32, 16, 8, 8], "the operator's own may take all"
    assert room.refusal("") == room.refusal("d") == "places = 64 is reached"
    stack.close()
    with room.hold("a", 30):
        assert not room.refusal("b", 17)
        why = "this client holds 0 of places = 64, and leaves 34 to others; a client may hold as much as it leaves"
        assert room.refusal("b", 18) == why
    with room.hold("d", 100):  # an answer may be larger than what is free
        assert room.refusal("e")
    assert not room.refusal("e")
    for size in (0, 1):
        assert bool(TotalBudget(lambda: size, "places").refusal("a")) is (size == 0)  # noqa: B023


async def test_updates_queries_and_subscriptions_take_the_share_of_their_client(tmp_path: Path) -> None:
    some = Settings(gateway=GatewaySettings(queue_max=8))
    async with recovered_runner(tmp_path, settings=some) as runner:
        asked: list[Callable[[Caller], Awaitable[object]]] = [
            lambda caller: runner.updates.update(UpdateCall(INSERT, CLIENT, caller=caller)),
            lambda caller: runner.queries.query(
                runner.queries.outline("ASK {}"), "text/csv", None, None, caller=caller
            ),
            lambda caller: runner.subscribe(TEXT, Ear(), None, None, caller=caller),
            lambda caller: runner.queries.graph(None, "text/turtle", caller),
        ]
        waiting = [ask(FLOOD) for ask in asked]  # nothing is answered meanwhile
        for ask in asked:
            with pytest.raises(QueueFullError, match=r"holds 4 of gateway\.queue_max = 8"):
                ask(FLOOD)
        waiting.append(asked[0](OTHER))
        for one in waiting:
            await one
        await asked[0](FLOOD)
