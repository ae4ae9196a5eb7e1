"""What a dry run found counts in its turn, whatever others commit in between: the effect is that of the turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyoxigraph as ox
import pytest

from lamplighter.engine.core import Engine
from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.errors import GatewayError, LimitExceededError
from lamplighter.engine.matching.subscriptions import Subscriptions
from lamplighter.engine.store import quad_store
from lamplighter.engine.terms import Bag
from lamplighter.gateway.loop.queue import OrderedLane, Queue
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.loop.updates import UpdateCall
from lamplighter.gateway.workers.ad_hoc import Reader
from lamplighter.gateway.workers.dry_runs import ATTEMPTS_MAX, DryRun, DryRuns
from lamplighter.gateway.workers.recent_changes import RecentChanges
from tests.support.amounts import Amounts
from tests.support.gateway_parts import CLIENT, FakeClock, recovered_runner, update
from tests.support.recording_sink import RecordingSink

DATA = (
    "INSERT DATA { <a:1> <a:p> <a:2>, 1 . <a:2> <a:p> <a:3> ; <a:q> 2 . <a:3> <a:q> <a:1>, 3 . [] <a:p> <a:1> ; <a:q> 1"
    " GRAPH <a:g> { <a:1> <a:p> <a:3> . <a:2> <a:r> <a:1> } GRAPH <a:h> { <a:1> <a:q> <a:2> } } ; CREATE GRAPH <a:e>"
)
WHERES = (
    "?s <a:p> ?o . ?o <a:q> ?x",
    "?s <a:p>+ ?o",
    "?s <a:p>* ?o . ?s <a:q> ?x",
    "<a:9> <a:p>* ?s",
    "<a:1> !(<a:p>|^<a:r>) ?s",
    "?s <a:p> ?o OPTIONAL { ?o <a:q> ?x }",
    "?s <a:p> ?o MINUS { ?s <a:q> ?x }",
    "?s <a:p> ?o FILTER NOT EXISTS { ?o <a:q> ?s }",
    "GRAPH ?o { ?s <a:p> ?x }",
    "GRAPH <a:g> { ?s <a:p> ?o } ?s <a:q> ?x",
    "GRAPH ?s {}",
    "?s ?x <a:1>",
    "?s <a:q> 1",
    "{ SELECT ?s (COUNT(*) AS ?o) { ?s <a:p> ?x } GROUP BY ?s }",
    "?s <a:p> ?o BIND(BNODE() AS ?x)",
    "VALUES ?s { <a:1> <a:4> } ?s <a:p> ?o",
    "?s <a:made> ?o",
)
TEMPLATES = (
    "INSERT { ?s <a:made> ?o }",
    "INSERT { ?s <a:made> [ <a:p> ?x ] }",
    "INSERT { GRAPH <a:g> { ?s <a:q> ?o } }",
    "DELETE { ?s <a:p> ?o } INSERT { ?s <a:q> ?o }",
    "DELETE { ?s <a:q> ?x }",
)
OTHERS = (
    "INSERT DATA { <a:2> <a:q> 7 }",
    "INSERT DATA { <a:9> <a:z> <a:9> }",
    "INSERT DATA { <a:4> <a:p> <a:1> }",
    "DELETE DATA { <a:1> <a:p> <a:2> }",
    "DELETE DATA { <a:3> <a:q> <a:1>, 3 }",
    "INSERT DATA { GRAPH <a:h> { <a:4> <a:p> <a:3> } }",
    "INSERT DATA { GRAPH <a:new> { <a:4> <a:z> <a:3> } }",
    "CREATE SILENT GRAPH <a:f>",
    "DROP SILENT GRAPH <a:e>",
    "DROP SILENT GRAPH <a:g>",
    "CLEAR DEFAULT",
    "DELETE DATA { <a:no> <a:no> 1 }",
)
DATASETS = ("", "", "", "USING <a:g> ", "USING <a:g> USING NAMED <a:h> ", "WITH <a:g> ")


def requests(random: Random) -> str:
    """One to three operations."""

    def operation() -> str:
        if random.random() < 0.1:
            return random.choice(("COPY <a:g> TO DEFAULT", "ADD <a:h> TO <a:g>", "INSERT DATA { <a:5> <a:p> [] }"))
        chosen = random.choice(DATASETS)
        template, where = random.choice(TEMPLATES), f"WHERE {{ {random.choice(WHERES)} }}"
        return f"{chosen}{template} {where}" if chosen.startswith("WITH") else f"{template} {chosen}{where}"

    return " ; ".join(operation() for _ in range(random.choice((1, 1, 2, 3))))


def quads(dump: bytes) -> set[ox.Quad]:
    found = ox.Dataset(ox.parse(dump, format=ox.RdfFormat.N_QUADS))
    found.canonicalize(ox.CanonicalizationAlgorithm.UNSTABLE)
    return set(found)


@contextmanager
def between(monkeypatch: pytest.MonkeyPatch, commit: Callable[[], Any]) -> Iterator[Counter[str]]:
    """Something is committed behind each dry run, before the turn. Counts dry runs, evaluations in the loop, and forks
    for which others wait. Everything is tried."""
    seen = Counter[str]()
    perform, native, try_here = DryRun.perform, quad_store.query_native, Reader.try_here

    async def tried(self: DryRun, client: str = "") -> None:
        await perform(self, client)
        seen["dry runs"] += 1
        await commit()

    def evaluated(*arguments: Any) -> Any:
        seen["in the loop"] += 1
        return native(*arguments)

    def here(*arguments: Any, **more: Any) -> bytes:
        seen["waited for"] += 1
        return try_here(*arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(DryRuns, "risky", lambda self, text: True)
        patched.setattr(DryRun, "perform", tried)
        patched.setattr(quad_store, "query_native", evaluated)
        patched.setattr(Reader, "try_here", here)
        yield seen


async def test_an_update_has_the_effect_of_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amounts: Amounts
) -> None:
    """Random ones, with random commits in between, compared with one after the other."""
    random, total = Random(36), Counter[str]()
    for number in range(amounts.of(300)):
        text, others = requests(random), random.sample(OTHERS, random.choice((0, 1, 1, 2)))
        expected = Engine()
        expected.update(DATA)

        async with recovered_runner(tmp_path / str(number)) as runner:

            async def commit(runner: Runner = runner, others: list[str] = others, expected: Engine = expected) -> None:
                while others:
                    expected.update(other := others.pop())
                    await update(runner, other)

            await update(runner, DATA)
            with between(monkeypatch, commit) as seen:
                outcome: str | None = None
                try:
                    await update(runner, text)
                except GatewayError as error:
                    outcome = error.code
            total += seen
            try:
                expected.update(text)
            except GatewayError as error:
                assert outcome == error.code, text
            else:
                assert outcome is None, text
            assert quads(runner._engine.dump()) == quads(expected.dump()), (text, others)
    assert total["in the loop"] == total["waited for"] == 0
    assert amounts.of(300) * 3 > total["dry runs"] > amounts.of(300), "some hold and some do not"


async def test_a_first_result_is_that_of_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amounts: Amounts
) -> None:
    """By the store, with a commit in between."""
    monkeypatch.setattr(Subscriptions, "_left_to_store", lambda self, parsed: "the test")
    total = Counter[str]()
    for number, where in enumerate(amounts.some([where for where in WHERES if "BNODE" not in where])):
        for other in amounts.some(OTHERS):
            async with recovered_runner(tmp_path / f"{number}-{OTHERS.index(other)}") as runner:
                left = [other]

                async def commit(runner: Runner = runner, left: list[str] = left) -> None:
                    while left:
                        await update(runner, left.pop())

                await update(runner, DATA)
                ear, text = RecordingSink(), f"SELECT ?s {{ {{ {where} }} }}"
                with between(monkeypatch, commit) as seen:
                    await runner.subscribe(text, ear, None, None)
                total += seen
                assert ear.first == runner._engine.query(text).value, (text, other)
    assert total["dry runs"] and not total["in the loop"] and not total["waited for"]


@pytest.mark.parametrize("operation", ["COPY <a:g> TO <a:k>", "ADD <a:g> TO <a:k>", "MOVE <a:g> TO <a:k>"])
async def test_whole_graphs_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    """No WHERE names what is copied."""
    async with recovered_runner(tmp_path) as runner:
        left = ["INSERT DATA { GRAPH <a:g> { <a:8> <a:p> <a:9> } }"]

        async def commit() -> None:
            while left:
                await update(runner, left.pop())

        await update(runner, DATA)
        with between(monkeypatch, commit) as seen:
            await update(runner, f"{operation} ; INSERT {{ ?s <a:made> ?o }} WHERE {{ GRAPH <a:k> {{ ?s <a:p> ?o }} }}")
        assert seen == {"dry runs": 2}
        assert runner._engine.query("ASK { <a:8> <a:made> <a:9> }").value is True


async def test_what_is_committed_beside_a_fork_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with recovered_runner(tmp_path) as runner:
        left, trial = ["INSERT DATA { <a:7> <a:q> 7 }"], Reader.trial

        async def beside(*arguments: Any, **more: Any) -> bytes:
            found = await trial(*arguments, **more)
            while left:
                await update(runner, left.pop())
            return found

        async def nothing() -> None:
            pass

        await update(runner, DATA)
        with between(monkeypatch, nothing):
            monkeypatch.setattr(Reader, "trial", beside)
            await update(runner, "INSERT { ?s <a:made> ?o } WHERE { ?s <a:q> ?o }")
        assert runner._engine.query("ASK { <a:7> <a:made> 7 }").value is True


async def test_blank_nodes_of_two_forks_are_different(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both begin with the random numbers of their parent."""
    async with recovered_runner(tmp_path) as runner:

        async def commit() -> None:
            pass

        await update(runner, DATA)
        with between(monkeypatch, commit) as seen:
            for number in range(2):
                await update(runner, f"INSERT {{ ?x <a:no> {number} }} WHERE {{ <a:1> <a:p> 1 BIND(BNODE() AS ?x) }}")
        assert seen == {"dry runs": 2}
        assert len(runner._engine.query("SELECT DISTINCT ?x { ?x <a:no> ?number }")) == 2


