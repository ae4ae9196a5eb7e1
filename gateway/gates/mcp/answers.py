"""The beginning of an answer: some rows or triples, as structured content and as text. The rest is not evaluated."""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from lamplighter.engine.tables import count_text

# Characters of the rows of one answer, as JSON. A model reads about 100,000 words.
BYTES_MAX: Final = 256 * 1024
# Of a value in the text; the structured content has it whole.
CELL_CHARACTERS_MAX: Final = 300

_BINDINGS = '"bindings":['
_DECODER = json.JSONDecoder()
_ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True)
class ToolAnswer:
    """What a call answers. content: of the output schema."""

    content: dict[str, Any]
    text: str


async def boolean(chunks: AsyncGenerator[bytes, None]) -> ToolAnswer:
    """The answer of an ASK query in JSON."""
    async with aclosing(chunks):
        found = json.loads(b"".join([chunk async for chunk in chunks]))["boolean"]
    return ToolAnswer({"boolean": found}, "yes" if found else "no")


async def first_rows(chunks: AsyncGenerator[bytes, None], rows_max: int) -> ToolAnswer:
    """The first rows of a SELECT query's answer in JSON (SPARQL 1.1 Query Results JSON Format).

    Raises the errors of the iteration.
    """
    columns: list[str] = []
    rows: list[dict[str, Any]] = []
    decode = codecs.getincrementaldecoder("utf-8")().decode
    text, position, size, in_rows, more = "", 0, 0, False, False
    async with aclosing(chunks):
        async for chunk in chunks:
            text, position = text[position:] + decode(chunk), 0
            if not in_rows:
                head, found, _ = text.partition(_BINDINGS)
                if not found:
                    continue
                columns = json.loads(head + _BINDINGS + "]}}")["head"]["vars"]
                in_rows, position = True, len(head) + len(found)
            while position < len(text) and text[position] in ",{":
                begin = position + (text[position] == ",")
                try:
                    row, end = _DECODER.raw_decode(text, begin)
                except json.JSONDecodeError:
                    break  # the rest of it has not come
                size += end - begin
                if len(rows) == rows_max or size > BYTES_MAX:
                    more = True
                    break
                rows.append(row)
                position = end
            if more or len(text) - position > BYTES_MAX:
                more = True
                break
    return ToolAnswer({"columns": columns, "rows": rows, "more": more}, _table(columns, rows, more))


async def first_triples(chunks: AsyncGenerator[bytes, None], triples_max: int) -> ToolAnswer:
    """The first triples of an answer in N-Triples. Raises the errors of the iteration."""
    lines: list[str] = []
    rest, size, more = b"", 0, False
    async with aclosing(chunks):
        async for chunk in chunks:
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                size += len(line)
                if len(lines) == triples_max or size > BYTES_MAX:
                    more = True
                    break
                lines.append(line.decode())
            if more or len(rest) > BYTES_MAX:
                more = True
                break
    return ToolAnswer({"triples": lines, "more": more}, "\n".join([*lines, *_note(len(lines), "triple", more)]))


def _table(columns: Sequence[str], rows: Sequence[dict[str, Any]], more: bool) -> str:
    """One line for the columns and one for each row, with tabs between."""
    lines = ["\t".join(f"?{name}" for name in columns)] if rows else []
    lines += ["\t".join(_cell(row.get(name)) for name in columns) for row in rows]
    return "\n".join([*lines, *_note(len(rows), "row", more)])


def _note(count: int, noun: str, more: bool) -> list[str]:
    if more:
        return [
            f"There are more than these {count_text(count, noun)}; narrow the request down (mcp.rows_max is the limit)."
        ]
    return [] if count else [f"There is no {noun}."]


def _cell(member: dict[str, Any] | None) -> str:
    if member is None:
        return ""
    value = member["value"]
    match member["type"]:
        case "uri":
            text = f"<{value}>"
        case "bnode":
            text = f"_:{value}"
        case "literal":
            text = value
        case _:
            text = json.dumps(value)
    text = text if len(text) <= CELL_CHARACTERS_MAX else f"{text[: CELL_CHARACTERS_MAX - 1]}…"
    return text.translate(_ESCAPES)
