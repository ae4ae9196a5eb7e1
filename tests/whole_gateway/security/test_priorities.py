"""Which classes of requests a client may use, over every gate."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.commands import command
from tests.support.running_gateway import Answer
from tests.support.secure_gateway import SecureGateway, ask

GRAPHS = {"read": ["*"], "write": ["*"], "subscribe": ["*"]}
INSERT = "INSERT DATA { <urn:s> <urn:p> 1 }"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureGateway]:
    with SecureGateway(tmp_path_factory.mktemp("secure")) as running:
        yield running


def update(gateway: SecureGateway, bearer: str, priority: str | None) -> Answer:
    target = "/secure/update" if priority is None else f"/secure/update?priority={priority}"
    headers = {"Content-Type": "application/sparql-update", "Authorization": bearer}
    return gateway.https("POST", target, INSERT, headers)


def counts(gateway: SecureGateway) -> dict[str, int]:
    found = gateway.local("GET", "/figures").json["updates"]["processing_by_class_ms"]
    return {name: told["count"] for name, told in found.items()}


def test_a_client_may_use_normal_and_bulk_until_the_operator_permits_more(gateway: SecureGateway) -> None:
    bearer = gateway.bearer("smoke detector", gateway.client("smoke detector", **GRAPHS))
    assert [update(gateway, bearer, one).status for one in (None, "normal", "bulk")] == [200, 200, 200]
    for one in ("alarm", "control"):
        refused = update(gateway, bearer, one)
        assert (refused.status, refused.json["error"]) == (403, "forbidden")
        cure = f"lamplighter clients permit 'smoke detector' --priority {one}"
        assert cure in refused.json["error_description"]
    with gateway.websocket() as socket:
        for kind in ("update", "subscribe", "query"):
            text = INSERT if kind == "update" else "SELECT * { ?s ?p ?o }"
            members = {"sparql": text, "alias": kind, "priority": "alarm", "authorization": bearer}
            answer = ask(socket, {kind: members})
            assert (answer["error"], answer["status_code"], answer["alias"]) == ("forbidden", 403, kind)
    for_graph = gateway.https(
        "PUT", "/graphs?default&priority=alarm", "", {"Content-Type": "text/turtle", "Authorization": bearer}
    )
    assert for_graph.status == 403
    events = gateway.https("GET", "/subscribe?query=ASK+%7B%7D&priority=alarm", "", {"Authorization": bearer})
    assert (events.status, events.json["error"]) == (403, "forbidden")

    before = counts(gateway)
    done = command("clients", "permit", "smoke detector", "--priority", "alarm", "--config", gateway.toml)
    assert done.returncode == 0, done.stderr
    assert [update(gateway, bearer, one).status for one in ("alarm", "control", None)] == [200, 200, 200]
    after = counts(gateway)
    assert {name: after[name] - before[name] for name in after} == {"alarm": 1, "control": 1, "normal": 1, "bulk": 0}


def test_requests_of_a_client_for_bulk_have_that_class(gateway: SecureGateway) -> None:
    bearer = gateway.bearer("archive", gateway.client("archive", **GRAPHS, priority="bulk"))
    before = counts(gateway)
    assert [update(gateway, bearer, one).status for one in (None, "bulk", "normal")] == [200, 200, 403]
    assert counts(gateway)["bulk"] == before["bulk"] + 2


def test_permissions_are_kept_and_listed_with_the_class(gateway: SecureGateway) -> None:
    gateway.client("siren", **GRAPHS, priority="control")
    done = command("clients", "permit", "siren", "--read", "none", "--config", gateway.toml)
    assert done.returncode == 0, done.stderr
    listed = {one["name"]: one for one in gateway.local("GET", "/clients").json["clients"]}
    assert (listed["siren"]["priority"], listed["siren"]["read"]) == ("control", [])
    kept = json.loads((gateway.data / "security" / "clients.json").read_text())["clients"]
    assert [one["permissions"]["priority"] for one in kept if one["name"] == "siren"] == ["control"]
    table = command("clients", "list", "--config", gateway.toml).stdout.splitlines()
    assert table[0].split()[-1] == "PRIORITY"
    assert [line.split()[-1] for line in table if line.startswith("siren")] == ["control"]
    wrong = json.dumps({"name": "x", "how": "list", "permissions": {"priority": "urgent"}})
    assert gateway.local("POST", "/clients", wrong).status == 400
