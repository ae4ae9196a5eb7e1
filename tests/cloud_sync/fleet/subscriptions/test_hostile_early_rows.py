"""Objects ahead of segments, orders and their answers, as hostile gateways could write them. No Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lamplighter.cloud_sync.destinations import LocalFolder
from lamplighter.cloud_sync.fleet.lake import Lake, TableBatch
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.sparql.supported import fleet_query
from lamplighter.cloud_sync.fleet.subscriptions import early_objects, early_rows
from lamplighter.cloud_sync.fleet.subscriptions.early_rows import EarlyMatches
from lamplighter.cloud_sync.fleet.subscriptions.matching import FollowedSubscription
from lamplighter.cloud_sync.fleet.subscriptions.push import FAILING_MAX, PUSHED, PushedOrder, order_version, read_pushed
from lamplighter.cloud_sync.fleet.subscriptions.segment_order import SegmentOrder
from lamplighter.cloud_sync.orders import answer_name, order_name
from lamplighter.engine.errors import ConfigurationError, UpstreamError
from tests.cloud_sync.fleet.delivery.made_up_matches import record
from tests.cloud_sync.fleet.subscriptions.test_push import HOT, Fleet
from tests.cloud_sync.fleet.subscriptions.test_push import fleet as fleet

GOOD, EVIL = "gw-good", "gw-evil"
QUERY = "SELECT ?x ?v { ?x <http://e/value> ?v }"


class _Ahead:
    """A lake to which two gateways send; the subscription `hot` was given to both, `cold` to the good one."""

    def __init__(self, folder: Path) -> None:
        for name in ("to", f"lake/segments/{GOOD}", f"lake/segments/{EVIL}"):
            (folder / name).mkdir(parents=True)
        self.folder, self.to = folder, LocalFolder(folder / "to")
        self.lake = Lake(str(folder / "lake"))
        self.followed = [FollowedSubscription(record(id, query=QUERY), fleet_query(QUERY)) for id in ("hot", "cold")]
        given = [("hot", GOOD), ("hot", EVIL), ("cold", GOOD)]
        orders = [
            PushedOrder(subscription=id, gateway=gateway, kind="subscribe", version=1, number=1, at=0)
            for id, gateway in given
        ]
        self.lake.write(msgspec.json.encode({"orders": orders}), *PUSHED)
        self.said: list[str] = []
        self.order = SegmentOrder()
        self.matches = EarlyMatches(self.to, self.said.append)

    def path(self, number: int, gateway: str = EVIL) -> Path:
        path = self.folder / "to" / "ahead" / gateway / f"{number:012d}.ndjson"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, number: int, *lines: bytes, gateway: str = EVIL) -> None:
        self.path(number, gateway).write_bytes(b"".join(line + b"\n" for line in lines))

    def take(self) -> list[tuple[str, str, int]]:
        """One pass, as the matcher has it."""
        rows, read = self.matches.take(self.lake, self.followed, self.order)
        self.matches.note(rows, self.order)
        self.matches.confirm(read)
        return [(row["gw"], row["subscription"], row["seq"]) for row in rows]


@pytest.fixture
def ahead(tmp_path: Path) -> _Ahead:
    return _Ahead(tmp_path)


def told(seq: Any = 1, *, gateway: str = EVIL, value: Any = None, **members: Any) -> bytes:
    value = {"type": "literal", "value": "1"} if value is None else value
    bindings = [{"x": {"type": "uri", "value": "http://e/x"}, "v": value}]
    results = {"head": {"vars": ["x", "v", "event_graph"]}, "results": {"bindings": bindings}}
    version = order_version(1, 1_800_000_000)
    line = {"v": 1, "gateway": gateway, "subscription": "hot", "version": version, "incarnation": "i", "sequence": 1}
    return json.dumps({**line, "commit": [1, seq], "added": results, **members}).encode()


def results(bindings: Any, variables: Any = ("x", "v", "event_graph")) -> dict[str, Any]:
    return {"head": {"vars": variables}, "results": {"bindings": bindings}}


HOSTILE = {
    "garbage": b"\x00\xff\xfe garbage",
    "truncated": told()[:-20],
    "deep": b'{"added":' + b'{"a":' * 100_000,
    "wrong types": told(added=[1], sequence="1"),
    "of another gateway": told(gateway=GOOD),
    "beyond 64 bits": told(2**80),
    "beyond a log": told(2**62),
    "negative": told(-1),
    "epoch": told(commit=[2**40, 1]),
    "a time without a zone": told(at="2026-06-01T12:00:00"),
    "the first time of all": told(at="0001-01-01T00:00:00+14:00"),
    "the last time of all": told(at="9999-12-31T23:59:59.999999-14:00"),
    "no time": told(at=["now"]),
    "results no results": told(added={"results": 5}),
    "deep triple terms": told(value=json.loads('{"type":"triple","value":{"subject":' * 200 + "1" + "}}" * 200)),
    "control characters": told(value={"type": "uri", "value": "http://e/a\n\x1b[31m> <b"}),
    "other variables": told(added=results([{}], ["x"])),
    "empty cells": told(added=results([{}] * 1000, [f"v{number}" for number in range(2000)])),
    "variables that are none": told(added=results([{}], {"x": 1})),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_line_is_named_and_left_out_and_others_are_taken(ahead: _Ahead, what: str) -> None:
    ahead.write(1, told(7), HOSTILE[what], told(8))
    ahead.write(1, told(1, gateway=GOOD), gateway=GOOD)
    assert ahead.take() == [(EVIL, "hot", 7), (EVIL, "hot", 8), (GOOD, "hot", 1)]
    [said] = ahead.said
    assert f"ahead/{EVIL}/000000000001.ndjson line 2: " in said
    assert "Check who writes there" in said
    assert len(said) < 600
    assert said.isprintable()
    assert ahead.take() == [], "it is not read again"
    assert len(ahead.said) == 1


def test_what_was_not_given_to_a_gateway_is_left_to_spark(ahead: _Ahead) -> None:
    other = order_version(2, 1)
    ahead.write(
        1, told(1, subscription="cold"), told(2, subscription="../x"), told(3, version=2**62), told(4, version=other)
    )
    ahead.write(1, told(1, gateway=GOOD, subscription="cold"), gateway=GOOD)
    ahead.write(1, told(1, gateway="gw-unknown"), gateway="gw-unknown")
    assert ahead.take() == [(GOOD, "cold", 1)]


def test_a_gateway_with_several_histories_is_left_to_spark(ahead: _Ahead) -> None:
    ahead.write(1, told(1))
    ahead.write(1, told(1, gateway=GOOD), gateway=GOOD)
    (ahead.folder / f"lake/segments/{EVIL}~2").mkdir()
    assert ahead.take() == [(GOOD, "hot", 1)]


def test_thousands_of_objects_without_a_sound_line_are_passed_within_bounds(
    ahead: _Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_objects, "OBJECTS_MAX", 20)
    for number in range(1, 101):
        ahead.write(number, *([b"{"] if number % 2 else []))
    ahead.write(101, told(5))
    ahead.write(1, told(1, gateway=GOOD), gateway=GOOD)
    assert ahead.take() == [(GOOD, "hot", 1)]
    for _ in range(4):
        assert ahead.take() == []
    assert ahead.take() == [(EVIL, "hot", 5)]
    assert len(ahead.said) == 5, "a line for each pass"
    assert "(and 9 others)" in ahead.said[0]


def test_objects_that_are_large_or_are_links_stop_nobody_else(ahead: _Ahead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_objects, "OBJECT_BYTES_MAX", 10_000)
    ahead.write(1, b"x" * 20_000)
    ahead.write(2, told(2))
    secret = ahead.folder / "secret"
    secret.write_bytes(told(3))
    ahead.path(3).symlink_to(secret)
    ahead.write(4, told(4))
    (ahead.path(4).parent / "..ndjson").write_bytes(told(9))
    ahead.path(5).mkdir()
    ahead.write(1, told(1, gateway=GOOD), gateway=GOOD)
    assert ahead.take() == [(EVIL, "hot", 2), (GOOD, "hot", 1)]
    assert "000000000003.ndjson" in ahead.said[0]
    assert "000000000001.ndjson: it has more than 10000 bytes" in ahead.said[1]
    assert ahead.take() == []
    assert len(ahead.said) == 2, "a fault is said once"
    ahead.path(3).unlink()
    assert ahead.take() == [(EVIL, "hot", 4)]
    monkeypatch.setattr(early_objects, "PASS_BYTES_MAX", 0)
    for number in (6, 7):
        ahead.write(number, told(number))
    assert [ahead.take() for _ in range(3)] == [[(EVIL, "hot", 6)], [(EVIL, "hot", 7)], []]


def test_matches_of_records_that_never_come_are_bounded_for_their_gateway_only(
    ahead: _Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_rows, "WAITING_MAX", 3)
    ahead.write(1, *(told(2**50 + number) for number in range(5)))
    ahead.write(1, told(1, gateway=GOOD), gateway=GOOD)
    assert sorted(one[0] for one in ahead.take()) == [EVIL] * 3 + [GOOD]
    assert ahead.said == [
        f"gateway {EVIL}: 2 of its matches ahead of segments are left to Spark, because too many wait for their "
        "segments; check whether it ships them"
    ]
    ahead.write(2, told(1))
    assert ahead.take() == []
    ahead.write(2, told(2, gateway=GOOD), gateway=GOOD)
    assert ahead.take() == [(GOOD, "hot", 2)]
    monkeypatch.setattr(early_rows, "WAITING_MAX", 100)
    monkeypatch.setattr(early_rows, "WAITING_CHARACTERS_MAX", 600)
    ahead.write(3, told(3, value={"type": "literal", "value": "x" * 1000}), told(4))
    assert ahead.take() == [(EVIL, "hot", 4)]


def test_each_gateway_is_the_first_in_its_turn(ahead: _Ahead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_rows, "ROWS_MAX", 1)
    ahead.write(1, told(1), told(2), told(3))
    ahead.write(1, told(1, gateway=GOOD), gateway=GOOD)
    assert [ahead.take() for _ in range(3)] == [[(EVIL, "hot", 1)], [(GOOD, "hot", 1)], [(EVIL, "hot", 2)]]


def test_a_batch_without_its_files_is_told_and_the_matcher_goes_on(ahead: _Ahead) -> None:
    batch = TableBatch(id="000000000001", files=["batch=000000000001/gone.parquet"], rows=1, ahead={EVIL: 1})
    ahead.matches.note_batch(table(ahead.lake, "matches"), batch, ahead.order)
    assert "gone.parquet" in ahead.said[0]
    assert "restore it" in ahead.said[0]
    ahead.write(2, told(1))
    assert ahead.take() == [(EVIL, "hot", 1)]


@pytest.mark.parametrize(
    "content",
    [b"{", b"\xff", b"[" * 100_000, b'{"orders":5}', b'{"orders":[{"subscription":"a"}]}']
    + [
        msgspec.json.encode({"orders": [{"subscription": "a", "gateway": "g", "kind": "subscribe", "number": 1, "at": 0,
                                         "version": 1} | one]})
        for one in ({"gateway": "../../x"}, {"version": 2**70}, {"number": -1}, {"at": "x"}, {"gateway": "x" * 1000})
    ],
)  # fmt: skip
def test_damaged_orders_are_named_with_the_cure(ahead: _Ahead, content: bytes) -> None:
    ahead.lake.write(content, *PUSHED)
    with pytest.raises(ConfigurationError, match=r"pushed\.json: damaged: .* remove it"):
        read_pushed(ahead.lake)
    assert ahead.take() == []
    assert "remove it" in ahead.said[0]


def test_a_gateway_whose_answers_or_orders_are_no_such_does_not_stop_push(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamplighter.cloud_sync.orders.FORGED_MAX", 3)
    fleet.registry.add("hot", HOT)
    fleet.push()
    fleet.answer("gw-2", 1)
    fleet.to.put(answer_name("gw-1", 1), b"[" * 10_000)
    for number in range(10, 15):
        fleet.to.put(order_name("gw-1", number), b"garbage")
    fleet.registry.replace("hot", query=HOT.replace("30", "40"))
    summary = fleet.push()
    assert (summary.sent, len(summary.faults)) == (1, 1)
    assert summary.faults[0].startswith("gateway gw-1: ")
    assert "not an answer" in summary.faults[0]
    assert fleet.sent("gw-2")[-1] == ("subscribe", "hot/2")
    fleet.answer("gw-1", 1)
    assert "are no orders of this key; remove them" in fleet.push().faults[0]


def test_a_destination_that_is_away_is_a_failure_and_is_asked_a_few_times_only(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def away(gateway: str, *_: Any) -> int:
        asked.append(gateway)
        raise UpstreamError("away")

    monkeypatch.setattr(fleet.orders, "send", away)
    for number in range(100):
        Path(fleet.lake.path("segments", f"gw-{number}")).mkdir(exist_ok=True)
    fleet.registry.add("hot", HOT)
    with pytest.raises(UpstreamError, match="away"):
        fleet.push()
    assert len(asked) == FAILING_MAX + 1
    fleet.registry.replace("hot", gateways=["gw-1", "gw-2"])
    with pytest.raises(UpstreamError, match="away"):
        fleet.push()
    assert asked[FAILING_MAX + 1 :] == ["gw-1", "gw-2"]
