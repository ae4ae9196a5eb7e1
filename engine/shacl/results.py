"""Violations as sentences, as quads, and as the report of a refusal (SHACL, 3.6).

The quads of a violation follow from it and from its shape. So the store's graph is the only state, and what leaves it
is found by finding the violation once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from lamplighter.engine.access import VIOLATIONS
from lamplighter.engine.shacl.model import (
    FIRST,
    NIL,
    QUALIFIED_MIN,
    REST,
    SH,
    TARGET_NODE,
    TYPE,
    ConstraintShape,
    Qualified,
    Violation,
    local,
    sh,
)
from lamplighter.engine.shacl.paths import text_of
from lamplighter.engine.sparql.paths import Path, PathAlternative, PathInverse, PathRepeated, PathSequence, PathStep
from lamplighter.engine.terms import Quad, Term, is_blank, is_iri, lexical, literal, term_to_json

# Results in the report of a refusal.
REPORTED_MAX = 100
# Violations that the message of a refusal names.
_NAMED_MAX = 3
# Characters of a term in a sentence.
_SHOWN_MAX = 120

_SENTENCES = {
    "class": "no instance of {}",
    "datatype": "no valid {}",
    "nodeKind": "not of the kind {}",
    "minCount": "fewer than {} values",
    "maxCount": "more than {} values",
    "minExclusive": "not more than {}",
    "minInclusive": "less than {}, or not comparable",
    "maxExclusive": "not less than {}",
    "maxInclusive": "more than {}, or not comparable",
    "minLength": "fewer than {} characters",
    "maxLength": "more than {} characters",
    "languageIn": "in none of the languages {}",
    "uniqueLang": "several values in one language",
    "equals": "not the same values as those of {}",
    "disjoint": "also a value of {}",
    "lessThan": "not less than each value of {}",
    "lessThanOrEquals": "more than a value of {}, or not comparable",
    "hasValue": "the value {} is missing",
    "in": "none of the {} allowed values",
    "closed": "a property that the shape does not allow",
    "node": "does not conform to {}",
    "and": "does not conform to all of {} shapes",
    "or": "conforms to none of {} shapes",
    "xone": "does not conform to exactly one of {} shapes",
    "not": "conforms to {}, which it must not",
}


def message_of(violation: Violation) -> str:
    """What is wrong, in a sentence: the shape's sh:message if it has one."""
    if violation.shape.messages:
        return lexical(violation.shape.messages[0])
    name, value = violation.constraint
    if name == "pattern":
        return f"does not match {value[0]!r}"
    if isinstance(value, Qualified):
        few = violation.component == QUALIFIED_MIN
        return f"{'fewer' if few else 'more'} than {value.least if few else value.most} values of {_name(value.shape)}"
    return _SENTENCES[name].format(_parameter(name, value))


def _parameter(name: str, value: Any) -> str:
    if name in ("in", "and", "or", "xone"):
        return str(len(value))
    if name in ("node", "not"):
        return _name(value[0])
    if name == "languageIn":
        return ", ".join(value)
    return short(value) if isinstance(value, str) else str(value)


def _name(shape: ConstraintShape) -> str:
    return short(shape.name)


def short(term: Term) -> str:
    """A term for a sentence."""
    return term if len(term) <= _SHOWN_MAX else f"{term[: _SHOWN_MAX - 1]}…"


def sentence(target: Term, violation: Violation) -> str:
    """A violation with all that names it: focus node, path, value, what is wrong, and the shape."""
    at = "" if violation.path is None else f" at {text_of(violation.path)}"
    value = "" if violation.value is None or violation.value == violation.focus else f" value {short(violation.value)}"
    below = "" if target == violation.focus else f" (of {short(target)})"
    return (
        f"{short(violation.focus)}{below}{at}{value}: {message_of(violation)} "
        f"(sh:{local(violation.component)} of {short(violation.shape.place)})"
    )


def summary(violations: Sequence[tuple[Term, Violation]]) -> str:
    """The message of a refusal."""
    named = "; ".join(sentence(*one) for one in violations[:_NAMED_MAX])
    more = len(violations) - _NAMED_MAX
    return f"the update violates SHACL shapes: {named}{f'; and {more} more' if more > 0 else ''}"


# --- quads ---


def node_of(target: Term, violation: Violation) -> Term:
    """The IRI of a result, which follows from what it says."""
    shape, focus, path, value, _, component = violation
    text = "\n".join((target, shape.name, focus, "" if path is None else text_of(path), value or "", component))
    return f"<urn:lamplighter:violation:{blake2b(text.encode(), digest_size=16).hexdigest()}>"


