"""The parameters of a query for entities (6.4.3.2), and the names that they have in SPARQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lamplighter.engine.errors import MalformedRequestError
from lamplighter.engine.terms import Term, iri, literal
from lamplighter.gateway.gates.http.parameters import Parameters
from lamplighter.gateway.gates.ngsild.conditions import checked_pattern, condition, expression
from lamplighter.gateway.gates.ngsild.contexts import ContextNames, is_absolute
from lamplighter.gateway.gates.ngsild.graphs import EntityGraphs
from lamplighter.gateway.gates.ngsild.information import Form
from lamplighter.gateway.gates.ngsild.problems import OperationNotSupportedError, TooManyResultsError

LIMIT, LIMIT_MAX = 20, 1_000  # entities of a page, if the client does not say, and at most
OFFSET_MAX: Final = 1_000_000
NAMES_MAX: Final = 100  # of one list
FORMS: Final[Mapping[str, Form]] = {
    "normalized": "normalized",
    "concise": "concise",
    "keyValues": "keyValues",
    "simplified": "keyValues",
}
_REFUSED: Final = {
    **dict.fromkeys(
        ("georel", "geometry", "coordinates", "geoproperty", "geometryProperty"), "geometries are not compared here"
    ),
    **dict.fromkeys(("scopeQ", "datasetId", "lang"), "that is not kept here"),
    **dict.fromkeys(("csf", "containedBy", "join", "joinLevel", "jsonKeys"), "there are no other sources"),
    **dict.fromkeys(("pick", "omit"), "name the attributes with attrs"),
    "details": "there are the names of types only",
    "sysAttrs": "createdAt and modifiedAt are not kept",
    **dict.fromkeys(("orderBy", "collapse", "expandValues", "entityMap"), "entities are in the order of their ids"),
}


def _table(*names: str) -> Parameters:
    """local is true of all answers, as there are no other sources; so it changes nothing, whatever it is."""
    unsupported = {name: reason for name, reason in _REFUSED.items() if name not in names}
    return Parameters((*names, "local"), unsupported=unsupported, error=OperationNotSupportedError)


_QUERY: Final = _table("type", "id", "idPattern", "attrs", "q", "limit", "offset", "count", "options", "format")
_LOCAL: Final = _table()
_TYPED: Final = _table("type")


def parameters_of(method: str, segments: Sequence[str]) -> Parameters | None:
    """Those of an operation (6.4 to 6.11); None where there is no operation."""
    match method, segments:
        case "GET", ["entities"]:
            return _QUERY
        case "GET", ["entities", _]:
            return _table("type", "attrs", "options", "format")
        case "POST", ["entities", _, "attrs"]:
            return _table("type", "options")
        case ("DELETE", ["entities", _]) | ("PATCH", ["entities", _, "attrs"]) | ("PATCH", ["entities", _, "attrs", _]):
            return _TYPED
        case "DELETE", ["entities", _, "attrs", _]:
            return _table("type", "deleteAll")
        case "POST", ["entityOperations", "upsert"]:
            return _table("options")
        case "GET", ["types"]:
            return _LOCAL
        case "GET", ["subscriptions"]:
            return _table("limit", "offset", "count")
        case ("POST", ["entities" | "subscriptions"]) | ("GET" | "PATCH" | "DELETE", ["subscriptions", _]):
            return _LOCAL
    return None


@dataclass(frozen=True)
class EntityQuery:
    """where: the pattern of the entities, as ``?e``; attributes: IRIs of what is answered of them, none: all."""

    where: str
    attributes: tuple[Term, ...]
    form: Form
    limit: int
    offset: int
    count: bool

    def page(self) -> str:
        """A query for the page and one more: rows of ?e."""
        return f"SELECT DISTINCT ?e {{ {self.where} }} ORDER BY ?e LIMIT {self.limit + 1} OFFSET {self.offset}"


def entity_query(found: Mapping[str, str], names: ContextNames, graphs: EntityGraphs) -> EntityQuery:
    """Raises MalformedRequestError, OperationNotSupportedError, TooManyResultsError, LimitExceededError."""
    if not any(found.get(name) for name in ("type", "attrs", "q")) and found.get("local") != "true":
        raise MalformedRequestError("write type, attrs or q, or local=true for all entities")
    limit, offset, count = page(found)
    ids = _list(found, "id")
    if not all(map(is_absolute, ids)):
        raise MalformedRequestError("id: write URIs, with commas between them")
    parts = [graphs.entities(type_terms(found, names))]
    if ids:
        parts.append(f"FILTER(?e IN ({', '.join(map(iri, ids))}))")
    if pattern := checked_pattern(found.get("idPattern", ""), "idPattern"):
        parts.append(f"FILTER(REGEX(STR(?e), {literal(pattern)}))")
    if attributes := attribute_terms(found, names):
        parts.append(f"FILTER({graphs.having(attributes)})")
    if found.get("q"):
        text = expression(condition(found["q"], names), graphs)
        parts.append(f"FILTER{text}" if text.startswith("(") else f"FILTER({text})")
    return EntityQuery(" ".join(parts), attributes, form(found), limit, offset, count)


def page(found: Mapping[str, str]) -> tuple[int, int, bool]:
    """limit, offset and count (6.3.10, 6.3.13). Raises MalformedRequestError, TooManyResultsError."""
    count = flag(found, "count")
    limit = _number(found, "limit", LIMIT)
    if limit > LIMIT_MAX:
        raise TooManyResultsError(f"limit: {LIMIT_MAX} entities are the most of one answer; go on with offset")
    if limit == 0 and not count:
        raise MalformedRequestError("limit: 0 needs count=true")
    offset = _number(found, "offset", 0)
    if offset > OFFSET_MAX:
        raise TooManyResultsError(f"offset: {OFFSET_MAX} is the most; select with type or q")
    return limit, offset, count


def type_terms(found: Mapping[str, str], names: ContextNames) -> tuple[Term, ...]:
    """The types of the parameter. Raises MalformedRequestError, OperationNotSupportedError."""
    return tuple(iri(names.expand(one, "type")) for one in _types(found))


def attribute_terms(found: Mapping[str, str], names: ContextNames) -> tuple[Term, ...]:
    """Those of the parameter attrs. Raises MalformedRequestError."""
    return tuple(dict.fromkeys(iri(names.expand(one, "attrs")) for one in _list(found, "attrs")))


def form(found: Mapping[str, str]) -> Form:
    """The representation. Raises MalformedRequestError, OperationNotSupportedError."""
    named = [one for name in ("options", "format") for one in _list(found, name)]
    chosen: Form = "normalized"
    for one in named:
        if one == "sysAttrs":
            raise OperationNotSupportedError("options: createdAt and modifiedAt are not kept; leave sysAttrs out")
        if one not in FORMS:
            raise MalformedRequestError(f"options: {one[:100]!r} is none of {', '.join(FORMS)}")
        chosen = FORMS[one]
    return chosen


def _types(found: Mapping[str, str]) -> list[str]:
    text = found.get("type", "")
    if any(sign in text for sign in ";()"):
        raise OperationNotSupportedError(
            "type: ; and () are not supported; write names with commas, any of which an entity has"
        )
    return _list({"type": text.replace("|", ",")}, "type")


def _list(found: Mapping[str, str], name: str) -> list[str]:
    if name not in found:
        return []
    values = found[name].split(",") if found[name] else []
    if not all(values) or len(values) > NAMES_MAX or (not values and name in ("id", "attrs")):
        raise MalformedRequestError(f"{name}: write up to {NAMES_MAX} names, with commas between them")
    return values


def flag(found: Mapping[str, str], name: str) -> bool:
    if found.get(name, "false") not in ("true", "false"):
        raise MalformedRequestError(f"{name}: write true or false")
    return found.get(name) == "true"


def _number(found: Mapping[str, str], name: str, default: int) -> int:
    text = found.get(name, str(default))
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise MalformedRequestError(f"{name}: write a number from 0")
    return int(text)
