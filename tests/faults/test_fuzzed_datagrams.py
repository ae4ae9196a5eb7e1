"""100,000 fuzzed datagrams through the sockets of the CoAP endpoints."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from tests.support.coap_datagrams import fuzz

pytestmark = pytest.mark.faults


async def test_fuzzed_datagrams_leave_endpoint_and_memory_as_they_were() -> None:
    await fuzz(20_000)
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(2):
            await fuzz(50_000)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 100_000, sizes
