"""Soak: a million random updates on one engine, compared with the oracle after each (`make soak`, by hand, hours).

The dataset keeps its size, subscriptions of all classes come and go. Everything follows from the seed, which is
printed first; a difference ends the run with the number of the update and what was found. Run as
``python -m tests.soak``; ``--updates 20000`` for a part, ``--case N`` repeats a generated case of the property tests.
``faults`` as the first argument runs the fault rig instead (`tests.soak.faults`), ``days`` three days of rated load
(`tests.soak.days`).
"""

from __future__ import annotations

import argparse
import re
import secrets
import sys
import time
import traceback
from pathlib import Path
from random import Random

from tests.properties.comparison import CaseFailedError, Comparison, Tally, run_cases
from tests.properties.sparql_texts import NAMESPACE, Script, Step, Writer
from tests.soak import days, faults

SENSORS = 250
FOLLOWERS = 24
"""Subscriptions at a time: the first to come is the first to go."""
REPORT_SECONDS = 30.0
WHOLE_EVERY = 500
"""Updates after which the datasets are compared as a whole."""
SIZE_EVERY = 10
SIZE = range(2 * SENSORS, 6 * SENSORS)
"""Updates after which the dataset is brought back to its size, and what size is right, in quads."""
FRESH_EVERY = 20_000
"""Updates after which the oracle gets a fresh store: pyoxigraph's in memory never frees what was removed."""
PREFIX = f"PREFIX : <{NAMESPACE}> "
_EMPTYING = re.compile(r"\b(CLEAR|DROP|MOVE|COPY)\b.*\b(ALL|DEFAULT)\b", re.I | re.S)


def resident() -> float:
    """Memory of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


class Soak:
    """One engine, its oracle, and a script that never ends."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.tally = Tally()
        self.comparison = Comparison(self.tally, whole_every=WHOLE_EVERY)
        self.names: dict[str, str] | None = {} if self.random.random() < 0.7 else None
        self.script = self._new_script()
        self.updates = 0
        self.last = ""

    def _new_script(self) -> Script:
        return Script(Writer(self.random.choice, names=self.names))

    def fill(self) -> None:
        """Brings the dataset to its size: sensors with a value, a place and a neighbour."""
        quads = " . ".join(
            f":s{number} :value {self.random.randrange(100)} ; :in :r{number % 10} ; :next :s{(number + 1) % SENSORS}"
            for number in range(SENSORS)
        )
        self._take(Step("update", "CLEAR ALL"))
        self._take(Step("update", f"{PREFIX}INSERT DATA {{ {quads} }}"))

    def run(self, updates: int) -> None:
        """Goes on until so many updates are done."""
        if self.updates == 0:
            self.fill()
        while self.updates < updates:
            if len(self.comparison.followers) < FOLLOWERS or self.random.random() < 0.02:
                self._subscribe()
            while len(self.comparison.followers) > FOLLOWERS:
                self._take(Step("unsubscribe", "0"))
            step = self._sensor_step() if self.random.random() < 0.4 else self.script.change()
            if _EMPTYING.search(step.text) and self.random.random() < 0.95:
                continue
            self._take(step)
            if self.updates % SIZE_EVERY == 0 and self._size() not in SIZE:
                self.fill()
            if self.updates % FRESH_EVERY == 0:
                self.comparison.renew_oracle()

    def _size(self) -> int:
        return self.comparison.engine.quad_count

    def _subscribe(self) -> None:
        if self.random.random() < 0.5:
            self._take(Step("subscribe", PREFIX + self._sensor_query()))
            return
        self.script = self._new_script()
        for step in self.script.subscriptions():
            self._take(step)

    def _sensor_query(self) -> str:
        one, place = f":s{self.random.randrange(SENSORS)}", f":r{self.random.randrange(10)}"
        return self.random.choice(
            (
                f"SELECT ?v {{ {one} :value ?v }}",
                f"SELECT ?s ?v {{ ?s :in {place} ; :value ?v FILTER ( ?v > {self.random.randrange(100)} ) }}",
                f"SELECT ?s ?v {{ ?s :value ?v . ?s :next ?n . ?n :value ?v . ?s :in {place} }}",
                f"SELECT ( COUNT( * ) AS ?n ) ( AVG( ?v ) AS ?a ) {{ ?s :in {place} ; :value ?v }}",
                f"SELECT ?s ?w {{ ?s :in {place} OPTIONAL {{ ?s :next ?n . ?n :value ?w FILTER ( ?w < 50 ) }} }}",
                f"SELECT ?s {{ ?s :in {place} FILTER NOT EXISTS {{ ?s :value ?v FILTER ( ?v < 50 ) }} }}",
                f"SELECT ?s ?v {{ ?s :in {place} ; :value ?v }} ORDER BY ?v STR( ?s ) LIMIT 3",
                f"SELECT ?o {{ {one} :next/:next? ?o }}",
            )
        )

    def _sensor_step(self) -> Step:
        one, place = f":s{self.random.randrange(SENSORS)}", f":r{self.random.randrange(10)}"
        value = self.random.randrange(100)
        return Step(
            "update",
            PREFIX
            + self.random.choice(
                (
                    f"DELETE {{ {one} :value ?v }} INSERT {{ {one} :value {value} }} WHERE {{ {one} :value ?v }}",
                    f"DELETE {{ {one} :value ?v }} INSERT {{ {one} :value {value} }} WHERE {{ {one} :value ?v }}",
                    f"DELETE {{ {one} :in ?r }} INSERT {{ {one} :in {place} }} WHERE {{ {one} :in ?r }}",
                    f"DELETE {{ ?s :value ?v }} INSERT {{ ?s :value {value} }} WHERE {{ ?s :in {place} ; :value ?v }}",
                    f"DELETE WHERE {{ {one} :value ?v }} ; INSERT DATA {{ {one} :value {value} }}",
                )
            ),
        )

    def _take(self, step: Step) -> None:
        self.last = repr(step)
        self.comparison.take(step)
        self.updates += step.kind in ("update", "load")


def main() -> int:
    if sys.argv[1:2] == ["faults"]:
        return faults.main(sys.argv[2:])
    if sys.argv[1:2] == ["days"]:
        return days.main(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--case", type=int, default=None, help="repeats one generated case")
    arguments = parser.parse_args()
    if arguments.case is not None:
        return _case(arguments.case)
    seed = secrets.randbelow(10**9) if arguments.seed is None else arguments.seed
    print(f"seed {seed}, {arguments.updates} updates", flush=True)
    soak = Soak(seed)
    started = reported = time.monotonic()
    try:
        while soak.updates < arguments.updates:
            before = soak.updates
            soak.run(min(soak.updates + 200, arguments.updates))
            now = time.monotonic()
            if now - reported >= REPORT_SECONDS or soak.updates >= arguments.updates:
                reported = now
                rate = soak.updates / (now - started)
                print(
                    f"{now - started:8.0f} s {soak.updates:9d} updates {rate:6.0f}/s {resident():7.1f} MiB "
                    f"{soak.comparison.engine.quad_count} quads {soak.comparison.engine.subscription_classes}",
                    flush=True,
                )
            assert soak.updates > before
        soak.comparison.check_dataset()
    except Exception as error:
        traceback.print_exc()
        print(f"seed {seed}, update {soak.updates} of the run: {type(error).__name__}: {error}\nafter {soak.last}")
        print(f"the dataset before it, as far as it was compared: {soak.comparison.known_quads()}")
        return 1
    print(f"no difference: {soak.tally}")
    return 0


def _case(seed: int) -> int:
    try:
        print(run_cases([seed]))
    except CaseFailedError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
