"""JSAP documents as trees of JSON values: spellings, generations, includes, overrides (SEPA protocol 4.1 to 4.3).

`normal` converts a tree to the current form, which is the only one that other code handles.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Sequence
from typing import Any

import msgspec

from lamplighter.engine.errors import JsapError

Tree = dict[str, Any]

_GRAPHS = ("default-graph-uri", "named-graph-uri", "using-graph-uri", "using-named-graph-uri")
_OF_2017 = ("subscribe", "secureQuery", "secureUpdate", "secureSubscribe", "authorizationServer")
_TO_CHANGE = (
    'it belongs into the members "host", "sparql11protocol" (protocol, port, query and update with path, method and '
    'format) and "sparql11seprotocol" (protocol, availableProtocols with ws and wss, each with port and path)'
)

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}:]')


def decode_tree(document: bytes) -> Tree:
    """The tree of a document. Raises JsapError."""
    try:
        tree = msgspec.json.decode(document.removeprefix(BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise JsapError(f"not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise JsapError(
            "a JSAP document is a JSON object with the members host, sparql11protocol, updates, queries, ..."
        )
    return tree


def member_lines(document: bytes) -> dict[str, int]:
    """The line of each member of a JSON document, by its path, such as ``updates.SWITCH_OFF.delay``.

    Members of objects in arrays are left out.
    """
    found: dict[str, int] = {}
    path: list[str | None] = []  # per open object or array the name of its current member; None in an array
    text = document.decode("utf-8-sig", "replace")
    line, begin, name = 1, 0, ""
    for token in _TOKEN.finditer(text):
        line, begin = line + text.count("\n", begin, token.start()), token.start()
        sign = token.group()
        if sign in "{[":
            path.append("" if sign == "{" else None)
        elif sign in "}]":
            path = path[:-1]
        elif sign == ":" and path and path[-1] is not None:
            path[-1] = name
            if None not in path:
                found[".".join(map(str, path))] = line
        elif sign.startswith('"'):
            try:
                name = msgspec.json.decode(sign, type=str)
            except msgspec.DecodeError:
                name = sign
    return found


def normal(tree: Tree) -> Tree:
    """The tree in its current form. Raises JsapError, which names the member."""
    tree = dict(tree)
    if "#include" in tree:
        if "include" in tree:
            raise JsapError("include and #include are two spellings of one member; keep include")
        tree["include"] = tree.pop("#include")
    if "include" in tree:
        tree["include"] = _texts(tree["include"], "include")
    if "parameters" in tree and not {"sparql11protocol", "sparql11seprotocol"} & tree.keys():
        tree = _of_early_2018(tree)
    if "graphs" in tree:
        tree["graphs"] = _graphs(tree["graphs"], "graphs")
    for member in ("updates", "queries"):
        entries = _object(tree.get(member, {}), member)
        tree[member] = {
            name: _entry(entry, f"{member}.{name}") if isinstance(entry, dict) else entry
            for name, entry in entries.items()
        }
    return tree


def _entry(entry: Tree, place: str) -> Tree:
    """An update or a query in its current form."""
    entry = dict(entry)
    if "graphs" in entry:
        entry["graphs"] = _graphs(entry["graphs"], f"{place}.graphs")
    if isinstance(entry.get("forcedBindings"), dict):
        entry["forcedBindings"] = {
            variable: _declaration(declared, f"{place}.forcedBindings.{variable}")
            if isinstance(declared, dict)
            else declared
            for variable, declared in entry["forcedBindings"].items()
        }
    return entry


def _declaration(declared: Tree, place: str) -> Tree:
    """The declaration of a forced binding, with SEPA's name of its language (protocol 4.4)."""
    if "xml:lang" not in declared:
        return declared
    declared = dict(declared)
    language = declared.pop("xml:lang")
    if declared.setdefault("language", language) != language:
        raise JsapError(f"{place}: language and xml:lang are two spellings of one member, and differ; keep one of them")
    return declared


def included_addresses(tree: Tree) -> list[str]:
    """The addresses of the documents that a normal tree includes, in order."""
    return list(tree.get("include", []))


