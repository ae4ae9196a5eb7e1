"""Orders while their senders and the gateway work at the same time: each is executed once, and none is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lamplighter.cloud_sync.destinations import Destination, LocalFolder
from lamplighter.cloud_sync.order_intake import GAP_ROUNDS, OrderIntake
from lamplighter.cloud_sync.orders import Orders
from lamplighter.cloud_sync.pace import PaceClock
from lamplighter.engine.errors import UpstreamError
from tests.support.seeds import seeds
from tests.support.shipped_logs import memory_folder
from tests.support.store_rig import InterleavedStore, interleave

KEY = Ed25519PrivateKey.generate()
CASES = 60
NAMES = 3
"""Orders of a sender."""


class PartByPart(InterleavedStore):
    """A store that shows an object before all of it is there, as a copying program does. One sender may use it."""

    def create(self, name: str, chunks: Iterable[bytes]) -> bool:
        data = b"".join(chunks)
        self._turn(f"create {name}")
        if self._inner.get(name) is not None:
            return False
        for size in (0, len(data) // 2, len(data)):
            self._inner.put(name, data[:size])
            self._turn(f"part of {name}")
        return True


class LosesAnswers(InterleavedStore):
    """A store whose client repeats a creation after a lost answer, and is told that the name is taken."""

    def create(self, name: str, chunks: Iterable[bytes]) -> bool:
        data = b"".join(chunks)
        super().create(name, [data])
        return super().create(name, [data])


class FailsAfter(InterleavedStore):
    """A store whose answer does not come: the object is there, and the sender gets an error, each second time."""

    failing = False

    def create(self, name: str, chunks: Iterable[bytes]) -> bool:
        made = super().create(name, chunks)
        self.failing = not self.failing
        if self.failing:
            raise UpstreamError("no answer")
        return made


def _send(to: Destination, sender: str) -> None:
    for number in range(NAMES):
        while True:
            try:
                Orders(to, KEY).send("gw", f"{sender}{number}", "update", {"update": "CLEAR ALL"}, 86_400)
                break
            except UpstreamError:
                continue


def _round(data: Path, source: Destination, done: list[str]) -> None:
    """A round of a gateway, by a new process. The request id makes a repetition without effect."""
    intake = OrderIntake(data, source, "gw", [KEY.public_key()], PaceClock(trusted=lambda: True))
    while (received := intake.next()) is not None:
        assert received.order is not None, received.reason
        done.append(received.order.id)
        intake.settle(received, "done")
    intake.answer()


STORES = [(InterleavedStore, "ab"), (PartByPart, "a"), (LosesAnswers, "ab"), (FailsAfter, "ab")]


@pytest.mark.parametrize(("kind", "senders"), STORES)
def test_each_order_is_executed_once_whatever_is_between_two_requests(
    kind: Callable[[Destination], InterleavedStore], senders: str
) -> None:
    check_orders(kind, senders, CASES)


def check_orders(kind: Callable[[Destination], InterleavedStore], senders: str, cases: int) -> None:
    """Each order is executed once, and none is refused."""
    between = 0

    def check() -> None:
        assert between > cases / 4, "the gateway's requests are between those of the senders"

    for seed in seeds(cases, check):
        with memory_folder() as folder:
            (folder / "to").mkdir()
            there = LocalFolder(folder / "to")
            done: list[str] = []
            mine = InterleavedStore(there)

            def rounds(folder: Path = folder, mine: InterleavedStore = mine, done: list[str] = done) -> None:
                for _ in range(GAP_ROUNDS - 2):
                    _round(folder, mine, done)

            sides = [(store := kind(there), lambda name=name, store=store: _send(store, name)) for name in senders]
            interleave(Random(seed), (mine, rounds), *sides)
            between += 0 < len(done) < len(senders) * NAMES
            for _ in range(2):
                _round(folder, there, done)
            sent = sorted(f"{sender}{number}" for sender in senders for number in range(NAMES))
            assert sorted(set(done)) == sent, f"seed {seed}"
            if kind is not FailsAfter:  # there, a repeated order has the effect of none, by its request id
                assert sorted(done) == sent, f"seed {seed}"
            answers = [Orders(there, KEY).answer("gw", number) for number in range(1, len(done) + 1)]
            assert {answer.outcome for answer in answers if answer is not None} == {"done"}, f"seed {seed}"
            assert None not in answers
