"""Delivery with a virtual clock: to files, and to sinks that fail as the test says."""

import json
from pathlib import Path

import pytest

from lamplighter.cloud_sync.fleet.delivery.match_table import ChunkBounds
from lamplighter.cloud_sync.fleet.delivery.notifications import MatchNotification
from lamplighter.cloud_sync.fleet.delivery.runner import STATES, read_states
from lamplighter.cloud_sync.fleet.delivery.sinks import UndeliveredError
from lamplighter.cloud_sync.fleet.lake import Lake
from lamplighter.cloud_sync.fleet.lake.tables import table
from lamplighter.cloud_sync.fleet.subscriptions.records import FilesSink, WebhookSink
from lamplighter.cloud_sync.fleet.tables.merged_matches import merge_matches
from lamplighter.engine.errors import UpstreamError
from tests.cloud_sync.fleet.delivery.made_up_matches import NOON, Rig, lines, match, record, write_batch

HOUR = 3600.0


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    (tmp_path / "lake").mkdir()
    (tmp_path / "out").mkdir()
    return Lake(str(tmp_path / "lake"))


class Scripted:
    """Sinks whose outcomes a test sets. fails: sink name -> the error of every delivery; accepted: what arrived."""

    def __init__(self) -> None:
        self.accepted: list[tuple[str, str, int]] = []
        self.fails: dict[str, Exception] = {}
        self.attempts: list[str] = []
        self.delivered: list[MatchNotification] = []

    def __call__(self, sink):
        return ScriptedSink(self, sink.name)


class ScriptedSink:
    bounds = ChunkBounds(4, 10**6)
    blocking = False

    def __init__(self, script: Scripted, name: str) -> None:
        self.script, self.name = script, name

    async def deliver(self, notifications) -> None:
        self.script.attempts.append(self.name)
        error = self.script.fails.get(self.name)
        accepted = len(notifications) if error is None else getattr(error, "accepted", 0)
        for one in notifications[:accepted]:
            self.script.accepted.append((self.name, one.match.gw, one.match.seq))
            self.script.delivered.append(one)
        if error is not None:
            raise error

    async def close(self) -> None:
        pass


def webhook(name: str) -> WebhookSink:
    return WebhookSink(name=name, url="http://example.org/")