async def test_commits_are_noted_only_while_a_request_may_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = 0
    note = RecentChanges.note

    def counted(changes: RecentChanges, delta: QuadDelta) -> None:
        nonlocal noted
        noted += bool(changes.watched)
        note(changes, delta)

    monkeypatch.setattr(RecentChanges, "note", counted)
    async with recovered_runner(tmp_path) as runner:

        async def commit() -> None:
            await update(runner, f"INSERT DATA {{ <a:9> <a:z> {noted} }}")

        await update(runner, DATA)
        assert not noted
        with between(monkeypatch, commit):
            await update(runner, "INSERT { ?s <a:made> ?o } WHERE { ?s <a:q> ?o . ?s ?p ?x }")
        assert noted > 1, "also the update itself, whose solutions are still there"
        before = noted
        await update(runner, "INSERT DATA { <a:9> <a:z> 99 }")
        assert noted == before


async def test_what_others_touch_all_the_time_is_evaluated_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a part of the limit, for which the others wait."""
    limits: list[int | None] = []
    bounds_of = Reader._bounds_of

    def noted(*arguments: Any, **more: Any) -> Any:
        limits.append((found := bounds_of(*arguments, **more)).cpu_ms_max)
        return found

    monkeypatch.setattr(Reader, "_bounds_of", noted)
    async with recovered_runner(tmp_path) as runner:
        numbers = iter(range(100))

        async def commit() -> None:
            await update(runner, f"INSERT DATA {{ <a:8> <a:q> {next(numbers)} }}")

        await update(runner, DATA)
        with between(monkeypatch, commit) as seen:
            await update(runner, "INSERT { ?s <a:made> ?o } WHERE { ?s <a:q> ?o }")
        assert seen == {"dry runs": 1 + ATTEMPTS_MAX, "waited for": 1}
        assert limits == [500] * (1 + ATTEMPTS_MAX) + [200]
        made = runner._engine.query("SELECT ?o { <a:8> <a:made> ?o }").value
        assert isinstance(made, Bag) and len(made) == 1 + ATTEMPTS_MAX

        monkeypatch.setattr(Reader, "try_here", too_late)
        with (
            between(monkeypatch, commit),
            pytest.raises(LimitExceededError, match=r"two fifths of limits\.evaluation_ms_max"),
        ):
            await update(runner, "INSERT { ?s <a:more> ?o } WHERE { ?s ?p ?o . ?s <a:q> ?x }")


def too_late(reader: Reader, work: object, *limits: Any, in_turn: bool) -> bytes:
    raise LimitExceededError(reader._turn_bounds.late)


async def test_updates_of_one_connection_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one has to be tried again."""
    async with recovered_runner(tmp_path) as runner:
        left = ["INSERT DATA { <a:7> <a:q> 7 }"]

        async def commit() -> None:
            while left:
                await update(runner, left.pop())

        await update(runner, DATA)
        lane = OrderedLane()
        with between(monkeypatch, commit) as seen:
            texts = (
                "INSERT { ?s <a:made> ?o } WHERE { ?s <a:q> ?o }",
                "DELETE WHERE { ?s <a:made> 7 }",
                "INSERT { ?s <a:last> ?o } WHERE { ?s <a:made> ?o }",
            )
            await asyncio.gather(*(runner.updates.update(UpdateCall(text, CLIENT, lane=lane)) for text in texts))
        assert seen == {"dry runs": 3}, "the last one has a plan"
        assert not len(runner._engine.query("SELECT * { <a:7> <a:last> ?o }"))
        assert len(runner._engine.query("SELECT * { <a:3> <a:last> ?o }")) == 2


