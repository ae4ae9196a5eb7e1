"""Requests have the permissions of their caller, as those of the query path have."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.secure_gateway import SecureGateway
from tests.support.small_house import SMALL_HOUSE

GRAPH = "http://lamplighter.local/ngsi-ld"
ROOT = "/secure/ngsi-ld/v1"


def test_a_client_sees_and_changes_permitted_graphs_only(tmp_path: Path) -> None:
    with SecureGateway(tmp_path, {"ngsild": {"enabled": True}}) as gateway:

        def bearer(name: str, **rights: list[str]) -> dict[str, str]:
            return {"Authorization": gateway.bearer(name, gateway.client(name, **rights))}

        writer = bearer("writer", write=["*"], read=["*"])
        sparql = writer | {"Content-Type": "application/sparql-update"}
        assert gateway.https("POST", "/secure/update", SMALL_HOUSE.encode(), sparql).status == 200
        body, json_type = (
            json.dumps({"id": "urn:x:1", "type": "T", "a": 1}).encode(),
            {"Content-Type": "application/json"},
        )
        assert gateway.https("POST", f"{ROOT}/entities", body, writer | json_type).status == 201

        def listed(client: dict[str, str]) -> list[str]:
            answer = gateway.https("GET", f"{ROOT}/entities?local=true", b"", client)
            assert answer.status == 200, answer.body
            return [one["id"].removeprefix("http://lamplighter.local/") for one in answer.json]

        assert listed(writer) == ["stream/1", "stream/2", "urn:x:1"]
        kept, streams = bearer("kept", read=[GRAPH]), bearer("streams", read=["default"], write=[GRAPH])
        assert listed(kept) == ["urn:x:1"] and listed(streams) == ["stream/1", "stream/2"]
        assert gateway.https("GET", f"{ROOT}/entities/urn:x:1", b"", streams).status == 404
        for client in (kept, streams):  # who may not write; who may not be told what exists
            for method, path, sent in (
                ("POST", "/entities", body.replace(b"x:1", b"x:2")),
                ("DELETE", "/entities/urn:x:1", b""),
                ("PATCH", "/entities/urn:x:1/attrs", b'{"a": 2}'),
                ("DELETE", "/entities/urn:x:1/attrs/a", b""),
            ):
                refused = gateway.https(method, ROOT + path, sent, client | json_type)
                assert (refused.status, refused.json["error"]) == (403, "forbidden")
        assert gateway.https("GET", f"{ROOT}/entities?local=true").status == 401
        assert gateway.https("GET", f"{ROOT}/entities/urn:x:1?options=keyValues", b"", writer).json["a"] == 1