def merge(tree: Tree, other: Tree) -> Tree:
    """A normal tree merged with another one that it includes (SEPA protocol 4.1, `include`).

    The included tree takes precedence, also for updates and queries of the same name; graphs are united.
    """
    result = _laid_over(
        {name: value for name, value in tree.items() if name not in ("graphs", "updates", "queries")},
        {name: value for name, value in other.items() if name not in ("graphs", "updates", "queries", "include")},
    )
    for member in ("updates", "queries"):
        result[member] = {**tree.get(member, {}), **other.get(member, {})}
    united = {
        name: list(dict.fromkeys([*tree.get("graphs", {}).get(name, []), *other.get("graphs", {}).get(name, [])]))
        for name in _GRAPHS
    }
    result["graphs"] = {name: graphs for name, graphs in united.items() if graphs}
    return result


def overridden(tree: Tree, settings: Sequence[str]) -> Tree:
    """The tree with its values overridden by settings such as ``sparql11protocol.port=8001``.

    A value that is JSON is decoded (8001, true, ["http://g"]); other values are text. Missing members are added. Raises
    JsapError for a malformed setting.
    """
    for setting in settings:
        try:
            setting.encode()
        except UnicodeEncodeError as error:
            raise JsapError(f"not a setting: {setting!r} has half of a surrogate pair") from error
        path, sign, text = setting.partition("=")
        names = path.split(".")
        if not sign or not all(names):
            raise JsapError(f"not a setting: {setting!r}; it looks like sparql11protocol.port=8001")
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError:
            value = text
        for place in reversed(range(len(names))):
            spelt = "graphs" in names[:place]  # one spelling, as in the tree
            value = {names[place].replace("_", "-") if spelt else names[place]: value}
        assert isinstance(value, dict)
        tree = _laid_over(tree, value)
    return tree


def _laid_over(tree: Tree, other: Tree) -> Tree:
    """The tree with the values of other, merged member by member."""
    result = dict(tree)
    for name, value in other.items():
        before = result.get(name)
        result[name] = _laid_over(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return result


def _graphs(value: Any, place: str) -> Tree:
    """The member `graphs` in its current form: one spelling, arrays for single texts (SEPA protocol 4.1)."""
    result: Tree = {}
    for spelling, graphs in _object(value, place).items():
        name = spelling.replace("_", "-")
        if name not in _GRAPHS:
            raise JsapError(f"{place}: no member {spelling!r} is known; there are {', '.join(_GRAPHS)}")
        if name in result:
            raise JsapError(f"{place}: {name} occurs twice, with hyphens and with underscores; keep one")
        result[name] = _texts(graphs, f"{place}.{spelling}")
    return result


def _of_early_2018(tree: Tree) -> Tree:
    """The current form of a profile with a member `parameters` (SEPA protocol 4.2)."""
    parameters = _object(tree["parameters"], "parameters")
    if any(name in parameters for name in _OF_2017):
        raise JsapError(f"parameters: this is the form of 2017, which is no longer supported; {_TO_CHANGE}")
    ports, paths, methods, formats = (
        _object(parameters.get(name, {}), f"parameters.{name}") for name in ("ports", "paths", "methods", "formats")
    )
    if not ports and not paths:
        raise JsapError(
            f"parameters: neither ports nor paths, so the generation of the profile is unknown; {_TO_CHANGE}"
        )
    secure = paths.get("securePath", "/secure")
    subscribe = paths.get("subscribe", "/subscribe")
    result = {name: value for name, value in tree.items() if name != "parameters"}
    if "host" in parameters:
        result.setdefault("host", parameters["host"])
    result["sparql11protocol"] = {
        "protocol": "http",
        "port": ports.get("http", 8000),
        **{
            name: {
                "path": paths.get(name, f"/{name}"),
                "method": methods.get(name, "POST"),
                "format": formats.get(name, "JSON"),
            }
            for name in ("query", "update")
        },
    }
    result["sparql11seprotocol"] = {
        "protocol": "ws",
        "availableProtocols": {
            "ws": {"port": ports.get("ws", 9000), "path": subscribe},
            "wss": {"port": ports.get("wss", 9443), "path": f"{secure}{subscribe}"},
        },
    }
    return result


def _object(value: Any, place: str) -> Tree:
    if not isinstance(value, dict):
        raise JsapError(f"{place}: must be an object, not {type(value).__name__}")
    return value


def _texts(value: Any, place: str) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise JsapError(f"{place}: must be a string or an array of strings")
    return texts
