"""Results of queries as bodies of CoAP messages. Pure."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from typing import Any

from lamplighter.adapters.literals import NUMBERS
from lamplighter.adapters.mapping import cbor
from lamplighter.adapters.mapping.tables import CONTENT_FORMATS
from lamplighter.engine.errors import PayloadError
from lamplighter.engine.terms import XSD, Bag, Term, is_iri, is_literal, lexical

JSON, CBOR = CONTENT_FORMATS["json"], CONTENT_FORMATS["cbor"]
SENML_JSON, SENML_CBOR = CONTENT_FORMATS["senml+json"], CONTENT_FORMATS["senml+cbor"]
TEXT = CONTENT_FORMATS["text"]
# JSON and CBOR: SPARQL results; SenML: a record for each row, by the columns n, v, u and t; text: the only value.
FORMATS = JSON, CBOR, SENML_JSON, SENML_CBOR, TEXT

# In SenML CBOR (RFC 8428 section 6).
_LABELS = {"n": 0, "u": 1, "v": 2, "vs": 3, "vb": 4, "t": 6}
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def result_body(result: Bag, content_format: int) -> bytes:
    """The result in one of `FORMATS`, the same for equal results. Raises PayloadError if it has no such form."""
    ordered = Bag(result.variables, sorted(result.rows, key=lambda row: [term or "" for term in row]))
    if content_format == TEXT:
        return _text(ordered)
    if content_format in (JSON, CBOR):
        document: Any = ordered.to_json()
        return _json(document) if content_format == JSON else cbor.encode(document)
    if "v" not in ordered.variables:
        raise PayloadError("SenML needs the variable v")
    pack = [_record(row) for row in ordered.bindings()]
    if content_format == SENML_JSON:
        return _json(pack)
    return cbor.encode([{_LABELS[label]: value for label, value in record.items()} for record in pack])


def _json(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _text(result: Bag) -> bytes:
    if len(result.variables) != 1 or len(result) > 1:
        raise PayloadError("text needs one variable and one row")
    term = result.rows[0][0] if result.rows else None
    return b"" if term is None else _term_text(term).encode()


def _term_text(term: Term) -> str:
    return lexical(term) if is_iri(term) or is_literal(term) else term


def _record(row: dict[str, Term]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for label in ("n", "u"):
        if label in row:
            record[label] = _term_text(row[label])
    if "v" in row:
        label, value = _value(row["v"])
        record[label] = value
    if "t" in row:
        try:
            record["t"] = datetime.fromisoformat(_term_text(row["t"])).timestamp()
        except ValueError as error:
            raise PayloadError("SenML needs xsd:dateTime as t") from error
    return record


def _value(term: Term) -> tuple[str, Any]:
    text = _term_text(term)
    if term.endswith(f"^^<{XSD}boolean>") and text in _BOOLEANS:
        return "vb", _BOOLEANS[text]
    if term.endswith(NUMBERS):
        if _INTEGER.fullmatch(text):
            return "v", int(text)
        number = float(text)
        if math.isfinite(number):
            return "v", number
    return "vs", text
