"""JSON-LD contexts that are known here, so that none is fetched: a document that names another one is refused.

They are those that notifications usually have. Activity Streams is written from the terms of its Recommendation
(Activity Vocabulary, W3C 2017): its names are those of the vocabulary, and some have a type.
"""

from __future__ import annotations

from typing import Any, Final

from lamplighter.engine.errors import LimitExceededError, UnsupportedRequestError

ACTIVITY_STREAMS: Final = "https://www.w3.org/ns/activitystreams"
LDP: Final = "http://www.w3.org/ns/ldp"
REFERENCES_MAX = 16
"""Known contexts that one document may name."""

_AS = f"{ACTIVITY_STREAMS}#"
_LDP = f"{LDP}#"
_XSD = "http://www.w3.org/2001/XMLSchema#"
_LINKS = (
    *("actor", "attachment", "attributedTo", "audience", "bcc", "bto", "cc", "context", "current", "describes"),
    *("first", "followers", "following", "generator", "href", "icon", "image", "inReplyTo", "instrument", "items"),
    *("last", "liked", "likes", "location", "next", "object", "oneOf", "anyOf", "origin", "outbox", "partOf", "prev"),
    *("preview", "relationship", "replies", "result", "shares", "subject", "tag", "target", "to", "url", "units"),
)
_TIMES = ("deleted", "endTime", "published", "startTime", "updated")
_TYPED = {
    "accuracy": "float",
    "altitude": "float",
    "latitude": "float",
    "longitude": "float",
    "radius": "float",
    "duration": "duration",
    "height": "nonNegativeInteger",
    "startIndex": "nonNegativeInteger",
    "totalItems": "nonNegativeInteger",
    "width": "nonNegativeInteger",
}
_LANGUAGES = ("content", "name", "summary")

_KNOWN: dict[str, dict[str, Any]] = {
    ACTIVITY_STREAMS: {
        "@vocab": _AS,
        "as": _AS,
        "ldp": _LDP,
        "xsd": _XSD,
        "id": "@id",
        "type": "@type",
        "inbox": {"@id": f"{_LDP}inbox", "@type": "@id"},
        **{name: {"@id": _AS + name, "@type": "@id"} for name in _LINKS},
        "orderedItems": {"@id": f"{_AS}items", "@type": "@id", "@container": "@list"},
        **{name: {"@id": _AS + name, "@type": f"{_XSD}dateTime"} for name in _TIMES},
        **{name: {"@id": _AS + name, "@type": _XSD + kind} for name, kind in _TYPED.items()},
        **{f"{name}Map": {"@id": _AS + name, "@container": "@language"} for name in _LANGUAGES},
    },
    LDP: {
        "@vocab": _LDP,
        "ldp": _LDP,
        "id": "@id",
        "type": "@type",
        "contains": {"@id": f"{_LDP}contains", "@type": "@id"},
        "inbox": {"@id": f"{_LDP}inbox", "@type": "@id"},
        "constrainedBy": {"@id": f"{_LDP}constrainedBy", "@type": "@id"},
    },
}


def with_contexts(document: Any) -> Any:
    """A JSON-LD document in which known contexts stand instead of their names. The argument is not modified.

    Raises UnsupportedRequestError for another context that would have to be fetched, LimitExceededError for too many.
    """
    left = REFERENCES_MAX

    def known(context: Any) -> Any:
        nonlocal left
        if isinstance(context, list):
            return [known(one) for one in context]
        if not isinstance(context, str):
            _check_inline(context)
            return context
        name = context.removesuffix(".jsonld").rstrip("#/")
        found = _KNOWN.get(name) or _KNOWN.get(name.replace("http:", "https:", 1)) or _KNOWN.get(f"http{name[5:]}")
        if found is None:
            raise UnsupportedRequestError(
                f"the context {context[:200]!r} is not known here, and contexts are not fetched; put it into the "
                f"document, or use {' or '.join(_KNOWN)}"
            )
        left -= 1
        if left < 0:
            raise LimitExceededError(f"a document may name {REFERENCES_MAX} contexts")
        return found

    def walked(value: Any) -> Any:
        if isinstance(value, list):
            return [walked(one) for one in value]
        if isinstance(value, dict):
            return {name: known(one) if name == "@context" else walked(one) for name, one in value.items()}
        return value

    return walked(document)


def _check_inline(context: Any) -> None:
    """Raises UnsupportedRequestError for a context that imports, or contains, one that would be fetched."""
    if isinstance(context, list):
        for one in context:
            _check_inline(one)
    if not isinstance(context, dict):
        return
    for name, value in context.items():
        named = [value] if not isinstance(value, list) else value
        if name == "@import" or (name == "@context" and any(isinstance(one, str) for one in named)):
            raise UnsupportedRequestError(f"{name} in a context would be fetched; put its terms into the document")
        _check_inline(value)
