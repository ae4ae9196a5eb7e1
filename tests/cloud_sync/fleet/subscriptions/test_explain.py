"""The planner, and `lamplighter-fleet explain`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lamplighter.cloud_sync.fleet.__main__ import main
from lamplighter.cloud_sync.fleet.subscriptions.planner import plan
from lamplighter.cloud_sync.fleet.subscriptions.records import SubscriptionRecord

NOW = datetime(2026, 7, 1, tzinfo=UTC)
HOT = "SELECT ?x { ?x <urn:value> ?value FILTER(?value > 30) }"


def _record(query: str = HOT, **members: Any) -> SubscriptionRecord:
    return SubscriptionRecord(id="hot", query=query, created=NOW, changed=NOW, **members)


def test_gateways_are_those_that_the_subscription_names_and_only_confirmed_ones_count() -> None:
    found = plan(_record(gateways=("gw-[12]",)), ["gw-1", "gw-2", "gw-3"], {"gw-1": "", "gw-3": ""})
    assert found.pushed is not None
    assert [one.gateway for one in found.gateways if not one.reason] == ["gw-1"]
    assert [one.gateway for one in found.gateways if "not been told" in one.reason] == ["gw-2"]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (_record(begin="all"), "begin = all"),
        (_record(state="paused"), "it is paused"),
        (_record("SELECT * { ?x <urn:a> ?y . ?x <urn:b> ?z }"), "2 triple patterns"),
        (_record("ASK { ?x ?p ?y }"), "without a predicate"),
        (_record(f'ASK {{ ?x <urn:p> "{"ä" * 16_000}" }}'), ""),
    ],
)
def test_a_reason_is_told_for_what_stays_on_spark(record: SubscriptionRecord, reason: str) -> None:
    found = plan(record, ["gw-1"], {"gw-1": ""})
    assert (found.pushed is None) == bool(reason)
    assert reason in " ".join(found.reasons)


def test_completion_is_a_reason_for_patterns_of_a_description() -> None:
    sensor = "<http://www.w3.org/ns/sosa/madeBySensor>"
    found = plan(_record(f"ASK {{ ?x {sensor} <urn:s> ; <urn:value> ?y }}"), [], {})
    assert f"has {sensor}" in found.reasons[-1]
    assert plan(_record(f"ASK {{ ?x {sensor} <urn:s> }}"), [], {}).reasons == ()


@pytest.fixture
def lake(tmp_path: Path) -> str:
    (tmp_path / "segments" / "gw-1").mkdir(parents=True)
    both = "SELECT * { { ?x <urn:a> ?y ; <urn:b> <urn:c> } UNION { ?x <urn:d> ?y } }"
    assert main(["subscriptions", "add", str(tmp_path), "hot", "--query", HOT]) == 0
    assert main(["subscriptions", "add", str(tmp_path), "both", "--query", both]) == 0
    return str(tmp_path)


def test_all_are_explained_and_a_broken_one_hides_none(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    record = Path(lake) / "subscriptions" / "records" / "old.json"
    record.write_text((record.parent / "hot.json").read_text().replace('"hot"', '"old"').replace("SELECT", "DESCRIBE"))
    (record.parent / "no.json").write_text("{")
    capsys.readouterr()
    assert main(["explain", lake]) == 1
    out, err = capsys.readouterr()
    assert "subscription both, version 1: on Spark\n" in out
    assert "subscription hot, version 1: on Spark so far\n" in out
    assert "gw-1: it has not been told" in out
    assert "predicate and object <urn:b> <urn:c>; compared: 1 predicate\n" in out
    assert "old" in err
    assert "no.json" in err


def test_json_and_a_query_that_is_not_registered(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["explain", lake, "hot", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["subscription"], found["reasons"]) == ("hot", [])
    assert found["gateways"].keys() == {"gw-1"}
    assert main(["explain", lake, "--query", "ASK { ?x <urn:p> ?y OPTIONAL { ?y <urn:q> ?z } }"]) == 0
    assert "OPTIONAL" in capsys.readouterr().out
    assert main(["explain", lake, "--query", "ASK {"]) == 2
    assert main(["explain", lake, "none"]) == 2
