"""Updates whose shape nobody has seen, against the store alone: no cached plan, recogniser or template serves them.

The least time of many updates of one kind and length counts, in turns with the same text on a store of its own.
"""

from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any

import pyoxigraph as ox

from benchmarks.effort import Effort
from benchmarks.measuring import Progress, target
from benchmarks.text_table import table
from lamplighter.engine import Engine

_TRIPLES = (3, 20, 200, 2000)
_PATTERNS = (2, 5, 30)
GOAL = 4


def new_shapes(effort: Effort, out: Path, progress: Progress) -> dict[str, Any]:
    kinds: dict[str, tuple[Callable[[int, int], str], tuple[int, ...]]] = {
        "INSERT DATA": (_insert_data, _TRIPLES),
        "DELETE DATA": (_delete_data, _TRIPLES[:3]),
        "DELETE INSERT WHERE": (_modify, _PATTERNS),
    }
    found = {}
    for name, (text_of, sizes) in kinds.items():
        for size in sizes:
            texts = [f"{text_of(size, number)}{' ' * number}" for number in range(4000 // (size + 20) + 10)]
            found[f"{name} of {size}"] = (len(texts[0]), *_least(texts))
        progress(f"{name}: {found[f'{name} of {sizes[0]}'][1]:.0f} us of CPU for {sizes[0]}")
    rows = [["update", "characters", "engine us", "store us", "ratio"]]
    for name, (characters, engine, store) in found.items():
        rows.append([name, f"{characters:,}", f"{engine:,.0f}", f"{store:,.0f}", f"{engine / store:.1f}"])
    worst = max(found, key=lambda name: found[name][1] / found[name][2])
    return {
        "us": found,
        "note": f"Updates of a new shape, CPU. Characters, engine, store alone:\n{table(rows)}",
        "targets": [
            target("an update of a new shape, against the store alone", found[worst][1] / found[worst][2], GOAL)
        ],
    }


def _least(texts: list[str]) -> tuple[float, float]:
    """Microseconds of the fastest update of the engine, and of the store alone."""
    store = ox.Store()
    by_engine = by_store = float("inf")
    with Engine() as engine:
        for text in texts:
            begin = thread_time()
            engine.update(text)
            middle = thread_time()
            store.update(text)
            by_engine, by_store = min(by_engine, middle - begin), min(by_store, thread_time() - middle)
    return by_engine * 1e6, by_store * 1e6


def _triples(size: int, number: int) -> str:
    return " . ".join(
        f'<http://x.example/{number}/{place}> <urn:p{place % 7}> "{number} {place}"' for place in range(size)
    )


def _insert_data(size: int, number: int) -> str:
    return f"INSERT DATA {{ {_triples(size, number)} }}"


def _delete_data(size: int, number: int) -> str:
    return f"DELETE DATA {{ {_triples(size, number)} }}"


def _modify(size: int, number: int) -> str:
    old = [f"x:s{number}_{place} x:p{place % 7} ?o{place}" for place in range(size)]
    new = [f'x:s{number}_{place} x:p{place % 7} "{number}"' for place in range(size)]
    where = " ".join(f"OPTIONAL {{ {pattern} }}" for pattern in old)
    prefix = "PREFIX x: <http://x.example/>"
    return f"{prefix} DELETE {{ {' . '.join(old)} }} INSERT {{ {' . '.join(new)} }} WHERE {{ {where} }}"
