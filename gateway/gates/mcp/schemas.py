"""JSON Schema of arguments and results (JSON Schema 2020-12, as the Model Context Protocol uses it)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lamplighter.engine.errors import ForcedBindingError
from lamplighter.engine.protocol.jsap import Query, Update
from lamplighter.engine.sparql.forced_bindings import ForcedBinding
from lamplighter.engine.terms import XSD

Schema = dict[str, Any]

# By the local name of an XML Schema datatype; all others are text.
_OF_DATATYPE: Final[Mapping[str, Schema]] = {
    name: schema
    for names, schema in (
        ("integer int long short byte unsignedInt unsignedLong unsignedShort unsignedByte", {"type": "integer"}),
        ("nonNegativeInteger positiveInteger nonPositiveInteger negativeInteger", {"type": "integer"}),
        ("decimal double float", {"type": "number"}),
        ("boolean", {"type": "boolean"}),
        ("dateTime dateTimeStamp", {"type": "string", "format": "date-time"}),
        ("date", {"type": "string", "format": "date"}),
        ("time", {"type": "string", "format": "time"}),
        ("duration", {"type": "string", "format": "duration"}),
        ("anyURI", {"type": "string", "format": "iri-reference"}),
    )
    for name in names.split()
}
_TEXT: Final[Schema] = {"type": "string"}
# A number or a boolean then becomes a literal of its own datatype.
_UNTYPED: Final[Schema] = {"type": ["string", "number", "boolean"]}
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}

_TERM: Final[Schema] = {
    "type": "object",
    "description": "an RDF term, as in the SPARQL 1.1 Query Results JSON Format",
    "properties": {
        "type": {"enum": ["uri", "literal", "bnode", "triple"]},
        "value": {},
        "datatype": {"type": "string"},
        "xml:lang": {"type": "string"},
    },
    "required": ["type", "value"],
}
_A_TERM: Final[Schema] = {"$ref": "#/$defs/term"}
_MORE: Final[Schema] = {"type": "boolean", "description": "whether there is more than this answer has"}
_BOOLEAN: Final[Schema] = {"type": "boolean", "description": "whether the pattern of the query matches"}
_TRIPLES: Final[Schema] = {"type": "array", "items": _TEXT, "description": "triples, each a line of N-Triples"}


def _of(properties: Schema, required: Sequence[str]) -> Schema:
    found: Schema = {"type": "object", "properties": properties, "required": list(required)}
    return found | ({"$defs": {"term": _TERM}} if "rows" in properties else {})


def _rows(columns: Sequence[str]) -> Schema:
    row = {"type": "object", "properties": dict.fromkeys(columns, _A_TERM), "additionalProperties": _A_TERM}
    return {"type": "array", "items": row, "description": "a variable without a value in a row is left out"}


def results_schema(form: str, columns: Sequence[str]) -> Schema:
    """Of the results of a query. form: SELECT, ASK, CONSTRUCT or DESCRIBE; columns: of a SELECT."""
    if form == "ASK":
        return _of({"boolean": _BOOLEAN}, ["boolean"])
    if form == "SELECT":
        names = {"type": "array", "items": _TEXT}
        return _of({"columns": names, "rows": _rows(columns), "more": _MORE}, ["columns", "rows", "more"])
    return _of({"triples": _TRIPLES, "more": _MORE}, ["triples", "more"])


# Of the results of a query of any form.
ANY_RESULTS: Final = _of(
    {
        "columns": {"type": "array", "items": _TEXT},
        "rows": _rows(()),
        "boolean": _BOOLEAN,
        "triples": _TRIPLES,
        "more": _MORE,
    },
    [],
)
# Of the outcome of an update. Each member is left out where it is not known, or not to be told.
UPDATED: Final = _of(
    {
        "added": {"type": "integer", "description": "quads that the update added, as far as this client may read them"},
        "removed": {"type": "integer", "description": "quads that it removed"},
        "sequence": {"type": "integer", "description": "the record in the change log"},
        "delayed": {"type": "string", "description": "the id of the delayed update, which runs later"},
    },
    [],
)


def input_schema(entry: Query | Update, expanded: Callable[[str], str]) -> Schema:
    """Of the arguments: one for each forced binding. expanded: as `Jsap.expand`."""
    bindings = entry.forced_bindings
    return {
        "type": "object",
        "properties": {name: value_schema(declared, expanded) for name, declared in bindings.items()},
        "required": [name for name, declared in bindings.items() if declared.value == ""],
        "additionalProperties": False,
    }


def value_schema(declared: ForcedBinding, expanded: Callable[[str], str]) -> Schema:
    """Of the value of one forced binding."""
    found = dict(_kind(declared, expanded))
    words = [declared.description] if declared.description else []
    if declared.type != "literal":
        words.append("an absolute IRI, or a name with a prefix of the application")
    elif declared.language is not None:
        words.append(f"text in the language {declared.language}")
    elif declared.datatype is not None:
        words.append(f"datatype {declared.datatype}")
    if declared.value is None:
        words.append("without it every value matches")
    elif declared.value != "":
        found["default"] = declared.value
    if words:
        found["description"] = "; ".join(words)
    return found


def _kind(declared: ForcedBinding, expanded: Callable[[str], str]) -> Schema:
    if declared.type != "literal":
        return {"type": "string", "format": "iri"}
    if declared.datatype is not None:
        datatype = expanded(declared.datatype)
        return _OF_DATATYPE.get(datatype.removeprefix(XSD), _TEXT) if datatype.startswith(XSD) else _TEXT
    if declared.language is not None:
        return _TEXT
    match declared.value:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
    return _UNTYPED


def values(tool: str, schema: Schema, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call as values of forced bindings; null counts as not given.

    Raises ForcedBindingError for an unknown argument, and for a value of another JSON type than the schema has.
    Whether a value fits its datatype, and whether one is missing, is checked where it becomes a term.
    """
    known = schema["properties"]
    found = {}
    for name, value in arguments.items():
        if name not in known:
            names = ", ".join(known) or "none"
            raise ForcedBindingError(f"{tool} has no argument {name[:100]!r}; it has {names}")
        if value is None:
            continue
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise ForcedBindingError(
                    f"{tool}, argument {name}: half of a surrogate pair at {error.start} is no character"
                ) from error
        wanted = known[name]["type"]
        kinds = [wanted] if isinstance(wanted, str) else wanted
        if isinstance(value, float) and value.is_integer() and "number" not in kinds and "integer" in kinds:
            value = int(value)  # JSON has one kind of number
        if not any(_is(value, kind) for kind in kinds):
            raise ForcedBindingError(
                f"{tool}, argument {name}: {repr(value)[:100]} is of the wrong type; send a JSON {' or '.join(kinds)}"
            )
        found[name] = value
    return found


def _is(value: object, kind: str) -> bool:
    return isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))
