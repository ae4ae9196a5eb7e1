"""Notifications as signed orders to gateways."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.fleet.delivery.notifications import Match, MatchNotification, MatchPosition
from lamplighter.cloud_sync.fleet.delivery.sinks import SinkThreads, UndeliveredError
from lamplighter.cloud_sync.fleet.delivery.sinks.updates import OrderDesk, UpdateNotifications
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.subscriptions.records import UpdateSink
from lamplighter.cloud_sync.orders import Orders, order_name, verify
from lamplighter.engine import Engine
from lamplighter.engine.errors import ConfigurationError
from tests.cloud_sync.fleet.delivery.made_up_matches import match

TEMPLATE = """
DELETE { ?s <http://x/limit> ?old } INSERT { ?s <http://x/limit> ?v . <http://x/n> <http://x/t> "?v" }
WHERE { OPTIONAL { ?s <http://x/limit> ?old } }
"""
KEY = Ed25519PrivateKey.generate()


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
    return UpdateNotifications(UpdateSink(gateways=gateways or ("gw-*",), update=update), desk, threads)


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
