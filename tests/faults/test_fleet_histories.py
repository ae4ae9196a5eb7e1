"""Lives of a gateway and orders to it, in many more orders than the quick tests take."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lamplighter.cloud_sync.destinations import Destination
from tests.cloud_sync.fleet.collection.test_histories import check_lives
from tests.cloud_sync.test_interleaved_orders import STORES, check_orders
from tests.support.store_rig import InterleavedStore

pytestmark = [pytest.mark.faults, pytest.mark.fleet_faults]

CASES = 500


def test_no_history_has_records_of_two_lives() -> None:
    check_lives(CASES)


@pytest.mark.parametrize(("kind", "senders"), STORES)
def test_no_order_is_lost_between_two_requests(kind: Callable[[Destination], InterleavedStore], senders: str) -> None:
    check_orders(kind, senders, CASES)
