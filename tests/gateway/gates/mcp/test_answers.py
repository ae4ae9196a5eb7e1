"""The beginning of an answer is read as it comes, in parts that may end anywhere, and not beyond the limits."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pyoxigraph as ox
import pytest

from lamplighter.engine.errors import LimitExceededError
from lamplighter.engine.terms import literal
from lamplighter.gateway.gates.mcp.answers import BYTES_MAX, boolean, first_rows, first_triples

TEXTS = ("plain", 'a"b\\c', "},{", "]}}", "ü💡", "\n\t\r\x00", '{"bindings":[', "")


class Parts:
    """An answer in parts. read: how many were taken; closed: whether the iteration was ended."""

    def __init__(self, content: bytes, ends: Sequence[int]) -> None:
        places = [0, *ends, len(content)]
        self._parts = [content[begin:end] for begin, end in pairwise(places)]
        self.read = 0
        self.closed = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            for part in self._parts:
                self.read += 1
                yield part
        finally:
            self.closed = True


def select(rows: int, random: Random) -> tuple[bytes, dict[str, Any]]:
    """A result of the store, and its document."""
    others = ("<http://a/,;:>", "UNDEF", "1.5", "'x'@en")
    values = " ".join(f"({literal(random.choice(TEXTS))} {random.choice(others)})" for _ in range(rows))
    found = ox.Store().query(f"SELECT ?bindings ?y {{ VALUES (?bindings ?y) {{ {values} }} }}")
    assert isinstance(found, ox.QuerySolutions)
    content = found.serialize(format=ox.QueryResultsFormat.JSON)
    assert content is not None
    return content, json.loads(content)


@pytest.mark.parametrize("seed", range(40))
async def test_rows_are_those_of_the_whole_document_wherever_its_parts_end(seed: int) -> None:
    random = Random(seed)
    content, document = select(random.randrange(12), random)
    whole = document["results"]["bindings"]
    ends = sorted(random.sample(range(len(content)), min(len(content), random.choice((0, 1, 5, 200)))))
    for rows_max in (1, 5, 12):
        parts = Parts(content, ends)
        told = await first_rows(parts.chunks(), rows_max)
        assert told.content == {
            "columns": document["head"]["vars"],
            "rows": whole[:rows_max],
            "more": len(whole) > rows_max,
        }
        assert parts.closed
        lines = told.text.split("\n")
        assert len(lines) == (1 + len(whole[:rows_max]) if whole else 0) + (len(whole) > rows_max or not whole)


async def test_no_more_is_read_than_is_told() -> None:
    content, _ = select(1000, Random(1))
    parts = Parts(content, range(0, len(content), 100))
    assert len((await first_rows(parts.chunks(), 3)).content["rows"]) == 3
    assert parts.closed and parts.read < 20


async def test_long_rows_end_the_answer() -> None:
    row = '{"x":{"type":"literal","value":"' + "x" * 100_000 + '"}}'
    content = ('{"head":{"vars":["x"]},"results":{"bindings":[' + ",".join([row] * 5) + "]}}").encode()
    told = await first_rows(Parts(content, range(0, len(content), 65536)).chunks(), 100)
    assert (len(told.content["rows"]), told.content["more"]) == (2, True)
    assert len(told.text) < 1000
    huge = Parts(content.replace(b"x" * 100_000, b"x" * BYTES_MAX * 2), [])
    assert (await first_rows(huge.chunks(), 100)).content == {"columns": ["x"], "rows": [], "more": True}


async def test_a_row_without_an_end_is_not_read_to_its_end() -> None:
    beginnings = (
        b'{"head":{"vars":["x"]},"results":{"bindings":[{"x":{"type":"literal","value":"',
        b'<http://a> <http://p> "',
    )
    for read, beginning in zip((first_rows, first_triples), beginnings, strict=True):
        parts = Parts(beginning + b"x" * BYTES_MAX * 4, range(0, BYTES_MAX * 4, BYTES_MAX // 4))
        assert (await read(parts.chunks(), 100)).content["more"] is True
        assert parts.closed and parts.read <= 7


async def test_long_triples_end_the_answer() -> None:
    line = b'<http://a> <http://p> "%b" .\n' % (b"x" * 100_000)
    told = await first_triples(Parts(line * 5, range(0, 5 * len(line), 65536)).chunks(), 100)
    assert (len(told.content["triples"]), told.content["more"]) == (2, True)


async def test_terms_in_the_text_are_readable() -> None:
    text = "SELECT * { VALUES (?a ?b) { (<http://a> 'x\\ty') (<<( <http://s> <http://p> 1 )>> UNDEF) } }"
    found = ox.Store().query(text)
    assert isinstance(found, ox.QuerySolutions)
    content = found.serialize(format=ox.QueryResultsFormat.JSON)
    assert content is not None
    lines = (await first_rows(Parts(content, []).chunks(), 9)).text.split("\n")
    assert lines[:2] == ["?a\t?b", "<http://a>\tx\\ty"]
    assert lines[2].startswith('{"subject": ') and lines[2].endswith("}\t")


async def test_triples_and_truth() -> None:
    lines = [f'<http://a> <http://p> "{number} \\n ü" .' for number in range(9)]
    content = "".join(f"{line}\n" for line in lines).encode()
    for ends in ((), range(0, len(content), 7)):
        told = await first_triples(Parts(content, ends).chunks(), 9)
        assert told.content == {"triples": lines, "more": False} and told.text == "\n".join(lines)
        told = await first_triples(Parts(content, ends).chunks(), 8)
        assert told.content == {"triples": lines[:8], "more": True}
    assert (await first_triples(Parts(b"", []).chunks(), 8)).text == "There is no triple."
    assert (await first_triples(Parts(b"x" * (BYTES_MAX + 1), []).chunks(), 8)).content["more"] is True
    assert (await boolean(Parts(b'{"head":{},"boolean":true}', [3]).chunks())).content == {"boolean": True}


async def test_errors_of_the_answer_are_raised() -> None:
    async def broken() -> AsyncGenerator[bytes, None]:
        yield b'{"head":{"vars":["x"]},"results":{"bindings":['
        raise LimitExceededError("too long")

    for read in (first_rows, first_triples):
        with pytest.raises(LimitExceededError, match="too long"):
            await read(broken(), 5)
