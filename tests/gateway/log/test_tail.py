"""The newest lines of the log in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from lamplighter.gateway.log import tail as tails
from lamplighter.gateway.log.tail import LogTail


class Read(deque[Any]):
    """count: entries that were read."""

    count = 0

    def __iter__(self) -> Iterator[Any]:
        for entry in super().__iter__():
            self.count += 1
            yield entry

    def __reversed__(self) -> Iterator[Any]:
        for entry in super().__reversed__():
            self.count += 1
            yield entry


def filled(records: int) -> LogTail:
    tail = LogTail()
    for number in range(1, records + 1):
        tail.append((1, number), b"%d\n" % number)
    tail.acknowledge((1, records - 1))
    return tail


def test_the_lines_behind_a_place_are_those_that_were_acknowledged() -> None:
    tail = filled(10)
    assert tail.behind((1, 4), 3) == [b"5\n", b"6\n", b"7\n"]
    assert tail.behind((1, 6), 100) == [b"7\n", b"8\n", b"9\n"]
    assert tail.behind((1, 9), 100) == tail.behind((1, 10), 100) == []
    assert tail.behind((1, 0), 1) == [b"1\n"]
    assert tail.behind((0, 9), 1) is None, "what was before is not in memory"
    assert tail.newest(2) == [b"8\n", b"9\n"]


def test_a_follower_that_keeps_up_reads_few_lines_after_each_commit() -> None:
    tail = filled(5000)
    tail._lines = read = Read(tail._lines)
    for number in range(5000, 5100):
        tail.append((1, number + 1), b"x\n")
        tail.acknowledge((1, number))
        assert len(tail.behind((1, number - 1), 1000) or ()) == 1
    assert read.count < 500


def test_the_bytes_of_the_lines_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "TAIL_BYTES_MAX", 10)
    monkeypatch.setattr(tails, "LINE_BYTES_MAX", 6)
    tail = filled(9)
    assert tail.behind((1, 3), 1) is None
    assert tail.behind((1, 4), 9) == [b"5\n", b"6\n", b"7\n", b"8\n"]
    tail.append((1, 10), b"longer\n")
    tail.append((1, 11), b"a\n")
    tail.append((1, 11), b"b\n")  # the first try failed
    tail.acknowledge((1, 11))
    assert tail.behind((1, 9), 9) is None
    assert tail.behind((1, 10), 9) == [b"b\n"]
