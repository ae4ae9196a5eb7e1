"""The data of a query as it comes and goes in every order and in pieces, with subscribers that watch.

After each commit the first result and all notifications must be a fresh evaluation by a raw store with the same quads
(`Pair`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import pyoxigraph as ox

from tests.w3c.pair import Follower, Pair, data_block, deletion, has_blank, units

STEPS_MAX = 25
"""Into at most so many commits the data of one test is cut."""


def follow_through(
    text: str,
    quads: Iterable[ox.Quad],
    empty: Iterable[str],
    check: Callable[[Follower], None],
    random: Random,
) -> str:
    """Subscribes, and has the data come and go in several ways. Returns the spu_class.

    quads, empty: the dataset of the test, and the names of its graphs without quads; check: called with the subscriber
    whenever all of it is there.
    """
    pair = Pair()
    follower = pair.subscribe(text)
    parts = units(quads)
    graphs = " ;\n".join(f"CREATE GRAPH <{name}>" for name in empty)

    def complete() -> Follower:
        """With all data in, the result is the expected one; gives somebody who subscribes only now."""
        if graphs:
            pair.update(graphs)
        check(follower)
        late = pair.subscribe(f"{text}\n# the same, once more")
        assert len(late.first) == len(follower.rows)
        return late

    def chunk() -> int:
        return random.randint(1, 4)

    # Quad by quad; then twice in pieces; then all at once.
    come(pair, parts, random, lambda: 1, detours=False)
    late = complete()
    go(pair, random, lambda: 1)
    assert follower.rows == late.rows == follower.first
    pair.unsubscribe(late)

    for _ in range(2):
        come(pair, parts, random, chunk, detours=True)
        late = complete()
        go(pair, random, chunk)
        assert follower.rows == late.rows == follower.first
        pair.unsubscribe(late)

    come(pair, parts, random, lambda: len(parts), detours=False)
    late = complete()
    pair.update(random.choice(["DROP ALL", "CLEAR ALL ; DROP ALL", "DROP DEFAULT ; DROP NAMED"]))
    assert follower.rows == late.rows == follower.first
    pair.engine.close()
    return follower.spu_class


def pieces(parts: list[list[ox.Quad]], random: Random, size: Callable[[], int]) -> list[list[ox.Quad]]:
    """The parts in random order, put together into commits."""
    order = random.sample(parts, len(parts))
    found = []
    while order:
        count = max(size(), -(-len(parts) // STEPS_MAX))
        found.append([quad for members in order[:count] for quad in members])
        order = order[count:]
    return found


def come(pair: Pair, parts: list[list[ox.Quad]], random: Random, size: Callable[[], int], detours: bool) -> None:
    """Inserts all parts. detours: some commits change nothing, and some quads go once more before they stay."""
    pending = pieces(parts, random, size)
    while pending:
        piece = pending.pop(0)
        pair.insert(piece, as_document=random.random() < 0.5)
        ground = [quad for quad in pair.raw if not has_blank(quad)]
        if detours and ground and random.random() < 0.3:
            some = random.sample(ground, random.randint(1, min(3, len(ground))))
            if random.random() < 0.5:
                pair.update(f"DELETE DATA {{ {data_block(some)} }} ; INSERT DATA {{ {data_block(some)} }}")
            else:
                pair.update(deletion(some, random))
                pair.insert(some, as_document=False)


def go(pair: Pair, random: Random, size: Callable[[], int]) -> None:
    """Deletes all quads, and at last the empty graphs."""
    for piece in pieces([[quad] for quad in sorted(pair.raw, key=str)], random, size):
        pair.update(deletion(piece, random))
    assert len(pair.raw) == 0
    pair.update("DROP ALL")
