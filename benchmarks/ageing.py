"""How the store behind the engine ages: the measurements behind the decisions in `engine/store/renewal.py`.

Run as `python -m benchmarks.ageing [part ...]`; the parts are writing, stores, hot, spread and drop; all take about
a minute. Each runs in a process of its own, so that memory is its own. Times of `writing`, `stores` and `drop` are CPU
times of the thread, the others wall times.
"""

import argparse
import gc
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from threading import Thread

import pyoxigraph as ox

from lamplighter.engine.delta import QuadDelta
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.store.renewal import native_quads, nquads
from lamplighter.engine.terms import XSD, Quad

NS = "http://lamplighter.example/ns/ageing#"
POSTS, PROPERTIES = 9_500, 35
VALUE = f"<{NS}p5>"
ONE = f"SELECT ?v WHERE {{ <{NS}post7> {VALUE} ?v }}"
SCAN = f"SELECT (COUNT(*) AS ?n) WHERE {{ ?s {VALUE} ?v }}"
NQUADS = ox.RdfFormat.N_QUADS


def dataset() -> bytes:
    """332,500 quads: of each post 5 integers, 5 decimals, 10 texts and 15 links."""
    return "".join(_lines()).encode()


def _lines() -> Iterator[str]:
    for post in range(POSTS):
        for number in range(PROPERTIES):
            key = post * PROPERTIES + number
            if number < 5:
                o = f'"{key}"^^<{XSD}integer>'
            elif number < 10:
                o = f'"{key}.5"^^<{XSD}decimal>'
            elif number < 20:
                o = f'"text {key} of a post"'
            else:
                o = f"<{NS}thing{key * 7919 % 3000}>"
            yield f"<{NS}post{post}> <{NS}p{number}> {o} .\n"


def fresh_value(post: int, number: int) -> Quad:
    return Quad(f"<{NS}post{post}>", VALUE, f'"{number}.7"^^<{XSD}decimal>')


class FreshValues:
    """Deltas that replace the value of a post by one that it never had."""

    def __init__(self) -> None:
        self._current: dict[int, Quad] = {}
        self._number = 0

    def delta(self, post: int) -> QuadDelta:
        self._number += 1
        old = self._current.get(post)
        self._current[post] = new = fresh_value(post, self._number)
        return QuadDelta(removed=() if old is None else (old,), added=(new,))

    def batch(self, posts: Sequence[int]) -> tuple[list[Quad], list[Quad]]:
        """The quads that fresh values for these posts, each named once, remove and add."""
        deltas = [self.delta(post) for post in posts]
        return [quad for delta in deltas for quad in delta.removed], [quad for delta in deltas for quad in delta.added]


def rows(store: ox.Store, query: str) -> int:
    solutions = store.query(query)
    assert isinstance(solutions, ox.QuerySolutions)
    return sum(1 for _ in solutions)


def resident_mb() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def cpu_us(work: Callable[[], object], times: int) -> float:
    """The median of so many runs."""
    taken = []
    for _ in range(times):
        start = time.thread_time()
        work()
        taken.append(time.thread_time() - start)
    return median(taken) * 1e6


def row(*cells: object, width: int = 13) -> None:
    print(
        f"{cells[0]!s:<34}"
        + "".join(f"{cell if isinstance(cell, str) else f'{cell:,.1f}':>{width}}" for cell in cells[1:])
    )
    sys.stdout.flush()


# --- how a batch is written -------------------------------------------------------------------------


def _by_text(store: ox.Store, removed: list[Quad], added: list[Quad]) -> None:
    store.update(f"DELETE DATA {{ {nquads(removed)} }} ; INSERT DATA {{ {nquads(added)} }}")


def _by_objects(store: ox.Store, removed: list[Quad], added: list[Quad]) -> None:
    for quad in map(_native, removed):
        store.remove(quad)
    store.extend(map(_native, added))


_nodes: dict[str, ox.NamedNode] = {}


def _node(term: str) -> ox.NamedNode:
    found = _nodes.get(term)
    if found is None:
        found = _nodes[term] = ox.NamedNode(term[1:-1])
    return found


def _native(quad: Quad) -> ox.Quad:
    value, _, datatype = quad.o.rpartition("^^")
    return ox.Quad(_node(quad.s), _node(quad.p), ox.Literal(value[1:-1], datatype=_node(datatype)))


def _by_parsing(store: ox.Store, removed: list[Quad], added: list[Quad]) -> None:
    for quad in native_quads(removed):
        store.remove(quad)
    store.extend(native_quads(added))


def _by_loading(store: ox.Store, removed: list[Quad], added: list[Quad]) -> None:
    for quad in native_quads(removed):
        store.remove(quad)
    store.load(nquads(added), format=NQUADS, lenient=True)


