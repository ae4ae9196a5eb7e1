"""A parallel mode: forked processes that each follow a part of the subscriptions (Roffia 2016, VI.C, appendix B.F).

The parent computes the quad delta of each update and keeps the dataset. Each worker has the dataset too, follows the
delta for its subscriptions, and makes their notifications as the gateway would send them.
"""

import gc
import multiprocessing
import pickle
import re
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Self

from benchmarks import street_lighting as street
from benchmarks.effort import Effort
from benchmarks.measuring import Progress, flush
from benchmarks.profiles import VALUES, loaded_engine
from benchmarks.scaling import ALL_HIT_ROAD
from lamplighter.engine import Commit, Engine
from lamplighter.engine.protocol import Results, results_message

_REPETITIONS = 5
_fork = multiprocessing.get_context("fork")

_TIME, _MEMORY, _KEEP, _RETURN, _STOP = b"time", b"memory", b"keep", b"return", b"stop"
"""Orders to a worker: return your processor time, or private memory; follow a delta and keep its messages, or return
them; end."""


def parallel(effort: Effort, progress: Progress) -> list[dict[str, Any]]:
    """Parallel modes against one engine that does all. A row for each experiment and number of workers.

    alone: wall time and processor time of an update in seconds. keep, return: with workers that have the sockets of
    their subscribers, or return the messages to the parent: wall time, processor time of the parent, of the slowest
    worker, and of all. worker MB: memory that a worker shares with nobody.

    The experiments: all subscribers have one query, which the engine evaluates once for all; each has a query with a
    predicate of its own, so that nothing is shared; the paper's LAMP, which notifies 23 times in 310 updates.
    """
    many, shapes = effort.parallel_subscribers, effort.parallel_shapes
    tags = "".join(f'{_LAMP} <{_tag(number)}> "{number}" .\n' for number in range(shapes)).encode()
    knowledge_base = street.document(bare=effort.bare) + tags

    def of_lamp(value: str) -> list[str]:
        return [street.lamp_update(1, 1, value)]

    def of_road(value: str) -> list[str]:
        return [street.road_iri_update(ALL_HIT_ROAD, value)]

    experiments: tuple[tuple[str, list[str], Callable[[str], list[str]]], ...] = (
        ("all hit, LAMP, one query", [street.lamp_subscription(1, 1)] * many, of_lamp),
        ("all hit, ROAD, one query", [street.road_subscription(ALL_HIT_ROAD)] * many, of_road),
        ("all hit, LAMP, own shapes", [_shape(number) for number in range(shapes)], of_lamp),
        ("LAMP", [entry.text for entry in street.subscription_profile()], street.lamp_profile),
    )
    found = []
    parent = loaded_engine(knowledge_base, ())
    for name, queries, updates_of in experiments:
        texts = [text for value in VALUES for text in updates_of(value)]
        texts = list(islice(cycle(texts), max(len(texts), effort.parallel_updates)))
        alone = loaded_engine(knowledge_base, queries)
        for count in effort.parallel_workers:
            with _Workers(parent, queries, count) as workers:
                row = _compared(alone, workers, texts)
            found.append({"experiment": name, "subscribers": len(queries), "workers": count, **row})
            progress(f"{name}, {count} workers")
        alone.close()
    parent.close()
    return found


_LAMP = f"<{street.lamp_iri(1, 1)}>"


def _tag(number: int) -> str:
    return f"{street.NS}tag{number}"


def _shape(number: int) -> str:
    return (
        f"PREFIX ns: <{street.NS}>\n"
        f"SELECT ?dimming ?tag WHERE {{ {_LAMP} ns:hasDimmingValue ?dimming ; <{_tag(number)}> ?tag }}"
    )


def _compared(alone: Engine, workers: "_Workers", texts: Sequence[str]) -> dict[str, dict[str, float] | float]:
    """One engine and the workers run the same updates in turns; the first repetition warms up.

    texts: set what they set before in turns, so that each is a change, and the last ones of both have the same effect.
    """
    runs: dict[str, list[dict[str, float]]] = {"alone": [], "keep": [], "return": []}
    for _ in range(_REPETITIONS + 1):
        gc.collect()
        runs["alone"].append(_alone(alone, texts))
        for way in (_KEEP, _RETURN):
            runs[way.decode()].append(workers.run(texts, way))
    expected = _unnamed(_messages(alone.update(texts[0])))
    if not expected or _unnamed(workers.messages(texts[0])) != expected:
        raise AssertionError("the notifications of the workers differ from those of one engine")
    found: dict[str, dict[str, float] | float] = {
        way: {key: median(run[key] for run in some[1:]) / len(texts) for key in some[0]} for way, some in runs.items()
    }
    return {**found, "worker MB": workers.private_mb()}


