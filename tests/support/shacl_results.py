"""Validation results as values that compare, whichever program has found them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Triple = tuple[str, str, str]
SH = "http://www.w3.org/ns/shacl#"
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
ANONYMOUS = "<urn:lamplighter:shape:"


class ResultRow(NamedTuple):
    """One sh:ValidationResult. path: its structure as text; shape: None for a shape without a name."""

    focus: str
    path: str | None
    value: str | None
    component: str
    severity: str
    shape: str | None


def result_rows(triples: Iterable[Triple]) -> set[ResultRow]:
    """The results that triples describe, without their sh:detail.

    Results that differ only in their message, or in a shape without a name, are one.
    """
    members: dict[str, dict[str, list[str]]] = {}
    for s, p, o in triples:
        members.setdefault(s, {}).setdefault(p, []).append(o)

    def path_text(node: str) -> str:
        cell = members.get(node, {})
        if f"<{RDF}first>" in cell:
            rest = cell[f"<{RDF}rest>"][0]
            tail = "" if rest == f"<{RDF}nil>" else f" {path_text(rest)}"
            return f"{path_text(cell[f'<{RDF}first>'][0])}{tail}"
        found = [(p, o) for p, objects in cell.items() if p.startswith(f"<{SH}") and "Path" in p for o in objects]
        return f"({found[0][0]} {path_text(found[0][1])})" if found else node

    def one(cell: dict[str, list[str]], name: str) -> str | None:
        found = cell.get(f"<{SH}{name}>", [None])
        assert len(found) == 1, (name, found)
        return found[0]

    details = {o for cell in members.values() for o in cell.get(f"<{SH}detail>", ())}
    rows = set()
    for name, cell in members.items():
        if name not in details and f"<{SH}ValidationResult>" in cell.get(f"<{RDF}type>", ()):
            path, shape = one(cell, "resultPath"), one(cell, "sourceShape")
            named = shape is not None and not shape.startswith(("_:", ANONYMOUS))
            rows.add(
                ResultRow(
                    str(one(cell, "focusNode")),
                    None if path is None else path_text(path),
                    one(cell, "value"),
                    str(one(cell, "sourceConstraintComponent")),
                    one(cell, "resultSeverity") or f"<{SH}Violation>",
                    shape if named else None,
                )
            )
    return rows
