"""The @context of requests (4.4, 5.5.7): names of types and attributes <-> IRIs. None is ever fetched.

A name without a definition belongs to the default vocabulary of the standard, so data of Smart Data Models can be kept
and had back with the same names even without their context.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pyoxigraph as ox

from lamplighter.engine.client.files import json_document, read_file
from lamplighter.engine.errors import ConfigurationError, LimitExceededError, MalformedRequestError, RequestError
from lamplighter.engine.terms import iri
from lamplighter.gateway.gates.ngsild.problems import UnknownContextError, excerpt
from lamplighter.ontology import vocabulary as v

NGSI: Final = "https://uri.etsi.org/ngsi-ld/"
DEFAULT: Final = "https://uri.etsi.org/ngsi-ld/default-context/"
CORE: Final = "https://uri.etsi.org/ngsi-ld/v1/ngsi-ld-core-context-v1.8.jsonld"
# The context with the names of the streams' entities.
STREAMS: Final = "http://lamplighter.example/ns/ngsi-ld-streams.jsonld"
TERMS_MAX: Final = 5_000
CONTEXTS_MAX: Final = 16  # contexts that one request may name or have, those inside of others included
NAME_CHARS_MAX: Final = 500
STEPS_MAX: Final = 8  # terms that the definition of one leads through
_CORE_URL = re.compile(r"https?://uri\.etsi\.org/ngsi-ld/v1/ngsi-ld-core-context(-v1\.\d{1,2})?\.jsonld")
_CORE_TERMS: Final = {name: NGSI + name for name in ("location", "observationSpace", "operationSpace")}
_STREAM_TERMS: Final = {
    "Stream": v.STREAM,
    "result": v.HAS_SIMPLE_RESULT,
    "observedProperty": v.OBSERVED_PROPERTY,
    "madeBySensor": v.MADE_BY_SENSOR,
    "hasFeatureOfInterest": v.HAS_FEATURE_OF_INTEREST,
}
_NAME = re.compile(r"[^\W\d][\w-]*")
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:.+", re.S)


def is_absolute(text: str) -> bool:
    """Whether it is an absolute IRI that can be a term."""
    if len(text) > NAME_CHARS_MAX or not _ABSOLUTE.fullmatch(text):
        return False
    try:
        iri(text)
        ox.NamedNode(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class ContextNames:
    """terms: name or prefix -> IRI; vocabulary: of other names; given: the contexts as the client wrote them."""

    terms: Mapping[str, str] = field(default_factory=dict)
    vocabulary: str = DEFAULT
    given: tuple[Any, ...] = ()

    def expand(self, name: str, place: str) -> str:
        """The IRI of a name. place: in the request, for the error. Raises MalformedRequestError."""
        found = _CORE_TERMS.get(name) or self.terms.get(name)
        if found is None and ":" in name:
            prefix, _, local = name.partition(":")
            # `http://...` is an IRI even if somebody defines a term `http` (JSON-LD 1.1 API, 5.2.2).
            before = None if local.startswith("//") else self.terms.get(prefix)
            found = name if before is None else before + local
        elif found is None and _NAME.fullmatch(name):
            found = self.vocabulary + name
        if found is None or not is_absolute(found):
            raise MalformedRequestError(
                f"{place}: {name[:100]!r} is no name; write letters, digits, _ and - behind a letter, or an IRI"
            )
        return found

    def compact(self, value: str) -> str:
        """A name that expands to an IRI: the shortest one, or the IRI itself."""
        found = self._by_iri.get(value)
        if found is not None:
            return found
        rest = value.removeprefix(self.vocabulary)
        if rest != value and _NAME.fullmatch(rest) and rest not in self.terms and rest not in _CORE_TERMS:
            return rest
        return value

    def __post_init__(self) -> None:
        found: dict[str, str] = {}
        # The longest first, so that the shortest stays in the dict; the name decides among equals, or answers would
        # differ by the order of the context.
        for name, value in sorted({**self.terms, **_CORE_TERMS}.items(), key=lambda item: (-len(item[0]), item[0])):
            if (_NAME.fullmatch(name) and name not in _CORE_TERMS) or _CORE_TERMS.get(name) == value:
                found[value] = name
        object.__setattr__(self, "_by_iri", found)

    _by_iri: Mapping[str, str] = field(init=False, repr=False, compare=False, default_factory=dict)


PLAIN: Final = ContextNames()


class KnownContexts:
    """The contexts that requests may name: the core context, that of the streams, and files of the operator."""

    def __init__(self, files: Mapping[str, str], folder: Path) -> None:
        """files: URL -> path beside the settings. Raises ConfigurationError."""
        self._known: dict[str, Any] = {STREAMS: _STREAM_TERMS}
        for url, name in files.items():
            path = folder / name
            try:
                document = json_document(read_file(path))
            except (OSError, msgspec.DecodeError) as error:
                raise ConfigurationError(
                    f"ngsild.contexts: {url!r}: {path}: {error}; save the context there"
                ) from error
            self._known[url] = document.get("@context") if isinstance(document, dict) else document
        # Now and not with the first request: an operator's file that is wrong has to stop the start. After all are
        # read, since one may name another.
        for url in files:
            try:
                self.names(url)
            except RequestError as error:
                raise ConfigurationError(f"ngsild.contexts: {url!r}: {error}") from error

    def names(self, context: Any) -> ContextNames:
        """The names of a context: its URL, an object, or an array of both. Raises UnknownContextError for one that
        would have to be fetched, MalformedRequestError, LimitExceededError."""
        reading = _ContextReading(self._known)
        reading.take(context)
        given = context if isinstance(context, list) else [context]
        return ContextNames(reading.terms, reading.vocabulary, tuple(given))


class _ContextReading:
    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known
        self._left = CONTEXTS_MAX
        self.terms: dict[str, str] = {}
        self.vocabulary = DEFAULT

    def take(self, context: Any) -> None:
        if isinstance(context, list):
            self._count()
            for one in context:
                self.take(one)
        elif isinstance(context, str):
            self._count()
            if _CORE_URL.fullmatch(context):
                return
            if context not in self._known:
                raise UnknownContextError(
                    f"the @context {context[:200]!r} is not known here, and contexts are not fetched; save it beside "
                    "lamplighter.toml and name the file in [ngsild.contexts], write its terms into the request, or use "
                    "IRIs as names"
                )
            self.take(self._known[context])
        elif isinstance(context, dict):
            self._count()
            self._take_terms(context)
        else:
            raise MalformedRequestError(f"@context: write a URL, an object or an array, not {excerpt(context)}")

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise LimitExceededError(f"@context: a request may have {CONTEXTS_MAX} contexts")

    def _take_terms(self, context: dict[str, Any]) -> None:
        if "@import" in context:
            raise UnknownContextError("@context: @import would be fetched; write its terms into the request")
        found: dict[str, str] = {}
        for name, value in context.items():
            text = value.get("@id") if isinstance(value, dict) else value
            if name == "@vocab":
                if not isinstance(text, str) or not is_absolute(text):
                    raise MalformedRequestError(f"@context: @vocab is an absolute IRI, not {excerpt(text)}")
                self.vocabulary = text
            # Keywords such as @version, aliases of keywords, and terms set to null say nothing about names here.
            elif name.startswith("@") or text is None or (isinstance(text, str) and text.startswith("@")):
                continue
            elif not isinstance(text, str):
                raise MalformedRequestError(f"@context: {name[:100]!r}: write an IRI, not {excerpt(text)}")
            else:
                found[name] = text
        if len(self.terms) + len(found) > TERMS_MAX:
            raise LimitExceededError(f"@context: there may be {TERMS_MAX} terms")
        # After the loop above: a definition may use a prefix that stands behind it.
        for name, text in found.items():
            self.terms[name] = self._absolute(found, name, text)

    def _absolute(self, found: Mapping[str, str], name: str, text: str) -> str:
        """A term's IRI, which may be written with a prefix or another term of the context."""
        # Two definitions may lead to each other.
        for _ in range(STEPS_MAX):
            prefix, colon, local = text.partition(":")
            if colon and not local.startswith("//") and prefix in found and found[prefix] != text:
                text = found[prefix] + local
            elif colon and not local.startswith("//") and prefix in self.terms:
                text = self.terms[prefix] + local
            elif not colon and text in found and found[text] != text:
                text = found[text]
            else:
                break
            if len(text) > NAME_CHARS_MAX:
                break
        else:
            raise MalformedRequestError(f"@context: {name[:100]!r}: its definition leads through {STEPS_MAX} others")
        if ":" not in text and _NAME.fullmatch(text):
            text = self.vocabulary + text
        if not is_absolute(text):
            raise MalformedRequestError(f"@context: {name[:100]!r}: {text[:100]!r} is no absolute IRI")
        return text
