"""Amounts of what tests repeat: random cases, examples of Hypothesis, positions, rounds.

`make test` takes a sixth of each amount. A test that asks for the fixture `amounts`, and each test of Hypothesis, has
the marker of that name, so the fault tier runs it as well, with the full amounts. The variable TEST_AMOUNTS is the
share: 1 for the full amounts, 100 for a hundred times as many random cases.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Amounts:
    """How much of each amount this run takes."""

    share: Fraction

    def of(self, full: int, least: int = 1) -> int:
        """The share of a full number, and at least `least`."""
        return max(least, round(full * self.share))

    def some(self, items: Sequence[Item]) -> Sequence[Item]:
        """The share of these, evenly spread from a random one on; at least one, and never more than all of them."""
        step = min(math.ceil(1 / self.share), len(items)) or 1
        return items[random.randrange(step) :: step]


AMOUNTS = Amounts(Fraction(os.environ.get("TEST_AMOUNTS", "1/6")))
"""For the settings of Hypothesis. Other tests ask for the fixture, which marks them."""
