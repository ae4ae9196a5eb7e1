"""Sealed segments and snapshots are read as exactly one frame, within limits."""

from __future__ import annotations

import io

import pytest
import zstandard

from lamplighter.engine.change_log.frames import frame_lines


def test_lines_may_have_as_many_bytes_as_the_limits_say_and_no_more() -> None:
    content = b"12345\n12345678\n"
    frame = zstandard.compress(content)
    assert list(frame_lines(io.BytesIO(frame), 8, len(content))) == [b"12345", b"12345678"]
    with pytest.raises(ValueError, match="a line is longer than 7 bytes"):
        list(frame_lines(io.BytesIO(frame), 7))
    with pytest.raises(ValueError, match=f"unpacks to more than {len(content) - 1} bytes"):
        list(frame_lines(io.BytesIO(frame), 8, len(content) - 1))
    unended = zstandard.compress(b"1234")
    for limit, reason in ((4, "breaks off"), (3, "a line is longer than 3 bytes")):
        with pytest.raises(ValueError, match=reason):
            list(frame_lines(io.BytesIO(unended), limit))
