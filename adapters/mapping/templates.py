"""IRIs of rules: prefixed names, full IRIs and paths under the base IRI, with captures of the topic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

from lamplighter.adapters.mapping.patterns import NAME
from lamplighter.engine.errors import PayloadError
from lamplighter.ontology.vocabulary import PREFIXES

TEMPLATE_CHARS_MAX = 1_024
IRI_CHARS_MAX = 4_096
"""Of a filled template. Each reading has several IRIs, and each IRI may have a capture many times."""
CAPTURE = re.compile(rf"\{{({NAME})\}}")

# The characters of an IRI besides captured levels: those of RFC 3986, which every store accepts. A relative template
# has neither ";", the separator of a stream's IRI, nor "%", which encodes captures.
_RELATIVE = re.compile(r"[A-Za-z0-9._~/:@=+,-]+")
ABSOLUTE = re.compile(
    r"(?:https?://[A-Za-z0-9.-]+(?::[0-9]+)?/|urn:[A-Za-z0-9][A-Za-z0-9-]+:)"
    r"(?:[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
    r"(?:\#(?:[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)?"
)
STARTS_ABSOLUTE = re.compile(r"https?://|urn:")


def expand(name: str, prefixes: Mapping[str, str]) -> str:
    """The full IRI of a prefixed name or full IRI. Raises ValueError."""
    address = _with_namespace(name, prefixes)
    if not ABSOLUTE.fullmatch(address):
        raise ValueError(f"{address!r} is not an IRI; percent-encode what is not in RFC 3986")
    return address


def address(text: str, prefixes: Mapping[str, str], base_iri: str) -> str:
    """The full IRI of a full IRI, prefixed name or path under the base IRI. Raises ValueError."""
    if STARTS_ABSOLUTE.match(text) or text.partition(":")[0] in prefixes:
        return expand(text, prefixes)
    return base_iri + iri_template(text, frozenset())


def expanded_template(name: str, prefixes: Mapping[str, str], names: frozenset[str]) -> str:
    """As `expand`, with captures behind the namespace. Raises ValueError."""
    check_names(name, names)
    template = _with_namespace(name, prefixes)
    _check_absolute(template)
    return template


def iri_template(template: str, names: frozenset[str]) -> str:
    """A path under the base IRI or a full IRI, checked. Raises ValueError."""
    check_names(template, names)
    sample = CAPTURE.sub("x", template)
    if STARTS_ABSOLUTE.match(template):
        _check_absolute(template)
    else:
        segments = sample.split("/")
        if not _RELATIVE.fullmatch(sample) or ":" in segments[0] or {"", ".", ".."} & set(segments):
            raise ValueError(
                "write a path such as 'post/{post}' of letters, digits and . _ ~ - : @ = + , "
                "without a slash at the start or the end, or a full http(s) or urn IRI"
            )
    return template


def check_names(template: str, names: frozenset[str]) -> None:
    if len(template) > TEMPLATE_CHARS_MAX:
        raise ValueError(f"write at most {TEMPLATE_CHARS_MAX} characters")
    unknown = [name for name in CAPTURE.findall(template) if name not in names]
    if unknown:
        raise ValueError(f"{{{unknown[0]}}} is not captured by the topic ({', '.join(sorted(names)) or 'none is'})")


def encode_captures(captures: Mapping[str, str], rest: str | None) -> dict[str, str]:
    """Captures for `filled_iri`: each is one segment, the rest of a topic a path.

    Raises PayloadError for a capture that would be an empty or relative segment.
    """
    found = {}
    for name, text in captures.items():
        levels = text.split("/") if name == rest else [text]
        if any(level in ("", ".", "..") for level in levels):
            raise PayloadError("a topic level or name that a rule captures is empty, '.' or '..'")
        found[name] = "/".join(map(segment, levels))
    return found


def filled_iri(template: str, captures: Mapping[str, str], base_iri: str) -> str:
    """The IRI of a template. captures: encoded. Raises PayloadError for a long one."""
    text = CAPTURE.sub(lambda found: captures[found[1]], template)
    if len(text) > IRI_CHARS_MAX:
        raise PayloadError(f"an IRI would have more than {IRI_CHARS_MAX} characters")
    return text if STARTS_ABSOLUTE.match(text) else base_iri + text


def filled_text(template: str, captures: Mapping[str, str]) -> str:
    return CAPTURE.sub(lambda found: captures[found[1]], template)


def segment(text: str) -> str:
    """Text as one segment of an IRI's path; different for different texts."""
    return quote(text, safe="")


def short(address: str) -> str:
    """The prefixed name of an IRI in one of our vocabularies, else the whole IRI, as one segment of a path."""
    for prefix, namespace in PREFIXES.items():
        if address.startswith(namespace):
            return f"{prefix}:{segment(address.removeprefix(namespace))}"
    return segment(address)


def stream_path(address: str, base_iri: str) -> str:
    """An IRI as part of a stream's IRI; different for different IRIs, so that no two streams share an IRI."""
    relative = address.removeprefix(base_iri)
    return segment(address) if relative == address or ";" in relative else relative


def _with_namespace(name: str, prefixes: Mapping[str, str]) -> str:
    prefix, colon, local = name.partition(":")
    if STARTS_ABSOLUTE.match(name):
        return name
    if colon and prefix in prefixes:
        return prefixes[prefix] + local
    raise ValueError(f"unknown prefix; write a full http(s) or urn IRI, or declare it in [prefixes] ({prefix!r})")


def _check_absolute(template: str) -> None:
    start = CAPTURE.sub("{", template)  # a capture must not choose the host or the namespace
    if not ABSOLUTE.fullmatch(CAPTURE.sub("x", template)) or not ABSOLUTE.match(start):
        raise ValueError("write a full IRI with its captures behind the host (or behind 'urn:<namespace>:')")
