"""Requests have the permissions of their caller, as those of the query path have."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.secure_gateway import SecureGateway
from tests.support.small_house import SMALL_HOUSE

FIRST = "http://lamplighter.local/stream/2/2026-11-26T10:00:00.000000Z/0"
ROOT = "/secure/v1.1"


def test_a_client_sees_and_changes_permitted_graphs_only(tmp_path: Path) -> None:
    with SecureGateway(tmp_path, {"sensorthings": {"enabled": True}}) as gateway:
        body = SMALL_HOUSE.encode()
        writer = {"Authorization": gateway.bearer("writer", gateway.client("writer", write=["*"], read=["*"]))}
        made = gateway.https("POST", "/secure/update", body, writer | {"Content-Type": "application/sparql-update"})
        assert made.status == 200, made.body

        def listed(bearer: dict[str, str], target: str) -> list[str]:
            answer = gateway.https("GET", ROOT + target, b"", bearer)
            assert answer.status == 200, answer.body
            return [one["@iot.id"] for one in answer.json["value"]]

        one = {"Authorization": gateway.bearer("one", gateway.client("one", read=["default", FIRST]))}
        assert listed(writer, "/Observations") == ["observation~1", "observation~2~first", "observation~2~second"]
        assert listed(one, "/Observations") == ["observation~1", "observation~2~first"]
        assert listed(one, "/Datastreams('stream~2')/Observations") == ["observation~2~first"]
        assert gateway.https("GET", f"{ROOT}/Observations('observation~2~second')", b"", one).status == 404

        nothing = {"Authorization": gateway.bearer("nothing", gateway.client("nothing", read=[FIRST]))}
        assert listed(nothing, "/Things") == []
        assert gateway.https("GET", f"{ROOT}/Things").status == 401

        body = json.dumps({"result": 1}).encode()
        refused = gateway.https("POST", f"{ROOT}/Datastreams('stream~1')/Observations", body, one)
        assert (refused.status, refused.json["error"]) == (403, "forbidden")
        assert gateway.https("POST", f"{ROOT}/Datastreams('stream~1')/Observations", body, writer).status == 201