def writing() -> None:
    ways = {
        "DELETE DATA ; INSERT DATA": _by_text,
        "objects, IRIs memoised": _by_objects,
        "parsed, remove and extend": _by_parsing,
        "parsed, remove; load": _by_loading,
    }
    data = dataset()
    stores = {name: ox.Store() for name in ways}
    for store in stores.values():
        store.bulk_load(data, format=NQUADS)
    sizes = (2, 10, 100, 1000, 4000)
    values = FreshValues()
    taken: dict[tuple[str, int], list[float]] = {(name, size): [] for name in ways for size in sizes}
    for size in sizes:
        for start in range(max(10, 4000 // size)):
            removed, added = values.batch([(start * size // 2 + n) % POSTS for n in range(size // 2)])
            for name, way in ways.items():
                cost = cpu_us(partial(way, stores[name], removed, added), 1)
                taken[name, size].append(cost / (len(removed) + len(added)))
    row("us CPU per quad, batches of", *map(str, sizes))
    for name in ways:
        row(name, *(median(taken[name, size]) for size in sizes))


# --- memory or RocksDB ------------------------------------------------------------------------------


def stores() -> None:
    """The native stores themselves, without renewal, one changed lamp a write."""
    row("332,500 quads", "1+1 quads us", "one row us", "9,500 us", "memory MB", "folder MB")
    for kind in ("memory", "RocksDB on tmpfs"):
        before = resident_mb()
        folder = Path(tempfile.mkdtemp(dir="/dev/shm")) if kind != "memory" else None
        store = ox.Store(folder) if folder else ox.Store()
        try:
            store.bulk_load(dataset(), format=NQUADS)
            _age(kind, store, folder, before)
        finally:
            del store
            if folder:
                shutil.rmtree(folder)


def _age(kind: str, store: ox.Store, folder: Path | None, before: float) -> None:
    values, write = FreshValues(), _by_parsing

    def report(name: str) -> None:
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6 if folder else 0.0
        row(
            name,
            cpu_us(lambda: write(store, *values.batch([7])), 50),
            cpu_us(lambda: rows(store, ONE), 20),
            cpu_us(lambda: rows(store, SCAN), 3),
            resident_mb() - before,
            size,
        )

    report(f"{kind}: at first")
    for _ in range(10_000):
        write(store, *values.batch([7]))
    report("  10,000 values on one lamp")
    for start in range(100):
        write(store, *values.batch([(start * 500 + n) % POSTS for n in range(500)]))
    report("  50,000 values on all lamps")
    if folder:
        worker = Thread(target=store.optimize)
        begin, longest = time.perf_counter(), 0.0
        worker.start()
        while worker.is_alive():
            moment = time.perf_counter()
            write(store, *values.batch([3]))
            rows(store, ONE)
            longest = max(longest, time.perf_counter() - moment)
        report(f"  optimize(), {time.perf_counter() - begin:.2f} s in a thread")
        print(f"  longest step beside it {longest * 1e3:.0f} ms")
    else:
        begin = time.perf_counter()
        fresh = ox.Store()
        fresh.extend(store)
        print(f"  rebuilt in one go: {time.perf_counter() - begin:.2f} s")


# --- the engine's store -----------------------------------------------------------------------------


def _run(name: str, posts: Iterator[int], *, reading: bool, windows: int = 8, window: int = 50_000) -> None:
    held: list[object] = []  # so that the drop is timed apart
    store = QuadStore(retire=held.append)
    store.native.bulk_load(dataset(), format=NQUADS)
    store.apply(QuadDelta())  # counts the quads, once
    values, total = FreshValues(), 0
    row(f"{name}, values so far", "us each", "median us", "pause ms", "drop ms", "renewals", "dead", "memory MB")
    for _ in range(windows):
        taken, drops = [], [0.0]
        for _ in range(window):
            delta = values.delta(next(posts))
            begin = time.perf_counter()
            store.apply(delta)
            if reading:
                rows(store.native, ONE)
            taken.append(time.perf_counter() - begin)
            if held:
                begin = time.perf_counter()
                held.clear()
                drops.append(time.perf_counter() - begin)
        total += window
        row(
            f"  {total:,}",
            sum(taken, sum(drops)) / window * 1e6,
            median(taken) * 1e6,
            max(taken) * 1e3,
            max(drops) * 1e3,
            str(store.renewals),
            f"{store.dead:,}",
            resident_mb(),
            width=11,
        )


def hot() -> None:
    """One lamp only, which nobody asks for, and then one that is asked for after each value."""
    _run("hot subject", iter(lambda: 7, None), reading=False, windows=4)
    _run("hot subject, read each time", iter(lambda: 7, None), reading=True, windows=6, window=10_000)


def spread() -> None:
    """Fresh values for all lamps in turns: each is written to the native store."""
    number = 0

    def posts() -> Iterator[int]:
        nonlocal number
        while True:
            number += 1
            yield number * 7 % POSTS

    _run("all subjects", posts(), reading=False, windows=12)


def drop() -> None:
    """How long the interpreter stands still when a native store goes."""
    row("quads", "drop ms", "us a quad", "written")
    lines = dataset().splitlines(keepends=True)
    for count in (30_000, 100_000, 200_000, len(lines)):
        for times in (1, 2):
            taken = []
            for _ in range(3):
                store = ox.Store()
                for time_ in range(times):
                    if time_:
                        store.clear()
                    store.bulk_load(b"".join(lines[:count]), format=NQUADS)
                begin = time.thread_time()
                del store
                taken.append(time.thread_time() - begin)
            row(f"{count:,}", median(taken) * 1e3, f"{median(taken) / count * 1e6:.2f}", f"{times} x")


PARTS: dict[str, Callable[[], None]] = {
    "writing": writing,
    "stores": stores,
    "hot": hot,
    "spread": spread,
    "drop": drop,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ageing", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    chosen = parser.parse_args().parts or list(PARTS)
    unknown = set(chosen) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if len(chosen) == 1:
        PARTS[chosen[0]]()
        return 0
    return max(
        subprocess.run([sys.executable, "-m", "benchmarks.ageing", part], check=False).returncode for part in chosen
    )


if __name__ == "__main__":
    sys.exit(main())
