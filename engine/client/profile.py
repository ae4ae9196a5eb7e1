"""Reads JSAP documents and their includes, from files and over HTTP (SEPA protocol 4.1, `include`)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType
from urllib.parse import unquote, urljoin, urlsplit

from lamplighter.engine.client.addresses import trusting
from lamplighter.engine.client.files import read_file
from lamplighter.engine.errors import JsapError, check_list, check_type
from lamplighter.engine.protocol.jsap import Jsap, profile
from lamplighter.engine.protocol.jsap_tree import (
    Tree,
    decode_tree,
    included_addresses,
    member_lines,
    merge,
    normal,
    overridden,
)

# Documents in a chain of includes.
DEPTH_MAX = 8
DOCUMENTS_MAX = 64
DOCUMENT_BYTES_MAX = 4 * 1024 * 1024
FETCH_S = 30.0


def load_profile(place: str | Path, settings: Sequence[str] = (), *, ca: Path | str | None = None) -> Jsap:
    """The profile of a file or an http or https address, merged with its includes.

    settings: overrides, such as ``sparql11protocol.port=8001``. ca: file with the certificates to trust for https. It
    blocks on files and networks; use `asyncio.to_thread` in an event loop. Raises JsapError, which names the document
    and the member.
    """
    check_type("place", place, str, Path)
    check_list("settings", settings, str)
    check_type("ca", ca, str, Path, NoneType)
    loader = Loader(network=True, ca=ca)
    tree = overridden(loader.tree(place), settings)
    try:
        return profile(normal(tree))
    except JsapError as error:
        raise loader.locate_faults(error) from error


def local_profile(path: Path) -> Jsap:
    """The profile of a file, merged with its includes, which are files too. Raises JsapError."""
    return profile(Loader(network=False).tree(path))


class Loader:
    """Reads documents and their includes. network: whether HTTP is allowed; digest: SHA-256 of all documents read."""

    def __init__(self, *, network: bool, ca: Path | str | None = None) -> None:
        self._network = network
        self._ca = ca
        self.digest = hashlib.sha256()
        self._documents: dict[str, bytes] = {}  # by what messages call them, in the order in which they are read
        self._read = 0

    def tree(self, place: str | Path) -> Tree:
        """The normal tree of a document, merged with its includes in order. Raises JsapError."""
        return self._tree(_address(place), ())

    def locate_faults(self, error: JsapError) -> JsapError:
        """The faults of a profile with the document and the line of each; the document read first if none has it."""
        lines = {name: member_lines(document) for name, document in self._documents.items()}
        return JsapError(*(f"{_where(str(fault).partition(': ')[0], lines)}: {fault}" for fault in error.args))

    def _tree(self, address: str, chain: tuple[str, ...]) -> Tree:
        if address in chain:
            raise JsapError(f"include: {' includes '.join([*chain, address])}; remove one of these includes")
        if len(chain) >= DEPTH_MAX:
            raise JsapError(f"include: {address} would be the {DEPTH_MAX + 1}th document in a row; include less deeply")
        self._read += 1
        if self._read > DOCUMENTS_MAX:
            raise JsapError(
                f"{_display_address(address)}: include: more than {DOCUMENTS_MAX} documents; put some together"
            )
        document = self._document(address, chain)
        self.digest.update(document)
        self._documents[_display_address(address)] = document
        try:
            tree = normal(decode_tree(document))
        except JsapError as error:
            raise JsapError(f"{_display_address(address)}: {error}") from error
        for reference in included_addresses(tree):
            try:
                other = _included_address(address, reference)
            except ValueError as error:
                raise JsapError(
                    f"{_display_address(address)}: include: {reference!r} is no address: {error}"
                ) from error
            if urlsplit(address).scheme != "file" and urlsplit(other).scheme == "file":
                raise JsapError(f"{address}: include: a document from the network includes no files: {reference!r}")
            tree = merge(tree, self._tree(other, (*chain, address)))
        return tree

    def _document(self, address: str, chain: tuple[str, ...]) -> bytes:
        where = f", which {_display_address(chain[-1])} includes," if chain else ""
        scheme = urlsplit(address).scheme
        if scheme == "file":
            path = Path(unquote(urlsplit(address).path))
            try:
                document = read_file(path, DOCUMENT_BYTES_MAX)
            except OSError as error:
                raise JsapError(f"{path}{where} cannot be read: {error.strerror}") from error
            except ValueError as error:  # such as a zero
                raise JsapError(f"{str(path)!r}{where} cannot be the name of a file: {error}") from error
        elif scheme in ("http", "https") and self._network:
            document = self._fetch(address, where)
        else:
            kinds = "files and http and https addresses" if self._network else "files"
            raise JsapError(f"{address}{where} cannot be read: only {kinds} can")
        if len(document) > DOCUMENT_BYTES_MAX:
            raise JsapError(f"{_display_address(address)}{where} has more than {DOCUMENT_BYTES_MAX} bytes")
        return document

    def _fetch(self, address: str, where: str) -> bytes:
        import httpx  # imported here, so that reading files loads no HTTP client

        document = b""
        try:
            with (
                httpx.Client(verify=trusting(self._ca), timeout=FETCH_S, trust_env=False) as client,
                client.stream("GET", address, follow_redirects=True) as answer,
            ):
                answer.raise_for_status()
                for chunk in answer.iter_bytes():
                    document += chunk
                    if len(document) > DOCUMENT_BYTES_MAX:
                        break
        except httpx.HTTPStatusError as error:
            raise JsapError(f"{address}{where} cannot be read: status {error.response.status_code}") from error
        except httpx.HTTPError as error:
            raise JsapError(f"{address}{where} cannot be read: {error or type(error).__name__}") from error
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise JsapError(f"{address!r}{where} is no address: {error}") from error
        return document


def _included_address(address: str, reference: str) -> str:
    """The address of an included document. ``file:///NAME`` is a file beside the document if the root has none.

    Profiles of SEPA's dashboard write it with four slashes.
    """
    joined = urljoin(address, re.sub("(?i)^file:////+", "file:///", reference))
    other, document = urlsplit(joined), urlsplit(address)
    at_root = other.scheme == document.scheme == "file" and other.path.count("/") == 1
    if at_root and not Path(unquote(other.path)).exists():
        return urljoin(address, f".{other.path}")
    return other.geturl()


def _address(place: str | Path) -> str:
    try:
        if isinstance(place, str) and urlsplit(place).scheme in ("http", "https", "file"):
            return place
    except ValueError as error:
        raise JsapError(f"{place!r} is no address: {error}") from error
    path = Path(place).absolute()
    with suppress(OSError, RuntimeError):  # a loop of links
        if path.is_file():  # else the error is to name the file as it was given
            path = path.resolve()
    try:
        return path.as_uri()
    except UnicodeEncodeError as error:
        raise JsapError(f"{str(path)!r} cannot be the name of a file: {error.reason}") from error


def _where(place: str, lines: dict[str, dict[str, int]]) -> str:
    """The document and line of a member, or of the nearest member around it. Included documents take precedence."""
    names = place.split(".")
    for count in range(len(names), 0, -1):
        for document in reversed(lines):
            line = lines[document].get(".".join(names[:count]))
            if line is not None:
                return f"{document} line {line}"
    return next(iter(lines))


def _display_address(address: str) -> str:
    """An address for messages: the path of a file, else the URL."""
    return unquote(urlsplit(address).path) if urlsplit(address).scheme == "file" else address
