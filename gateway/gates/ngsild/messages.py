"""What a request and its answer have in common for all operations: the context, the body, and the form of the answer
(6.3.5, 6.3.6)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lamplighter.engine.errors import LimitExceededError, MalformedRequestError, NotJsonError, RequestError
from lamplighter.gateway.gates.http.calls import BODY, content_type
from lamplighter.gateway.gates.ngsild.contexts import CORE, PLAIN, ContextNames, KnownContexts
from lamplighter.gateway.gates.standards import decode_json, json_object

JSON, JSON_LD = "application/json", "application/ld+json"
_BODIES = (JSON, JSON_LD, "application/merge-patch+json")
_RELATION = "http://www.w3.org/ns/json-ld#context"
_LINK = re.compile(r"\s*<([^<>]*)>\s*((?:;[^,<>]*)*)(?:,|$)")


class NgsiMessage:
    def __init__(self, request: Request, contexts: KnownContexts) -> None:
        self._request = request
        self._contexts = contexts

    def _link_target(self) -> str | None:
        """The context that the header Link names. Raises MalformedRequestError."""
        found = []
        for text in self._request.headers.getlist("link"):
            at = 0
            while at < len(text):
                link = _LINK.match(text, at)
                if link is None:
                    raise MalformedRequestError(f'Link: write <URL>; rel="{_RELATION}"; type="{JSON_LD}"')
                if _RELATION in link[2]:
                    found.append(link[1])
                at = link.end()
        if len(found) > 1:
            raise MalformedRequestError("Link: name one context")
        return found[0] if found else None

    def names(self) -> ContextNames:
        """The names of a request without a body."""
        linked = self._link_target()
        return PLAIN if linked is None else self._contexts.names(linked)

    async def body(self) -> tuple[dict[str, Any], ContextNames]:
        """The members of a body and its names (6.3.5). Raises RequestError."""
        media_type = self._media_type()
        members = json_object(self._request.scope[BODY], "write the members of the entity", NotJsonError)
        return members, self._names_of(members, media_type)

    async def entities(self, most: int) -> list[tuple[dict[str, Any], ContextNames | RequestError]]:
        """The members of the entities of a batch, and their names or why they have none. Raises RequestError."""
        media_type = self._media_type()
        listed = decode_json(self._request.scope[BODY], NotJsonError)
        if not isinstance(listed, list) or not listed or not all(isinstance(one, dict) for one in listed):
            raise MalformedRequestError("the body is no array of entities with one in it")
        if len(listed) > most:
            raise LimitExceededError(f"a batch may have {most} entities; send more in further ones")
        found: list[tuple[dict[str, Any], ContextNames | RequestError]] = []
        for members in listed:
            try:
                found.append((members, self._names_of(members, media_type)))
            except RequestError as error:
                found.append((members, error))
        return found

    def _media_type(self) -> str:
        media_type = content_type(self._request)
        if media_type not in _BODIES:
            raise MalformedRequestError(f"Content-Type is {media_type[:100] or 'missing'}; send {JSON} or {JSON_LD}")
        return media_type

    def _names_of(self, members: dict[str, Any], media_type: str) -> ContextNames:
        linked = self._link_target()
        if media_type == JSON_LD:
            if linked is not None:
                raise MalformedRequestError(f"Link: a body of {JSON_LD} has its @context; leave the header out")
            if "@context" not in members:
                raise MalformedRequestError(f"@context is missing; {JSON_LD} needs it, or send {JSON}")
            return self._contexts.names(members["@context"])
        if "@context" in members:
            raise MalformedRequestError(f"@context: send it with Content-Type {JSON_LD}, or in a Link header")
        return PLAIN if linked is None else self._contexts.names(linked)

    def answer(
        self, value: Any, names: ContextNames, headers: Mapping[str, str] | None = None, links: list[str] | None = None
    ) -> Response:
        """An answer with its context, in the body or in a Link header (6.3.6)."""
        links = links or []
        media_type = JSON
        if JSON_LD in self._request.headers.get("accept", ""):
            media_type = JSON_LD
            several = value if isinstance(value, list) else [value]
            for one in several:
                one["@context"] = context_member(names)
        else:
            links.append(context_link(names))
        found = {**(headers or {}), "Vary": "Accept"}
        if links:
            found["Link"] = ", ".join(links)
        return Response(msgspec.json.encode(value), 200, found, media_type)


def context_member(names: ContextNames) -> Any:
    context = [*(one for one in names.given if one != CORE), CORE]
    return context[0] if len(context) == 1 else context


def context_link(names: ContextNames) -> str:
    urls = [one for one in names.given if isinstance(one, str)]
    return f'<{urls[0] if urls else CORE}>; rel="{_RELATION}"; type="{JSON_LD}"'
