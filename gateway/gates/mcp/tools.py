"""Named queries and updates (JSAP) as tools: their names and definitions, and the callers that may use them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

import mcp_types as types

from lamplighter.engine.access import Access, Graphs
from lamplighter.engine.errors import AccessDeniedError, MalformedRequestError, RequestError
from lamplighter.engine.log_events import EventLogger
from lamplighter.engine.protocol.jsap import Query, Update
from lamplighter.engine.sparql.lexer import tokens
from lamplighter.engine.sparql.requests import QuadData, dataset_of, parse_query
from lamplighter.engine.terms import is_blank
from lamplighter.engine.updating.by_store import Modification, Resolved, check_access, resolved
from lamplighter.gateway.gates.mcp.schemas import ANY_RESULTS, UPDATED, input_schema, results_schema, values
from lamplighter.gateway.settings import McpSettings
from lamplighter.gateway.state.applications import SAMPLE_IRI, Application, DeclaredApplications, samples

logger = EventLogger(__name__)

# The protocol allows 128; APIs of models allow 64.
NAME_CHARACTERS_MAX: Final = 64
DESCRIPTION_CHARACTERS_MAX: Final = 2000
SPARQL_TOOL: Final = "sparql-query"
# The argument by which a repeated update has one effect.
REQUEST_ID: Final = "request_id"

_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
# The first block of comment lines of a query is what its author wrote for people; a model reads it as well.
_COMMENT = re.compile(r"(?m)(?:^[ \t]*#[^\n]*\n?)+")
_ADDITIVE = ("CREATE", "ADD")
_REQUEST_ID_SCHEMA: Final = {
    "type": "string",
    "description": "any text that is used for this update only; send it again with a retry, which then has no second "
    "effect",
}

_READS: Final = types.ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)


@dataclass(frozen=True)
class QueryTool:
    """A query of an application. sample: its text, with some value for each forced binding."""

    definition: types.Tool
    application: Application
    query: str
    sample: str

    def text(self, arguments: Mapping[str, Any]) -> str:
        """With the graphs of the profile. Raises ForcedBindingError."""
        given = values(self.definition.name, self.definition.input_schema, arguments)
        return self.application.profile.whole_query_text(self.query, {}, given)

    def permits(self, access: Access) -> bool:
        """Whether the caller may ask it, and could ever get a row."""
        visible = _with_sample(access.read)
        if visible.every:
            return True
        try:
            default, _ = dataset_of(self.sample, None, None, visible, "read").graphs(lambda graph: True)
        except AccessDeniedError:
            return False
        # A caller without any default graph still gets rows by GRAPH. By tokens, since the word may also be in a string
        # or a comment.
        names_graphs = any(token.is_word("GRAPH") for token in tokens(self.sample))
        return access.read.names != frozenset() and (default is None or len(default) > 0 or names_graphs)


@dataclass(frozen=True)
class UpdateTool:
    """An update of an application. operations: of its text, with some value for each forced binding."""

    definition: types.Tool
    application: Application
    update: str
    operations: Sequence[Resolved]

    def request(self, arguments: Mapping[str, Any]) -> tuple[str, str | None]:
        """The text with the graphs of the profile, and the request id. Raises ForcedBindingError."""
        given = values(self.definition.name, self.definition.input_schema, arguments)
        request_id = given.pop(REQUEST_ID, None)
        return self.application.profile.whole_update_text(self.update, {}, given), request_id

    def permits(self, access: Access) -> bool:
        """Whether the caller may change the graphs that the text names."""
        if access.write.names == frozenset():
            return False
        try:
            check_access(
                self.operations, replace(access, read=_with_sample(access.read), write=_with_sample(access.write))
            )
        except AccessDeniedError:
            return False
        return True


@dataclass(frozen=True)
class SparqlTool:
    """Queries of any text."""

    definition: types.Tool

    def text(self, arguments: Mapping[str, Any]) -> str:
        """Raises ForcedBindingError, MalformedRequestError."""
        given = values(self.definition.name, self.definition.input_schema, arguments)
        if "query" not in given:
            raise MalformedRequestError(f"{SPARQL_TOOL} needs the argument query: the text of a SPARQL query")
        return str(given["query"])

    def permits(self, access: Access) -> bool:
        return access.read.names != frozenset()


AnyTool = QueryTool | UpdateTool | SparqlTool


def _with_sample(graphs: Graphs) -> Graphs:
    """The graphs, and the one that stands for every graph that a caller names by an argument."""
    return graphs if graphs.names is None else replace(graphs, names=graphs.names | {SAMPLE_IRI})


class ApplicationTools:
    """The tools of the applications that are declared now."""

    def __init__(self, applications: DeclaredApplications, settings: McpSettings) -> None:
        self._applications = applications
        self._settings = settings
        self._made: tuple[Sequence[Application], Mapping[str, AnyTool]] | None = None

    def current(self) -> Mapping[str, AnyTool]:
        """By name."""
        declared = self._applications.declared
        if self._made is None or self._made[0] is not declared:
            self._made = declared, tools(declared, self._settings)
        return self._made[1]


def tools(applications: Sequence[Application], settings: McpSettings) -> dict[str, AnyTool]:
    """The tools by their names. Those whose text does not parse are left out, with a line in the log."""
    entries: list[tuple[Application, str, Query | Update]] = []
    for application in applications:
        entries += [(application, name, entry) for name, entry in application.profile.queries.items()]
        if settings.updates:
            # Off unless the operator says so: a model that reads a dataset may be talked into things by what stands in
            # it.
            entries += [(application, name, entry) for name, entry in application.profile.updates.items()]
    found: dict[str, AnyTool] = {}
    if settings.sparql:
        found[SPARQL_TOOL] = SparqlTool(_sparql_definition())
    for tool, (application, name, entry) in zip(_names(entries), entries, strict=True):
        try:
            if isinstance(entry, Query):
                found[tool] = _query_tool(tool, application, name, entry)
            else:
                found[tool] = _update_tool(tool, application, name, entry)
        except RequestError as error:
            logger.warning("tool left out", application=application.name, operation=name, reason=error)
    return found


def _names(entries: Sequence[tuple[Application, str, Query | Update]]) -> Iterator[str]:
    """``<application>-<query>`` in the characters of the protocol. A name that had to be changed, or that two would
    have, ends with a digest: it stays the same when other queries come and go."""
    plain = [f"{application.name}-{name}" for application, name, _ in entries]
    # Counted with the tool of the gateway: no application may take its name and answer in its place.
    counts = Counter([SPARQL_TOOL, *plain])
    for text, (application, name, entry) in zip(plain, entries, strict=True):
        if counts[text] == 1 and len(text) <= NAME_CHARACTERS_MAX and not _OTHER.search(text):
            yield text
            continue
        # With the type: a query and an update of the same name are two tools.
        identity = "\n".join((type(entry).__name__, application.name, name))
        # A name may have a lone surrogate, which UTF-8 has no bytes for.
        digest = sha256(identity.encode(errors="surrogatepass")).hexdigest()[:8]
        yield f"{_OTHER.sub('_', text)[: NAME_CHARACTERS_MAX - 9]}-{digest}"


def _query_tool(tool: str, application: Application, name: str, query: Query) -> QueryTool:
    """Raises RequestError."""
    profile = application.profile
    sample = application.profile.whole_query_text(name, samples(query))
    outline = parse_query(sample)
    definition = types.Tool(
        name=tool,
        title=f"{name} ({application.name})",
        description=_description(application, name, query, "query"),
        input_schema=input_schema(query, profile.expand),
        output_schema=results_schema(outline.form, outline.columns),
        annotations=_READS,
    )
    return QueryTool(definition, application, name, sample)


def _update_tool(tool: str, application: Application, name: str, update: Update) -> UpdateTool:
    """Raises RequestError."""
    operations = resolved(application.profile.whole_update_text(name, samples(update)))
    schema = input_schema(update, application.profile.expand)
    # Otherwise the binding of the operator would be taken for the id, and a second, different update for a retry.
    if REQUEST_ID in schema["properties"]:
        raise MalformedRequestError(f"the forced binding {REQUEST_ID} has the name of an argument of all updates")
    schema["properties"][REQUEST_ID] = _REQUEST_ID_SCHEMA
    delayed = update.delay is not None or update.at is not None
    definition = types.Tool(
        name=tool,
        title=f"{name} ({application.name})",
        description=_description(application, name, update, "update"),
        input_schema=schema,
        output_schema=UPDATED,
        annotations=types.ToolAnnotations(
            read_only_hint=False,
            destructive_hint=not all(map(_adds, operations)),
            # Each call of a delayed update sets another timer.
            idempotent_hint=not delayed and all(map(_repeatable, operations)),
            open_world_hint=False,
        ),
    )
    return UpdateTool(definition, application, name, operations)


def _adds(operation: Resolved) -> bool:
    """Whether an operation removes nothing."""
    match operation:
        case QuadData():
            return not operation.delete
        case Modification():
            return not operation.deletes
    return operation.verb in _ADDITIVE


def _repeatable(operation: Resolved) -> bool:
    """Whether an operation surely has no effect the second time."""
    return isinstance(operation, QuadData) and not any(
        is_blank(term) for quad in operation.quads for term in quad if term is not None
    )


def _description(application: Application, name: str, entry: Query | Update, kind: str) -> str:
    """What the profile says, or the comment that the text has, else the text itself."""
    comment = _COMMENT.search(entry.sparql)
    about = entry.description or (
        " ".join(line.strip().lstrip("#").strip() for line in comment.group().splitlines()) if comment else ""
    )
    parts = [about or f"The {kind} {name} of the application {application.name}: {entry.sparql}"]
    if isinstance(entry, Update) and entry.delay is not None:
        parts.append(f"It runs after {entry.delay}.")
    elif isinstance(entry, Update) and entry.at is not None:
        parts.append(f"It runs at {entry.at}.")
    text = "\n".join(parts)
    return text if len(text) <= DESCRIPTION_CHARACTERS_MAX else f"{text[: DESCRIPTION_CHARACTERS_MAX - 1]}…"


def _sparql_definition() -> types.Tool:
    return types.Tool(
        name=SPARQL_TOOL,
        title="SPARQL query",
        description="Answers a SPARQL 1.1 query (SELECT, ASK, CONSTRUCT, DESCRIBE) over the dataset of the gateway. It "
        "reads only. Read the resources with the vocabulary first, and use LIMIT.",
        input_schema={
            "type": "object",
            "properties": {"query": {"type": "string", "description": "the text, with the prefixes that it uses"}},
            "required": ["query"],
            "additionalProperties": False,
        },
        output_schema=ANY_RESULTS,
        annotations=_READS,
    )
