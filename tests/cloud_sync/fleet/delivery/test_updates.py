"""Notifications as signed orders to gateways."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.delivery.notifications import Match, MatchNotification, MatchPosition
from lamplighter.cloud_sync.fleet.delivery.runner import read_states
from lamplighter.cloud_sync.fleet.delivery.sent_orders import EXPIRES_S, OVERDUE_S, OrderDesk
from lamplighter.cloud_sync.fleet.delivery.sinks import SinkThreads, UndeliveredError, opener
from lamplighter.cloud_sync.fleet.delivery.sinks.updates import UpdateNotifications
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.metrics import write_metrics
from lamplighter.cloud_sync.fleet.subscriptions.records import FilesSink, SubscriptionRecord, UpdateSink
from lamplighter.cloud_sync.orders import OrderAnswer, Orders, answer_name, order_name, verify
from lamplighter.engine import Engine
from lamplighter.engine.errors import ConfigurationError
from tests.cloud_sync.fleet.delivery.made_up_matches import NOON, Inline, Rig, lines, match, write_batch
from tests.cloud_sync.fleet.delivery.made_up_matches import record as hot_record

TEMPLATE = """
DELETE { ?s <http://x/limit> ?old } INSERT { ?s <http://x/limit> ?v . <http://x/n> <http://x/t> "?v" }
WHERE { OPTIONAL { ?s <http://x/limit> ?old } }
"""
KEY = Ed25519PrivateKey.generate()
DAY_MS = 86_400_000


@pytest.fixture
def threads() -> Iterator[SinkThreads]:
    made = SinkThreads(2)
    yield made
    made.close()


@pytest.fixture
def places(tmp_path: Path) -> Path:
    for name in ("lake/segments/gw-1", "lake/segments/gw-2", "lake/segments/other", "to"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def sink(places: Path, threads: SinkThreads, update: str = TEMPLATE, *gateways: str) -> UpdateNotifications:
    desk = OrderDesk(Orders(LocalFolder(places / "to"), KEY), Lake(str(places / "lake")))
    return UpdateNotifications(UpdateSink(gateways=gateways or ("gw-*",), update=update), desk, threads, lambda: 60.0)


def hot(*sinks: UpdateSink) -> SubscriptionRecord:
    return hot_record("hot", *sinks)


def notification(seq: int = 1, **members) -> MatchNotification:
    row = match(seq=seq, **{"variables": ["s", "v"], "ts": 0, **members})
    return MatchNotification(Match(**row), MatchPosition("000000000001", seq))


def sent(places: Path, gateway: str) -> list[str]:
    """The updates that a gateway finds, in the order in which it executes them."""
    to, found = LocalFolder(places / "to"), []
    while (data := to.get(order_name(gateway, len(found) + 1))) is not None:
        found.append(verify(data, gateway, len(found) + 1, [KEY.public_key()]).body["update"])
    return found


async def test_each_row_is_an_update_for_each_gateway_once(places: Path, threads: SinkThreads) -> None:
    rows = [["<http://x/a>", '"1"^^<http://www.w3.org/2001/XMLSchema#integer>'], ["<http://x/b>", '"} ; DROP ALL #"']]
    given = [notification(1, rows=rows), notification(2, rows=rows[:1])]
    await sink(places, threads).deliver(given)
    await sink(places, threads).deliver(given)  # again, by another process
    assert len(sent(places, "gw-1")) == 3
    assert sent(places, "gw-1") == sent(places, "gw-2")
    assert sent(places, "other") == []
    engine = Engine()
    engine.update("INSERT DATA { <http://x/a> <http://x/limit> 0 }")
    for update in sent(places, "gw-1"):
        engine.update(update)
    found = engine.query("SELECT ?s ?v { ?s <http://x/limit> ?v }")
    assert sorted(found.value.rows) == [tuple(row) for row in rows]


async def test_plain_names_and_patterns(places: Path, threads: SinkThreads) -> None:
    await sink(places, threads, "CLEAR ALL", "new-gateway", "o*").deliver([notification(rows=[[None, None]])])
    assert sent(places, "new-gateway") == sent(places, "other") == ["CLEAR ALL"]
    assert sent(places, "gw-1") == []


async def test_an_ask_is_one_update(places: Path, threads: SinkThreads) -> None:
    await sink(places, threads, "CLEAR ALL").deliver([notification(form="ASK", variables=[], rows=[])])
    assert sent(places, "gw-1") == ["CLEAR ALL"]


async def test_blank_nodes_are_for_the_dead_letters(places: Path, threads: SinkThreads) -> None:
    given = [notification(1, rows=[["<http://x/a>", '"1"']]), notification(2, rows=[["_:b", '"1"']])]
    with pytest.raises(UndeliveredError, match=r"\?s: _:b is a blank node") as raised:
        await sink(places, threads).deliver(given)
    assert (raised.value.accepted, raised.value.permanent) == (1, True)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"ts": -2 * DAY_MS}, "the event is 2 d old, more than event_age_s_max = 86400"),
        ({"ts": 73 * 365 * DAY_MS}, "the clock of the event is ahead"),
        ({"trusted": False}, "the clock of the event is not trusted"),
    ],
)
async def test_an_event_that_may_be_old_is_for_the_dead_letters(
    places: Path, threads: SinkThreads, members: dict[str, Any], reason: str
) -> None:
    rows = [["<http://x/a>", '"1"']]
    given = [notification(1, rows=rows, ts=60_000 - DAY_MS), notification(2, rows=rows, **members)]
    with pytest.raises(UndeliveredError, match=reason) as raised:
        await sink(places, threads).deliver(given)
    assert (raised.value.accepted, raised.value.permanent) == (1, True)
    assert len(sent(places, "gw-1")) == 1
    given = [notification(3, rows=rows, ts=None, trusted=None), notification(4, rows=rows, **members)]
    one = sink(places, threads)
    with pytest.raises(UndeliveredError) as raised:
        await one.deliver(given)
    assert raised.value.accepted == 1, "told ahead of its segment"
    one._sink = msgspec.structs.replace(one._sink, event_age_s_max=0)
    await one.deliver(given)
    assert len(sent(places, "gw-1")) == 3


async def test_a_destination_that_is_away_is_tried_again(places: Path, threads: SinkThreads) -> None:
    one = sink(places, threads)
    (places / "to").rmdir()
    with pytest.raises(UndeliveredError, match="there is no such folder") as raised:
        await one.deliver([notification(rows=[["<http://x/a>", '"1"']])])
    assert not raised.value.permanent


async def test_without_a_key_it_says_what_is_missing(threads: SinkThreads) -> None:
    one = UpdateNotifications(UpdateSink(gateways=("*",), update="CLEAR ALL"), None, threads)
    with pytest.raises(ConfigurationError, match="run deliver with --orders and --orders-key"):
        await one.deliver([notification()])


# --- answers ---


def answer(places: Path, gateway: str, number: int, outcome: Literal["done", "refused"], reason: str = "") -> None:
    content = msgspec.json.encode(OrderAnswer(1, gateway, number, "", outcome, reason))
    LocalFolder(places / "to").put(answer_name(gateway, number), content)


async def test_an_order_that_is_refused_or_overdue_is_a_dead_letter(places: Path, threads: SinkThreads) -> None:
    threads._pool = Inline()
    lake = Lake(str(places / "lake"))
    write_batch(lake, 1, [match(seq=seq, rows=[[f"<http://x/{seq}>"]]) for seq in (1, 2, 3)])
    subscription = hot(UpdateSink(gateways=("gw-1",), update="INSERT DATA { ?s <http://x/p> 1 }"))
    orders = Orders(LocalFolder(places / "to"), KEY)
    dead = places / "lake/subscriptions/dead/hot/update"

    def rig_with(desk: OrderDesk) -> Rig:
        return Rig(lake, subscription, make=opener(threads, desk=desk, wall=NOON.timestamp), desk=desk)

    async with rig_with(OrderDesk(orders, lake)) as rig:
        await rig.until(lambda: rig.state("hot", "update").delivered == 3, longest_s=60)
        assert rig.state("hot", "update").unanswered == 3
        answer(places, "gw-1", 1, "done")
        await rig.until(lambda: rig.state("hot", "update").unanswered == 2, longest_s=60)
        answer(places, "gw-1", 2, "refused", "no permission")
        await rig.until(lambda: rig.state("hot", "update").dead == 1, longest_s=60)
        assert rig.state("hot", "update").last_error == "gateway gw-1 refused order 2: no permission"
    (refused,) = lines(dead)
    assert refused["reason"] == "gateway gw-1 refused order 2: no permission"
    assert (refused["order"], refused["notification"]["sequence"]) == ({"gateway": "gw-1", "number": 2}, 2)

    # Another process knows of the one that waits.
    async with rig_with(OrderDesk(orders, lake)) as rig:
        await rig.until(lambda: rig.state("hot", "update").unanswered == 1, longest_s=60)
        rig.virtual.now += EXPIRES_S + OVERDUE_S
        await rig.until(lambda: rig.state("hot", "update").dead == 2, longest_s=60)
    assert [one["reason"] for one in lines(dead)][1] == "gateway gw-1 did not answer order 3 before it expired"
    states = read_states(lake)
    assert states is not None
    assert (states.sinks[0].dead, states.sinks[0].unanswered) == (2, 0)
    write_metrics(places / "metrics", "match", lake, 0, 1.0)
    labels = f'{{command="match",lake="{lake.url}",sink="update",subscription="hot"}}'
    assert f"lamplighter_fleet_sink_dead{labels} 2.0" in (places / "metrics").read_text()


async def test_a_gateway_that_answers_nothing_is_passed_and_gets_what_it_has_missed(
    places: Path, threads: SinkThreads, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lamplighter.cloud_sync.fleet.delivery.sent_orders.WAITING_MAX", 2)
    threads._pool = Inline()
    lake = Lake(str(places / "lake"))
    subscription = hot(UpdateSink(gateways=("gw-1", "gw-2"), update="INSERT DATA { ?s <http://x/p> 1 }"))
    orders = Orders(LocalFolder(places / "to"), KEY)

    def rig_with(desk: OrderDesk) -> Rig:
        return Rig(lake, subscription, make=opener(threads, desk=desk, wall=NOON.timestamp), desk=desk)

    def answers_to(gateway: str) -> None:
        for number in range(1, len(sent(places, gateway)) + 1):
            answer(places, gateway, number, "done")

    def is_behind(rig: Rig, *gateways: str) -> bool:
        answers_to("gw-2")
        return rig.state("hot", "update").behind == list(gateways) and rig.state("hot", "update").waiting == 0

    write_batch(lake, 1, [match(seq=seq, rows=[[f"<http://x/{seq}>"]]) for seq in range(1, 7)])
    async with rig_with(OrderDesk(orders, lake)) as rig:
        await rig.until(lambda: is_behind(rig, "gw-1"), longest_s=600)
        assert [len(sent(places, gateway)) for gateway in ("gw-1", "gw-2")] == [2, 6]
    states = read_states(lake)
    assert states is not None
    assert states.sinks[0].behind == ["gw-1"]
    assert main(["subscriptions", "status", str(places / "lake")]) == 0
    assert "hot/update passes gateways that answer no orders: gw-1\n" in capsys.readouterr().out
    write_batch(lake, 2, [match(seq=seq, rows=[[f"<http://x/{seq}>"]]) for seq in range(7, 10)])
    async with rig_with(OrderDesk(orders, lake)) as rig:  # another process
        await rig.until(lambda: is_behind(rig, "gw-1") and len(sent(places, "gw-2")) == 9, longest_s=600)
        assert len(sent(places, "gw-1")) == 2
        await rig.until(lambda: (answers_to("gw-1"), is_behind(rig))[1], longest_s=600)
        assert rig.state("hot", "update").dead == 0
    assert sent(places, "gw-1") == sent(places, "gw-2")


async def test_what_a_gateway_has_missed_is_given_up(
    places: Path, threads: SinkThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamplighter.cloud_sync.fleet.delivery.sent_orders.WAITING_MAX", 1)
    threads._pool = Inline()
    lake = Lake(str(places / "lake"))
    write_batch(lake, 1, [match(seq=seq, rows=[[f"<http://x/{seq}>"]]) for seq in (1, 2, 3)])
    os.utime(lake.path("subscriptions/matches/_batches/000000000001.json"), (NOON.timestamp(),) * 2)
    subscription = hot(UpdateSink(gateways=("gw-1",), update="INSERT DATA { ?s <http://x/p> 1 }"))
    desk = OrderDesk(Orders(LocalFolder(places / "to"), KEY), lake)
    make = opener(threads, desk=desk, wall=NOON.timestamp)
    async with Rig(lake, subscription, make=make, desk=desk, give_up_s=3600.0) as rig:
        await rig.until(lambda: rig.state("hot", "update").behind == ["gw-1"], longest_s=60)
        await rig.until(lambda: not rig.state("hot", "update").behind, step_s=60, longest_s=7200)
        assert rig.state("hot", "update").dead == 2
    dead = lines(places / "lake/subscriptions/dead/hot/update")
    assert [one["notification"]["sequence"] for one in dead] == [2, 3]
    assert {one["reason"] for one in dead} == {"given up: gateway gw-1 has not answered 1 orders"}


async def test_a_gateway_to_which_nothing_can_be_sent_stops_no_other(
    places: Path, threads: SinkThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamplighter.cloud_sync.orders.FORGED_MAX", 2)
    threads._pool = Inline()
    lake, to = Lake(str(places / "lake")), LocalFolder(places / "to")
    for number in range(100, 103):
        to.put(order_name("gw-1", number), b"forged by the gateway")
    write_batch(lake, 1, [match(seq=seq, rows=[[f"<http://x/{seq}>"]]) for seq in (1, 2, 3)])
    subscription = hot(UpdateSink(gateways=("gw-1", "gw-2"), update="INSERT DATA { ?s <http://x/p> 1 }"))
    desk = OrderDesk(Orders(to, KEY), lake)
    make = opener(threads, desk=desk, wall=NOON.timestamp)
    async with Rig(lake, subscription, make=make, desk=desk) as rig:
        await rig.until(lambda: len(sent(places, "gw-2")) == 3, longest_s=60)
        await rig.until(lambda: rig.state("hot", "update").behind == ["gw-1"], longest_s=60)
        for path in (places / "to/orders/gw-1").glob("*.json"):
            path.unlink()
        await rig.until(lambda: not rig.state("hot", "update").behind, longest_s=600)
    assert sent(places, "gw-1") == sent(places, "gw-2")


async def test_an_event_that_is_refused_for_its_age_is_so_for_a_gateway_that_was_passed_too(
    places: Path, threads: SinkThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamplighter.cloud_sync.fleet.delivery.sent_orders.WAITING_MAX", 2)
    threads._pool = Inline()
    lake, hour = Lake(str(places / "lake")), timedelta(hours=1)
    batches = [NOON] * 2, [NOON, *[NOON + hour] * 3, *[NOON - 48 * hour] * 4, NOON]

    def write(number: int, begin: int) -> None:
        times = enumerate(batches[number - 1], begin)
        write_batch(lake, number, [match(seq=seq, rows=[[f"<http://x/{seq}>"]], ts=time) for seq, time in times])
        os.utime(lake.path(f"subscriptions/matches/_batches/{number:012d}.json"), (NOON.timestamp(),) * 2)

    subscription = hot(UpdateSink(gateways=("gw-1", "gw-2"), update="INSERT DATA { ?s <http://x/p> 1 }"))
    desk = OrderDesk(Orders(LocalFolder(places / "to"), KEY), lake)
    now = [NOON.timestamp()]
    make = opener(threads, desk=desk, wall=lambda: now[0])
    dead = places / "lake/subscriptions/dead/hot/update"

    def answered(*gateways: str) -> bool:
        for gateway in gateways:
            for number in range(1, len(sent(places, gateway)) + 1):
                answer(places, gateway, number, "done")
        return True

    write(1, 1)
    async with Rig(lake, subscription, make=make, desk=desk) as rig:
        await rig.until(lambda: answered("gw-2") and rig.state("hot", "update").unanswered == 2, longest_s=600)
        write(2, 3)
        await rig.until(lambda: rig.state("hot", "update").behind == ["gw-1"], longest_s=600)
        await rig.until(lambda: rig.state("hot", "update").dead == 7, longest_s=600)
        assert [one["notification"]["sequence"] for one in lines(dead)] == [4, 5, 6, 7, 8, 9, 10]
        assert len(list(dead.iterdir())) == 2, "one for those with the same reason"
        now[0] += 2 * hour.total_seconds()
        await rig.until(lambda: answered("gw-1", "gw-2") and not rig.state("hot", "update").behind, longest_s=600)
        assert rig.state("hot", "update").dead == 14
    assert sent(places, "gw-1") == sent(places, "gw-2")
    assert len(sent(places, "gw-1")) == 4
    assert len(list(dead.glob("behind-gw-1-*"))) == 2


async def test_many_gateways_without_answers_leave_room_for_the_others(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamplighter.cloud_sync.fleet.delivery.sent_orders.ALL_WAITING_MAX", 3)
    monkeypatch.setattr("lamplighter.cloud_sync.fleet.delivery.sent_orders.FEW_WAITING", 2)
    desk = OrderDesk(Orders(LocalFolder(places / "to"), KEY), Lake(str(places / "lake")))
    for number in range(3):
        desk.send("gw-1", str(number), "CLEAR ALL", notification(), "update", NOON.timestamp())
    assert desk.full_reason("gw-1") == "gateway gw-1 has not answered 3 orders"
    assert desk.full_reason("gw-2") == ""


async def test_dead_letters_are_bounded_and_their_number_is_not(
    places: Path, threads: SinkThreads, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lamplighter.cloud_sync.fleet.delivery.dead_letters.FILES_MAX", 2)
    threads._pool = Inline()
    lake = Lake(str(places / "lake"))
    write_batch(lake, 1, [match(seq=seq, rows=[[f"<http://x/{seq}>"]]) for seq in (1, 2, 3, 4)])
    subscription = hot(UpdateSink(gateways=("gw-1",), update="INSERT DATA { ?s <http://x/p> 1 }"))
    desk = OrderDesk(Orders(LocalFolder(places / "to"), KEY), lake)
    make = opener(threads, desk=desk, wall=NOON.timestamp)
    dead = places / "lake/subscriptions/dead/hot/update"
    async with Rig(lake, subscription, make=make, desk=desk) as rig:
        await rig.until(lambda: len(sent(places, "gw-1")) == 4, longest_s=60)
        for number in (1, 2, 3):
            answer(places, "gw-1", number, "refused", "no permission")
        await rig.until(lambda: rig.state("hot", "update").dead == 3, longest_s=60)
        assert len(lines(dead)) == 2
        assert rig.state("hot", "update").full
    assert main(["subscriptions", "status", str(places / "lake")]) == 0
    assert "hot/update keeps no further dead letters" in capsys.readouterr().out
    for path in dead.iterdir():
        path.unlink()
    async with Rig(lake, subscription, make=make, desk=OrderDesk(Orders(LocalFolder(places / "to"), KEY), lake)) as rig:
        rig.parts.desk._orders = desk._orders
        answer(places, "gw-1", 4, "refused", "no permission")
        rig.virtual.now += EXPIRES_S + OVERDUE_S
        await rig.until(lambda: rig.state("hot", "update").dead == 4, longest_s=60)
        assert not rig.state("hot", "update").full
    assert len(lines(dead)) == 1


class Stalled(Executor):
    """A thread whose work does not end."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return Future()


async def test_deliveries_go_on_while_answers_do_not_come(places: Path, threads: SinkThreads) -> None:
    threads._pool = Inline()
    lake = Lake(str(places / "lake"))
    subscription = hot(FilesSink(url=str(places / "to")))
    desk = OrderDesk(Orders(LocalFolder(places / "to"), KEY), lake)
    async with Rig(lake, subscription, make=opener(threads, desk=desk), desk=desk, answering=Stalled()) as rig:
        for number in (1, 2):
            write_batch(lake, number, [match(seq=number, rows=[["<http://x/1>"]])])
            await rig.until(lambda number=number: rig.state("hot", "files").delivered == number, longest_s=600)


def test_who_asks_for_the_waiting_orders_does_not_wait_for_the_destination(places: Path) -> None:
    asked = []

    class Slow(Orders):
        def send(self, *args: Any) -> int:
            thread = threading.Thread(target=lambda: asked.append(desk.unanswered_counts()), daemon=True)
            thread.start()
            thread.join(30)
            return super().send(*args)

    desk = OrderDesk(Slow(LocalFolder(places / "to"), KEY), Lake(str(places / "lake")))
    desk.send("gw-1", "one", "CLEAR ALL", notification(), "update", NOON.timestamp())
    assert asked == [{}]
    assert desk.unanswered_counts() == {("hot", "update"): 1}
