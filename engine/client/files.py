"""The one reader of files that people and other programs write: settings, mapping, contexts, keys, applications.

A file may be anything: a device without an end, a pipe that nobody writes to, a link to another user's file, or text
that takes a recursive parser too deep. Reading one ends, takes bounded memory, and raises an error that names the file
and the cure.
"""

from __future__ import annotations

import codecs
import errno
import os
import pwd
import re
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, overload

import msgspec

Document = TypeVar("Document")

# Of a file, if its reader does not say otherwise.
FILE_BYTES_MAX = 16 * 1024 * 1024
# Of brackets in each other in TOML, and parts of a dotted key.
NESTING_MAX = 100
# Non-blocking, because opening a pipe for reading would wait for a writer.
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CLOSED = (errno.EACCES, errno.EPERM)
_GROWTH_BYTES = 64 * 1024
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# Texts and comments, in which signs mean nothing, and the signs that count.
_TOML_TOKEN = re.compile(
    r'"""(?:[^\\"]++|\\.|"(?!"")|(?!))*+"""|'
    + r"'''.*?'''"
    + r'|"(?:[^"\\\n]++|\\.)*+"'
    + r"|'[^'\n]*+'|#[^\n]*+|[\[\]{}.,=\n]",
    re.DOTALL,
)


def read_file(path: Path | str, bytes_max: int = FILE_BYTES_MAX, *, follow: bool = True) -> bytes:
    """The content of a regular file. Raises OSError, as `open_file`, and for more than bytes_max bytes."""
    with open_file(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1) if size <= bytes_max else b""  # it allocates as much as it is asked for
        while size < len(content) <= bytes_max and (more := file.read(_GROWTH_BYTES)):
            content += more  # the file has grown meanwhile, or the kernel makes it while it is read
    if max(size, len(content)) > bytes_max:
        raise _refusal(errno.EFBIG, f"more than {bytes_max:,} bytes; make it smaller", path)
    return content


def open_file(path: Path | str, *, follow: bool = True) -> BinaryIO:
    """A regular file for reading. follow: whether the path may be a symbolic link; not in folders of the program.

    Raises OSError, also for what is no regular file; its strerror has the cure.
    """
    try:
        descriptor = os.open(path, _OPEN | (0 if follow else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise _refusal(errno.ELOOP, "a symbolic link; replace it by the file", path) from error
        if error.errno == errno.ENXIO:
            raise _refusal(errno.ENXIO, "not a regular file; replace it by one", path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _refusal(errno.EINVAL, "not a regular file; replace it by one", path)
    return os.fdopen(descriptor, "rb")


def reading_problem(error: OSError, path: Path | str, cure: str) -> str:
    """Why a file of the operator's cannot be read, and the cure. cure: unless it is closed to this user."""
    if error.errno in _CLOSED:
        user = _user()
        return f"the user {user} may not read it; `chgrp {user} {path}; chmod g+r {path}`"
    return f"{error.strerror or error}; {cure}"


def own_problem(error: OSError, path: Path | str, cure: str) -> str:
    """The same for what the program keeps. Its files are another user's after root has copied them back."""
    if error.errno in _CLOSED:
        user = _user()
        return f"{error.strerror} to the user {user}; `chown -R {user}: {path}`, or use the user that owns it"
    return f"{error.strerror or error}; {cure}"


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _refusal(number: int, reason: str, path: Path | str) -> OSError:
    return OSError(number, reason, str(path))


def read_text(
    path: Path | str, bytes_max: int = FILE_BYTES_MAX, *, encoding: str = "utf-8", follow: bool = True
) -> str:
    """The text of a regular file, with line ends of Unix, and without the byte order mark of Windows' editors.

    Raises OSError, as `read_file`, and UnicodeDecodeError.
    """
    content = read_file(path, bytes_max, follow=follow)
    marked = next((name for mark, name in _MARKS.items() if content.startswith(mark)), encoding)
    return content.decode(marked).replace("\r\n", "\n")


def toml_document(text: str, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """The document of a TOML text. Raises tomllib.TOMLDecodeError, also for one that is nested too deep: its parser
    works recursively, and takes minutes for a key of very many parts."""
    depth, parts, line = 0, 1, 1
    for token in _TOML_TOKEN.finditer(text):
        sign = token.group()
        if sign == ".":
            parts += 1
        elif sign in "[]{},=\n":
            depth += (sign in "[{") - (sign in "]}")
            parts = 1
        if max(depth, parts) > NESTING_MAX:
            raise tomllib.TOMLDecodeError(f"more than {NESTING_MAX} levels (at line {line}); write it flatter")
        line += sign.count("\n")
    return tomllib.loads(text, parse_float=parse_float)


@overload
def json_document(content: bytes) -> Any: ...
@overload
def json_document(content: bytes, kind: type[Document]) -> Document: ...
def json_document(content: bytes, kind: Any = Any) -> Any:
    """The document of a JSON text as a value of a type. Raises msgspec.DecodeError, also for one that is nested too
    deep."""
    try:
        return msgspec.json.decode(content.removeprefix(codecs.BOM_UTF8), type=kind)
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deep; write it flatter") from error
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8: {error}") from error
