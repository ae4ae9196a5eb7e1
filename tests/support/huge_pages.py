"""Memory of the tests' process in huge pages, so that its forks are cheap."""

from __future__ import annotations

import ctypes
from pathlib import Path

_HUGE_PAGE = 2 << 20
_MADV_COLLAPSE = 25


def collapse_memory() -> None:
    """Moves what this process has allocated into huge pages, where the kernel can do it (Linux 6.1).

    A fork copies an entry for each page, and its end frees them. Measured with 250 MB: 34 ms of processor time for a
    fork before, 4 ms after; the tests' gateways fork for most queries.
    """
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, _, _, _, *name = line.split(maxsplit=5)
        if rights == "rw-p" and (not name or name == ["[heap]"]):
            first, end = (int(address, 16) for address in place.split("-"))
            first += -first % _HUGE_PAGE
            if (size := end // _HUGE_PAGE * _HUGE_PAGE - first) > 0:
                advise(first, size, _MADV_COLLAPSE)
