"""Resources: the vocabulary, the applications, and what the dataset says about an IRI."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import mcp_types as types
import msgspec
from mcp.shared.exceptions import MCPError

from lamplighter import ontology
from lamplighter.engine.errors import GatewayError, UnknownResourceError
from lamplighter.gateway.gates.mcp.tools import ApplicationTools, QueryTool, UpdateTool
from lamplighter.gateway.loop.runner import Runner
from lamplighter.gateway.security.callers import Caller
from lamplighter.gateway.workers.resources import ResourceRequest

APPLICATIONS: Final = "lamplighter:applications"
# Before the name of a file of `ontology/`.
VOCABULARY: Final = "lamplighter:vocabulary/"
TEXT_BYTES_MAX: Final = 256 * 1024
_TURTLE = "text/turtle"
_JSON = "application/json"
_FOLDER = Path(ontology.__file__).parent


class TextResources:
    """Those of `list_all`, and each IRI of the dataset."""

    def __init__(self, runner: Runner, base_iri: str, tools: ApplicationTools) -> None:
        self._runner = runner
        self._base_iri = base_iri
        self._tools = tools
        self._files = {f"{VOCABULARY}{path.stem}": path for path in sorted(_FOLDER.glob("*.ttl"))}

    def list_all(self) -> list[types.Resource]:
        return [
            types.Resource(
                uri=APPLICATIONS,
                name="applications",
                description="The applications of this gateway: their prefixes, and their queries and updates as tools",
                mime_type=_JSON,
            ),
            *(
                types.Resource(
                    uri=uri,
                    name=path.stem,
                    description=f"Vocabulary: classes and properties ({path.name})",
                    mime_type=_TURTLE,
                )
                for uri, path in self._files.items()
            ),
        ]

    def templates(self) -> list[types.ResourceTemplate]:
        return [
            types.ResourceTemplate(
                uri_template="{+iri}",
                name="description",
                description="What the dataset says about an IRI: its triples, and some that lead to it",
                mime_type=_TURTLE,
            )
        ]

    async def read(self, uri: str, caller: Caller) -> types.TextResourceContents:
        """Raises MCPError."""
        if uri == APPLICATIONS:
            return types.TextResourceContents(uri=uri, mime_type=_JSON, text=self._applications(caller))
        if uri in self._files:
            return types.TextResourceContents(uri=uri, mime_type=_TURTLE, text=self._files[uri].read_text())
        try:
            answer = await self._runner.queries.resource(ResourceRequest((uri,), _TURTLE, self._base_iri), caller)
            text = (await answer.whole(TEXT_BYTES_MAX)).decode()
        except UnknownResourceError as error:
            raise MCPError(
                types.INVALID_PARAMS,
                f"the dataset has no triples of {ascii(uri)[:200]} that this client may read; resources/list lists "
                "the other resources",
            ) from error
        except GatewayError as error:
            raise MCPError(types.INVALID_REQUEST, f"{error.code}: {error}") from error
        return types.TextResourceContents(uri=uri, mime_type=_TURTLE, text=text)

    def _applications(self, caller: Caller) -> str:
        found: dict[str, dict[str, dict[str, str]]] = {}
        for name, tool in self._tools.current().items():
            if not tool.permits(caller.access):
                continue
            match tool:
                case QueryTool():
                    member, operation = "queries", tool.query
                case UpdateTool():
                    member, operation = "updates", tool.update
                case _:
                    continue
            application = tool.application
            empty = {"prefixes": dict(application.profile.namespaces), "queries": {}, "updates": {}}
            found.setdefault(application.name, empty)[member][operation] = name
        return msgspec.json.encode(found).decode()
