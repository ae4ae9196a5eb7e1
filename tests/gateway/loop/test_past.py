"""Queries of the past give what the dataset was: the oracle's, and that of `lamplighter log restore --at`."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from random import Random

from lamplighter.engine.errors import GatewayError
from lamplighter.gateway.__main__ import main
from lamplighter.gateway.log.snapshots import Place, snapshots
from lamplighter.gateway.loop.past import PastQuery
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import ANYBODY
from lamplighter.gateway.settings import LogSettings, Settings
from tests.properties.sparql_texts import Script, Writer
from tests.support.amounts import Amounts
from tests.support.gateway_parts import recovered_runner, update
from tests.support.oracle import REFUSALS, Answer, Oracle, answer_from_json

SMALL = Settings(log=LogSettings(segment_bytes_max=1, snapshot_records=10))
NAMED = "SELECT ?g ?s ?p ?o WHERE { GRAPH ?g { ?s ?p ?o } }"
EVERY = "SELECT ?s ?p ?o WHERE { ?s ?p ?o }"
JSON = "application/sparql-results+json"


async def asked(runner: Runner, sparql: str, at: str) -> Answer:
    headers: dict[str, str] = {}
    query = PastQuery(runner.queries.outline(sparql), at, JSON, None, None)
    data = b"".join([chunk async for chunk in runner.past.query(query, ANYBODY, headers)])
    assert headers["Lamplighter-At"].startswith(f"{at} ")
    return answer_from_json(json.loads(data))


async def test_the_answer_as_of_every_record_is_that_of_the_oracle_and_of_a_restored_file(
    tmp_path: Path, amounts: Amounts
) -> None:
    seed = Random().randrange(10**9)
    print(f"\nseed {seed}")
    chance = Random(seed)
    oracle = Oracle()
    expected: dict[Place, tuple[Answer, Answer]] = {}

    async with recovered_runner(tmp_path, settings=SMALL) as runner:
        script = Script(Writer(chance.choice))
        script.subscriptions()
        while len(expected) < amounts.of(25) or not snapshots(tmp_path / "snapshots"):
            step = script.change()
            if step.kind != "update" or step.graphs is not None:
                continue
            with suppress(GatewayError):
                await update(runner, step.text)
            with suppress(*REFUSALS):
                oracle.update(step.text)
            expected[runner.log.tail.acknowledged] = oracle.query(NAMED), oracle.query(EVERY)
            if chance.random() < 0.7:
                await runner.log_keeper.turn()
        expected.pop((1, 0), None)
        for (epoch, sequence), (named, every) in expected.items():
            at = f"{epoch}/{sequence}"
            assert (await asked(runner, NAMED, at)).rows == named.rows, at
            assert (await asked(runner, EVERY, at)).rows == every.rows, at
        for epoch, sequence in chance.sample(sorted(expected), 3):
            at = f"{epoch}/{sequence}"
            file = tmp_path.with_name(f"{tmp_path.name}-{sequence}.nq")
            command = ["log", "restore", "--data", str(tmp_path), "--at", at, "-o", str(file)]
            assert await asyncio.to_thread(main, command) == 0
            restored = Oracle()
            restored.load(file.read_bytes(), "application/n-quads")
            assert (await asked(runner, NAMED, at)).rows == restored.query(NAMED).rows
