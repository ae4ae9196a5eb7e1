"""The long form of the fault rig (`make soak ARGS=faults`): thousands of kills, power cuts, full and broken disks.

Progress is printed as it goes; a promise that is not kept ends the run and says how to repeat the case.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import sys
import time
from collections.abc import Sequence

from tests.support.fault_rig import CUTS, Figures, run_many
from tests.support.kills import Tally, run_streets

STREETS = 2
BATCH = 100
"""Cases between two lines of progress."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.soak faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=10_000)
    parser.add_argument("--cuts", type=int, default=15_000, help="power cuts")
    parser.add_argument("--full", type=int, default=4_800, help="cases of a disk that is full or read-only for a while")
    parser.add_argument("--broken", type=int, default=2_000, help="cases of a sync that fails")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    logging.basicConfig(level=logging.ERROR)
    print(f"seed {seed}", flush=True)
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:8.0f} s {text}", flush=True)

    def killed(tally: Tally) -> None:
        say(f"{tally.kills.total()} kills of one of {STREETS} gateways, {tally.updates} updates")

    try:
        for kind, cases in (("cuts", options.cuts // CUTS), ("full", options.full), ("broken", options.broken)):
            figures = Figures()
            for first in range(0, cases, BATCH):
                figures.add(run_many(kind, min(BATCH, cases - first), seed + first))
                say(f"{kind}: {min(first + BATCH, cases)} of {cases} cases, {figures.updates} updates")
            say(f"{kind}: {cases} cases\n  {figures}")
        if options.kills:
            say(str(asyncio.run(run_streets(options.kills, seed, streets=STREETS, progress=killed))))
    except AssertionError as error:
        print(error)
        return 1
    except BaseExceptionGroup as group:
        logging.getLogger(__name__).error("kills, seed %d", seed, exc_info=group)
        return 1
    say("every promise was kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
