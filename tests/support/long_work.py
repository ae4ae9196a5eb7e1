"""Lowers the sizes from which work is long and a store is renewed, so that a test needs less data for it. Nothing is
long because the machine is busy."""

from __future__ import annotations

import math
import sys

import pytest

from lamplighter.engine import slices
from lamplighter.engine.store.quad_store import QuadStore
from lamplighter.engine.store.renewal import RenewalPolicy
from lamplighter.gateway.loop import executor

SMALLER = 10
LONG = slices.LONG // SMALLER
SLICE = slices.SLICE // SMALLER
_USUAL = RenewalPolicy()
POLICY = RenewalPolicy(
    pending_max=_USUAL.pending_max // SMALLER,
    slice_quads=_USUAL.slice_quads // SMALLER,
    dead_floor=_USUAL.dead_floor // SMALLER,
    hot_floor=_USUAL.hot_floor // SMALLER,
)


@pytest.fixture
def soon_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is long, and a store is renewed, from a tenth of the size on, in as many slices as ever."""
    monkeypatch.setattr(executor, "BREATH_S", math.inf)
    monkeypatch.setattr(slices.sliced, "__defaults__", (SLICE,))
    _, *others = QuadStore.__init__.__defaults__ or ()  # the first argument is the policy
    monkeypatch.setattr(QuadStore.__init__, "__defaults__", (POLICY, *others))
    sizes = {"LONG": (slices.LONG, LONG), "SLICE": (slices.SLICE, SLICE)}
    for name, module in list(sys.modules.items()):
        for constant, (value, smaller) in sizes.items():
            if name.startswith("lamplighter.") and vars(module).get(constant) == value:
                monkeypatch.setattr(module, constant, smaller)
