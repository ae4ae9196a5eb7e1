"""What answers with files of the page and of its documents have in common: caching, and gzip."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

IMMUTABLE = "public, max-age=31536000, immutable"  # for a URL with a hash of the content


def file_headers(tag: str, caching: str, *, packed: bool) -> dict[str, str]:
    """The headers of a file that clients may have as gzip, too. tag: the entity tag of the file; that of its gzip is
    another one (RFC 9110, 8.8.3). packed: whether this answer is gzip."""
    headers = {"ETag": f'"{tag}{"-gzip" if packed else ""}"', "Cache-Control": caching, "Vary": "Accept-Encoding"}
    return headers | ({"Content-Encoding": "gzip"} if packed else {})


def not_modified(headers: dict[str, str]) -> Response:
    """The answer to a client that has the file with these headers."""
    return Response(status_code=304, headers={name: headers[name] for name in headers if name != "Content-Encoding"})


def takes_gzip(request: Request) -> bool:
    for item in request.headers.get("accept-encoding", "").lower().split(","):
        name, *options = (part.strip() for part in item.split(";"))
        if name in ("gzip", "*"):
            return not any(option.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for option in options)
    return False
