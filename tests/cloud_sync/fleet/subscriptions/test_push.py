"""Fleet subscriptions are sent to gateways as signed orders, replaced, and ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.subscriptions.push import (
    AGAIN_S,
    EXPIRES_S,
    OF_GATEWAY_MAX,
    PUSHED,
    Push,
    read_pushed,
    subscription_version,
)
from lamplighter.cloud_sync.fleet.subscriptions.registry import SubscriptionRegistry
from lamplighter.cloud_sync.orders import VERSION, OrderAnswer, Orders, answer_name, order_name, verify
from lamplighter.engine.errors import ConfigurationError, UpstreamError
from tests.support.running_gateway import update
from tests.whole_gateway.cloud_sync.test_orders import KEY as SITE_KEY
from tests.whole_gateway.cloud_sync.test_orders import site

KEY = Ed25519PrivateKey.generate()
HOT = "SELECT ?value { ?x <http://e/value> ?value FILTER(?value > 30) }"
JOIN = "SELECT * { ?x <http://e/value> ?value ; <http://e/of> ?y }"


class Fleet:
    """A lake with two gateways, which answer as they are told."""

    def __init__(self, folder: Path) -> None:
        for name in ("lake/segments/gw-1", "lake/segments/gw-2", "to"):
            (folder / name).mkdir(parents=True)
        self.lake = Lake(str(folder / "lake"))
        self.to = LocalFolder(folder / "to")
        self.now = 1_800_000_000.0
        self.registry = SubscriptionRegistry(self.lake)
        self.orders = Orders(self.to, KEY, clock=lambda: self.now)

    def push(self) -> Any:
        """One run of a process that has just started."""
        self.now += 1
        return Push(self.lake, self.orders, lambda: self.now).once()

    def sent(self, gateway: str = "gw-1") -> list[tuple[str, str]]:
        """(kind, subscription/version) of all orders. Their versions are those that the gateway takes."""
        found: list[tuple[str, str]] = []
        newest: dict[str, int] = {}
        while (data := self.to.get(order_name(gateway, len(found) + 1))) is not None:
            order = verify(data, gateway, len(found) + 1, [KEY.public_key()])
            name, version = str(order.body["subscription"]), int(order.body["version"])
            assert version > newest.get(name, 0) or (order.kind == "unsubscribe" and version == newest[name])
            newest[name] = version
            found.append((order.kind, f"{name}/{subscription_version(version)}"))
        return found

    def answer(self, gateway: str, number: int, reason: str = "") -> None:
        outcome = "refused" if reason else "done"
        answer = OrderAnswer(VERSION, gateway, number, "", outcome, reason)
        self.to.put(answer_name(gateway, number), msgspec.json.encode(answer))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_what_gateways_can_evaluate_is_sent_once_and_the_rest_is_not(fleet: Fleet) -> None:
    fleet.registry.add("hot", HOT, gateways=["gw-1"])
    fleet.registry.add("join", JOIN)
    fleet.registry.add("all", HOT, begin="all")
    assert fleet.push().sent == 1
    assert fleet.push().sent == 0
    assert fleet.sent() == [("subscribe", "hot/1")]
    assert fleet.sent("gw-2") == []


def test_a_subscription_follows_its_record(fleet: Fleet) -> None:
    fleet.registry.add("hot", HOT)
    fleet.push()
    fleet.answer("gw-1", 1)
    fleet.registry.pause("hot")
    fleet.push()
    fleet.registry.resume("hot")
    fleet.push()
    fleet.registry.replace("hot", query=HOT.replace("30", "40"))
    fleet.push()
    fleet.registry.replace("hot", gateways=["gw-2"])
    fleet.push()
    fleet.registry.remove("hot")
    fleet.push()
    fleet.registry.add("hot", HOT)
    fleet.push()
    begin, again, replaced, end = (
        ("subscribe", "hot/1"),
        ("unsubscribe", "hot/1"),
        ("subscribe", "hot/2"),
        "unsubscribe",
    )
    assert fleet.sent() == [begin, again, begin, replaced, (end, "hot/2"), ("subscribe", "hot/3")]
    assert fleet.sent("gw-2") == [begin, again, begin, replaced, (end, "hot/2"), ("subscribe", "hot/3")]


def test_answers_are_told_and_what_had_no_effect_is_sent_again(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.registry.add("hot", HOT)
    fleet.push()
    fleet.answer("gw-1", 1)
    fleet.answer("gw-2", 1, "no permission")
    summary = fleet.push()
    assert (summary.sent, summary.confirmed, summary.unanswered) == (0, 1, 0)
    assert [one.reason for one in summary.refused] == ["no permission"]
    assert main(["explain", fleet.lake.url]) == 0
    told = capsys.readouterr().out
    assert "version 1: on 1 of 2 gateways, compared on Spark" in told
    assert "gw-2: it has refused order 1: no permission" in told
    fleet.now += AGAIN_S
    assert fleet.push().sent == 1
    fleet.now += EXPIRES_S
    assert fleet.push().sent == 1, "the order has expired without an answer"
    assert (len(fleet.sent()), len(fleet.sent("gw-2"))) == (1, 3)
    fleet.registry.remove("hot")
    fleet.push()
    fleet.answer("gw-1", 2)
    fleet.now += EXPIRES_S
    fleet.push()
    assert fleet.sent("gw-2")[-2:] == [("unsubscribe", "hot/1")] * 2
    assert [one.gateway for one in read_pushed(fleet.lake)] == ["gw-2"]


def test_a_lost_state_and_a_failure_repeat_orders_that_replace(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.registry.add("hot", HOT, gateways=["gw-1"])
    fleet.registry.add("hotter", HOT, gateways=["gw-2"])
    send, failing = fleet.orders.send, True

    def fails(gateway: str, *others: Any) -> int:
        if gateway == "gw-2" and failing:
            raise UpstreamError("away")
        return send(gateway, *others)

    monkeypatch.setattr(fleet.orders, "send", fails)
    assert fleet.push().faults == ("gateway gw-2: away",)
    failing = False
    assert fleet.push().sent == 1, "the first one was noted"
    Path(fleet.lake.path(*PUSHED)).unlink()
    assert fleet.push().sent == 2
    assert fleet.sent() == [("subscribe", "hot/1")] * 2
    Path(fleet.lake.path(*PUSHED)).write_text("{")
    with pytest.raises(ConfigurationError, match="remove it"):
        fleet.push()


def test_broken_records_end_nothing_and_a_full_gateway_gets_no_more(fleet: Fleet) -> None:
    for number in range(OF_GATEWAY_MAX + 5):
        fleet.registry.add(f"s{number:03d}", HOT, gateways=["gw-1"])
    assert fleet.push().sent == OF_GATEWAY_MAX
    Path(fleet.lake.path("subscriptions", "records", "s000.json")).write_text("{")
    summary = fleet.push()
    assert summary.sent == 0
    assert "s000.json" in summary.faults[0]
    fleet.registry.remove("s001")
    fleet.push()
    assert fleet.sent()[-2:] == [("unsubscribe", "s001/1"), ("subscribe", "s100/1")]


async def test_a_gateway_evaluates_what_it_is_told_and_its_rows_come_back(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        lake, key = tmp_path / "lake", tmp_path / "fleet.key"
        (lake / "segments" / "gw").mkdir(parents=True)
        key.write_bytes(SITE_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        key.chmod(0o600)
        command = ["subscriptions", "push", str(lake), "--orders", str(tmp_path / "to"), "--orders-key", str(key)]
        assert main(["subscriptions", "add", str(lake), "hot", "--query", HOT]) == 0
        assert main(command) == 0
        await here.round().run()
        await update(here.addresses, "INSERT DATA { GRAPH <http://e/g> { <http://e/1> <http://e/value> 20, 40 } }")
        await here.round().run()
        [_, told] = here.ahead()
        assert [row["value"]["value"] for row in told["added"]["results"]["bindings"]] == ["40"]
        assert told["added"]["results"]["bindings"][0]["event_graph"]["value"] == "http://e/g"
        assert subscription_version(told["version"]) == 1
        assert main(command) == 0
        [known] = read_pushed(Lake(str(lake)))
        assert known.hindrance == ""
        assert main(["subscriptions", "remove", str(lake), "hot"]) == 0
        assert main(command) == 0
        await here.round().run()
        assert here.answered(2) == ("done", "")