def quads_of(target: Term, violation: Violation) -> Iterator[Quad]:
    """The quads of a result in the graph of violations."""
    node = node_of(target, violation)
    facts = [
        (TYPE, sh("ValidationResult")),
        (TARGET_NODE, target),
        (sh("focusNode"), violation.focus),
        (sh("sourceShape"), violation.shape.name),
        (sh("sourceConstraintComponent"), violation.component),
        (sh("resultSeverity"), violation.shape.severity),
    ]
    facts += [(sh("resultMessage"), text) for text in violation.shape.messages or (literal(message_of(violation)),)]
    if violation.value is not None:
        facts.append((sh("value"), violation.value))
    for predicate, term in facts:
        yield Quad(node, predicate, term, VIOLATIONS)
    if violation.path is not None:
        below: list[Quad] = []
        root = _path_quads(violation.path, node, below)
        yield Quad(node, sh("resultPath"), root, VIOLATIONS)
        yield from below


def _path_quads(path: Path, node: Term, quads: list[Quad]) -> Term:
    """Adds the quads that describe a path; returns the term that stands for it. node: of the result."""
    if isinstance(path, PathStep):
        assert isinstance(path.part, str)
        return path.part

    def new() -> Term:
        return f"{node[:-1]}:{len(quads)}>"

    def list_quads(parts: Sequence[Path]) -> Term:
        rest = NIL
        for part in reversed(parts):
            term = _path_quads(part, node, quads)
            cell = new()
            quads.extend((Quad(cell, FIRST, term, VIOLATIONS), Quad(cell, REST, rest, VIOLATIONS)))
            rest = cell
        return rest

    match path:
        case PathSequence(parts):
            return list_quads(parts)
        case PathAlternative(parts):
            name, term = "alternativePath", list_quads(parts)
        case PathInverse(inner):
            name, term = "inversePath", _path_quads(inner, node, quads)
        case PathRepeated(inner, zero, repeated):
            name, term = _repetition(zero, repeated), _path_quads(inner, node, quads)
        case _:
            raise AssertionError(path)
    root = new()
    quads.append(Quad(root, sh(name), term, VIOLATIONS))
    return root


def _repetition(zero: bool, repeated: bool) -> str:
    return ("zeroOrMorePath" if zero else "oneOrMorePath") if repeated else "zeroOrOnePath"


# --- the report ---


_CONTEXT = {"sh": SH, "gateway": TARGET_NODE[1:-1].removesuffix("targetNode")}


def report_of(violations: Sequence[tuple[Term, Violation]]) -> dict[str, Any]:
    """The sh:ValidationReport as JSON-LD, with the first `REPORTED_MAX` results."""
    return {
        "@context": dict(_CONTEXT),
        "@type": "sh:ValidationReport",
        "sh:conforms": False,
        "sh:result": [_result(*one) for one in violations[:REPORTED_MAX]],
    }


def _result(target: Term, violation: Violation) -> dict[str, Any]:
    shape = violation.shape
    members: dict[str, Any] = {
        "@type": "sh:ValidationResult",
        "gateway:targetNode": _json(target),
        "sh:focusNode": _json(violation.focus),
        "sh:sourceShape": _json(shape.name),
        "sh:sourceConstraintComponent": _json(violation.component),
        "sh:resultSeverity": _json(shape.severity),
        "sh:resultMessage": [_json(text) for text in shape.messages] or message_of(violation),
    }
    if violation.path is not None:
        members["sh:resultPath"] = _json_path(violation.path)
    if violation.value is not None:
        members["sh:value"] = _json(violation.value)
    return members


def _json(term: Term) -> dict[str, Any]:
    """A term as JSON-LD. IRIs that look like short names of the context, such as ``sh:x``, stand where it does not
    count."""
    found = _members(term)
    name = found.get("@id") or found.get("@type") or ""
    return {"@context": dict.fromkeys(_CONTEXT), **found} if name.partition(":")[0] in _CONTEXT else found


def _members(term: Term) -> dict[str, Any]:
    if is_iri(term):
        return {"@id": term[1:-1]}
    if is_blank(term):
        return {"@id": term}
    found = term_to_json(term)
    if found["type"] != "literal":  # a triple term, which JSON-LD 1.1 does not have
        return {"@value": term}
    members = {"@value": found["value"]}
    if "xml:lang" in found:
        members["@language"] = found["xml:lang"]
    elif "datatype" in found:
        members["@type"] = found["datatype"]
    return members


def _json_path(path: Path) -> dict[str, Any]:
    match path:
        case PathStep(predicate):
            return _json(str(predicate))
        case PathInverse(inner):
            return {"sh:inversePath": _json_path(inner)}
        case PathSequence(parts):
            return {"@list": list(map(_json_path, parts))}
        case PathAlternative(parts):
            return {"sh:alternativePath": {"@list": list(map(_json_path, parts))}}
        case PathRepeated(inner, zero, repeated):
            return {f"sh:{_repetition(zero, repeated)}": _json_path(inner)}
    raise AssertionError(path)
