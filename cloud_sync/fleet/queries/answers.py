"""Rows of a query -> text: a table for people, SPARQL 1.1 Query Results JSON, SPARQL 1.1 Query Results CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from typing import TextIO

from lamplighter.engine.errors import PayloadError
from lamplighter.engine.tables import count_text, text_table
from lamplighter.engine.terms import Term, is_blank, is_term, lexical, term_to_json

FORMATS = ("table", "json", "csv")

Answer = Sequence[Term | None]
"""One solution: a term for each variable, None where unbound."""


def write_boolean(answer: bool, format: str, out: TextIO) -> None:
    """The answer of an ASK. format: json, or table."""
    out.write((json.dumps({"head": {}, "boolean": answer}) if format == "json" else str(answer).lower()) + "\n")


def write_rows(variables: Sequence[str], rows: Iterable[Answer], format: str, out: TextIO) -> None:
    """The rows of a SELECT. JSON and CSV are written row by row. Raises PayloadError for what is no term."""
    checked = map(_check_terms, rows)
    if format == "table":
        shown = [[None if term is None else plain(term) for term in row] for row in checked]
        out.write(text_table(count_text(len(shown), "row", ","), variables, shown, len(shown), len(shown)) + "\n")
    elif format == "csv":
        lines = csv.writer(out)  # its line ends are CRLF, as the recommendation has them
        lines.writerow(variables)
        for row in checked:
            lines.writerow(["" if term is None else plain(term) for term in row])
    else:
        out.write(f'{{"head": {{"vars": {json.dumps(list(variables))}}}, "results": {{"bindings": [')
        before = "\n"
        for row in checked:
            bound = {name: term_to_json(term) for name, term in zip(variables, row, strict=True) if term is not None}
            out.write(f"{before}{json.dumps(bound)}")
            before = ",\n"
        out.write("\n]}}\n")


def plain(term: Term) -> str:
    """A term as in SPARQL 1.1 Query Results CSV, section 3.2: without quotes, datatype and language."""
    return term if is_blank(term) or term.startswith("<<(") else lexical(term)


def _check_terms(row: Answer) -> Answer:
    for term in row:
        if term is not None and not is_term(term):
            raise PayloadError(f"{term[:100]!r} in the answer is no RDF term; correct the query")
    return row
