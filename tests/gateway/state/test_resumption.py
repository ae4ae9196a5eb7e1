"""Subscriptions that outlive their connections: the data structure, and recovery after a start."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamplighter.engine.change_log import Followed
from lamplighter.engine.errors import (
    ChangeLogError,
    GatewayError,
    LimitExceededError,
    MalformedRequestError,
)
from lamplighter.engine.protocol import Results, Resume
from lamplighter.engine.terms import Bag
from lamplighter.gateway.loop.re_evaluations import ReEvaluations
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.settings import ResumeSettings, Settings
from lamplighter.gateway.state.resumption import (
    AttachedSubscription,
    MissedNotification,
    ResumableSubscriptions,
    ResumeFailure,
    Retained,
    depends_on_order,
    outlives_process,
    public_spuid,
)
from lamplighter.gateway.systemd import fields
from tests.support.event_loops import until
from tests.support.gateway_parts import FakeClock, idle, lines, put_lines, records, recovered_runner, segments, update
from tests.support.recording_sink import RecordingSink
from tests.support.tables import each_row

MINUTE_US = 60_000_000
ALL = "SELECT ?s { ?s <http://p> 1 }"


class Client:
    """Whoever is attached."""


def followed(spuid: str = "sepa://subscription/one", **members: Any) -> Followed:
    return Followed(**{"spuid": spuid, "sparql": ALL, "keep_us": MINUTE_US, **members})


def resumables(**members: Any) -> ResumableSubscriptions[Client]:
    return ResumableSubscriptions(msgspec.convert(members, ResumeSettings))


def change(number: int, length: int = 0) -> Results:
    """The results of a notification, recognisable by its number."""
    row = f"<http://{number}{'x' * length}>"
    return Results(Bag(("s",), [(row,)]), Bag(("s",)))


def numbers(missed: Iterable[MissedNotification]) -> list[tuple[int, int]]:
    """Of each notification: its sequence, and which one `change` made it."""
    found = []
    for one in missed:
        [row] = msgspec.json.decode(b"{%b}" % one.members)["addedResults"]["results"]["bindings"]
        found.append((one.sequence, int(row["s"]["value"].removeprefix("http://").rstrip("x"))))
    return found


def begun(count: int = 0, client: Client | None = None, **settings: Any) -> ResumableSubscriptions[Client]:
    """One subscription with some notifications."""
    found = resumables(**settings)
    found.begin(followed(), "handle", client)
    for number in range(1, count + 1):
        assert found.deliver("handle", change(number)) == (followed().spuid, number, client)
    return found


def attached(found: AttachedSubscription[Client] | ResumeFailure) -> AttachedSubscription[Client]:
    assert isinstance(found, AttachedSubscription), found
    return found


def reset(found: AttachedSubscription[Client] | ResumeFailure) -> ResumeFailure:
    assert isinstance(found, ResumeFailure), found
    return found


def test_whoever_comes_back_gets_exactly_what_followed() -> None:
    found, old, new = begun(5, old := Client()), old, Client()
    found.detach(followed().spuid, old, 0)
    assert found.deliver("handle", change(6)) == (followed().spuid, 6, None)
    back = attached(found.attach(followed(), 3, new))
    assert (back.sequence, numbers(back.missed), back.displaced) == (6, [(4, 4), (5, 5), (6, 6)], None)
    assert found.deliver("handle", change(7)) == (followed().spuid, 7, new)


def test_what_was_missed_names_its_commits_if_asked_also_after_a_snapshot() -> None:
    found = resumables()
    found.begin(followed(), "handle", Client())
    for number, commit in ((1, (1, 7)), (2, None), (3, (2, 1))):
        results = change(number)
        found.deliver("handle", Results(results.added, results.removed, commit))
    again = resumables()
    again.restore(found.state()[0], "handle")
    for kept in (found, again):
        back = attached(kept.attach(followed(), 1, Client()))
        assert [missed.commit for missed in back.missed] == [None, (2, 1)]
    earlier = resumables()
    earlier.restore(msgspec.structs.replace(found.state()[0], commits=()), "handle")
    [missed] = attached(earlier.attach(followed(), 2, Client())).missed
    assert (missed.sequence, missed.commit) == (3, None)


def test_whoever_has_everything_gets_nothing() -> None:
    back = attached(begun(5).attach(followed(), 5, Client()))
    assert (back.sequence, list(back.missed), back.bytes) == (5, [], 0)


def test_what_is_delivered_to_others_is_none_of_its_business() -> None:
    assert begun().deliver("another", change(1)) is None


def test_what_the_client_has_is_not_retained_any_longer() -> None:
    found = begun(5)
    before = found.totals()["retained_bytes"]
    attached(found.attach(followed(), 3, Client()))
    assert found.totals()["retained_bytes"] == before * 2 // 5
    assert "no longer retained" in reset(found.attach(followed(), 2, Client())).reason
    assert numbers(attached(found.attach(followed(), 4, Client())).missed) == [(5, 5)]


@each_row(
    ("asked", "reason"),
    [
        ({"spuid": "sepa://subscription/two"}, "no subscription of this client"),
        ({"identity": "somebody"}, "no subscription of this client"),
        ({"sparql": ALL + " "}, "another query"),
        ({"default_graphs": ("<http://g>",)}, "other graphs"),
        ({"named_graphs": ()}, "other graphs"),
    ],
)
def test_only_the_owner_goes_on_and_only_with_the_same_query(asked: dict[str, Any], reason: str) -> None:
    found = begun(2)
    refused = reset(found.attach(followed(**asked), 1, Client()))
    assert reason in refused.reason
    assert not refused.outdated
    assert numbers(attached(found.attach(followed(), 1, Client())).missed) == [(2, 2)]


def test_the_keep_of_a_later_request_does_not_matter() -> None:
    found = begun(1)
    client = Client()
    attached(found.attach(followed(keep_us=1), 0, client))
    found.detach(followed().spuid, client, 0)
    assert found.end_expired(MINUTE_US - 1) == []
    assert found.end_expired(MINUTE_US) == [followed().spuid]


def test_a_sequence_that_was_never_given_is_no_place_to_go_on_from() -> None:
    found = begun(2)
    refused = reset(found.attach(followed(), 3, Client()))
    assert "sequence 2" in refused.reason
    assert refused.outdated


def test_an_attached_one_is_taken_over_and_its_old_connection_does_not_detach_it() -> None:
    old, new = Client(), Client()
    found = begun(1, old)
    assert attached(found.attach(followed(), 1, new)).displaced is old
    found.detach(followed().spuid, old, 0)
    assert found.is_attached(followed().spuid, new)
    assert not found.is_attached(followed().spuid, old)
    assert found.end_expired(10 * MINUTE_US) == []


def test_it_is_ended_by_whom_it_belongs_to() -> None:
    client, found = Client(), resumables()
    found.begin(followed(identity="me"), "handle", client)
    spuid = followed().spuid
    assert found.may_end(spuid, client, "me")
    assert not found.may_end(spuid, Client(), "me")  # another connection has it
    found.detach(spuid, client, 0)
    assert found.may_end(spuid, Client(), "me")
    assert not found.may_end(spuid, Client(), None)
    assert not found.may_end("unknown", client, "me")
    assert found.end(spuid) == "handle"
    assert found.end(spuid) is None
    assert found.deliver("handle", change(1)) is None
    assert (len(found), found.totals()["retained_bytes"]) == (0, 0)


# --- time -------------------------------------------------------------------------------------------


def test_it_waits_for_its_keep_from_when_the_client_went_away() -> None:
    client = Client()
    found = begun(1, client)
    assert found.end_expired(100 * MINUTE_US) == []
    found.detach(followed().spuid, client, 5)
    assert found.end_expired(5 + MINUTE_US - 1) == []
    assert found.end_expired(5 + MINUTE_US) == [followed().spuid]
    attached(found.attach(followed(), 1, client))
    assert found.end_expired(100 * MINUTE_US) == []


def test_after_a_start_all_of_them_wait_from_then_on() -> None:
    found = begun(1)
    assert found.end_expired(100 * MINUTE_US) == []  # the replay goes on
    found.detach_all(7)
    assert found.end_expired(7 + MINUTE_US - 1) == []
    assert found.end_expired(7 + MINUTE_US) == [followed().spuid]


@each_row(
    ("asked", "granted"),
    [
        ("PT10M", (600_000_000, "PT10M")),
        ("PT0S", (0, "PT0S")),
        ("PT1H", (3_600_000_000, "PT1H")),
        ("PT1H0.001S", (3_600_000_000, "PT1H")),
        ("P365D", (3_600_000_000, "PT1H")),
    ],
)
def test_keep_is_granted_up_to_the_limit(asked: str, granted: tuple[int, str]) -> None:
    assert resumables(keep_s_max=3600).grant(asked) == granted


@each_row("keep", ["", "soon", "10", "P1Y", "-PT1S"])
def test_a_keep_that_is_no_duration_is_refused(keep: str) -> None:
    with pytest.raises(MalformedRequestError, match=r"resume\.keep: "):
        resumables().grant(keep)


# --- bounds -----------------------------------------------------------------------------------------


def test_there_are_only_so_many() -> None:
    found = resumables(subscriptions_max=2)
    for number in range(2):
        found.check_room("")
        found.begin(followed(str(number)), str(number))
    with pytest.raises(LimitExceededError, match=r"resume\.subscriptions_max = 2"):
        found.check_room("")
    found.end("0")
    found.check_room("")


def test_the_oldest_notifications_of_one_go_first_and_there_is_no_gap_in_silence() -> None:
    found = begun(100, outbox_bytes_max=2000)
    assert 0 < found.totals()["retained_bytes"] <= 2000
    sequence = 100
    while not isinstance(back := found.resumable(followed(), sequence), ResumeFailure):
        sequence -= 1
    assert back.reason == f"notifications up to {sequence + 1} are no longer retained"
    assert numbers(attached(found.attach(followed(), sequence + 1, Client())).missed) == [
        (number, number) for number in range(sequence + 2, 101)
    ]


def test_one_that_is_larger_than_the_limit_is_not_retained_but_counted() -> None:
    found = begun(1, outbox_bytes_max=1000)
    assert found.deliver("handle", change(2, 2000)) == (followed().spuid, 2, None)
    assert found.totals()["retained_bytes"] == 0
    assert "no longer retained" in reset(found.attach(followed(), 1, Client())).reason
    assert list(attached(found.attach(followed(), 2, Client())).missed) == []


def test_as_many_bytes_are_retained_as_the_limit_says() -> None:
    size = begun(3).totals()["retained_bytes"]
    for limit, retained in ((size, 3), (size - 1, 2)):
        assert len(begun(3, outbox_bytes_max=limit).state()[0].notifications) == retained


def test_what_no_client_can_go_on_with_any_more_is_ended_before_its_time() -> None:
    client = Client()
    found = begun(3, client, outbox_bytes_max=1000)
    found.detach(followed().spuid, client, 0)
    number = 3
    while not isinstance(found.resumable(followed(), 3), ResumeFailure):
        assert found.end_expired(1) == []
        number += 1
        found.deliver("handle", change(number))
    assert found.end_expired(1) == [followed().spuid]
    assert reset(found.attach(followed(), 3, Client())).outdated


def test_together_they_retain_only_so_much_and_those_who_are_away_are_spared() -> None:
    found, here = resumables(bytes_max=20_000), Client()
    for name, client in (("away", None), ("here", here)):
        found.begin(followed(name), name, client)
    found.detach_all(0)
    attached(found.attach(followed("here"), 0, here))
    for number in range(1, 71):
        found.deliver("away", change(number))
    for number in range(1, 1001):
        found.deliver("here", change(number))
        assert found.totals()["retained_bytes"] <= 20_000
    assert len(list(attached(found.attach(followed("away"), 0, Client())).missed)) == 70
    assert attached(found.attach(followed("here"), 1000, here)).sequence == 1000


# --- snapshots and starts ---------------------------------------------------------------------------


def test_a_snapshot_holds_what_is_needed_to_go_on() -> None:
    found = resumables()
    found.begin(followed(identity="me", default_graphs=("<http://g>",), named_graphs=()), "handle", Client())
    found.begin(followed("two"), "second")
    for number in range(1, 4):
        found.deliver("handle", change(number))
    attached(found.attach(followed(identity="me", default_graphs=("<http://g>",), named_graphs=()), 1, Client()))
    text = msgspec.json.encode(found.state())
    again = resumables()
    for number, retained in enumerate(msgspec.json.decode(text, type=list[Retained])):
        again.restore(retained, f"new {number}")
    assert again.state() == found.state()
    assert again.totals() == {**found.totals(), "away": 2}
    assert again.deliver("new 0", change(4)) == (followed().spuid, 4, None)
    asked = followed(identity="me", default_graphs=("<http://g>",), named_graphs=())
    assert numbers(attached(again.attach(asked, 2, Client())).missed) == [(3, 3), (4, 4)]
    assert attached(again.attach(followed("two"), 0, Client())).sequence == 0


def test_all_can_be_ended_at_once() -> None:
    found = resumables()
    for name in "ab":
        found.begin(followed(name), f"handle {name}")
        found.deliver(f"handle {name}", change(1))
    assert found.end_all() == [("a", "handle a"), ("b", "handle b")]
    assert found.totals() == {"subscriptions": 0, "away": 0, "retained_bytes": 0}
    assert "no subscription" in reset(found.attach(followed("a"), 1, Client())).reason


# --- queries ----------------------------------------------------------------------------------------


@each_row(
    ("text", "outlives"),
    [
        ("SELECT ?min { ?min <http://max> 'LIMIT' } # OFFSET", True),
        ("SELECT (COUNT(?s) AS ?n) { ?s ?p ?o } GROUP BY ?p", True),
        ("SELECT ?s { ?s ?p ?o } ORDER BY ?s", True),
        ("SELECT ?s { ?s ?p ?o } LIMIT 5", False),
        ("SELECT ?s { ?s ?p ?o } offset 5", False),
        ("SELECT * { { SELECT ?s { ?s ?p ?o } LIMIT 1 } }", False),
        ("SELECT (SUM(?o) AS ?n) { ?s ?p ?o }", False),
        ("SELECT (Group_Concat(?o) AS ?n) { ?s ?p ?o }", False),
        ("SELECT ?p { ?s ?p ?o } GROUP BY ?p HAVING (MAX(?o) > 1)", False),
    ],
)
def test_what_depends_on_the_order_of_solutions_outlives_the_process_only_by_a_plan(text: str, outlives: bool) -> None:
    assert depends_on_order(text) != outlives
    assert outlives_process(followed(sparql=text)) == outlives
    assert outlives_process(followed(sparql=text, planned=True))


def test_others_see_only_the_beginning_of_a_spuid() -> None:
    spuid = "sepa://subscription/0123456789abcdef0123456789abcdef"
    assert public_spuid(spuid) == "sepa://subscription/01234567…"


# --- any history ------------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(0, 1), st.integers(0, 400)),
        st.tuples(st.just("leave"), st.integers(0, 1)),
        st.tuples(st.just("return"), st.integers(0, 1), st.integers(0, 3)),
        st.tuples(st.just("restart")),
    ),
    max_size=80,
)


@given(steps)
def test_a_client_is_told_each_notification_once_in_order_or_begins_anew(history: list[tuple[Any, ...]]) -> None:
    """A client keeps what it got, loses some of what was on its way, and comes back."""
    settings = {"outbox_bytes_max": 1500, "bytes_max": 2000}
    found = resumables(**settings)
    names = ["a", "b"]
    clients: list[Client | None] = [Client(), Client()]
    told: list[list[int]] = [[], []]
    total: Counter[str] = Counter()
    for name, client in zip(names, clients, strict=True):
        found.begin(followed(name), name, client)
    for step in history:
        kind, place = step[0], (step[1] if len(step) > 1 else 0)
        name, client = names[place], clients[place]
        if kind == "deliver":
            total[name] += 1
            delivered = found.deliver(name, change(total[name], step[2]))
            assert delivered == (name, total[name], client)
            if client is not None:
                told[place].append(total[name])
        elif kind == "leave" and client is not None:
            found.detach(name, client, 0)
            clients[place] = None
        elif kind == "return":
            lost = step[2]
            told[place] = told[place][: len(told[place]) - lost] if lost else told[place]
            back = found.attach(followed(name), len(told[place]), new := Client())
            if isinstance(back, ResumeFailure):
                assert "no longer retained" in back.reason
                assert found.end(name) == name
                found.begin(followed(name), name, new)
                told[place] = []
                total[name] = 0
            else:
                assert back.sequence == total[name]
                missed = numbers(back.missed)
                assert missed == [(number, number) for number in range(len(told[place]) + 1, total[name] + 1)]
                told[place] += [number for number, _ in missed]
            clients[place] = new
        elif kind == "restart":
            state = msgspec.json.encode(found.state())
            found = resumables(**settings)
            for retained in msgspec.json.decode(state, type=list[Retained]):
                found.restore(retained, retained.followed.spuid)
            found.detach_all(0)
            clients = [None, None]
        assert found.totals()["retained_bytes"] <= 2000
        for place, numbers_told in enumerate(told):
            assert numbers_told == list(range(1, len(numbers_told) + 1)), place


# --- starts of the gateway --------------------------------------------------------------------------


TEXT = "SELECT ?s ?o { ?s <http://p> ?o }"


async def begin(runner: Runner) -> tuple[str, RecordingSink]:
    sink = RecordingSink()
    spuid = await runner.subscribe(TEXT, sink, None, None, resume=Resume("PT10M"))
    assert sink.keep == "PT10M"
    return spuid, sink


async def go_on(runner: Runner, spuid: str, sequence: int) -> RecordingSink:
    sink = RecordingSink()
    await runner.subscribe(TEXT, sink, None, None, resume=Resume("PT10M", spuid, sequence))
    return sink


def settings(durability: str = "fsync", **tables: dict[str, object]) -> Settings:
    return msgspec.convert({"gateway": {"durability": durability}, **tables}, Settings)


async def change_something(runner: Runner, number: int) -> None:
    """An update that some notifications have two rows of, some none."""
    if number % 5 == 4:
        await update(runner, f"INSERT DATA {{ <http://{number}> <http://other> {number} }}")
    else:
        await update(
            runner,
            "DELETE { ?s <http://p> ?o } INSERT { ?s <http://p> ?n } WHERE { ?s <http://p> ?o BIND(?o + 1 AS ?n) } ; "
            f"INSERT DATA {{ <http://{number % 3}> <http://p> {number} }}",
        )


@pytest.mark.parametrize("snapshot_at", [None, 3, 9, 17])
async def test_after_any_start_the_same_notifications_have_the_same_numbers(
    tmp_path: Path, snapshot_at: int | None
) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, settings=settings()) as runner:
        await change_something(runner, 0)
        spuid, sink = await begin(runner)
        for number in range(1, 20):
            await change_something(runner, number)
            if number == snapshot_at:
                await runner.log_keeper.take_snapshot()
    told = list(sink.told)
    assert [sequence for sequence, _, _ in told] == list(range(1, len(told) + 1))
    assert len(told) > 10
    for start in range(3):
        async with recovered_runner(tmp_path, clock, settings=settings()) as runner:
            back = await go_on(runner, spuid, start)
            assert (back.reset, back.told) == (None, told[start:])
            await change_something(runner, 20 + start)
            assert back.told[-1][0] == len(told) + 1
            told.append(back.told[-1])
        clock.reboot(f"boot-{start + 2}")


@pytest.mark.parametrize("durability", ["fsync", "interval", "off"])
@pytest.mark.parametrize("snapshot", [False, True])
async def test_what_clients_may_have_seen_and_the_log_may_have_lost_begins_anew(
    tmp_path: Path, durability: str, snapshot: bool
) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, settings=settings(durability)) as runner:
        spuid, _ = await begin(runner)
        await change_something(runner, 0)
        if snapshot:
            await runner.log_keeper.take_snapshot()
    # Only the process ended.
    async with recovered_runner(tmp_path, clock, settings=settings(durability)) as runner:
        assert (await go_on(runner, spuid, 1)).reset is None
    clock.reboot("boot-2")
    for _ in range(2):
        async with recovered_runner(tmp_path, clock, settings=settings(durability)) as runner:
            await change_something(runner, 1)
            back = await go_on(runner, spuid, 1)
            assert (back.reset is None) == (durability == "fsync")
            await idle(runner)
            assert runner.figures.status()["resumable"]["subscriptions"] == 1
            if back.reset is not None:
                return


async def test_after_damage_to_the_log_they_begin_anew_at_this_start_and_the_next(tmp_path: Path) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, settings=settings()) as runner:
        spuid, _ = await begin(runner)
        for number in range(4):
            await change_something(runner, number)
    good = lines(segments(tmp_path)[0])
    put_lines(tmp_path, [*good[:2], good[2].replace(b"commit", b"c0mmit"), *good[3:]])
    for _ in range(2):
        async with recovered_runner(tmp_path, clock, settings=settings()) as runner:
            assert runner.figures.status()["resumable"]["subscriptions"] == 0
            await change_something(runner, 5)
    async with recovered_runner(tmp_path, clock, settings=settings()) as runner:
        assert "no subscription" in str((await go_on(runner, spuid, 1)).reset)


async def test_it_waits_for_its_client_across_starts_and_its_end_is_on_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, settings=settings()) as runner:
        spuid, _ = await begin(runner)
    clock.advance(86_400)
    async with recovered_runner(tmp_path, clock, settings=settings()) as runner:
        runner._subscribers.expire()
        assert runner.figures.status()["resumable"] == {"subscriptions": 1, "away": 1, "retained_bytes": 0}
        clock.advance(600)
        runner._subscribers.expire()
        await idle(runner)
        assert runner.figures.status()["subscriptions"] == 0
    assert [(record.type, record.unsubscribe) for record in records(tmp_path)][-1] == ("unsubscribe", spuid)
    async with recovered_runner(tmp_path, clock, settings=settings()) as runner:
        assert runner.figures.status()["subscriptions"] == 0
    [line] = [record for record in caplog.records if "subscription expired" in record.getMessage()]
    found = fields(line)["SUBSCRIPTION"]
    assert public_spuid(spuid) == f"sepa://subscription/{found}…", "what lists of subscriptions show"
    assert found.isalnum() and len(found) == 8, "so that nothing has to be quoted; and the whole is a secret"


async def test_it_ends_when_its_keep_is_over_though_nobody_asks_for_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamplighter.gateway.loop.runner.PAUSE_S", 0.01)
    monkeypatch.setattr("lamplighter.gateway.loop.upkeep.PAUSE_S", 0.01)
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock, settings=settings()) as runner:
        spuid, sink = await begin(runner)
        runner.disconnect(sink, [spuid])
        await idle(runner)
        clock.advance(600)
        await until(lambda: runner.figures.status()["resumable"]["subscriptions"] == 0)


async def test_one_that_is_ended_for_its_cost_stays_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Costly(RecordingSink):
        error: GatewayError | None = None

        def ended(self, spuid: str, error: GatewayError) -> None:
            self.error = error

    async with recovered_runner(tmp_path, settings=settings()) as runner:
        sink = Costly()
        spuid = await runner.subscribe(
            "SELECT ?s ?o { ?s !<http://none> ?o }", sink, None, None, resume=Resume("PT10M")
        )
        monkeypatch.setattr(ReEvaluations, "left_ms", 0)
        await change_something(runner, 0)
        assert isinstance(sink.error, LimitExceededError)
        assert (runner.figures.status()["subscriptions"], runner.counters.ended) == (0, 1)
        [line] = [record for record in caplog.records if "subscription ended" in record.getMessage()]
        assert public_spuid(spuid) == f"sepa://subscription/{fields(line)['SUBSCRIPTION']}…"
        assert "PEER" in fields(line) and "CLIENT" not in fields(line)  # which is the name of a registered one
    assert [record.type for record in records(tmp_path)] == ["subscribe", "commit", "unsubscribe"]
    async with recovered_runner(tmp_path, settings=settings()) as runner:
        assert "no subscription" in str((await go_on(runner, spuid, 1)).reset)


async def test_one_that_cannot_be_recorded_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with recovered_runner(tmp_path, settings=settings()) as runner:
        spuid, sink = await begin(runner)

        def full(file: int, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "no space")

        monkeypatch.setattr(runner._log.disk, "write", full)
        with pytest.raises(ChangeLogError):
            await begin(runner)
        with pytest.raises(ChangeLogError):
            await runner.unsubscribe(spuid, sink)
        assert runner.figures.status()["subscriptions"] == runner._engine.subscription_count == 1
        monkeypatch.undo()
        await change_something(runner, 0)
        assert [sequence for sequence, _, _ in sink.told] == [1]
        await runner.unsubscribe(spuid, sink)
        assert runner.figures.status()["subscriptions"] == runner._engine.subscription_count == 0
