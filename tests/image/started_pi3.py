"""The built image on the emulated Pi 3, with that board's own device tree, serial line and card, and without a network:
`make test-image-pi3`. It is slow, and tells less than the generic board; so pytest does not find it by itself.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.image.virtual_machine import BOOT_S, machine

pytestmark = pytest.mark.image


def test_first_start_ends_with_a_gateway_that_has_taken_an_update(image: Path, tmp_path: Path) -> None:
    with machine(tmp_path / "pi3", image, pi3=True) as board:
        board.start()
        # The operator is registered by the running gateway before this is told.
        told = board.wait("the announcement", lambda: re.search(r"client secret \S+", board.console), 3 * BOOT_S)
        assert told
        for bad in ("Kernel panic", "THE DATA PARTITION CANNOT", "MISTAKE", "Failed to start"):
            assert bad not in board.console, board.console[-4000:]