async def test_the_time_of_an_update_is_that_of_its_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    async with recovered_runner(tmp_path, clock) as runner:

        async def commit() -> None:
            clock.advance(5)
            await update(runner, "INSERT DATA { <a:9> <a:z> 1 }")

        await update(runner, DATA)
        before = clock.now
        with between(monkeypatch, commit) as seen:
            await update(runner, "INSERT { <a:1> <a:at> ?t } WHERE { <a:1> <a:p> 1 BIND(NOW() AS ?t) }")
        assert seen == {"dry runs": 1}
        [row] = runner._engine.query("SELECT ?t { ?s <a:at> ?t }")
        assert row["t"].startswith(f'"{before:%Y-%m-%dT%H:%M:%S}')


async def test_others_go_first_behind_a_look_that_took_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is compiled in a turn of its own."""
    monkeypatch.setattr("lamplighter.gateway.loop.executor.BREATH_S", 0.0)
    done: list[str] = []
    async with recovered_runner(tmp_path) as runner:
        await update(runner, DATA)

        async def asked(text: str) -> None:
            await runner.updates.update(UpdateCall(text, CLIENT))
            done.append(text)

        texts = ["INSERT DATA { <a:1> <a:z> 1 }", "CREATE GRAPH <a:i>"]
        held = Queue.hold

        def noted(queue: Queue, task: Any, dry_run: Any, tasks: Any) -> None:
            done.append("hold")
            held(queue, task, dry_run, tasks)

        monkeypatch.setattr(Queue, "hold", noted)
        await asyncio.gather(*map(asked, texts))
        assert done == ["hold", "hold", *texts]
