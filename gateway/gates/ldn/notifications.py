"""A notification as it is posted: its constraints, and its triples."""

from __future__ import annotations

from typing import Final

import msgspec

from lamplighter.engine.client.contexts import with_contexts
from lamplighter.engine.client.inboxes import JSON_LD
from lamplighter.engine.errors import LimitExceededError, MalformedRequestError, RequestError
from lamplighter.engine.terms import Quad, Term
from lamplighter.gateway.gates.http.routes import UnsupportedMediaTypeError
from lamplighter.gateway.workers.rdf_bodies import RdfBodies

TURTLE: Final = "text/turtle"
MEDIA_TYPES: Final = (JSON_LD, TURTLE)
TRIPLES_MAX = 1000


class ConstraintError(RequestError):
    """A notification does not fulfil a constraint of the inbox, which the message names."""

    code = "constraint"
    status = 422


def constraints(bytes_max: int) -> dict[str, str]:
    """The constraints by name, for people."""
    return {
        "media-type": f"A notification is {JSON_LD} or {TURTLE}.",
        "size": f"It has at most {bytes_max} bytes.",
        "triples": f"It stands for 1 to {TRIPLES_MAX} triples, in no named graph.",
        "context": "Its JSON-LD contexts are in it, or those of Activity Streams, LDP and schema.org; none is fetched.",
        "triple-terms": "It has no triple terms, which JSON-LD cannot express.",
    }


def check_media_type(media_type: str) -> None:
    """Raises UnsupportedMediaTypeError."""
    if media_type not in MEDIA_TYPES:
        raise UnsupportedMediaTypeError(
            f"constraint media-type: Content-Type is {media_type[:100] or 'missing'}; send {' or '.join(MEDIA_TYPES)}"
        )


async def parse_notification(
    bodies: RdfBodies, body: bytes, media_type: str, graph: Term, base: str, client: str
) -> tuple[Quad, ...]:
    """The triples of a notification, each once, in a graph. base: for relative IRIs; client: who sent it. Raises
    ConstraintError, and other RequestErrors for what cannot be read."""
    if media_type == JSON_LD:
        body = _with_contexts(body)
    quads = tuple(dict.fromkeys(await bodies.quads(body, media_type, graph, base, client)))
    if not 1 <= len(quads) <= TRIPLES_MAX:
        raise ConstraintError(f"constraint triples: it stands for {len(quads)} triples; send 1 to {TRIPLES_MAX}")
    if any(term.startswith("<<") for quad in quads for term in quad[:3]):
        raise ConstraintError("constraint triple-terms: it has a triple term; describe it by a node of its own")
    return quads


def _with_contexts(body: bytes) -> bytes:
    try:
        document = with_contexts(msgspec.json.decode(body))
        return msgspec.json.encode(document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequestError(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise LimitExceededError("the JSON is nested too deep") from error
    except RequestError as error:
        raise ConstraintError(f"constraint context: {error}") from error


def too_large(bytes_max: int) -> ConstraintError:
    return ConstraintError(f"constraint size: a notification has at most {bytes_max} bytes")
