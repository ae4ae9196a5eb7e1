"""The link format (RFC 6690): what `/.well-known/core` and directories list. Parser, writer and filters. Pure.

Links are hostile input: a device on the network, or a datagram with a forged source, may have written them. Numbers and
lengths are bounded, and the parser is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from lamplighter.engine.errors import PayloadError

# The number of the content format.
LINK_FORMAT = 40
TEXT_BYTES_MAX = 65_536
LINKS_MAX = 1_000
TARGET_CHARS_MAX = 1_024
# Of one link.
ATTRIBUTES_MAX = 16
NAME_CHARS_MAX = 64
VALUE_CHARS_MAX = 1_024
# Of one filter.
CRITERIA_MAX = 16

_SPACE = re.compile(r"[ \t\r\n]*+")
_CONTROL = r"\x00-\x1f\x7f-\x9f"
_TARGET = re.compile(rf"<([^<>\"\\{_CONTROL} ]*+)>")
_NAME = re.compile(r"[A-Za-z0-9!#$&+.^_`|~-]++\*?")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'()*+\-./:<=>?@\[\]^_`{|}~]++")
_QUOTED = re.compile(rf"\"((?:[^\"\\{_CONTROL}]|\\[^{_CONTROL}]|(?!))*+)\"")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CARDINAL = re.compile(r"0|[1-9][0-9]*")
_CONTROLS = re.compile(f"[{_CONTROL}]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

# Attributes that are lists of words: the relation types of RFC 6690, and ct (RFC 7252 section 7.2.1).
_LISTS = frozenset({"rel", "rev", "rt", "if", "ct"})


class Link(NamedTuple):
    """A target with its attributes, in their order.

    target: the reference as it was written. attributes: name -> value, None for a name alone, such as obs. A name may
    occur several times.
    """

    target: str
    attributes: tuple[tuple[str, str | None], ...] = ()

    def has(self, name: str) -> bool:
        return any(name == one for one, _ in self.attributes)

    def first(self, name: str) -> str | None:
        """The first value of an attribute. Further ones do not count, except those of endpoints (RFC 9176)."""
        return next((value for one, value in self.attributes if one == name), None)

    def words(self, name: str) -> tuple[str, ...]:
        """The words of an attribute that is a list, such as rt and ct."""
        return tuple((self.first(name) or "").split())


class Criterion(NamedTuple):
    """One condition of a filter. value: None if the attribute is only to be there; prefix: the value may go on."""

    name: str
    value: str | None
    prefix: bool = False


def parse_links(data: bytes, *, bytes_max: int = TEXT_BYTES_MAX, links_max: int = LINKS_MAX) -> list[Link]:
    """The links of a text in the link format. Spaces and line breaks between its parts are skipped.

    Raises PayloadError, which names the position and does not quote the text.
    """
    if len(data) > bytes_max:
        raise PayloadError(f"the links have more than {bytes_max} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PayloadError(f"the links are not UTF-8 at byte {error.start}") from error
    found: list[Link] = []
    at = _after_space(text, 0)
    if at == len(text):
        return found
    while True:
        if len(found) >= links_max:
            raise PayloadError(f"there are more than {links_max} links")
        link, at = _link(text, at)
        found.append(link)
        if at == len(text):
            return found
        if text[at] != ",":
            raise _fault("a link ends with ',' or ';'", at)
        at = _after_space(text, at + 1)


def links_text(links: Iterable[Link]) -> str:
    """The text of links. Values are quoted unless they are numbers. Raises ValueError for what has no spelling."""
    return ",".join(map(_link_text, links))


def criteria(query: Iterable[str]) -> tuple[Criterion, ...]:
    """The conditions of a query, one for each Uri-Query option, such as ``rt=temperature*``. Raises PayloadError."""
    found: list[Criterion] = []
    for option in query:
        name, equals, value = option.partition("=")
        if not name or len(found) >= CRITERIA_MAX or len(option) > VALUE_CHARS_MAX:
            raise PayloadError(f"a filter has 1 to {CRITERIA_MAX} conditions, such as rt=temperature")
        if not equals:
            found.append(Criterion(name, None))
        else:
            found.append(Criterion(name, value.removesuffix("*"), value.endswith("*")))
    return tuple(found)


def matches(link: Link, criterion: Criterion) -> bool:
    """Whether a link meets a condition (RFC 6690 section 4.1). The name href means the target."""
    name, wanted, prefix = criterion
    if name == "href":
        found: list[str] = [link.target]
    elif wanted is None:
        return link.has(name)
    else:
        found = [value for one, value in link.attributes if one == name and value is not None]
        if name in _LISTS and found:
            found = [*found[0].split(), found[0]]
    if wanted is None:
        return True
    return any(value.startswith(wanted) if prefix else value == wanted for value in found)


def filter_links(links: Iterable[Link], conditions: Sequence[Criterion]) -> list[Link]:
    """The links that meet all conditions."""
    return [link for link in links if all(matches(link, one) for one in conditions)]


def is_absolute(reference: str) -> bool:
    """Whether a reference is a URI with a scheme."""
    return _SCHEME.match(reference) is not None


def resolve(reference: str, base: str) -> str:
    """The URI of a reference that is a URI or an absolute path, as in the Limited Link Format (RFC 9176 appendix C).

    base: a URI with authority. An empty reference is the base. Raises ValueError for other references and for paths
    with the segments "." and "..", which no Uri-Path option may have.
    """
    if not reference:
        return base
    if is_absolute(reference):
        return reference
    if not reference.startswith("/") or reference.startswith("//"):
        raise ValueError("a target is a URI with a scheme, or a path that starts with one slash")
    if "/." in reference and {".", ".."} & set(re.split(r"[?#]", reference, maxsplit=1)[0].split("/")):
        raise ValueError("a path has no segment '.' or '..'")
    parts = urlsplit(base)
    return f"{parts.scheme}://{parts.netloc}{reference}"


def _link(text: str, at: int) -> tuple[Link, int]:
    """The link that begins at a position, and where it ends."""
    target = _TARGET.match(text, at)
    if target is None:
        raise _fault("a link begins with a target in '<' and '>', without spaces and control characters", at)
    if len(target[1]) > TARGET_CHARS_MAX:
        raise _fault(f"a target has more than {TARGET_CHARS_MAX} characters", at)
    attributes: list[tuple[str, str | None]] = []
    at = _after_space(text, target.end())
    while text[at : at + 1] == ";":
        at = _after_space(text, at + 1)
        if len(attributes) >= ATTRIBUTES_MAX:
            raise _fault(f"a link has more than {ATTRIBUTES_MAX} attributes", at)
        name = _NAME.match(text, at)
        if name is None or len(name[0]) > NAME_CHARS_MAX:
            raise _fault(f"a name of an attribute has 1 to {NAME_CHARS_MAX} letters, digits or signs", at)
        at, value = _after_space(text, name.end()), None
        if text[at : at + 1] == "=":
            value, at = _value(text, _after_space(text, at + 1))
            at = _after_space(text, at)
        attributes.append((name[0], value))
    return Link(target[1], tuple(attributes)), at


def _value(text: str, at: int) -> tuple[str, int]:
    if text[at : at + 1] == '"':
        quoted = _QUOTED.match(text, at)
        if quoted is None:
            raise _fault("a quoted value has no end, or has a control character", at)
        value, end = _ESCAPED.sub(r"\1", quoted[1]), quoted.end()
    else:
        token = _TOKEN.match(text, at)
        if token is None:
            raise _fault("a value is missing, or has characters that need quotes", at)
        value, end = token[0], token.end()
    if len(value) > VALUE_CHARS_MAX:
        raise _fault(f"a value has more than {VALUE_CHARS_MAX} characters", at)
    return value, end


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _fault(reason: str, at: int) -> PayloadError:
    return PayloadError(f"links, character {at + 1}: {reason}")


def _link_text(link: Link) -> str:
    if _TARGET.fullmatch(f"<{link.target}>") is None:
        raise ValueError('a target has a space, a control character, or one of < > " \\')
    text = f"<{link.target}>"
    for name, value in link.attributes:
        if _NAME.fullmatch(name) is None:
            raise ValueError("a name of an attribute has a character that is not permitted")
        if value is None:
            text += f";{name}"
        elif _CARDINAL.fullmatch(value):
            text += f";{name}={value}"
        elif _CONTROLS.search(value):
            raise ValueError("a value has a control character")
        else:
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            text += f';{name}="{escaped}"'
    return text