async def test_files_have_all_matches_in_order(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_batch(lake, 1, [match("hot", seq=seq) for seq in range(5)])
    async with Rig(lake, record("hot", FilesSink(url=str(out))), record("cold", FilesSink(url=str(out)))) as rig:
        await rig.until(lambda: len(lines(out / "hot")) == 5)
        write_batch(lake, 2, [match("cold", seq=9), *(match("hot", seq=seq) for seq in (5, 6))])
        await rig.until(lambda: len(lines(out / "hot")) == 7 and lines(out / "cold"))
        assert rig.state("hot", "files").delivered == 7
        assert rig.state("hot", "files").waiting == 0
    assert [one["sequence"] for one in lines(out / "hot")] == list(range(7))
    assert sorted(path.name for path in (out / "hot").iterdir()) == [
        "000000000001-000000000.ndjson",
        "000000000002-000000001.ndjson",
    ]
    states = read_states(lake)
    assert states and [(one.subscription, one.delivered, one.state) for one in states.sinks] == [
        ("cold", 1, "delivering"),
        ("hot", 7, "delivering"),
    ]
    # A second process goes on where the first one ended.
    for path in (out / "hot").iterdir():
        path.unlink()
    write_batch(lake, 3, [match("hot", seq=7)])
    async with Rig(lake, record("hot", FilesSink(url=str(out)))) as rig:
        await rig.until(lambda: lines(out / "hot"))
    assert [one["sequence"] for one in lines(out / "hot")] == [7]


async def test_a_repetition_overwrites_the_same_files(lake: Lake, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_batch(lake, 1, [match("hot", seq=seq) for seq in range(5)])
    async with Rig(lake, record("hot", FilesSink(url=str(out)))) as rig:
        await rig.until(lambda: len(lines(out / "hot")) == 5)
        before = {path.name: path.read_bytes() for path in (out / "hot").iterdir()}
        await rig.kill()
        Path(lake.path("subscriptions", "cursors.json")).unlink(missing_ok=True)
    write_batch(lake, 2, [match("hot", seq=5)])
    async with Rig(lake, record("hot", FilesSink(url=str(out)))) as rig:
        await rig.until(lambda: len(lines(out / "hot")) == 6)
    after = {path.name: path.read_bytes() for path in (out / "hot").iterdir()}
    assert before.items() <= after.items()
    assert len(after) == 2


async def test_a_failing_sink_waits_longer_each_time_and_never_blocks_the_others(lake: Lake) -> None:
    script = Scripted()
    script.fails["bad"] = UpstreamError("away")
    write_batch(lake, 1, [match("hot", gw=gw, seq=seq) for seq in range(3) for gw in ("a", "b")])
    async with Rig(lake, record("hot", webhook("bad"), webhook("good")), make=script) as rig:
        await rig.until(lambda: len(script.accepted) == 6)
        assert {name for name, _, _ in script.accepted} == {"good"}
        begun = rig.virtual.now
        await rig.until(lambda: rig.virtual.now > begun + HOUR, step_s=20.0)
        attempts = script.attempts.count("bad")
        assert 3600 / 300 <= attempts <= 3600 / 150 + 12  # 5 min with jitter, after eight shorter pauses
        state = rig.state("hot", "bad")
        assert (state.state, state.last_error, state.waiting, state.delivered) == ("retrying", "away", 6, 0)
        assert rig.virtual.now < state.next_try <= rig.virtual.now + 300
        # A success: order is kept, and the next failure begins with the shortest pause.
        script.fails.clear()
        await rig.until(lambda: len(script.accepted) == 12)
        assert script.accepted[6:] == [("bad", gw, seq) for _, gw, seq in script.accepted[:6]]
        assert rig.state("hot", "bad").state == "delivering"
        script.fails["bad"] = UpstreamError("away again")
        write_batch(lake, 2, [match("hot", gw="a", seq=3)])
        await rig.until(lambda: rig.state("hot", "bad").next_try)
        assert rig.state("hot", "bad").next_try - rig.virtual.now <= 2.0


async def test_what_was_accepted_before_a_failure_is_not_repeated(lake: Lake) -> None:
    script = Scripted()
    script.fails["one"] = UndeliveredError("the third is refused for now", accepted=2)
    write_batch(lake, 1, [match("hot", seq=seq) for seq in range(4)])
    async with Rig(lake, record("hot", webhook("one")), make=script) as rig:
        await rig.until(lambda: rig.state("hot", "one").next_try)
        script.fails.clear()
        await rig.until(lambda: len(script.accepted) == 4)
    assert [seq for _, _, seq in script.accepted] == [0, 1, 2, 3]


async def test_the_peer_says_how_long_to_wait(lake: Lake) -> None:
    script = Scripted()
    script.fails["one"] = UndeliveredError("later", wait_s=200.0)
    write_batch(lake, 1, [match("hot")])
    async with Rig(lake, record("hot", webhook("one")), make=script) as rig:
        await rig.until(lambda: rig.state("hot", "one").next_try)
        assert rig.state("hot", "one").next_try - rig.virtual.now > 190
    assert script.attempts == ["one"]


async def test_what_is_refused_for_good_goes_to_the_dead_letters_and_delivery_goes_on(lake: Lake) -> None:
    script = Scripted()
    script.fails["one"] = UndeliveredError("answered 400", accepted=1, permanent=True)
    write_batch(lake, 1, [match("hot", seq=seq) for seq in range(4)])
    async with Rig(lake, record("hot", webhook("one")), make=script) as rig:
        await rig.until(lambda: rig.state("hot", "one").waiting == 0 and rig.state("hot", "one").dead)
        assert (rig.state("hot", "one").delivered, rig.state("hot", "one").dead) == (2, 2)
    assert [seq for _, _, seq in script.accepted] == [0, 2]
    dead = lines(Path(lake.path("subscriptions", "dead", "hot", "one")))
    assert [one["notification"]["sequence"] for one in dead] == [1, 3]
    assert {one["reason"] for one in dead} == {"answered 400"}


async def test_a_sink_is_given_up_after_its_time_and_only_for_what_has_waited(lake: Lake) -> None:
    script = Scripted()
    script.fails["one"] = UpstreamError("away")
    write_batch(lake, 1, [match("hot", seq=seq) for seq in range(6)])
    async with Rig(lake, record("hot", webhook("one")), make=script, give_up_s=2 * HOUR) as rig:
        rig.table.write_time = lambda batch: 0.0 if batch == "000000000001" else rig.virtual.now
        await rig.until(lambda: rig.state("hot", "one").next_try)
        begun = rig.virtual.now
        await rig.until(lambda: rig.state("hot", "one").dead == 6, step_s=30.0)
        assert 2 * HOUR <= rig.virtual.now - begun < 2.3 * HOUR
        write_batch(lake, 2, [match("hot", seq=6)])
        tried = len(script.attempts)
        await rig.until(lambda: len(script.attempts) > tried + 3, step_s=30.0)
        assert rig.state("hot", "one").dead == 6
        script.fails.clear()
        await rig.until(lambda: script.accepted, step_s=30.0)
    assert [seq for _, _, seq in script.accepted] == [6]
    dead = lines(Path(lake.path("subscriptions", "dead", "hot", "one")))
    assert [one["notification"]["sequence"] for one in dead] == list(range(6))
    assert {one["reason"] for one in dead} == {"given up: away"}


async def test_the_time_to_give_up_survives_a_restart(lake: Lake) -> None:
    script = Scripted()
    script.fails["one"] = UpstreamError("away")
    write_batch(lake, 1, [match("hot")])
    async with Rig(lake, record("hot", webhook("one")), make=script) as rig:
        await rig.until(lambda: rig.state("hot", "one").next_try)
        later = rig.virtual.now
    async with Rig(lake, record("hot", webhook("one")), make=script, give_up_s=2 * HOUR) as rig:
        rig.table.write_time = lambda batch: 0.0
        rig.virtual.now = later + 3 * HOUR
        await rig.until(lambda: rig.state("hot", "one").dead)


async def test_a_match_that_is_no_rdf_goes_to_the_dead_letters(lake: Lake) -> None:
    script = Scripted()
    rows = [match("hot", seq=1), match("hot", seq=2, rows=[["nonsense"]]), match("hot", seq=3)]
    write_batch(lake, 1, rows)
    async with Rig(lake, record("hot", webhook("one")), make=script) as rig:
        await rig.until(lambda: len(script.accepted) == 2)
    assert [seq for _, _, seq in script.accepted] == [1, 3]
    [dead] = lines(Path(lake.path("subscriptions", "dead", "hot", "one")))
    assert dead["match"]["rows"] == [["nonsense"]]
    assert "no RDF term" in dead["reason"]


async def test_paused_keeps_its_place_removed_and_replaced_do_not(lake: Lake) -> None:
    script = Scripted()
    active = record("hot", webhook("one"))
    write_batch(lake, 1, [match("hot", seq=1)])
    async with Rig(lake, active, make=script) as rig:
        await rig.until(lambda: len(script.accepted) == 1)
        rig.records = [record("hot", webhook("one"), state="paused")]
        await rig.until(lambda: rig.state("hot", "one").state == "paused")
        write_batch(lake, 2, [match("hot", seq=2)])
        await rig.until(lambda: rig.delivery._last.endswith("2"))
        assert len(script.accepted) == 1
        rig.records = [active]
        await rig.until(lambda: len(script.accepted) == 2)
        # Broken records keep their sinks.
        rig.records, rig.broken = [], {"hot"}
        write_batch(lake, 3, [match("hot", seq=3)])
        await rig.until(lambda: len(script.accepted) == 3)
        # A sink of another name is a new sink; the other one is forgotten.
        rig.records, rig.broken = [record("hot", webhook("two"), webhook("one"))], set()
        write_batch(lake, 4, [match("hot", seq=4)])
        await rig.until(lambda: len(script.accepted) == 5)
        assert sorted(script.accepted[3:]) == [("one", "gw-1", 4), ("two", "gw-1", 4)]
        rig.records = [record("hot", webhook("two"), state="removed")]
        await rig.until(lambda: not rig.delivery.states())
        assert rig.cursors.all() == []
        rig.records = [record("hot", webhook("two"), version=2, begin="all")]
        write_batch(lake, 5, [match("hot", seq=5, version=2)])
        await rig.until(lambda: len(script.accepted) == 6)
    assert script.accepted[5] == ("two", "gw-1", 5)


@pytest.mark.parametrize("merged", [False, True])
async def test_damaged_files_stop_no_other_notification_and_are_delivered_later(lake: Lake, merged: bool) -> None:
    """The file is damaged while two sinks are at different places in it, and restored after a restart."""
    script, records = Scripted(), [record("hot", webhook("one"), webhook("two"))]
    write_batch(lake, 1, [match("hot", seq=1), match("cold", seq=2), match("hot", seq=3)])
    write_batch(lake, 2, [match("hot", seq=4)])
    if merged:
        assert merge_matches(table(lake, "matches")) == []
    script.fails["two"] = UpstreamError("away")
    async with Rig(lake, *records, make=script) as rig:
        await rig.until(lambda: len(script.accepted) == 3)
    (path,) = Path(lake.path("subscriptions", "matches")).glob("batch=*-*/*" if merged else "batch=*1/*")
    sound = path.read_bytes()
    path.write_bytes(sound[:50])
    write_batch(lake, 3, [match("hot", seq=5)])
    script.fails.clear()
    script.accepted.clear()
    async with Rig(lake, *records, make=script) as rig:
        await rig.until(lambda: {("one", "gw-1", 5), ("two", "gw-1", 5)} <= set(script.accepted))
        (unread,) = rig.state("hot", "two").unread
        assert rig.state("hot", "two").state == "delivering"
        (said,) = rig.table.read_errors
        assert path.name in said and "restore the file" in said
        await rig.until(lambda: rig.virtual.now > NOON.timestamp() + 200)
        rest = [one for one in script.accepted if one[0] == "two"]
        assert rest == [("two", "gw-1", seq) for seq in ((5,) if merged else (4, 5))]
        await rig.kill()
    stored = json.loads(lake.fs.cat_file(lake.path(*STATES)))
    of_one, of_two = (one["unread"] for one in stored["sinks"])
    assert of_two == [unread]
    assert bool(of_one) is merged, "it is within the file, and has to see that nothing is left for it"
    path.write_bytes(sound)
    script.accepted.clear()
    rig = Rig(lake, *records, make=script)
    assert await rig.delivery.once() == []
    rig.close()
    assert sorted(script.accepted) == [("two", "gw-1", seq) for seq in ((1, 3, 4) if merged else (1, 3))]
    assert {one.match.late for one in script.delivered[-len(script.accepted) :]} == {True}
    assert [one.unread for one in rig.cursors.all()] == [[], []]


async def test_unread_matches_are_delivered_by_the_running_process_when_their_file_is_restored(lake: Lake) -> None:
    script = Scripted()
    for number in (1, 2, 3):
        write_batch(lake, number, [match("hot", seq=number)])
    path = Path(lake.path("subscriptions", "matches", "batch=000000000002", "part-0.parquet"))
    sound = path.read_bytes()
    path.unlink()
    async with Rig(lake, record("hot", webhook("one")), make=script) as rig:
        await rig.until(lambda: len(script.accepted) == 2)
        write_batch(lake, 4, [match("hot", seq=4)])
        await rig.until(lambda: len(script.accepted) == 3)
        path.write_bytes(sound)
        await rig.until(lambda: len(script.accepted) == 4)
        assert [one[2] for one in script.accepted] == [1, 3, 4, 2]
        assert rig.state("hot", "one").unread == rig.table.read_errors == []
        assert rig.state("hot", "one").delivered == 4


async def test_what_is_passed_is_bounded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamplighter.cloud_sync.fleet.delivery.worker.UNREAD_MAX", 2)
    script = Scripted()
    for number in range(1, 6):
        write_batch(lake, number, [match("hot", seq=number)])
    for number in (1, 2, 4):
        Path(lake.path("subscriptions", "matches", f"batch={number:012d}", "part-0.parquet")).unlink()
    rig = Rig(lake, record("hot", webhook("one")), make=script)
    *files, passed, other, held = sorted(await rig.delivery.once(), key=lambda line: "sink" in line)
    assert [number for line in files for number in ("1", "2", "4") if f"batch=00000000000{number}" in line] == [
        "1",
        "2",
        "4",
    ]
    assert "not delivered" in passed
    assert [other, held] == [f"subscription hot, sink one: matches of batch 00000000000{n} not read" for n in (1, 2)]
    assert [one[2] for one in script.accepted] == [3]
    rig.close()


def test_states_that_are_damaged_are_none(lake: Lake) -> None:
    lake.write(b"{", "subscriptions", "delivery.json")
    assert read_states(lake) is None


async def test_once_ends_at_the_last_batch_and_tells_of_dead_letters(lake: Lake) -> None:
    script, error = Scripted(), UndeliveredError("refused", permanent=True)
    script.fails["a"] = error
    write_batch(lake, 1, [match("hot", seq=seq) for seq in range(2)])
    rig = Rig(lake, record("hot", webhook("a"), webhook("b")), make=script)
    waiting = rig.table.waiting
    # A matcher that goes on does not keep it busy.
    rig.table.waiting = lambda *place: (write_batch(lake, 2, [match("hot", seq=9)]), waiting(*place))[1]
    assert await rig.delivery.once() == ["subscription hot, sink a: 2 notifications to the dead letters"]
    assert [one for one in script.accepted if one[0] == "b"] == [("b", "gw-1", 0), ("b", "gw-1", 1)]
    rig.close()
    assert [one.position.batch for one in rig.cursors.all()] == ["000000000001"] * 2
    again = Rig(lake, record("hot", webhook("a"), webhook("b")), make=script)
    script.fails = {"b": UpstreamError("away")}
    assert await again.delivery.once() == ["subscription hot, sink b: away; 1 notification not delivered"]
    again.close()
    write_batch(lake, 3, [match("cold")])
    script.fails.clear()
    last = Rig(lake, record("hot", webhook("a"), webhook("b")), make=script)
    assert await last.delivery.once() == []
    assert {one.position.batch for one in last.cursors.all()} == {"000000000003"}
    last.close()
