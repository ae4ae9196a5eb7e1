"""The documents of this version, beside the page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from lamplighter.gateway.gates.http.answers import Refusal, is_known
from lamplighter.gateway.gates.http.files import IMMUTABLE, file_headers, not_modified, takes_gzip
from lamplighter.gateway.gates.http.routes import Permission, Route
from lamplighter.gateway.page.documents import Documents
from lamplighter.gateway.security.callers import Caller

DOCUMENTS = "/page/docs/"
_INDEX = "index.html"
# The build moves scripts and styles of the pages into files.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_READS_MAX = 4  # files that are read at a time: each takes a thread


def document_paths(documents: Documents | None) -> frozenset[str]:
    """Paths that links of any web page may lead to."""
    pages = documents.pages if documents else ()
    return frozenset({DOCUMENTS.rstrip("/"), DOCUMENTS, *(DOCUMENTS + page for page in pages)})


class DocumentRequests:
    """The handlers. documents: None if they were not built."""

    def __init__(self, documents: Documents | None) -> None:
        self._documents = documents
        self._reading = asyncio.Semaphore(_READS_MAX)

    def routes(self) -> Iterator[Route]:
        yield Route(DOCUMENTS.rstrip("/"), self.without_slash, Permission.NOTHING)
        # The script of the search page reads the parameters.
        yield Route(DOCUMENTS, self.file, Permission.NOTHING, parameters=None)

    async def without_slash(self, request: Request, caller: Caller) -> Response:
        return Response(status_code=308, headers={"Location": "docs/"})

    async def file(self, request: Request, caller: Caller) -> Response:
        name: str = request.scope["below"] or _INDEX
        if self._documents is None:
            return Refusal(
                "not_found", 404, "this installation has no documents; in a folder with the sources, run make docs"
            )
        found = self._documents.files.get(name)
        if found is None:
            return Refusal("not_found", 404, f"there is no document {name[:200]!r}; the first page is at {DOCUMENTS}")
        packed = found.packed and takes_gzip(request)
        # The links to scripts and styles have a checksum of their content.
        versioned = name.startswith("_static/") and request.scope["query_string"].startswith(b"v=")
        headers = file_headers(found.tag, IMMUTABLE if versioned else "no-cache", packed=packed) | _HEADERS
        if is_known(request, headers["ETag"]):
            return not_modified(headers)
        async with self._reading:
            try:
                content = await asyncio.to_thread(self._documents.content, name, packed=packed)
            except OSError:
                return Refusal("not_found", 404, f"the document {name!r} cannot be read; install the gateway again")
        return Response(content, media_type=found.media_type, headers=headers)