def _alone(engine: Engine, texts: Sequence[str]) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    for text in texts:
        _messages(engine.update(text))
    flush(engine)
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def _messages(commit: Commit) -> list[bytes]:
    """The notifications of a commit. As in the gateway, results that several subscribers share are written once."""
    shared: dict[tuple[int, int], Results] = {}
    messages = []
    for spuid, sequence, added, removed in commit.notifications:
        results = shared.get((id(added), id(removed)))
        if results is None:
            results = shared[id(added), id(removed)] = Results(added, removed)
        messages.append(results_message(spuid, sequence, results))
    return messages


def _unnamed(messages: Sequence[bytes]) -> list[bytes]:
    """The messages without name and sequence of the subscription, in one order."""
    return sorted(re.sub(rb'"spuid":"[^"]*","sequence":\d+', b"", message) for message in messages)


class _Workers:
    """The parent's side: an engine without subscriptions, and processes forked from it."""

    def __init__(self, engine: Engine, queries: Sequence[str], count: int) -> None:
        self._engine = engine
        self._pipes: list[Connection] = []
        self._processes = []
        gc.collect()
        gc.freeze()  # a collection in a worker would touch, and so copy, all pages of the dataset
        for number in range(count):
            here, there = _fork.Pipe()
            process = _fork.Process(target=_follow, args=(there, engine, queries[number::count]), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        gc.unfreeze()
        self._asked(_TIME)  # they have subscribed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for pipe in self._pipes:
            pipe.send_bytes(_STOP)
        for process in self._processes:
            process.join()

    def _asked(self, order: bytes) -> list[float]:
        for pipe in self._pipes:
            pipe.send_bytes(order)
        return [pipe.recv() for pipe in self._pipes]

    def private_mb(self) -> float:
        """Of the worker that has most."""
        return max(self._asked(_MEMORY))

    def _update(self, text: str, way: bytes) -> list[bytes]:
        delta = self._engine.prepare(text)
        order = way + pickle.dumps(delta)
        for pipe in self._pipes:
            pipe.send_bytes(order)
        self._engine.commit(delta)
        return [pipe.recv_bytes() for pipe in self._pipes]

    def messages(self, text: str) -> list[bytes]:
        """The notifications of one update, from all workers."""
        return [message for answer in self._update(text, _RETURN) for message in pickle.loads(answer)]

    def run(self, texts: Sequence[str], way: bytes) -> dict[str, float]:
        """wall, parent, slowest and cpu: seconds of wall time, and processor time of the parent, of the worker that
        took most, and of all."""
        before = self._asked(_TIME)
        wall, cpu = time.perf_counter(), time.process_time()
        for text in texts:
            self._update(text, way)
        flush(self._engine)
        wall, parent = time.perf_counter() - wall, time.process_time() - cpu
        spent = [after - begun for after, begun in zip(self._asked(_TIME), before, strict=True)]
        return {"wall": wall, "parent": parent, "slowest": max(spent), "cpu": parent + sum(spent)}


def _follow(pipe: Connection, engine: Engine, queries: Sequence[str]) -> None:
    """A worker: subscribes, then executes orders."""
    for query in queries:
        engine.subscribe(query)
    while (order := pipe.recv_bytes()) != _STOP:
        if order in (_TIME, _MEMORY):
            flush(engine)
            pipe.send(time.process_time() if order == _TIME else _private_mb())
            continue
        returns = order.startswith(_RETURN)
        commit = engine.commit(pickle.loads(order[len(_RETURN if returns else _KEEP) :]))
        messages = _messages(commit)
        pipe.send_bytes(pickle.dumps(messages) if returns else b".")


def _private_mb() -> float:
    found = re.search(r"Private_Dirty:\s*(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
    assert found is not None
    return int(found[1]) / 1000
