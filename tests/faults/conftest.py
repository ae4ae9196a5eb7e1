"""Garbage of simulated gateways is collected where it was made."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def garbage_collected() -> Iterator[None]:
    """A simulated kill leaves a gateway with open iterators of its store. They may only be deleted in this thread; a
    collection during the next test may happen in another one."""
    yield
    gc.collect()
