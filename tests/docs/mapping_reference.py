"""The tables of keys in docs/mapping.md, made of the structs of the rule tables and the texts below their keys."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import inspect as types

from lamplighter.adapters.mapping import tables
from tests.support.places import ROOT

PAGE = ROOT / "docs" / "mapping.md"
CHOICES_SHOWN = 4
"""More words to choose from are in the text of the key."""
SECTIONS: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("## Keys of a value", tables.ReadTable),
    ("## `[[stream]]`: MQTT topics", tables.StreamTable),
    ("### Items of `also`", tables.SourceTable),
    ("## `[[stream]]`: resources of CoAP, HTTP and Modbus", tables.ResourceTable),
    ("## `[[stream]]`: paths of the CoAP server", tables.PathTable),
    ("## Keys of each `[[command]]`", tables.CommandBase),
    ("## `[[command]]`: MQTT topics", tables.CommandTable),
    ("### `lamp`", tables.LampPart),
    ("## `[[command]]`: resources of CoAP, HTTP and Modbus", tables.ResourceCommandTable),
    ("## `[[publish]]`", tables.PublishTable),
)
"""Heading, and the struct whose keys follow, but for those of an earlier section."""


def mapping_reference() -> str:
    """The sections with a table of the keys of each rule table, in Markdown."""
    shown: set[tuple[type, str]] = set()
    parts = []
    for heading, table in SECTIONS:
        texts = key_texts(table)
        fields = [field for field in msgspec.structs.fields(table) if (texts[field.name][0], field.name) not in shown]
        shown |= {(texts[field.name][0], field.name) for field in fields}
        rows = [f"|`{field.name}`{_value(field)}|{texts[field.name][1]}|" for field in fields]
        parts += [heading, "\n".join(("|key|meaning|", "|---|---|", *rows))]
    return "\n\n".join(parts)


def key_texts(table: type[msgspec.Struct]) -> dict[str, tuple[type, str]]:
    """key -> the class that has it, and the text below it. Raises AssertionError for a key without one."""
    texts: dict[str, tuple[type, str]] = {}
    for owner in reversed(table.__mro__):
        if owner.__module__ != tables.__name__:
            continue
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(definition, ast.ClassDef)
        for key, text in zip(definition.body, [*definition.body[1:], None], strict=True):
            if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name):
                constant = text.value if isinstance(text, ast.Expr) else None
                assert isinstance(constant, ast.Constant), f"{owner.__name__}.{key.target.id} has no text below it"
                texts[key.target.id] = owner, " ".join(str(constant.value).split()).removesuffix(".")
    return texts


def _value(field: msgspec.structs.FieldInfo) -> str:
    """Type and default of a key, or that it is required. A text, and a choice of many words, have no type."""
    default = "" if field.default is msgspec.NODEFAULT or isinstance(field.default, tuple) else field.default
    order = [default, *_words(field.type)]
    words = _type(types.type_info(field.type), order)
    words = [] if {"text", ""} & {*words} else words
    if field.required:
        words.append("required")
    elif default not in (None, "") and "/" not in "".join(words):
        value = f"{default:g}" if isinstance(default, float) else str(default)
        words.append(f"`{value.lower()}`")
    return f": {', '.join(words)}" if words else ""


def _words(annotation: Any) -> list[object]:
    """The words to choose from, in the order of the declaration."""
    if get_origin(annotation) is Literal:
        return [*get_args(annotation)]
    return [word for part in get_args(annotation) for word in _words(part)]


def _type(found: types.Type, order: list[object]) -> list[str]:
    """The types of a value; words to choose from are in this order."""
    match found:
        case types.UnionType(choices):
            names = [name for one in choices for name in _type(one, order)]
            return list(dict.fromkeys(name for name in names if name != "none"))
        case types.NoneType():
            return ["none"]
        case types.LiteralType(values):
            ordered = sorted(values, key=order.index)
            return ["/".join(f"`{value}`" for value in ordered)] if len(values) < CHOICES_SHOWN else [""]
        case types.StrType():
            return ["text"]
        case types.BoolType():
            return ["boolean"]
        case types.IntType() | types.FloatType() | types.DecimalType():
            return ["number"]
        case types.DictType() | types.StructType():
            return ["table"]
    return ["list"]
