"""Hostile messages of the Model Context Protocol, made from a seed."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.support.context_client import APPLICATION, EX
from tests.support.hostile import Hostile

ACCEPT = "application/json, text/event-stream"
MODERN = "2026-07-28"
VERSIONS = (*("", "2025-11-25", MODERN) * 5, "2025-03-26", "2024-11-05", "2099-01-01", "x" * 300, "\xff")
METHODS = (
    *("tools/call",) * 20,
    *("tools/list", "resources/list", "resources/read", "resources/templates/list", "initialize", "ping"),
    *("server/discover", "subscriptions/listen", "notifications/initialized", "notifications/cancelled"),
    *("notifications/progress", "prompts/list", "completion/complete", "logging/setLevel", "tasks/get", "", "\ud800"),
)
ATTACKS = (
    "ex:a } ; DROP ALL #",
    "http://a/> ex:p 1 } ; CLEAR ALL ; INSERT DATA { <http://a",
    "' . } ; DROP ALL ; #",
    '" . } ; DROP ALL ; #',
    "'''",
    "\\",
    "\\u0027 } ; DROP ALL #",
    "x\n} ; DROP ALL",
    "?room",
    "$value",
    "_:b0",
    "<http://a>",
    "1 } ; DROP ALL #",
    "1e400",
    "true . ?s ?p ?o",
    "\ud800",
    "\x00",
    "💡",
    "'^^<http://a> } ; DROP ALL #",
    "@en } ; DROP ALL #",
    "http://a/{b}",
    "ex:\u202e",
    "VALUES ?x { UNDEF }",
)
"""Texts that would do something if one of them came out of its place."""
_KEYS = ("io.modelcontextprotocol/protocolVersion", "io.modelcontextprotocol/clientCapabilities")
_OPERATIONS = {**APPLICATION["queries"], **APPLICATION["updates"]}


class HostileCalls:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._hostile = Hostile(seed)

    def request(self) -> bytes:
        """An HTTP request that is framed well."""
        random = self.random
        version = random.choice(VERSIONS)
        message = self._message(version)
        body = self._body(message)
        headers = ["POST /mcp HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        types = ("text/plain", "application/json; charset=x", "") if random.random() < 0.05 else ("application/json",)
        accepted = ("text/html", "", "text/event-stream") if random.random() < 0.05 else (ACCEPT,)
        headers += [f"Content-Type: {random.choice(types)}", f"Accept: {random.choice(accepted)}"]
        if version:
            headers.append(f"MCP-Protocol-Version: {version}")
        method, params = message.get("method"), message.get("params")
        name = params.get("name", params.get("uri")) if isinstance(params, dict) else None
        for header, value in (("Mcp-Method", method), ("Mcp-Name", name)):
            if random.random() < 0.9 and isinstance(value, str):
                headers.append(f"{header}: {ascii(value)[1:-1]}")
        if random.random() < 0.1:
            headers.append(
                random.choice(
                    ("Mcp-Session-Id: x", "Last-Event-ID: 1", "Mcp-Method: tools/call", "Mcp-Param-x: =?base64?!?=")
                )
            )
        return "\r\n".join([*headers, "", ""]).encode("latin-1", "replace") + body

    def _message(self, version: str) -> dict[str, Any]:
        random = self.random
        method = random.choice(METHODS)
        ids = ("\ud800", 10**30, 1.5, None, [], "x" * 999) if random.random() < 0.1 else (1, 0, -5, "a")
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": random.choice(ids)}
        message["method"] = method if random.random() < 0.95 else self._hostile.value()
        message["params"] = self._params(method)
        if isinstance(message["params"], dict) and version == MODERN and random.random() < 0.95:
            message["params"]["_meta"] = {_KEYS[0]: MODERN, _KEYS[1]: {}}
        for name in list(message):
            if random.random() < 0.03:
                del message[name]
            elif random.random() < 0.02:
                message[name] = self._hostile.value()
        if random.random() < 0.05:
            message[random.choice(("result", "error", "odd"))] = self._hostile.value()
        return message

    def _params(self, method: str) -> Any:
        random = self.random
        if random.random() < 0.05:
            return self._hostile.value()
        if method == "tools/call":
            operation = random.choice([*_OPERATIONS, "NONE", "\ud800"])
            name = f"house-{operation}" if random.random() < 0.85 else "sparql-query"
            return {"name": name, "arguments": self._arguments(operation, name)}
        if method == "resources/read":
            return {"uri": random.choice((EX + "kitchen", "lamplighter:applications", "file:///etc/passwd", *ATTACKS))}
        if method == "initialize":
            return {
                "protocolVersion": random.choice(VERSIONS),
                "capabilities": self._hostile.value(),
                "clientInfo": random.choice(({"name": "x", "version": "1"}, self._hostile.value())),
            }
        return {random.choice(("cursor", "level", "ref", "requestId", "notifications")): self._hostile.value()}

    def _arguments(self, operation: str, tool: str) -> Any:
        random = self.random
        if random.random() < 0.03:
            return self._hostile.value()
        if tool == "sparql-query":
            return {"query": self._hostile.sparql(random.choice(("query", "query", "update")))}
        declared = _OPERATIONS.get(operation, {}).get("forcedBindings", {})
        found: dict[str, Any] = {}
        for name in declared:
            found[name] = random.choice(
                (random.choice(ATTACKS), "ex:attic", 20.5, 7, True, 1e308, self._hostile.value())
            )
        if random.random() < 0.1:
            found[random.choice(("request_id", "odd", "\ud800", ""))] = random.choice(("r1", *ATTACKS))
        return found

    def _body(self, message: Any) -> bytes:
        random = self.random
        choice = random.random()
        if choice < 0.03:
            message = [message] * random.randrange(4)  # a batch
        text = json.dumps(message, ensure_ascii=random.random() < 0.5)
        if choice > 0.98:
            depth = random.choice((100, 5_000, 60_000))
            text = random.choice(("[" * depth, '{"a":' * depth, f'{{"id":{"9" * depth}}}', "[" * depth + "]" * depth))
        body = text.encode(errors="surrogatepass")
        if 0.9 < choice < 0.95:
            body = body[: random.randrange(len(body) + 1)]
        elif 0.95 < choice < 0.98:
            body = bytes(random.randrange(256) for _ in range(random.randrange(200)))
        return body
