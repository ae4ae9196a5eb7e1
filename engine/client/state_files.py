"""State files: JSON that the program keeps for its next start, which may be that of an older or of a newer version.

A member that this version does not know is kept when the file is written again, so that going back to this version and
forward again loses nothing. What must not be read without knowing a member has a higher ``format``; this version then
refuses the file, and says that a newer one wrote it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from lamplighter.engine.client.files import json_document, own_problem, read_file
from lamplighter.engine.errors import ConfigurationError

Document = TypeVar("Document")

# The highest format that is read. A file without the member ``format`` has 1, as those of version 0.1 have.
FORMAT = 1
NEWER_CURE = "install the newer version again. The file is as it was"


def state_document(path: Path, read: Any, kind: type[Document]) -> Document:
    """A JSON document of a state file as a value of a type. Raises ConfigurationError for a newer format,
    msgspec.ValidationError, which is a DecodeError, if it does not fit."""
    if reason := newer_format(read):
        raise ConfigurationError(f"{path}: {reason}; {NEWER_CURE}")
    return msgspec.convert(read, kind)


def newer_format(read: Any) -> str:
    """That a newer version wrote a document, for people; empty if this version can read it."""
    # Its meaning may depend on what this version does not know, such as a permission that is narrower.
    number = read.get("format", FORMAT) if isinstance(read, dict) else FORMAT
    if number == FORMAT:
        return ""
    return f"a newer version of Lamplighter wrote it (format {number!r}, and this version reads {FORMAT})"


def file_content(path: Path, document: Any) -> bytes:
    """What to write to a small file for a value, with the members of the file there that its type does not have."""
    read = None
    with suppress(OSError, msgspec.DecodeError):
        read = json_document(read_file(path, follow=False))
    return msgspec.json.encode(with_unknown(document, read)) + b"\n"


class StateFile(Generic[Document]):
    """One file as a value of a type, with the members that the type does not have.

    kind: a struct, or a list of structs. The first field of a struct in a list, a text, is its identity. cure: what to
    do where the file is damaged.
    """

    def __init__(self, path: Path, kind: type[Document], cure: str) -> None:
        self._path = path
        self._kind = kind
        self._cure = cure
        self._read: Any = None
        self._next: Any = None

    def read(self) -> Document | None:
        """The value; None if there is no file. Raises ConfigurationError."""
        try:
            read = json_document(read_file(self._path, follow=False))
            document = state_document(self._path, read, self._kind)
        except FileNotFoundError:
            return None
        except PermissionError as error:  # it may be whole, so it is not to be removed
            raise ConfigurationError(f"{self._path}: {own_problem(error, self._path.parent, self._cure)}") from error
        except (OSError, msgspec.DecodeError) as error:
            raise self.damage_error(error) from error
        self._read = read
        return document

    def damage_error(self, reason: object) -> ConfigurationError:
        """Of a file whose values cannot be used."""
        return ConfigurationError(f"{self._path} is damaged ({reason}); {self._cure}")

    def encode(self, document: Document) -> bytes:
        """What to write for a value. `commit` says that it is written."""
        self._next = with_unknown(document, self._read)
        return msgspec.json.encode(self._next)

    def commit(self) -> None:
        """What was encoded last is in the file: later values keep its members."""
        self._read = self._next


def with_unknown(value: Any, read: Any) -> Any:
    """A value as JSON has it, with the members of what was read that its type does not have."""
    if isinstance(value, msgspec.Struct):
        before = read if isinstance(read, dict) else {}
        fields = _fields(type(value))
        members: dict[str, Any] = msgspec.to_builtins(value)
        known = {field.encode_name for field in fields} | members.keys()  # these have a tag, too
        for field in fields:
            if field.encode_name in members:
                inner = getattr(value, field.name)
                members[field.encode_name] = with_unknown(inner, before.get(field.encode_name))
        return members | {name: member for name, member in before.items() if name not in known}
    if isinstance(value, list | tuple):
        first = value[0] if value else None
        if not isinstance(first, msgspec.Struct) or not isinstance(read, list):
            return [with_unknown(item, None) for item in value]
        identity = _fields(type(first))[0]
        name = identity.encode_name
        items = {one[name]: one for one in reversed(read) if isinstance(one, dict) and isinstance(one.get(name), str)}
        return [with_unknown(item, items.get(getattr(item, identity.name))) for item in value]
    return msgspec.to_builtins(value)


@lru_cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)  # it takes longer than the rest
